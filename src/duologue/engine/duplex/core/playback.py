"""The estimated playback clock: how much of what was handed over the client has played.

Rules kept here: the clock runs in real time from the first audio handed over, never past what was handed over; an
acknowledgement corrects it and it runs on from there; a truncation overrides it; while nobody is attached it stands still.
All responses of a session lie on one line of milliseconds; a response knows where it begins on it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class PlaybackClock:
    """Milliseconds on the session's output line. ``released_ms`` left the pacer, ``taken_ms`` reached the socket."""

    released_ms: float = 0.0
    taken_ms: float = 0.0
    base_ms: float = 0.0
    anchor: float | None = None  # since when the clock runs; None: it stands still
    last_taken_at: float | None = None

    def position(self, now: float) -> float:
        """Where the listener is, estimated."""
        if self.anchor is None:
            return min(self.base_ms, self.taken_ms)
        return min(self.taken_ms, self.base_ms + (now - self.anchor) * 1000.0)

    def taken(self, duration_ms: float, now: float) -> None:
        """``duration_ms`` more were handed to the socket."""
        self.base_ms = self.position(now)
        self.anchor = now
        self.taken_ms += duration_ms
        self.last_taken_at = now

    def set(self, position_ms: float, now: float) -> None:
        """The client said where it is."""
        self.base_ms = min(max(0.0, position_ms), self.taken_ms)
        if self.anchor is not None:
            self.anchor = now

    def flush(self, now: float) -> None:
        """The client drops what it has not played: the line ends where the listener is."""
        self.base_ms = self.released_ms = self.taken_ms
        self.anchor = now if self.anchor is not None else None

    def stop(self, now: float) -> None:
        """Nobody listens."""
        self.base_ms = self.position(now)
        self.anchor = None

    def resume(self, now: float) -> None:
        """Somebody listens again."""
        if self.anchor is None and self.taken_ms > 0:
            self.anchor = now

    def playing(self, now: float) -> bool:
        """Whether audio that was let go is still unplayed."""
        return self.position(now) < self.released_ms

    def ends_at(self) -> float | None:
        """When what was let go will have been played, if no socket delays it; ``None`` while the clock stands still."""
        if self.anchor is None:
            return None
        return self.anchor + (self.released_ms - self.base_ms) / 1000.0

    def reaches_at(self, position_ms: float) -> float | None:
        """When the clock will reach ``position_ms``; ``None`` if it stands still or has to wait for more audio."""
        if self.anchor is None or position_ms > self.taken_ms:
            return None
        return self.anchor + (position_ms - self.base_ms) / 1000.0
