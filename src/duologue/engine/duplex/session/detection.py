"""Speech detection for many sessions at once, behind a port that answers by callback.

Rules kept here:

* requests of one stream are scored in the order they were made, each with the state the previous one left;
* whatever is waiting when the scorer is free goes into one call; a request is cut into slices, so that a minute of
  audio from one session delays nobody else by more than a slice;
* every request is answered exactly once, on the loop: with a verdict, or with the exception that prevented it. A closed
  stream is answered no more;
* inference never runs on the loop: speech and turn end are offloaded independently, because a turn-end verdict takes
  as long as hundreds of speech frames.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import mul
from typing import Protocol

from duologue.clock import Runtime
from duologue.detect.speech import FRAME_BYTES, Frames, Probabilities, SpeechFramer, SpeechState
from duologue.log import init_logger

logger = init_logger(__name__)

SpeechAnswer = Callable[["tuple[float, ...] | Exception"], None]
TurnAnswer = Callable[["float | Exception"], None]

SLICE_FRAMES = 32


class DetectionStream(Protocol):
    """One session's detector state."""

    def score(self, pcm: bytes, *, reset: bool, answer: SpeechAnswer) -> None:
        """Probability of speech in each 512-sample frame of ``pcm`` (16 kHz PCM16, whole frames).

        ``reset`` forgets the state first. ``answer`` may be called before this returns.
        """
        ...

    def close(self) -> None:
        """No more answers. Idempotent."""
        ...


class DetectionService(Protocol):
    """Where sessions get their verdicts from."""

    def open_stream(self) -> DetectionStream:
        """Fresh state for a session."""
        ...

    def classify_turn(self, pcm: bytes, answer: TurnAnswer) -> None:
        """Probability that the turn in ``pcm`` (16 kHz PCM16) is complete. ``answer`` may be called at once."""
        ...


class BatchScorer(Protocol):
    """The part of ``duologue.detect.SpeechScorer`` that is used here. Called from one thread at a time."""

    def score(self, batch: Sequence[tuple[SpeechState, Frames]]) -> list[Probabilities]: ...


class TurnJudge(Protocol):
    """The part of ``duologue.detect.TurnEndClassifier`` that is used here. Called from one thread at a time."""

    def probability(self, pcm16: bytes) -> float: ...


@dataclass(slots=True, eq=False)
class _SpeechRequest:
    stream: _BatchedStream
    frames: Frames
    reset: bool
    answer: SpeechAnswer
    done: int = 0
    scores: tuple[float, ...] = ()

    def next_slice(self) -> Frames:
        return self.frames[self.done : self.done + SLICE_FRAMES]


class _BatchedStream:
    """A session's place in the batch."""

    __slots__ = ("_service", "closed", "state")

    def __init__(self, service: BatchedDetection) -> None:
        self._service = service
        self.state = SpeechState()
        self.closed = False

    def score(self, pcm: bytes, *, reset: bool, answer: SpeechAnswer) -> None:
        self._service.request_speech(_SpeechRequest(self, SpeechFramer().push(pcm), reset, answer))

    def close(self) -> None:
        self.closed = True


class BatchedDetection:
    """One scorer and one turn judge for all sessions of a process, each in a thread of its own."""

    def __init__(self, runtime: Runtime, scorer: BatchScorer, judge: TurnJudge | None = None) -> None:
        self._runtime = runtime
        self._scorer = scorer
        self._judge = judge
        self._waiting: deque[_SpeechRequest] = deque()
        self._scoring = False
        self._turns: deque[tuple[bytes, TurnAnswer]] = deque()
        self._judging = False
        self.calls = 0
        self.frames = 0

    def open_stream(self) -> DetectionStream:
        return _BatchedStream(self)

    def request_speech(self, request: _SpeechRequest) -> None:
        """Queue one request; the batch starts at the end of this loop turn, so that it holds all that arrived in it."""
        self._waiting.append(request)
        if not self._scoring:
            self._scoring = True
            self._runtime.spawn(self._score_all(), name="detect-speech")

    def classify_turn(self, pcm: bytes, answer: TurnAnswer) -> None:
        if self._judge is None:
            answer(RuntimeError("no turn-end classifier is configured"))
            return
        self._turns.append((pcm, answer))
        if not self._judging:
            self._judging = True
            self._runtime.spawn(self._judge_all(), name="detect-turn-end")

    async def _score_all(self) -> None:
        try:
            while batch := self._take_batch():
                slices = [(request.stream.state, request.next_slice()) for request in batch]
                self.calls += 1
                self.frames += sum(len(frames) for _, frames in slices)
                try:
                    scores = await self._runtime.offload(self._scorer.score, slices)
                except Exception as exc:
                    logger.exception("Speech detection failed for %d sessions", len(batch))
                    self._fail_batch(batch, exc)
                else:
                    self._answer_batch(batch, scores)
        finally:
            self._scoring = False

    def _take_batch(self) -> list[_SpeechRequest]:
        """The first waiting request of each stream that is open."""
        batch: list[_SpeechRequest] = []
        later: deque[_SpeechRequest] = deque()
        seen: set[int] = set()
        while self._waiting:
            request = self._waiting.popleft()
            if request.stream.closed:
                continue
            if id(request.stream) in seen:
                later.append(request)
                continue
            seen.add(id(request.stream))
            if request.reset and request.done == 0:
                request.stream.state.reset()
            batch.append(request)
        self._waiting = later
        return batch

    def _answer_batch(self, batch: list[_SpeechRequest], scores: list[Probabilities]) -> None:
        unfinished: list[_SpeechRequest] = []
        for request, part in zip(batch, scores, strict=True):
            request.scores += tuple(part.tolist())
            request.done += len(part)
            if request.stream.closed:
                continue
            if request.done < len(request.frames):
                unfinished.append(request)
            else:
                request.answer(request.scores)
        # The rest of a long request goes before younger requests of its own stream.
        self._waiting.extendleft(reversed(unfinished))

    @staticmethod
    def _fail_batch(batch: list[_SpeechRequest], exc: Exception) -> None:
        for request in batch:
            # What the model remembers may be half moved on.
            request.stream.state.reset()
            if not request.stream.closed:
                request.answer(exc)

    async def _judge_all(self) -> None:
        judge = self._judge
        assert judge is not None
        try:
            while self._turns:
                pcm, answer = self._turns.popleft()
                try:
                    verdict: float | Exception = await self._runtime.offload(judge.probability, pcm)
                except Exception as exc:
                    logger.exception("Turn-end detection failed")
                    verdict = exc
                answer(verdict)
        finally:
            self._judging = False


LOUD_RMS = 0.02


class _ScriptedStream:
    __slots__ = ("_service", "closed")

    def __init__(self, service: ScriptedDetection) -> None:
        self._service = service
        self.closed = False

    def score(self, pcm: bytes, *, reset: bool, answer: SpeechAnswer) -> None:
        del reset
        if not self.closed:
            answer(self._service.verdict(pcm))

    def close(self) -> None:
        self.closed = True


class ScriptedDetection:
    """Deterministic, inline and without weights: loud is speech, quiet is not. For tests and the simulator.

    ``turn_end`` is the verdict on every turn. ``fail_after`` speech requests each further one fails (``None``: never).
    """

    def __init__(self, *, turn_end: float = 1.0, fail_after: int | None = None) -> None:
        self.turn_end = turn_end
        self.fail_after = fail_after
        self.requests = 0

    def open_stream(self) -> DetectionStream:
        return _ScriptedStream(self)

    def classify_turn(self, pcm: bytes, answer: TurnAnswer) -> None:
        del pcm
        answer(self.turn_end)

    def verdict(self, pcm: bytes) -> tuple[float, ...] | Exception:
        """What the detector says of ``pcm``."""
        self.requests += 1
        if self.fail_after is not None and self.requests > self.fail_after:
            return RuntimeError("the scripted detector was told to fail")
        return tuple(
            loudness_probability(pcm[start : start + FRAME_BYTES]) for start in range(0, len(pcm), FRAME_BYTES)
        )


def loudness_probability(pcm: bytes) -> float:
    """0.95 if the RMS of ``pcm`` (PCM16, at least one sample) is above ``LOUD_RMS`` of full scale, else 0.05."""
    samples = array("h", pcm[: len(pcm) & ~1])[::8]
    if not samples:
        return 0.05
    rms = math.sqrt(sum(map(mul, samples, samples)) / len(samples)) / 32768
    return 0.95 if rms > LOUD_RMS else 0.05
