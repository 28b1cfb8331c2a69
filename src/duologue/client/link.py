"""The connection under a session: reading, acknowledging, heartbeats, and taking the session up again after a loss.

Rules kept here:

* one task reads, and it never waits for a consumer: what it hands out goes through synchronous callbacks;
* acknowledgements are cumulative and sent by a task of their own, so a slow socket delays them and nothing else;
* an event whose `server_event_seq` is not above the last one was a duplicate and is dropped;
* a lost connection is resumed up to `tries` times with jittered, growing waits; meanwhile commands wait and audio is
  kept up to a bound, the oldest dropped;
* whatever happens, the session's end is told exactly once, last.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec
from msgspec import UNSET

from duologue.client.event import read_event
from duologue.client.fault import ConnectError, SessionEndedError
from duologue.client.socket import Opener, Socket, SocketClosed
from duologue.log import init_logger
from duologue.wire.client_events import AudioAppend, ClientEvent, EventAck, Heartbeat, SessionResume
from duologue.wire.decoder import Dialect, encode
from duologue.wire.server_events import (
    Error,
    ResyncRequired,
    ServerEvent,
    SessionClosed,
    SessionCreated,
    SessionExpired,
    SessionReplaced,
    SessionResumed,
)

logger = init_logger(__name__)

Direction = Literal["out", "in"]
Tap = Callable[[Direction, bytes], None]
"""Sees every frame as bytes, just before it is sent or just after it came. It must not raise or block."""

_PERMANENT: Final = frozenset(
    {
        "session_resume_expired",
        "session_resume_conflict",
        "invalid_resume_token",
        "invalid_session_resume",
        "unsupported_session_resume",
        "unknown_session",
        "session_closed",
        "invalid_api_key",
    }
)


class ReconnectPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How a lost connection is taken up again. Waits double from `first_wait_s` and are jittered by up to half."""

    tries: int = 5
    first_wait_s: float = 0.25
    longest_wait_s: float = 4.0
    answer_timeout_s: float = 10.0
    kept_audio_bytes: int = 256 * 1024

    def wait_s(self, attempt: int, jitter: float) -> float:
        """Seconds before attempt `attempt` (from 0); `jitter` is in [0, 1)."""
        full_s = min(self.longest_wait_s, self.first_wait_s * 2**attempt)
        return float(max(self.first_wait_s, full_s * (0.5 + 0.5 * jitter)))


@dataclass(slots=True)
class Link:
    """One session's connection. `on_event` gets each event once, in order; `on_end` the end, once."""

    url: str
    resume_url: str
    headers: Mapping[str, str]
    dialect: Dialect
    opener: Opener
    on_event: Callable[[ServerEvent], None]
    on_end: Callable[[SessionEndedError], None]
    tap: Tap | None = None
    policy: ReconnectPolicy = field(default_factory=ReconnectPolicy)
    heartbeat_period_s: float = 30.0
    ack_period_s: float = 0.1
    jitter: Callable[[], float] = random.random

    session_id: str = ""
    last_seq: int = 0
    reconnects: int = 0
    dropped_audio_bytes: int = 0
    _token: str | None = None
    _socket: Socket | None = None
    _attached: asyncio.Event = field(default_factory=asyncio.Event)
    _ack_wanted: asyncio.Event = field(default_factory=asyncio.Event)
    _acked_seq: int = 0
    _kept_audio: deque[bytes] = field(default_factory=deque)
    _kept_bytes: int = 0
    _end: SessionEndedError | None = None
    _ended: asyncio.Event = field(default_factory=asyncio.Event)
    _closing: bool = False
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def ended(self) -> SessionEndedError | None:
        """Why the session is over, or ``None`` while it is not."""
        return self._end

    @property
    def attached(self) -> bool:
        """There is a connection right now."""
        return self._socket is not None

    async def open(self, first: ClientEvent | None) -> None:
        """Connect, start the tasks and send `first`. Raises ConnectError."""
        self._socket = await self.opener(self.url, self.headers)
        self._attached.set()
        self._tasks.append(asyncio.create_task(self._run(self._socket), name="duologue-client-reader"))
        if self.dialect == "duplex":
            self._tasks.append(asyncio.create_task(self._acknowledge(), name="duologue-client-acks"))
            self._tasks.append(asyncio.create_task(self._beat(), name="duologue-client-heartbeat"))
        if first is not None:
            await self.send(first)

    async def send(self, event: ClientEvent) -> None:
        """Send one event, waiting while a lost connection is taken up again. Raises SessionEndedError."""
        frame = encode(event)
        while True:
            await self._attached.wait()
            self._raise_if_ended()
            socket = self._socket
            if socket is None:
                continue
            self._show("out", frame)
            try:
                await socket.send(frame)
                return
            except SocketClosed:
                self._detach(socket)

    async def send_audio(self, event: AudioAppend) -> None:
        """Send audio, or keep it (within the bound) while there is no connection. Raises SessionEndedError."""
        self._raise_if_ended()
        socket = self._socket
        frame = encode(event)
        # Once some is kept, the rest has to queue behind it.
        if socket is None or self._kept_audio:
            self._keep(frame)
            return
        self._show("out", frame)
        try:
            await socket.send(frame)
        except SocketClosed:
            self._detach(socket)
            self._keep(frame)

    async def close(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` for the session's terminal, then close the connection. Never raises for a fault.

        0 waits for none: nobody asked the server for one, as in a dialect that ends a session with its connection.
        """
        self._closing = True
        if timeout_s > 0 and self._socket is not None and self._end is None:
            try:
                await asyncio.wait_for(self._ended.wait(), timeout_s)
            except TimeoutError:
                logger.warning("the server did not end the session in time", extra={"session_id": self.session_id})
        self.finish(SessionEndedError("the session was closed", reason="client_close"))
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()

    def finish(self, end: SessionEndedError) -> None:
        """The session is over; only the first call counts."""
        if self._end is not None:
            return
        self._end = end
        self._ended.set()
        self._attached.set()  # whoever waits for a connection learns that none will come
        self.on_end(end)

    def leave(self) -> None:
        """Make no attempt to take the session up again."""
        self._closing = True

    # -- tasks

    async def _run(self, socket: Socket) -> None:
        end = SessionEndedError("the client stopped reading", reason="connection_lost")
        try:
            while True:
                closed = await self._read(socket)
                self._detach(socket)
                end = SessionEndedError(f"the connection to the server was lost: {closed}", reason="connection_lost")
                if self._end is not None or not self._resumable:
                    return
                logger.info("connection lost, resuming", extra={"session_id": self.session_id, "code": closed.code})
                following = await self._resume()
                if following is None:
                    return
                socket = following
        finally:
            # Whatever ended this task, a consumer must not wait for ever.
            self.finish(end)

    async def _read(self, socket: Socket) -> SocketClosed:
        while True:
            try:
                frame = await socket.receive()
            except SocketClosed as closed:
                return closed
            self._show("in", frame)
            self._take(read_event(frame))

    async def _acknowledge(self) -> None:
        while True:
            await self._ack_wanted.wait()
            self._ack_wanted.clear()
            socket, seq = self._socket, self.last_seq
            if socket is not None and seq > self._acked_seq:
                frame = encode(EventAck(server_event_seq=seq))
                self._show("out", frame)
                try:
                    await socket.send(frame)
                    self._acked_seq = seq
                except SocketClosed:
                    continue
            await asyncio.sleep(self.ack_period_s)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self.heartbeat_period_s)
            socket = self._socket
            if socket is None:
                continue
            frame = encode(Heartbeat())
            self._show("out", frame)
            try:
                await socket.send(frame)
            except SocketClosed:
                continue

    # -- what came in

    def _take(self, event: ServerEvent) -> None:
        if not self._new(event):
            return
        match event:
            case SessionCreated():
                self.session_id = _text(event.session.id) or _text(event.session.session_id) or self.session_id
                self._token = _text(event.resume_token)
            case SessionResumed():
                self._token = event.resume_token
            case ResyncRequired():
                self.last_seq = max(self.last_seq, event.next_server_event_seq - 1)
            case _:
                pass
        self.on_event(event)
        match event:
            case SessionReplaced():
                text = "another connection took this session over"
                self.finish(SessionEndedError(text, reason="replaced"))
            case SessionClosed():
                code = _text(event.error_code)
                text = f"the server closed the session: {event.reason}" + (f" ({code})" if code else "")
                self.finish(SessionEndedError(text, reason=event.reason, code=code))
            case SessionExpired():
                self.finish(SessionEndedError(f"the session expired: {event.reason}", reason=event.reason))
            case _:
                pass

    def _new(self, event: ServerEvent) -> bool:
        """Note the event's number; false if it was here before."""
        seq = event.server_event_seq
        if seq is UNSET:
            return True
        if seq <= self.last_seq:
            return False
        self.last_seq = seq
        self._ack_wanted.set()
        return True

    # -- loss and resumption

    @property
    def _resumable(self) -> bool:
        return self._token is not None and not self._closing

    def _detach(self, socket: Socket) -> None:
        """This socket is gone. Only the reader draws conclusions: it may still hold the session's last events."""
        if self._socket is socket:
            self._socket = None
            if self._end is None:
                self._attached.clear()

    async def _resume(self) -> Socket | None:
        for attempt in range(self.policy.tries):
            await asyncio.sleep(self.policy.wait_s(attempt, self.jitter()))
            if self._closing:
                return None
            socket = await self._attempt()
            if socket is not None:
                return socket
            if self._end is not None:
                return None
        return None

    async def _attempt(self) -> Socket | None:
        """One attempt; a refusal for good finishes the session."""
        try:
            socket = await self.opener(self.resume_url, self.headers)
        except ConnectError as fault:
            logger.info("resume attempt failed", extra={"session_id": self.session_id, "fault": str(fault)})
            return None
        resume = SessionResume(
            session_id=self.session_id, resume_token=self._token or "", last_received_server_event_seq=self.last_seq
        )
        taken = False
        try:
            async with asyncio.timeout(self.policy.answer_timeout_s):
                self._show("out", frame := encode(resume))
                await socket.send(frame)
                await self._await_resumed(socket)
                await self._flush_kept(socket)
            taken = self._end is None
        except (SocketClosed, TimeoutError):
            pass
        finally:
            if not taken:  # also when whoever leaves cancels the attempt: the server would keep the session for it
                await socket.close()
        if not taken:
            return None
        self._socket = socket
        self._acked_seq = 0
        self._ack_wanted.set()
        self.reconnects += 1
        self._attached.set()
        return socket

    async def _await_resumed(self, socket: Socket) -> None:
        while self._end is None:
            frame = await socket.receive()
            self._show("in", frame)
            event = read_event(frame)
            if isinstance(event, Error) and event.error.code in _PERMANENT:
                self._take(event)
                text = f"the session could not be resumed: {event.error.message}"
                self.finish(SessionEndedError(text, reason="connection_lost", code=event.error.code))
                return
            self._take(event)
            if isinstance(event, SessionResumed):
                return

    async def _flush_kept(self, socket: Socket) -> None:
        while self._kept_audio and self._end is None:
            frame = self._kept_audio.popleft()
            self._kept_bytes -= len(frame)
            self._show("out", frame)
            await socket.send(frame)

    def _keep(self, frame: bytes) -> None:
        self._kept_audio.append(frame)
        self._kept_bytes += len(frame)
        while self._kept_bytes > self.policy.kept_audio_bytes and len(self._kept_audio) > 1:
            gone = self._kept_audio.popleft()
            self._kept_bytes -= len(gone)
            self.dropped_audio_bytes += len(gone)

    def _raise_if_ended(self) -> None:
        if self._end is not None:
            raise SessionEndedError(self._end.message, reason=self._end.reason, code=self._end.code)

    def _show(self, direction: Direction, frame: bytes) -> None:
        if self.tap is not None:
            self.tap(direction, frame)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
