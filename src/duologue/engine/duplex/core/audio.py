"""The input audio ledger: every sample that was accepted, by position, until it is submitted or discarded.

Positions are samples at the model's rate since the session began; they never restart, so that every reported time lies on
one clock. Rule kept here: ``received == consumed + discarded + buffered``, in bytes, always.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class AudioLedger:
    """PCM16 in order. ``floor`` is the position before which audio was committed, cleared or discarded."""

    rate_hz: int
    end: int = 0
    floor: int = 0
    chunks: deque[tuple[int, bytes]] = field(default_factory=deque)
    received_bytes: int = 0
    consumed_bytes: int = 0
    discarded_bytes: int = 0

    @property
    def buffered_bytes(self) -> int:
        """Bytes held now."""
        return (self.end - self.floor) * 2

    def ms(self, position: int) -> int:
        """Milliseconds from the start of the session."""
        return position * 1000 // self.rate_hz

    def samples(self, duration_ms: int) -> int:
        """Samples in ``duration_ms``."""
        return duration_ms * self.rate_hz // 1000

    def append(self, pcm: bytes) -> None:
        """Accept whole samples."""
        if pcm:
            size = len(pcm)
            self.chunks.append((self.end, pcm))
            self.end += size // 2
            self.received_bytes += size

    def copy(self, start: int, stop: int) -> bytes:
        """The samples in ``[start, stop)``; both must lie in ``[floor, end]``."""
        parts: list[bytes] = []
        for begin, pcm in reversed(self.chunks):  # what is wanted is nearly always at the end
            finish = begin + len(pcm) // 2
            if finish <= start:
                break
            if begin >= stop:
                continue
            low = max(0, start - begin) * 2
            high = (min(stop, finish) - begin) * 2
            parts.append(pcm if low == 0 and high == len(pcm) else pcm[low:high])
        parts.reverse()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def since(self, start: int) -> bytes:
        """The samples in ``[start, end)``, of which there are some."""
        begin, pcm = self.chunks[-1]
        return pcm if begin == start else self.copy(start, self.end)

    def take(self, start: int) -> bytes:
        """The samples in ``[start, end)``, of which there are some: with them everything has been handed on."""
        fresh = self.since(start)
        self.consumed_bytes += (self.end - self.floor) * 2
        self.floor = self.end
        self.chunks.clear()
        return fresh

    def consume_to(self, position: int) -> None:
        """Everything before ``position`` has been handed on."""
        self.consumed_bytes += self._drop_to(position)

    def discard_to(self, position: int) -> None:
        """Everything before ``position`` is not wanted."""
        self.discarded_bytes += self._drop_to(position)

    def _drop_to(self, position: int) -> int:
        chunks = self.chunks
        if position >= self.end:
            position = self.end
            chunks.clear()
        if position <= self.floor:
            return 0
        dropped = (position - self.floor) * 2
        self.floor = position
        while chunks:
            begin, pcm = chunks[0]
            finish = begin + len(pcm) // 2
            if finish > position:
                if begin < position:
                    # Cut the chunk, so that a long append does not stay alive for its last samples.
                    chunks[0] = (position, pcm[(position - begin) * 2 :])
                break
            chunks.popleft()
        return dropped
