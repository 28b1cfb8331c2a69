"""One connection, without a socket: frames in, frames out, actions for whoever holds the socket.

Rules kept here:

* every method returns the actions that follow, in order; nothing here waits, reads a clock or touches a socket;
* whatever a client sends costs it at most an error event: the connection lives;
* a frame that :meth:`data_to_send` returned counts as handed to the socket;
* an operation whose asker has gone is still resolved when its answer comes: nothing is left half taken over;
* after a :class:`CloseSocket` or :class:`AbortSocket` nothing follows.

States: ``waiting`` for the first message (duplex), ``opening`` or ``resuming`` (the engine is asked), ``live``,
``ending`` (last frames, then the close), ``closed``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Literal

import msgspec

from duologue.config.session import SessionConfig, SessionPatch, merge
from duologue.engine.duplex.commands import AppendAudio, UpdateSession
from duologue.engine.duplex.messages import (
    ControlMessage,
    OpenedSession,
    OpenSession,
    OutputTaken,
    ResumeSession,
    SessionCommand,
)
from duologue.errors import ClientFault, DuologueError, ErrorCode
from duologue.server.actions import AbortSocket, Action, Ask, CloseSocket, Post
from duologue.server.attachment import Attachment, Ending, refusal_of
from duologue.server.commands import command_of
from duologue.server.hello import Hello
from duologue.server.journal import Gap
from duologue.server.projection import DUPLEX_STYLE, GA_STYLE, error_frame
from duologue.server.registry import SessionHub
from duologue.server.settings import SettingsReader, append_format, dialect_defaults
from duologue.wire import WireFault, decode_client_event, encode
from duologue.wire import client_events as client
from duologue.wire import server_events as wire

State = Literal["waiting", "opening", "resuming", "live", "ending", "closed"]


class Connection:
    """One client's connection (see module docstring). ``now`` is monotonic seconds everywhere."""

    def __init__(self, hello: Hello, hub: SessionHub) -> None:
        self.state: State = "waiting"
        self.wake: Callable[[], None] = _nothing  # set by the shell; called when there may be something to take
        self._hello = hello
        self._hub = hub
        self._style = DUPLEX_STYLE if hello.dialect == "duplex" else GA_STYLE
        self._reader = SettingsReader(hello.dialect, hub.names)
        self._attachment: Attachment | None = None
        self._actions: list[Action] = []
        self._out: deque[bytes] = deque()  # frames of this connection alone, ahead of the session's
        self._early: deque[client.AnyClientEvent] = deque()
        self._early_bytes = 0
        self._place: deque[bytes] = deque()  # where it stands among those who wait: the newest word on it
        self._queued = False
        self._overflowed = False
        self._ending: Ending | None = None
        self._deadline: float | None = None
        self._asked: ControlMessage | None = None
        self._resume_from = 0
        self._cause: str | None = None  # event id of what opened the session
        self._errors = 0
        self._taken = 0
        self._generation = 0

    # -- what the shell asks

    @property
    def attachment(self) -> Attachment | None:
        """The session that this connection owns, if it does."""
        return self._attachment if self.state in ("live", "ending") else None

    @property
    def full(self) -> str | None:
        """The limit for which nothing more may be received now: the shell stops reading for a while. Else ``None``."""
        session, early, waiting = self._attachment, None, len(self._out)
        if self.state in ("opening", "resuming"):
            # Who waits for a slot may wait long: reading on is how a hang-up and the answers to pings are noticed.
            early = None if self._queued else self._early_full
        elif session is not None:
            waiting += session.local_frames
        return "max_local_frames" if waiting >= self._hub.limits.max_local_frames else early

    @property
    def restless(self) -> bool:
        """Whether there may be something to take or to do beside what the session says, which wakes by itself."""
        session = self._attachment
        return self.state != "live" or bool(self._out or self._place or (session and session.local_frames))

    def next_deadline(self) -> float | None:
        """When :meth:`tick` has something to do."""
        return self._deadline

    # -- what happens

    def start(self, now: float) -> list[Action]:
        """The handshake is done. Once, first."""
        if self._hello.opens:
            self._open(None, now)
        else:
            self._deadline = now + self._hub.limits.first_message_timeout_s
        return self._drain()

    def receive(self, frame: bytes | str, now: float) -> list[Action]:
        """A text frame arrived."""
        if self.state in ("ending", "closed"):
            return []
        try:
            event = decode_client_event(frame, self._hello.dialect, max_bytes=self._hub.limits.max_event_bytes)
        except WireFault as fault:
            self._refuse(fault, fault.event_id)
            return self._drain()
        if self.state in ("opening", "resuming"):
            self._keep_early(event, len(frame))
        else:
            self._handle(event, now)
        return self._drain()

    def receive_binary(self, size: int, now: float) -> list[Action]:
        """A binary frame arrived: no dialect has any."""
        del now
        if self.state not in ("ending", "closed"):
            message = f"A binary frame of {size} bytes: send events as JSON in text frames, audio as base64."
            self._refuse(ClientFault(ErrorCode.BAD_EVENT, message), None)
        return self._drain()

    def answered(self, control_id: str, result: object, now: float) -> list[Action]:
        """The engine answered an :class:`Ask`: a value, or a :class:`DuologueError`."""
        asked = self._asked
        if asked is None or asked.control_id != control_id:
            return []
        self._asked = None
        if isinstance(asked, OpenSession):
            self._opened(result, now)
        elif isinstance(asked, ResumeSession):
            self._resumed(result, now)
        return self._drain()

    def data_to_send(self, now: float) -> bytes | None:
        """The next text frame; it counts as handed to the socket. ``None`` if there is none now."""
        if self._place or self._out:
            return self._place.popleft() if self._place else self._out.popleft()
        attachment = self.attachment
        if attachment is None or self.state != "live":
            return None
        frame = attachment.take(now)
        if attachment.taken != self._taken:
            self._taken = attachment.taken
            if attachment.terminal is None or not attachment.drained:
                message = OutputTaken(session_id=attachment.session_id, number=attachment.taken)
                self._actions.append(Post(message))
        if attachment.terminal is not None and attachment.drained:
            self._hub.remove(attachment)
            self._end(attachment.terminal)
        return frame

    def actions(self, now: float) -> list[Action]:
        """What follows from frames taken and from what the engine said meanwhile. Call after each of them."""
        attachment = self._attachment
        if self.state == "live" and attachment is not None and attachment.terminal is not None:
            self._set_deadline(now + self._hub.limits.close_timeout_s)
        if self.state == "ending" and not self._out and not self._place and self._ending is not None:
            self._actions.append(CloseSocket(self._ending.code, self._ending.reason))
            self.state = "closed"
            self._deadline = None
        elif self.state == "ending":
            self._set_deadline(now + self._hub.limits.close_timeout_s)
        return self._drain()

    def tick(self, now: float) -> list[Action]:
        """Time has passed."""
        if self._deadline is None or now < self._deadline:
            return []
        self._deadline = None
        if self.state == "waiting":
            self._give_up(
                ClientFault(
                    ErrorCode.CONFIG_TIMEOUT,
                    f"No session.update or session.resume within {self._hub.limits.first_message_timeout_s:g} s.",
                ),
                None,
            )
            return self._drain()
        self._actions.append(AbortSocket())
        return self._drain() + self.disconnected(now)

    def disconnected(self, now: float) -> list[Action]:
        """The socket is gone, for whatever reason. Idempotent."""
        del now
        state, self.state = self.state, "closed"
        self._deadline = None
        self._out.clear()
        self._place.clear()
        self._early.clear()
        attachment = self._attachment
        if state in ("live", "ending") and attachment is not None and attachment.owner is self:
            self._leave(attachment)
        elif state == "opening" and attachment is not None:
            self._tell(self._hub.close_message(attachment, "open_abandoned"))  # it may be waiting for a slot
        return self._drain()

    def shutdown(self, now: float) -> list[Action]:
        """The server goes away: the session gets its terminal, then the socket closes (1001)."""
        attachment = self._attachment
        if self.state == "live" and attachment is not None:
            if attachment.terminal is None:
                self._tell(self._hub.close_message(attachment, "shutdown"))
            return self._drain()
        if self.state == "opening" and attachment is not None:
            self._tell(self._hub.close_message(attachment, "shutdown"))  # it may be waiting for a slot
        if self.state == "waiting":
            self._give_up(ClientFault(ErrorCode.SHUTTING_DOWN, "The server is shutting down."), None)
        return self._drain() + self.actions(now)

    def notify(self) -> None:
        """The session has something to take (from its attachment)."""
        self.wake()

    # -- events of the client

    def _handle(self, event: client.AnyClientEvent, now: float) -> None:
        try:
            if self.state == "waiting":
                self._first(event, now)
            elif self._attachment is not None:
                self._live(event, self._attachment)
        except ClientFault as fault:
            self._refuse(fault, event.event_id)

    def _first(self, event: client.AnyClientEvent, now: float) -> None:
        if isinstance(event, client.SessionResume):
            self._resume(event, now)
            return
        if not isinstance(event, client.SessionUpdate):
            self._early.append(event)
            self._open(None, now)
            return
        self._open(event, now)

    def _live(self, event: client.AnyClientEvent, attachment: Attachment) -> None:
        if isinstance(event, client.EventAck) and attachment.journal is not None:
            if not attachment.journal.acknowledge(event.server_event_seq):
                message = f"server_event_seq {event.server_event_seq} was never sent."
                raise ClientFault(ErrorCode.INVALID_EVENT_ACK, message, param="server_event_seq")
            return
        if attachment.terminal is not None:
            raise ClientFault(ErrorCode.SESSION_CLOSED, "The session has ended.")
        command = command_of(event, self._reader, attachment.config)
        if isinstance(command, AppendAudio) and isinstance(event, client.AudioAppend):
            self._follow_format(event, attachment)
        elif isinstance(command, UpdateSession):
            attachment.format_ahead.sent(command)
        self._actions.append(Post(SessionCommand(session_id=attachment.session_id, command=command)))

    def _follow_format(self, event: client.AudioAppend, attachment: Attachment) -> None:
        """An append of the duplex dialect may state its format: if it is another, the session changes first."""
        if self._hello.dialect == "ga" or (event.format is None and event.sample_rate_hz is None):
            return
        ahead = attachment.format_ahead.after_all(attachment.config.input_format)
        wanted = append_format(event.format, event.sample_rate_hz, ahead)
        if wanted == ahead:
            return
        command = UpdateSession(event_id=event.event_id, patch=SessionPatch(input_format=wanted))
        attachment.format_ahead.sent(command)
        self._actions.append(Post(SessionCommand(session_id=attachment.session_id, command=command)))

    # -- opening and resuming

    def _open(self, event: client.SessionUpdate | None, now: float) -> None:
        del now
        self._cause = None if event is None else event.event_id
        try:
            config = self._first_config(event)
            attachment = self._hub.create(self._hello, config, opened_by_update=event is not None)
        except ClientFault as fault:
            if event is not None:
                raise  # the client may send a better one
            self._give_up(fault, None)
            return
        except DuologueError as fault:
            self._give_up(fault, self._cause)
            return
        self._attachment = attachment
        attachment.on_queued = self._wait
        self._deadline = None
        self.state = "opening"
        message = OpenSession(
            session_id=attachment.session_id,
            control_id=self._hub.next_control_id(),
            config=config,
            takes_output=True,
            resumable=attachment.resumable,
        )
        self._asked = message
        self._actions.append(Ask(message))

    def _wait(self, frames: list[bytes]) -> None:
        """The session waits for a slot; where the dialect can tell, the client hears its place."""
        if self.state == "opening":
            self._queued = True
            self._place = deque(frames)
            self.wake()

    @property
    def _early_full(self) -> str | None:
        limits = self._hub.limits
        if len(self._early) >= limits.max_early_events:
            return "max_early_events"
        return "max_early_bytes" if self._early_bytes >= limits.max_early_bytes else None

    def _keep_early(self, event: client.AnyClientEvent, size: int) -> None:
        """Keep what arrives before the session is there. Audio beyond the bound is refused once, unless it has an id."""
        if isinstance(event, client.SessionClose) and self._queued and self._attachment is not None:
            self._cause = event.event_id
            self._tell(self._hub.close_message(self._attachment, "client_close"))  # it gives its place up
        elif self._early_full is None:
            self._early.append(event)
            self._early_bytes += size
        elif event.event_id is not None or not isinstance(event, client.AudioAppend) or not self._overflowed:
            self._overflowed = True
            message = "The session waits for a slot, and as much as may wait with it is kept: this event is not."
            self._refuse(ClientFault(ErrorCode.INPUT_BACKPRESSURE, message), event.event_id)

    def _first_config(self, event: client.SessionUpdate | None) -> SessionConfig:
        base = dialect_defaults(self._hub.defaults, self._hello.dialect)
        base = msgspec.structs.replace(base, model=self._hub.names.resolve(self._hello.model))
        return base if event is None else merge(base, self._reader.patch(event.session, base))

    def _opened(self, result: object, now: float) -> None:
        attachment = self._attachment
        if attachment is None:
            return
        if isinstance(result, DuologueError):
            self._hub.remove(attachment)
            self._attachment = None
            if result.code is ErrorCode.TIMEOUT:  # it may have opened after all
                self._tell(self._hub.close_message(attachment, "open_abandoned"))
            if self.state == "opening":
                self._give_up(result, self._cause)
            return
        if isinstance(result, OpenedSession):
            attachment.generation = result.generation
        if self.state == "closed":
            self._tell(self._hub.close_message(attachment, "open_abandoned"))
            return
        self._go_live(attachment, now)

    def _resume(self, event: client.SessionResume, now: float) -> None:
        del now
        attachment = self._hub.get(event.session_id)
        fault = None
        if attachment is None or attachment.terminal is not None:
            fault = ClientFault(ErrorCode.SESSION_RESUME_EXPIRED, "This session no longer exists; open a new one.")
        elif attachment.token is None or attachment.key_id != self._hello.key_id:
            fault = ClientFault(ErrorCode.UNSUPPORTED_SESSION_RESUME, "This session cannot be resumed here.")
        elif not attachment.token.matches(event.resume_token):
            fault = ClientFault(ErrorCode.INVALID_RESUME_TOKEN, "The resume token is not the session's current one.")
        if fault is not None or attachment is None:
            self._give_up(fault, event.event_id)
            return
        self._attachment = attachment
        self._resume_from = event.last_received_server_event_seq
        self._cause = event.event_id
        self._deadline = None
        self.state = "resuming"
        message = ResumeSession(
            session_id=attachment.session_id,
            control_id=self._hub.next_control_id(),
            expected_generation=attachment.generation,
        )
        self._asked = message
        self._actions.append(Ask(message))

    def _resumed(self, result: object, now: float) -> None:
        attachment = self._attachment
        if attachment is None:
            return
        if isinstance(result, DuologueError):
            self._attachment = None
            if self.state == "resuming":
                self._give_up(result, self._cause)
            return
        if isinstance(result, int):
            attachment.generation = result
        if self.state == "closed":
            # The asker is gone. Whoever still has the socket stays the owner, under the new generation.
            if attachment.owner is None:
                self._tell(self._hub.detach_message(attachment))
            return
        previous, attachment.owner = attachment.owner, None
        self._welcome(attachment, now)
        if isinstance(previous, Connection):
            previous.replaced()
        self._go_live(attachment, now)

    def _welcome(self, attachment: Attachment, now: float) -> None:
        """Tell the new owner where it stands, and what it missed."""
        journal, token = attachment.journal, attachment.token
        if journal is None or token is None:
            return
        frame = wire.SessionResumed(
            session=attachment.dialect.session(),
            resume_token=token.rotate(),
            generation=attachment.generation,
            last_server_event_seq=journal.head,
        )
        self._out.append(attachment.stamp(frame))
        missed = journal.after(self._resume_from, now)
        if isinstance(missed, Gap):
            gap = wire.ResyncRequired(
                reason=missed.reason,
                last_received_server_event_seq=self._resume_from,
                next_server_event_seq=journal.head + 1,
            )
            self._out.append(attachment.stamp(gap))
        else:
            self._out.extend(missed)

    def replaced(self) -> None:
        """Another connection owns the session now."""
        attachment, self._attachment = self._attachment, None
        if attachment is None or self.state != "live":
            return
        self._out.append(attachment.stamp(wire.SessionReplaced(generation=self._generation)))
        self._end(Ending(1000, "replaced"))
        self.wake()

    def _go_live(self, attachment: Attachment, now: float) -> None:
        self.state = "live"
        attachment.owner = self
        self._taken = attachment.taken
        self._generation = attachment.generation
        if self._hub.draining:
            self._tell(self._hub.close_message(attachment, "shutdown"))
        while self._early and self.state == "live":
            self._handle(self._early.popleft(), now)
        self._early_bytes = 0

    # -- ends and errors

    def _refuse(self, fault: DuologueError, event_id: str | None) -> None:
        """An error event for the client; everything else stays as it is."""
        self._hub.observer.refused(fault.code)
        frame = error_frame(self._style, fault.code, fault.message, event_id=event_id, param=fault.param)
        if self.state == "live" and self._attachment is not None:
            self._attachment.push(frame)
            return
        self._errors += 1
        self._out.append(encode(msgspec.structs.replace(frame, event_id=f"event_x{self._errors:x}")))

    def _give_up(self, fault: DuologueError | None, event_id: str | None) -> None:
        """An error event, then the close."""
        if fault is None:
            return
        self._refuse(fault, event_id)
        self._end(refusal_of(fault.code))

    def _end(self, ending: Ending) -> None:
        self.state = "ending"
        self._ending = ending

    def _leave(self, attachment: Attachment) -> None:
        """The owner's socket is gone."""
        attachment.owner = None
        if attachment.terminal is not None:
            self._hub.remove(attachment)
        elif attachment.resumable and attachment.created_sent:
            self._tell(self._hub.detach_message(attachment))
        else:
            self._tell(self._hub.close_message(attachment, "disconnected"))

    def _tell(self, message: ControlMessage) -> None:
        """Ask for something whose answer changes nothing here."""
        self._actions.append(Ask(message))

    def _set_deadline(self, when: float) -> None:
        if self._deadline is None:
            self._deadline = when

    def _drain(self) -> list[Action]:
        actions, self._actions = self._actions, []
        return actions


def _nothing() -> None:
    pass
