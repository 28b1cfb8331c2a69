"""Simulated detection: loud is speech. Verdicts take as long as a plan says, in order, and some fail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from duologue.clock import Runtime
from duologue.detect.speech import Frames, Probabilities, SpeechState
from duologue.engine.duplex.session.detection import BatchedDetection, SpeechAnswer, TurnAnswer
from duologue.sim.plan import Detector
from duologue.sim.tape import LOUD, loud_share
from duologue.sim.trace import Trace


class Healing(Protocol):
    """Who stops to fail when told."""

    healed: bool


class SimDetection:
    """The detection service of a deployment. Without a delay it answers inline, as the port allows."""

    def __init__(self, plan: Detector, runtime: Runtime, trace: Trace) -> None:
        self._plan = plan
        self._runtime = runtime
        self._trace = trace
        self.requests = 0
        self.judgements = 0
        self.healed = False

    def open_stream(self) -> SimStream:
        """Fresh state for a session."""
        return SimStream(self)

    def classify_turn(self, pcm: bytes, answer: TurnAnswer) -> None:
        """Judge a turn: by its length, so that the verdict needs no signal processing."""
        self.judgements += 1
        verdict: float | Exception = 0.9 if len(pcm) // 4096 % 3 else 0.2
        if self.judgements in self._plan.judge_fails and not self.healed:
            self._trace.count("detector.judge_fails")
            verdict = RuntimeError("the plan failed this judgement")
        if self._plan.delay_ms:
            self._runtime.call_at(self._runtime.now() + 3 * self._plan.delay_ms / 1000, answer, verdict)
        else:
            answer(verdict)

    def verdict(self, pcm: bytes) -> tuple[float, ...] | Exception:
        """What the detector says of some frames."""
        self.requests += 1
        if self.requests in self._plan.fails and not self.healed:
            self._trace.count("detector.fails")
            return RuntimeError("the plan failed this detection")
        return tuple([0.95 if loud else 0.05 for loud in loud_share(pcm)])

    def later(self, stream: SimStream, verdict: tuple[float, ...] | Exception, answer: SpeechAnswer) -> None:
        """Give a verdict when its time has come."""
        if not self._plan.delay_ms:
            answer(verdict)
            return
        self._runtime.call_at(self._runtime.now() + self._plan.delay_ms / 1000, stream.deliver, verdict, answer)


class SimStream:
    """One session's detector."""

    def __init__(self, service: SimDetection) -> None:
        self._service = service
        self._closed = False

    def score(self, pcm: bytes, *, reset: bool, answer: SpeechAnswer) -> None:
        """See the port."""
        del reset
        if not self._closed:
            self._service.later(self, self._service.verdict(pcm), answer)

    def deliver(self, verdict: tuple[float, ...] | Exception, answer: SpeechAnswer) -> None:
        """The verdict is ready."""
        if not self._closed:
            answer(verdict)

    def close(self) -> None:
        """No more answers."""
        self._closed = True


class Judge:
    """What the engine's own detection service asks, with the same verdicts as :class:`SimDetection`, and faults alike."""

    def __init__(self, plan: Detector) -> None:
        self._plan = plan
        self._scored = 0
        self._judged = 0
        self.healed = False

    def score(self, batch: Sequence[tuple[SpeechState, Frames]]) -> list[Probabilities]:
        """Loud is speech."""
        self._scored += 1
        if self._scored in self._plan.fails and not self.healed:
            raise RuntimeError("the plan failed this detection")
        loud = [(np.abs(frames) > LOUD / 32_768).mean(axis=1) > 0.2 for _, frames in batch]
        return [np.where(frames, 0.95, 0.05).astype(np.float32) for frames in loud]

    def probability(self, pcm16: bytes) -> float:
        """By its length."""
        self._judged += 1
        if self._judged in self._plan.judge_fails and not self.healed:
            raise RuntimeError("the plan failed this judgement")
        return 0.9 if len(pcm16) // 4096 % 3 else 0.2


def detection_of(plan: Detector, runtime: Runtime, trace: Trace) -> tuple[SimDetection | BatchedDetection, Healing]:
    """The detection service of a deployment, and what is told when faults stop."""
    if plan.batched:
        judge = Judge(plan)
        return BatchedDetection(runtime, judge, judge), judge
    service = SimDetection(plan, runtime, trace)
    return service, service
