"""A real server on a loopback port over the fake engine, and clients that talk to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import wraps
from typing import Any

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from duologue.clock import Runtime
from duologue.server.app import RealtimeServer
from duologue.server.engine import EnginePort
from duologue.server.hello import read_hello
from duologue.server.serve import Listening, ServeConfig, running
from tests.unit.server.fake_engine import FakeEngine

PATIENCE_S = 20.0  # how long a test waits for what must happen; only a failure takes it

Frame = dict[str, Any]


class Server:
    """What a test sees of a running server."""

    def __init__(self, engine: FakeEngine, listening: Listening, realtime: RealtimeServer) -> None:
        self.engine = engine
        self.listening = listening
        self.realtime = realtime

    @property
    def url(self) -> str:
        return self.listening.url

    @asynccontextmanager
    async def client(self, path: str = "/v1/realtime", **options: Any) -> AsyncIterator[Talker]:
        # Without a bound on unread frames, a test may leave some: a full queue would hold up the closing handshake.
        async with connect(self.url + path, compression=None, max_size=None, max_queue=None, **options) as socket:
            yield Talker(socket, path)


TALKERS: list[Talker] = []
"""Every client of the test that runs, for the checkers that are shared with the simulator (see ``conftest.py``)."""


class Talker:
    """One client that remembers what it read."""

    def __init__(self, socket: ClientConnection, path: str) -> None:
        self.socket = socket
        where, _, query = path.partition("?")
        self.dialect = read_hello(where, query).dialect
        self.resumes: dict[str, Any] = {}  # what it asked to resume, if it did
        self.frames: list[Frame] = []
        TALKERS.append(self)

    async def send(self, type: str, **fields: object) -> None:
        if type == "session.resume" and not self.frames:
            self.resumes = fields
        await self.socket.send(json.dumps({"type": type, **fields}))

    async def next(self) -> Frame:
        async with asyncio.timeout(PATIENCE_S):
            data = await self.socket.recv()
        assert isinstance(data, str), "JSON travels in text frames only"
        frame: Frame = json.loads(data)
        self.frames.append(frame)
        return frame

    async def until(self, type: str) -> Frame:
        while True:
            frame = await self.next()
            if frame["type"] == type:
                return frame

    async def closed(self) -> int:
        """Read to the end and return the close code."""
        async with asyncio.timeout(PATIENCE_S):
            with suppress(ConnectionClosed):
                async for data in self.socket:
                    self.frames.append(json.loads(data))
            await self.socket.wait_closed()
        code = self.socket.close_code
        assert code is not None
        return code


@asynccontextmanager
async def server(engine: FakeEngine | None = None, *, config: ServeConfig | None = None) -> AsyncIterator[Server]:
    fake = engine or FakeEngine()

    @asynccontextmanager
    async def factory(runtime: Runtime) -> AsyncIterator[EnginePort]:
        del runtime
        yield fake

    settings = msgspec.structs.replace(config or ServeConfig(), port=0)
    async with running(settings, factory) as (listening, realtime):
        yield Server(fake, listening, realtime)


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait until something is so, turn by turn of the loop."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - what is awaited belongs to others and has no event
            await asyncio.sleep(0.001)


def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on a loop of its own."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(4 * PATIENCE_S):
                await test(*args, **kwargs)

        asyncio.run(bounded())

    return run


async def http(server: Server, path: str, **headers: str) -> tuple[int, bytes]:
    """A plain GET: status and body."""
    reader, writer = await asyncio.open_connection(server.listening.host, server.listening.port)
    lines = [f"GET {path} HTTP/1.1", "Host: localhost", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
    async with asyncio.timeout(PATIENCE_S):
        answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


__all__ = ["FakeEngine", "Server", "Talker", "eventually", "http", "on_loop", "server"]
