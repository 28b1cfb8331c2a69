"""The network between a client and the server: two lanes of frames with delay, windows, stalls and ways to fail.

Rules kept here: frames of one lane arrive in the order in which they were sent; what was handed over and not yet read counts
against the window, as a kernel's buffers would; a connection that is cut loses what is in flight; one that is dark
swallows everything, and either side learns of it only by its own time-out.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from duologue.client.socket import SocketClosed
from duologue.clock import Runtime
from duologue.server.transport import FRAME, DirectTransport, SocketLostError
from duologue.sim.plan import Link

SERVER_NOTICES_S: Final = 60.0  # pings every 20 s, given up after 60
CLIENT_NOTICES_S: Final = 20.0
UP_WINDOW_BYTES: Final = 262_144


class Lane:
    """One direction. ``unread`` counts bytes from sending to reading."""

    def __init__(self, runtime: Runtime, delay_s: Callable[[], float]) -> None:
        self._runtime = runtime
        self._delay_s = delay_s
        self._new_future = asyncio.get_running_loop().create_future
        self._flight: deque[tuple[float, bytes]] = deque()
        self._arrived: deque[bytes] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._last_s = 0.0
        self._closing: tuple[float, int, str] | None = None
        self.unread = 0
        self.dark = False
        self.stalled = False
        self.ended: tuple[int, str] | None = None
        self.on_read: Callable[[], None] = _nothing

    def put(self, frame: bytes) -> None:
        """Send a frame into the lane."""
        if self.ended is not None:
            return
        self.unread += len(frame)
        if self.dark:
            return
        now = self._runtime.now()
        delay_s = self._delay_s()
        if not delay_s and self._last_s <= now and not (self._flight or self.stalled):
            self._arrived.append(frame)
            self._wake()
            return
        at = self._arrival(now + delay_s)
        self._flight.append((at, frame))
        self._runtime.call_at(at, self._arrive)

    def _arrival(self, at: float) -> float:
        self._last_s = max(self._last_s, at)
        return self._last_s

    def _arrive(self) -> None:
        if self.stalled or self.ended is not None:
            return
        now = self._runtime.now()
        flight = self._flight
        while flight and flight[0][0] <= now:
            self._arrived.append(flight.popleft()[1])
        if self._closing is not None and not flight and self._closing[0] <= now:
            self.ended = self._closing[1:]
            self.on_read()  # nobody will read on, and whoever waits for room is to learn of it
        if self._arrived or self.ended is not None:
            self._wake()

    def stall(self, stalled: bool) -> None:
        """Hold everything back, or let it arrive."""
        self.stalled = stalled
        if not stalled:
            self._arrive()

    def end(self, code: int, reason: str) -> None:
        """An orderly end, behind what is in flight."""
        if self.ended is None and self._closing is None and not self.dark:
            self._closing = (self._arrival(self._runtime.now() + self._delay_s()), code, reason)
            self._runtime.call_at(self._last_s, self._arrive)

    def cut(self, *, keep_arrived: bool = True) -> None:
        """The connection is gone: what is in flight is lost."""
        if self.ended is not None:
            return
        self._flight.clear()
        if not keep_arrived:
            self._arrived.clear()
        self.ended = (1006, "")
        self._wake()
        self.on_read()

    async def get(self) -> bytes | None:
        """The next frame; ``None`` at the end."""
        arrived = self._arrived
        while not arrived:
            if self.ended is not None:
                return None
            self._waiter = waiter = self._new_future()
            await waiter
        frame = arrived.popleft()
        self.unread -= len(frame)
        self.on_read()
        return frame

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class Pipe:
    """One connection. ``up`` is client to server. ``server`` and ``client`` are its two ends."""

    def __init__(self, runtime: Runtime, link: Link, jitter: Callable[[], float], name: str) -> None:
        self.runtime = runtime
        self.link = link
        self.name = name
        self._jitter = jitter
        self.up = Lane(runtime, self._delay_s)
        self.down = Lane(runtime, self._delay_s)
        self.client = ClientEnd(self)
        self.server = ServerEnd(self)
        self.opened: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None] | None = None  # the server's, for this connection

    def _delay_s(self) -> float:
        link = self.link
        return (link.delay_ms + link.jitter_ms * self._jitter()) / 1000 if link.jitter_ms else link.delay_ms / 1000

    @property
    def alive(self) -> bool:
        """Whether the client can still expect something of it."""
        return self.down.ended is None and self.up.ended is None

    def reset(self, *, keep_arrived: bool = True) -> None:
        """Both sides see the connection break."""
        self.up.cut(keep_arrived=keep_arrived)
        self.down.cut(keep_arrived=keep_arrived)

    def darken(self) -> None:
        """Nothing gets through any more, and nobody is told."""
        self.up.dark = self.down.dark = True
        now = self.runtime.now()
        self.runtime.call_at(now + CLIENT_NOTICES_S, self.down.cut)
        self.runtime.call_at(now + SERVER_NOTICES_S, self.up.cut)

    def heal(self) -> None:
        """From now on the network is quick, so that what has piled up gets through."""
        self.link = Link()
        self.server.on_writable()

    def over(self) -> None:
        """The server is done with this connection."""
        _settle(self.opened, "over")
        self.down.end(1006, "")
        self.up.cut()

    def stall(self, stalled: bool) -> None:
        """Hold both lanes, or release them."""
        self.up.stall(stalled)
        self.down.stall(stalled)


class ClientEnd:
    """The client's socket (``duologue.client.socket.Socket``). While ``deaf`` it reads nothing."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._listening = asyncio.Event()
        self._listening.set()
        self._room = asyncio.Event()
        self.closed = False
        pipe.up.on_read = self._room.set

    @property
    def deaf(self) -> bool:
        return not self._listening.is_set()

    @deaf.setter
    def deaf(self, deaf: bool) -> None:
        if deaf:
            self._listening.clear()
        else:
            self._listening.set()

    async def send(self, frame: bytes) -> None:
        pipe = self._pipe
        while pipe.up.unread > UP_WINDOW_BYTES and pipe.alive and not self.closed:
            self._room.clear()
            await self._room.wait()
        if pipe.link.slow_ms:
            await asyncio.sleep(pipe.link.slow_ms / 1000)
        if self.closed or not pipe.alive:
            code, reason = pipe.down.ended or (1006, "")
            raise SocketClosed(code, reason)
        pipe.up.put(frame)

    async def receive(self) -> bytes:
        pipe = self._pipe
        if self.deaf:
            await self._listening.wait()
        frame = None if self.closed else await pipe.down.get()
        if frame is None:
            code, reason = pipe.down.ended or (1006, "")
            raise SocketClosed(code, reason)
        if pipe.link.read_bytes_per_s:
            await asyncio.sleep(len(frame) / pipe.link.read_bytes_per_s)
        return frame

    async def close(self, code: int = 1000) -> None:
        self.hang_up(code)

    def hang_up(self, code: int = 1000) -> None:
        """Close in order, without waiting for the answer."""
        if not self.closed:
            self.closed = True
            self._listening.set()
            self._room.set()
            self._pipe.up.end(code, "")
            self._pipe.down.cut()


class ServerEnd(DirectTransport):
    """The server's side: what its shell writes to, and the ASGI calls."""

    def __init__(self, pipe: Pipe) -> None:
        self.on_writable: Callable[[], None] = _nothing
        self._pipe = pipe
        self._told = False
        self._refused = False  # who asked was told that there is no room, and waits for some
        self.on_frame: Callable[[bytes], None] = _ignore  # sees what the server reads
        self.on_send: Callable[[bytes], None] = _ignore  # sees what the server hands over
        pipe.down.on_read = self._read

    def _read(self) -> None:
        if self._refused:
            self._refused = False
            self.on_writable()

    @property
    def writable(self) -> bool:
        # A connection that is lost takes everything: who writes to it learns of the loss.
        down = self._pipe.down
        writable = down.ended is not None or down.unread < self._pipe.link.window_bytes
        self._refused = not writable
        return writable

    async def send(self, frame: bytes) -> None:
        down = self._pipe.down
        self.on_send(frame)  # also where the peer has gone: the server learns of that by this
        if down.ended is not None or self._pipe.up.ended is not None:
            raise SocketLostError
        down.put(frame)
        if self._pipe.link.slow_ms:
            await asyncio.sleep(self._pipe.link.slow_ms / 1000)

    def abort(self) -> None:
        self._pipe.reset()

    async def asgi_receive(self) -> dict[str, Any]:
        """The next ASGI message."""
        if not self._told:
            self._told = True
            return {"type": "websocket.connect"}
        frame = await self._pipe.up.get()
        if frame is None:
            code, reason = self._pipe.up.ended or (1006, "")
            return {"type": "websocket.disconnect", "code": code, "reason": reason}
        self.on_frame(frame)
        if frame[:1] == b"\0":  # how this network spells a binary frame
            return {"type": "websocket.receive", "bytes": frame}
        return {"type": "websocket.receive", FRAME: frame}

    async def asgi_send(self, message: Any) -> None:
        """Take an ASGI message."""
        pipe = self._pipe
        if pipe.link.slow_ms:
            await asyncio.sleep(pipe.link.slow_ms / 1000)
        match message["type"]:
            case "websocket.accept":
                _settle(pipe.opened, "")
            case "websocket.close":
                _settle(pipe.opened, "closed")
                pipe.down.end(message.get("code", 1000), message.get("reason") or "")
                pipe.up.end(message.get("code", 1000), "")
            case "websocket.http.response.start":
                _settle(pipe.opened, str(message["status"]))
                pipe.reset()
            case _:
                pass


def _settle(future: asyncio.Future[str], value: str) -> None:
    if not future.done():
        future.set_result(value)


def _nothing() -> None:
    pass


def _ignore(_: bytes) -> None:
    pass
