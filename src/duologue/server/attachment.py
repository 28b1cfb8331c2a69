"""One session's side of the server: what outlives a socket. Output on its way out, journal, token and owner.

Rules kept here:

* this is the last queue before the socket: an event becomes frames only when a socket can take them, and a frame is
  numbered and journalled when it is handed over, so a cancel removes exactly what was never sent;
* an event counts as taken when its last frame was handed over;
* the engine bounds what it releases; frames of the server's own are bounded by not reading from the client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

import msgspec

from duologue.config.session import SessionConfig
from duologue.engine.duplex import events
from duologue.engine.duplex.messages import OutputInvalidated, SessionEventMessage
from duologue.errors import ERRORS, ErrorCode, Fault
from duologue.server.dialect_ga import GaDialect
from duologue.server.engine import SessionOutput
from duologue.server.input_format import InputFormatAhead
from duologue.server.journal import Journal
from duologue.server.token import ResumeToken
from duologue.wire import encode
from duologue.wire import server_events as wire

_CONTENT = (events.ResponseAudio, events.ResponseText)
_CONTENT_FRAMES = (wire.AudioDelta, wire.TranscriptDelta, wire.TextDelta)
MAX_LATE_ERRORS = 64
"""Errors that may go ahead of a terminal which waits already."""


class Owner(Protocol):
    """The connection that takes a session's output."""

    def notify(self) -> None:
        """There is something to take."""
        ...


class Ending(msgspec.Struct, frozen=True):
    """How the socket closes once the terminal is out."""

    code: int
    reason: str


def ending_of(event: events.SessionTerminal) -> Ending:
    """1001 when the server goes away, 1011 for a fault of the server, else 1000."""
    if isinstance(event, events.SessionExpired):
        return Ending(1000, event.reason)
    if event.reason == "shutdown" or event.fault is ErrorCode.SHUTTING_DOWN:
        return Ending(1001, "shutdown")
    if event.fault is not None and ERRORS[event.fault].wire_type == "server_error":
        return Ending(1011, event.fault.value)
    return Ending(1000, event.reason if event.fault is None else event.fault.value)


def refusal_of(code: ErrorCode) -> Ending:
    """How the socket of a session that was never admitted closes."""
    spec = ERRORS[code]
    if code is ErrorCode.SHUTTING_DOWN:
        return Ending(1001, "shutdown")
    if spec.wire_type == "server_error" and spec.fault is not Fault.ADMISSION:
        return Ending(1011, code.value)
    return Ending(1000, code.value)


class Attachment:
    """A session as the server holds it, with or without a socket."""

    __slots__ = (
        "_current",
        "_event_count",
        "_frames",
        "_late_errors",
        "_opened_by_update",
        "_opening",
        "_queue",
        "config",
        "created_sent",
        "dialect",
        "format_ahead",
        "generation",
        "journal",
        "key_id",
        "local_frames",
        "observe",
        "on_orphan_end",
        "on_queued",
        "owner",
        "session_id",
        "taken",
        "terminal",
        "token",
    )

    def __init__(
        self,
        dialect: GaDialect,
        *,
        key_id: str = "",
        journal: Journal | None = None,
        token: ResumeToken | None = None,
        opened_by_update: bool = False,
    ) -> None:
        self.dialect = dialect
        self.session_id = dialect.session_id
        self.config: SessionConfig = dialect.config  # the newest known, which may be ahead of what the wire has shown
        self.key_id = key_id
        self.format_ahead = InputFormatAhead()
        self.generation = 0
        self.journal = journal
        self.token = token
        self.owner: Owner | None = None
        self.terminal: Ending | None = None
        self.created_sent = False
        self.taken = 0
        self.local_frames = 0
        self.observe: Callable[[events.SessionEvent], None] = _ignore
        self.on_orphan_end: Callable[[Attachment], None] = _ignore
        self.on_queued: Callable[[list[bytes]], None] = _ignore
        self._opened_by_update = opened_by_update
        self._opening = False  # the last event was the first one
        self._queue: deque[SessionEventMessage | wire.ServerEvent] = deque()
        self._frames: deque[wire.ServerEvent] = deque()
        self._current = 0  # number of the event whose frames are being handed over
        self._event_count = 0
        self._late_errors = 0  # pushed since the terminal waits

    @property
    def resumable(self) -> bool:
        """Whether another connection may take this session over."""
        return self.token is not None

    @property
    def drained(self) -> bool:
        """Whether everything that may be sent has been handed over."""
        return not self._queue and not self._frames

    @property
    def backlog(self) -> int:
        """Events and frames that wait for the socket."""
        return len(self._queue) + len(self._frames)

    def deliver(self, message: SessionOutput) -> None:
        """Take one message from the engine (its sink)."""
        if isinstance(message, OutputInvalidated):
            self._purge(message.response_id)
            return
        if self.terminal is not None:
            return  # nothing follows a terminal
        event = message.event
        self.observe(event)
        match event:
            case events.ResponseAudio() | events.ResponseText():
                pass  # first, since nearly every event is one
            case events.SessionQueued():
                self.on_queued([self.stamp(frame) for frame in self.dialect.project(event)])
                return
            case events.SessionCreated() | events.SessionUpdated():
                self.config = event.config
                self.format_ahead.told(event)
            case events.ErrorRaised():
                self.format_ahead.told(event)
            case events.SessionClosed() | events.SessionExpired():
                self.terminal = ending_of(event)
            case _:
                pass
        self._queue.append(message)
        if self.owner is not None:
            self.owner.notify()
        elif self.terminal is not None:
            self.on_orphan_end(self)

    def push(self, frame: wire.Error) -> None:
        """Queue an error of the server's own, behind what is there, but before the terminal: nothing follows that.

        Once the terminal waits the first error counts, then those that name an event, up to ``MAX_LATE_ERRORS``: who
        answers each of them with another event would keep the terminal back for ever.
        """
        if self.terminal is None:
            self._queue.append(frame)
        elif self._queue and self._late_errors < MAX_LATE_ERRORS and (frame.error.event_id or not self._late_errors):
            self._queue.insert(len(self._queue) - 1, frame)
            self._late_errors += 1
        else:
            return  # the terminal is on its way, and says enough
        self.local_frames += 1

    def take(self, now: float) -> bytes | None:
        """The next frame, which from now on counts as handed to the socket; ``None`` if there is none."""
        while not self._frames:
            if not self._queue:
                return None
            self._project(self._queue.popleft())
        frame = self._frames.popleft()
        if not self._frames:
            self._settle()
        return self._hand_over(frame, now)

    def stamp(self, frame: wire.ServerEvent, *, number: int | None = None) -> bytes:
        """A frame as bytes, with its own id and what the dialect puts on every frame."""
        self._event_count += 1
        event_id = f"event_{self._event_count:x}"
        if not self.dialect.style.own_fields:
            return encode(msgspec.structs.replace(frame, event_id=event_id))
        if number is None:
            return encode(msgspec.structs.replace(frame, event_id=event_id, session_id=self.session_id))
        return encode(
            msgspec.structs.replace(frame, event_id=event_id, session_id=self.session_id, server_event_seq=number)
        )

    def _project(self, entry: SessionEventMessage | wire.ServerEvent) -> None:
        if isinstance(entry, wire.ServerEvent):
            self.local_frames -= 1
            self._current = 0
            self._frames.append(entry)
            return
        self._current = entry.number
        frames = self.dialect.project(entry.event)
        # An engine reports the settings once more when it opens: that answers the update that opened the session, and
        # where nothing but the connect opened it, nobody asked.
        if not (self._opening and isinstance(entry.event, events.SessionUpdated) and not self._opened_by_update):
            self._frames.extend(frames)
        self._opening = isinstance(entry.event, events.SessionCreated)
        if not self._frames:
            self._settle()

    def _settle(self) -> None:
        """The last frame of an event is out."""
        self.taken = max(self.taken, self._current)

    def _hand_over(self, frame: wire.ServerEvent, now: float) -> bytes:
        if isinstance(frame, wire.SessionCreated):
            self.created_sent = True
            if self.token is not None:
                frame = msgspec.structs.replace(frame, resume_token=self.token.rotate(), generation=self.generation)
            return self.stamp(frame)
        if self.journal is None:
            return self.stamp(frame)
        data = self.stamp(frame, number=self.journal.head + 1)
        self.journal.record(data, now)
        return data

    def _purge(self, response_id: str) -> None:
        """Drop content of a response that no socket has taken."""
        self.dialect.withdraw(response_id)
        self._queue = deque(
            entry
            for entry in self._queue
            if not (
                isinstance(entry, SessionEventMessage)
                and isinstance(entry.event, _CONTENT)
                and entry.event.response_id == response_id
            )
        )
        self._frames = deque(
            frame
            for frame in self._frames
            if not (isinstance(frame, _CONTENT_FRAMES) and frame.response_id == response_id)
        )


def _ignore(_: object) -> None:
    pass
