"""The user's loudspeaker: plays answers in real time as a stock client does, and keeps what was really played.

Rules kept here: the arithmetic is the tracker's; what was stopped is not in the recording, not one sample of it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from duologue.client.playback import Heard, PlaybackTracker


class _Chunk(msgspec.Struct, frozen=True):
    response_id: str
    start_s: float
    pcm16: bytes


class Player:
    """Plays PCM16 at `rate_hz` on the clock `now` (seconds)."""

    def __init__(self, *, now: Callable[[], float], rate_hz: int) -> None:
        self.rate_hz = rate_hz
        self._now = now
        self._tracker = PlaybackTracker(now=now, rate_hz=rate_hz)
        self._chunks: list[_Chunk] = []
        self._stopped_s: dict[str, float] = {}
        self.refused_ms: dict[str, float] = {}

    @property
    def underruns(self) -> int:
        """How often an answer had a hole because its audio came too late."""
        return self._tracker.underruns

    @property
    def remaining_s(self) -> float:
        return self._tracker.remaining_s

    def play(self, response_id: str, item_id: str, pcm16: bytes) -> None:
        """Audio arrived. Audio of a stopped answer is not played, only counted."""
        start_s = self._tracker.add(response_id, item_id, len(pcm16) // 2)
        if start_s is None:
            late_ms = len(pcm16) / 2 / self.rate_hz * 1000
            self.refused_ms[response_id] = self.refused_ms.get(response_id, 0.0) + late_ms
            return
        self._chunks.append(_Chunk(response_id, start_s, pcm16))

    def finish(self, response_id: str) -> None:
        """All audio of this answer is here."""
        self._tracker.finish(response_id)

    def stop(self) -> Heard | None:
        """Be silent now; returns what was cut short."""
        cut = self._tracker.stop()
        if cut is not None:
            self._stopped_s.setdefault(cut.response_id, self._now())
        return cut

    def stop_response(self, response_id: str) -> Heard | None:
        """Play no more of this answer."""
        heard = self._tracker.stop_response(response_id)
        self._stopped_s.setdefault(response_id, self._now())
        return heard

    def heard(self, response_id: str) -> Heard | None:
        return self._tracker.heard(response_id)

    def acknowledgements(self) -> list[Heard]:
        return self._tracker.acknowledgements()

    def track(self, duration_s: float) -> bytes:
        """What was heard from second 0 to `duration_s` of the clock, silence included."""
        samples = np.zeros(max(0, round(duration_s * self.rate_hz)), "<i2")
        for chunk in self._chunks:
            begin = round(chunk.start_s * self.rate_hz)
            audio = np.frombuffer(chunk.pcm16[: len(chunk.pcm16) & ~1], "<i2")
            end = begin + len(audio)
            stopped_s = self._stopped_s.get(chunk.response_id)
            if stopped_s is not None:
                end = min(end, round(stopped_s * self.rate_hz))
            end = min(end, len(samples))
            if 0 <= begin < end:
                samples[begin:end] = audio[: end - begin]
        return samples.tobytes()
