"""The shell around one connection: reads a socket, pumps frames to it, carries out actions.

Rules kept here:

* one pump per connection and no task per event; a frame is taken only when the socket can take it;
* reading stops while the connection says so, and the peer feels it; however much a peer has sent, others get their turn;
* operations at the engine outlive the socket: their answers always reach the connection;
* whatever goes wrong in here ends this connection and no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from duologue.clock import Runtime, TimerHandle
from duologue.engine.duplex.messages import ControlMessage
from duologue.errors import DuologueError, ErrorCode, SessionFault
from duologue.log import init_logger
from duologue.server.actions import AbortSocket, Action, Ask, CloseSocket, Post
from duologue.server.connection import Connection
from duologue.server.engine import EnginePort
from duologue.server.transport import FRAME, SocketLostError, Transport

logger = init_logger(__name__)

Message = MutableMapping[str, Any]
FRAMES_PER_TURN: Final = 32  # then the loop gets its turn, however fast the peer reads
READ_FRAMES_PER_TURN: Final = 16  # the same for what it sends: frames, or bytes of them
READ_BYTES_PER_TURN: Final = 64 * 1024
FRAME_TOO_LARGE: Final = 1009  # with this code a socket ends that got a frame above its cap


class SocketShell:
    """Runs one connection on one socket."""

    def __init__(
        self,
        connection: Connection,
        *,
        engine: EnginePort,
        runtime: Runtime,
        transport: Transport,
        receive: Callable[[], Awaitable[Message]],
        close: Callable[[int, str], Awaitable[None]],
        close_timeout_s: float = 5.0,
        limited: Callable[[str], None] | None = None,
    ) -> None:
        self.connection = connection
        self._limited = limited or _nothing  # told which limit acted
        self._engine = engine
        self._runtime = runtime
        self._transport = transport
        self._receive = receive
        self._close = close
        self._close_timeout_s = close_timeout_s
        self._wake = asyncio.Event()
        self._readable = asyncio.Event()
        self._closing: CloseSocket | None = None
        self._over = False
        self._timer: TimerHandle | None = None
        connection.wake = self._wake.set
        transport.on_writable = self._wake.set

    async def run(self) -> None:
        """Serve until the socket is closed, by whichever side."""
        self._apply(self.connection.start(self._runtime.now()))
        pump = self._runtime.spawn(self._pump(), name="pump")
        # Not only at its own end: a task that is cancelled before its first step never gets there.
        pump.add_done_callback(self._pump_ended)
        try:
            await self._read()
        except Exception:
            logger.exception("connection failed", extra={"session_id": self._session_id()})
            self._closing = self._closing or CloseSocket(1011, "internal_error")
            self._wake.set()
            await asyncio.wait([pump], timeout=self._close_timeout_s)
        finally:
            self._finish()
            self._wake.set()
            await asyncio.wait([pump], timeout=self._close_timeout_s)
            pump.cancel()

    def shutdown(self) -> None:
        """The server goes away."""
        self._apply(self.connection.shutdown(self._runtime.now()))
        self._wake.set()

    def abort(self) -> None:
        """Drop the socket now."""
        self._transport.abort()
        self._finish()
        self._wake.set()

    def _finish(self) -> None:
        """The socket is of no more use."""
        if self._over:
            return
        self._over = True
        self._readable.set()
        self._set_timer(None)
        self._apply(self.connection.disconnected(self._runtime.now()))

    async def _read(self) -> None:
        connection = self.connection
        frames = size = 0
        while not self._over:
            full = connection.full
            if full is not None:
                self._limited(full)
                self._readable.clear()
                self._wake.set()
                await self._readable.wait()
                continue
            # What has arrived already is received without a wait: thousands of frames may have come in one packet.
            if frames >= READ_FRAMES_PER_TURN or size >= READ_BYTES_PER_TURN:
                frames = size = 0
                await asyncio.sleep(0)
            message = await self._receive()
            if message["type"] != "websocket.receive":
                if message.get("code") == FRAME_TOO_LARGE:
                    self._limited("max_frame_bytes")
                return
            frames += 1
            size += self._take(message)
            if self._closing is not None or connection.restless:
                self._wake.set()  # most of what clients send is audio, which the pump has nothing to do with

    def _take(self, message: Message) -> int:
        """Hand one frame to the connection; returns its length."""
        text = message.get(FRAME, message.get("text"))
        if text is not None:
            self._apply(self.connection.receive(text, self._runtime.now()))
            return len(text)
        size = len(message.get("bytes") or b"")
        self._apply(self.connection.receive_binary(size, self._runtime.now()))
        return size

    async def _pump(self) -> None:
        try:
            while not self._over:
                self._wake.clear()
                await self._send_all()
                if self._closing is not None:
                    await self._close_in_order(self._closing)
                    return
                if self._over:
                    return
                self._set_timer(self.connection.next_deadline())
                await self._wake.wait()
                self._apply(self.connection.tick(self._runtime.now()))
        except SocketLostError:
            pass  # the reader learns of it too
        except Exception:
            logger.exception("pump failed", extra={"session_id": self._session_id()})
            self._transport.abort()
        finally:
            self._finish()

    def _pump_ended(self, pump: asyncio.Task[None]) -> None:
        if pump.cancelled():
            self.abort()  # nothing will ever be sent again, and the peer must not wait for it

    async def _send_all(self) -> None:
        """Hand over what the socket takes."""
        connection, sent, now = self.connection, 0, self._runtime.now()
        while self._transport.writable and self._closing is None:
            frame = connection.data_to_send(now)
            if frame is None:
                break
            await self._transport.send(frame)
            now = self._runtime.now()
            self._apply(connection.actions(now))
            sent += 1
            if sent % FRAMES_PER_TURN == 0:
                await asyncio.sleep(0)
                now = self._runtime.now()
        self._apply(connection.actions(now))
        if connection.full is None:
            self._readable.set()

    async def _close_in_order(self, action: CloseSocket) -> None:
        try:
            async with asyncio.timeout(self._close_timeout_s):
                await self._close(action.code, action.reason)
        except TimeoutError:
            self._transport.abort()

    def _apply(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Post():
                    self._engine.post(action.message)
                case Ask():
                    self._runtime.spawn(self._ask(action.message), name=f"ask {type(action.message).__name__}")
                case CloseSocket():
                    self._closing = action
                case AbortSocket():
                    self.abort()  # also for the reader, which may be waiting until it may read again

    async def _ask(self, message: ControlMessage) -> None:
        result = await ask(self._engine, message)
        self._apply(self.connection.answered(message.control_id, result, self._runtime.now()))
        self._wake.set()

    def _set_timer(self, when: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if when is not None:
            self._timer = self._runtime.call_at(when, self._wake.set)

    def _session_id(self) -> str:
        attachment = self.connection.attachment
        return "" if attachment is None else attachment.session_id


async def ask(engine: EnginePort, message: ControlMessage) -> object:
    """The value of one operation, or the :class:`DuologueError` that it ended with."""
    try:
        return await engine.control(message)
    except DuologueError as fault:
        return fault
    except Exception:
        logger.exception("operation failed", extra={"session_id": message.session_id})
        return SessionFault(ErrorCode.INTERNAL_ERROR, "The operation failed in the server.")


def _nothing(limit: str) -> None:
    del limit
