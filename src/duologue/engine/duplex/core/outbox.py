"""The outbox: what the session has to say and the client has not been given yet.

Rules kept here: audio leaves at most ``send_ahead_ms`` before it is played, in slices; what must follow it on the wire
waits behind it; everything else leaves at once. What left and was not yet taken by the socket is counted, bounded, and
can still be withdrawn.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class AudioEntry:
    """Audio of one response that waits for its time. ``offset`` bytes of it have left."""

    response_id: str
    audio: bytes
    rate_hz: int
    text: str
    offset: int = 0

    @property
    def rest_ms(self) -> float:
        return (len(self.audio) - self.offset) * 500.0 / self.rate_hz

    @property
    def words(self) -> str:
        """The text that leaves with the next slice: all of it with the first."""
        return self.text if self.offset == 0 else ""


@dataclass(slots=True)
class DoneEntry:
    """The end of a response's content: its terminal leaves when it reaches the head."""

    response_id: str


@dataclass(slots=True, frozen=True)
class Released:
    """One event that left and is not yet taken.

    ``audio_ms`` lies on the conversation's playback line, ``beside_ms`` is the sound of a response outside the conversation.
    """

    number: int
    size_bytes: int
    audio_ms: float
    response_id: str | None
    beside_ms: float = 0.0


Entry = AudioEntry | DoneEntry


@dataclass(slots=True)
class Outbox:
    """``queue`` waits for time, ``released`` for the socket."""

    queue: deque[Entry] = field(default_factory=deque)
    backlog_ms: float = 0.0
    released: deque[Released] = field(default_factory=deque)
    released_bytes: int = 0
    numbers: int = 0
    held: bool = False

    def push(self, entry: Entry) -> None:
        self.queue.append(entry)
        if isinstance(entry, AudioEntry):
            self.backlog_ms += entry.rest_ms

    def remove(self, response_id: str) -> None:
        """Drop what waits of one response."""
        self.queue = deque(entry for entry in self.queue if entry.response_id != response_id)
        self.backlog_ms = sum(entry.rest_ms for entry in self.queue if isinstance(entry, AudioEntry))

    def slice_bytes(self, entry: AudioEntry, size_ms: int) -> int:
        """How much :meth:`slice` takes."""
        return min(max(1, entry.rate_hz * size_ms // 1000) * 2, len(entry.audio) - entry.offset)

    def slice(self, entry: AudioEntry, size_ms: int) -> tuple[bytes, float, str]:
        """Take at most ``size_ms`` from the head ``entry``; returns audio, its duration and the text that begins with it."""
        piece = entry.audio[entry.offset : entry.offset + self.slice_bytes(entry, size_ms)]
        text = entry.words
        entry.offset += len(piece)
        duration_ms = len(piece) * 500.0 / entry.rate_hz
        self.backlog_ms -= duration_ms
        if entry.offset >= len(entry.audio):
            self.queue.popleft()
            if not self.queue:
                self.backlog_ms = 0.0
        return piece, duration_ms, text

    def release(self, size_bytes: int, audio_ms: float, response_id: str | None, beside_ms: float = 0.0) -> int:
        """Account one event that leaves; returns its number."""
        self.numbers += 1
        self.released.append(Released(self.numbers, size_bytes, audio_ms, response_id, beside_ms))
        self.released_bytes += size_bytes
        return self.numbers

    def take(self, number: int) -> float:
        """Everything up to ``number`` reached the socket; returns the milliseconds of audio among it."""
        audio_ms = 0.0
        released = self.released
        while released and released[0].number <= number:
            entry = released.popleft()
            self.released_bytes -= entry.size_bytes
            audio_ms += entry.audio_ms
        return audio_ms

    def withdraw(self, response_id: str) -> float | None:
        """Untaken content of a response is void; returns the milliseconds of audio in it, ``None`` if there is none."""
        withdrawn = [entry for entry in self.released if entry.response_id == response_id]
        if not withdrawn:
            return None
        self.released = deque(entry for entry in self.released if entry.response_id != response_id)
        self.released_bytes -= sum(entry.size_bytes for entry in withdrawn)
        return sum(entry.audio_ms + entry.beside_ms for entry in withdrawn)
