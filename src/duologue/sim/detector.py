"""Simulated detection: loud is speech. Verdicts take as long as a plan says, in order, and some fail."""

from __future__ import annotations

from duologue.clock import Runtime
from duologue.engine.duplex.session.detection import SpeechAnswer, TurnAnswer
from duologue.sim.plan import Detector
from duologue.sim.tape import loud_share
from duologue.sim.trace import Trace


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
        return tuple(0.95 if loud else 0.05 for loud in loud_share(pcm))

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
