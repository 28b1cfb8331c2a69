"""The replay journal of one resumable session: frames that a socket took and no client has acknowledged.

Rules kept here: numbers have no gaps and never go back; both bytes and age are bounded, and what is lost to a bound is
remembered as a gap, never passed over; acknowledged frames are gone.
"""

from __future__ import annotations

from collections import deque
from typing import Literal

import msgspec

GapReason = Literal["journal_gap", "journal_overflow"]


class Gap(msgspec.Struct, frozen=True):
    """Why the frames after a number cannot be given."""

    reason: GapReason


class _Entry(msgspec.Struct, frozen=True):
    number: int
    frame: bytes
    recorded_at: float


class Journal:
    """At most ``max_bytes`` of frames, none older than ``ttl_s``."""

    __slots__ = ("_bytes", "_entries", "_head", "_lost_to_bytes", "_max_bytes", "_tail", "_ttl_s", "dropped")

    def __init__(self, *, max_bytes: int, ttl_s: float) -> None:
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._entries: deque[_Entry] = deque()
        self._bytes = 0
        self._head = 0
        self._tail = 0  # the highest number that is no longer here
        self.dropped = 0  # frames that the byte bound cost
        self._lost_to_bytes = 0  # the highest number that the byte bound cost

    @property
    def head(self) -> int:
        """The number of the newest frame; 0 before the first."""
        return self._head

    @property
    def held_bytes(self) -> int:
        """Size of all frames held."""
        return self._bytes

    def record(self, frame: bytes, now: float) -> int:
        """Keep the next frame and return its number. The oldest frames make room."""
        self._head += 1
        self._entries.append(_Entry(self._head, frame, now))
        self._bytes += len(frame)
        while self._bytes > self._max_bytes:
            self._lost_to_bytes = self._drop()
            self.dropped += 1
        self._expire(now)
        return self._head

    def acknowledge(self, number: int) -> bool:
        """Forget every frame up to ``number``. False if it was never sent; older numbers are harmless."""
        if number > self._head or number < 0:
            return False
        while self._entries and self._entries[0].number <= number:
            self._drop()
        return True

    def after(self, number: int, now: float) -> list[bytes] | Gap:
        """Every frame after ``number``, or why that is impossible."""
        self._expire(now)
        if number > self._head or number < 0:
            return Gap("journal_gap")
        if number < self._tail:
            return Gap("journal_overflow" if number < self._lost_to_bytes else "journal_gap")
        return [entry.frame for entry in self._entries if entry.number > number]

    def _drop(self) -> int:
        entry = self._entries.popleft()
        self._bytes -= len(entry.frame)
        self._tail = entry.number
        return entry.number

    def _expire(self, now: float) -> None:
        while self._entries and now - self._entries[0].recorded_at > self._ttl_s:
            self._drop()
