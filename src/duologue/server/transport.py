"""The WebSocket transport: uvicorn's protocol with a view of its write buffer, and what the shell needs of a transport.

Rules kept here:

* whether the socket can take more is known before a frame is taken from a session, so that nothing waits between the
  last queue and the socket;
* a peer that does not read cannot hold a connection open: every close is bounded and ends in an abort.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, cast

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState

EXTENSION: Final = "duologue.transport"
CONNECTION: Final = "duologue.connection"  # in the state of an HTTP scope: the socket's transport
FRAME: Final = "duologue.frame"  # in a received message: the bytes of a text frame
WRITE_HIGH_BYTES: Final = 32 * 1024
CLOSE_TIMEOUT_S: Final = 2.0
HANDSHAKE_TIMEOUT_S: Final = 10.0


class SocketLostError(Exception):
    """The peer is gone."""


class Transport(Protocol):
    """What the shell writes to."""

    on_writable: Callable[[], None]

    @property
    def writable(self) -> bool:
        """Whether the socket can take a frame now."""
        ...

    async def send(self, frame: bytes) -> None:
        """Write one text frame. Raises :class:`SocketLostError`."""
        ...

    def abort(self) -> None:
        """Drop the connection without a word."""
        ...


class SocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket protocol, seen from inside by the shell (through the scope's extensions)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.close_timeout = CLOSE_TIMEOUT_S
        self.control = DirectTransport(self)
        self._abort_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._abort_timer is not None:
            self._abort_timer.cancel()
            self._abort_timer = None
        super().connection_lost(exc)
        self.control.on_writable()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.control.on_writable()

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self._abort_later()

    def send_receive_event_to_app(self) -> None:
        """Hand a text frame on as bytes: the decoder reads bytes, and says itself what is not UTF-8."""
        if self.curr_msg_data_type != "text" or self.close_sent:
            super().send_receive_event_to_app()
            return
        data = b"".join(self.frames)
        self.frames = []
        message: Any = {"type": "websocket.receive", FRAME: data}
        self.queue.put_nowait(message)
        if not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    async def run_asgi(self) -> None:
        extensions = cast("dict[str, object]", self.scope["extensions"])
        extensions[EXTENSION] = self.control
        await super().run_asgi()

    async def send(self, message: Any) -> None:
        await super().send(message)
        if self.close_sent and self.initial_response is not None:
            self.handshake_complete = True  # refused with an answer: no error, which uvicorn would log otherwise
        if message["type"] == "websocket.close":
            self._abort_later()

    def _abort_later(self) -> None:
        """``transport.close`` waits until the peer has read everything, which may be never."""
        if self._abort_timer is None:
            self._abort_timer = self.loop.call_later(CLOSE_TIMEOUT_S + 0.5, self.transport.abort)


class HandshakeProtocol(H11Protocol):
    """uvicorn's HTTP protocol, which drops a connection that takes too long over the head of a request, be it the first
    or a later one. (Between requests uvicorn's own bound holds, within one that of its body.)"""

    handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast("asyncio.Transport", transport))
        self.app_state = {**self.app_state, CONNECTION: transport}
        self._await_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._head_is_due():
            self._stop_waiting()
        elif self._head_timer is None:  # more of the same head gives no more time
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _head_is_due(self) -> bool:
        # After an upgrade the transport belongs to another protocol.
        between = self.cycle is None or self.cycle.response_complete
        return between and self.transport.get_protocol() is self and not self.transport.is_closing()

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self.handshake_timeout_s, self._head_is_late)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._head_is_due():
            self.transport.abort()


class DirectTransport:
    """Writes frames straight to uvicorn's connection: one encoding, no ASGI message per frame."""

    def __init__(self, protocol: SocketProtocol) -> None:
        self.on_writable: Callable[[], None] = _nothing
        self._protocol = protocol

    @property
    def writable(self) -> bool:
        return self._protocol.writable.is_set()

    async def send(self, frame: bytes) -> None:
        protocol = self._protocol
        if protocol.disconnected or protocol.close_sent:
            raise SocketLostError
        try:
            protocol.conn.send_text(frame)
        except InvalidState:
            raise SocketLostError from None
        protocol.transport.write(b"".join(protocol.conn.data_to_send()))

    def abort(self) -> None:
        self._protocol.transport.abort()


class AsgiTransport:
    """Any other ASGI server: it says nothing of its buffer, so each frame waits in ``send``."""

    writable = True

    def __init__(self, send: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
        self.on_writable: Callable[[], None] = _nothing
        self._send = send

    async def send(self, frame: bytes) -> None:
        try:
            await self._send({"type": "websocket.send", "text": frame.decode()})
        except (ClientDisconnected, OSError, RuntimeError) as fault:
            raise SocketLostError from fault

    def abort(self) -> None:
        pass


def _nothing() -> None:
    pass
