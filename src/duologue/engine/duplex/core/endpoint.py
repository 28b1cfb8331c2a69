"""Where speech begins and ends: probabilities of 32 ms frames in, edges out.

Rules kept here: edges depend on the sequence of probabilities alone; confirmed speech resets the silence clock; a score
between the two thresholds lets it run but cannot end anything; an onset that is still being confirmed delays an end;
a score that is not a number counts as silence.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from duologue.config.session import EAGERNESS, ServerVad, TurnDetection

FRAME_SAMPLES = 512  # at 16 kHz
FRAME_MS = 32


class EdgeKind(enum.Enum):
    ONSET = "onset"  # speech is confirmed; it began at frame `at`
    PAUSE = "pause"  # the first quiet frame after speech: what follows may be prepared; `at` is the frame after it
    CANDIDATE = "candidate"  # a pause that may be the end of the turn; `at` is the frame after it
    RESUMED = "resumed"  # speech is confirmed again after a candidate
    STOP = "stop"  # silence was long enough


@dataclass(slots=True, frozen=True)
class Edge:
    """``at`` counts frames from the start of the session; ``silence_ms`` is the pause so far."""

    kind: EdgeKind
    at: int
    silence_ms: int = 0


def _frames(duration_ms: int) -> int:
    return max(1, -(-duration_ms // FRAME_MS))


@dataclass(slots=True)
class Endpointer:
    """One session's detector state. ``position`` is the number of frames consumed."""

    detection: TurnDetection
    position: int = 0
    speaking: bool = False
    run_start: int = 0
    run: int = 0
    silence: int = 0
    candidate: bool = False
    next_candidate: int = 0
    idle: int = 0  # frames without speech since nobody speaks

    @property
    def release(self) -> float:
        return max(self.detection.threshold - 0.15, 0.01)

    @property
    def max_silence_ms(self) -> int:
        """The pause that ends a turn whatever it means."""
        detection = self.detection
        if isinstance(detection, ServerVad):
            return detection.silence_duration_ms
        return EAGERNESS[detection.eagerness].max_silence_ms

    def completion(self, silence_ms: int) -> float:
        """From which probability a pause of ``silence_ms`` ends the turn: falls to 0 as the pause nears the maximum."""
        detection = self.detection
        if isinstance(detection, ServerVad):
            return 0.0
        bounds = EAGERNESS[detection.eagerness]
        return bounds.completion * max(0.0, 1.0 - silence_ms / bounds.max_silence_ms)

    def feed(self, probability: float) -> Edge | None:
        """Consume one frame."""
        at = self.position
        self.position += 1
        voiced = probability >= self.detection.threshold
        quiet = not voiced and not probability >= self.release  # so that NaN is quiet
        if not self.speaking:
            return self._feed_idle(at, voiced, quiet)
        return self._feed_speaking(at, voiced, quiet)

    def _feed_idle(self, at: int, voiced: bool, quiet: bool) -> Edge | None:
        self.idle = 0 if voiced else self.idle + 1
        if voiced:
            if self.run == 0:
                self.run_start = at
            self.run += 1
            if self.run >= _frames(self.detection.min_speech_ms):
                self.speaking = True
                self.run = self.silence = 0
                self.candidate = False
                return Edge(EdgeKind.ONSET, self.run_start)
        elif quiet:
            self.run = 0
        return None

    def _feed_speaking(self, at: int, voiced: bool, quiet: bool) -> Edge | None:
        if voiced:
            return self._feed_voice(at)
        if self.silence or quiet:
            self.silence += 1
        if not quiet:
            return None
        self.run = 0
        silence_ms = self.silence * FRAME_MS
        if self.silence >= _frames(self.max_silence_ms):
            self.reset_speech()
            return Edge(EdgeKind.STOP, at + 1, silence_ms)
        if self._is_candidate():
            # A pause that was judged incomplete is judged again each time it has doubled.
            self.candidate = True
            self.next_candidate = self.silence * 2
            return Edge(EdgeKind.CANDIDATE, at + 1, silence_ms)
        return Edge(EdgeKind.PAUSE, at + 1, silence_ms) if self.silence == 1 else None

    def _is_candidate(self) -> bool:
        detection = self.detection
        if isinstance(detection, ServerVad):
            return False
        return self.silence >= (self.next_candidate if self.candidate else _frames(detection.candidate_ms))

    def _feed_voice(self, at: int) -> Edge | None:
        if not self.candidate:
            self.silence = self.run = 0
            return None
        # After a candidate one loud frame is not yet speech: it must last as long as an onset.
        if self.run == 0:
            self.run_start = at
        self.run += 1
        if self.run < _frames(self.detection.min_speech_ms):
            return None
        self.candidate = False
        self.silence = self.run = 0
        return Edge(EdgeKind.RESUMED, self.run_start)

    def reset_speech(self) -> None:
        """Nobody speaks: the next voiced frame starts an onset. The position runs on."""
        self.speaking = self.candidate = False
        self.run = self.silence = self.idle = 0
