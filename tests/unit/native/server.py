"""The native model behind the real server, in virtual time, and clients on simulated sockets."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from duologue.client.socket import SocketClosed
from duologue.config.service import DuologueConfig, ModelChoice
from duologue.config.session import SessionConfig
from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex_orchestrator import DuplexOrchestrator
from duologue.engine.stages.inproc import InprocClient
from duologue.models.native.shape import RATE_HZ
from duologue.outputs import Options
from duologue.server.app import RealtimeServer
from duologue.server.assembly import engine
from duologue.server.engine import EngineFront, EnginePort
from duologue.server.hello import Access
from duologue.server.metrics import ServerMetrics
from duologue.server.models import ModelNames
from duologue.server.registry import SessionHub
from duologue.server.transport import EXTENSION
from duologue.sim.loop import VirtualRuntime
from duologue.sim.network import Pipe
from duologue.sim.plan import Link

Frame = dict[str, Any]


def sound(duration_ms: int, level: float = 0.1) -> bytes:
    """Noise, PCM16 at the model's rate."""
    samples = np.random.default_rng(duration_ms).standard_normal(RATE_HZ * duration_ms // 1000) * level * 32767
    return samples.clip(-32768, 32767).astype("<i2").tobytes()


def quiet(duration_ms: int) -> bytes:
    return bytes(RATE_HZ * duration_ms // 1000 * 2)


class Talker:
    """One connection. ``frames`` are the events that arrived, ``times`` when."""

    def __init__(self, runtime: VirtualRuntime, pipe: Pipe) -> None:
        self.runtime = runtime
        self.pipe = pipe
        self.frames: list[Frame] = []
        self.times: list[float] = []
        self._arrived = asyncio.Event()

    async def read(self) -> None:
        while True:
            try:
                frame = await self.pipe.client.receive()
            except SocketClosed:
                return
            self.frames.append(json.loads(frame))
            self.times.append(self.runtime.now())
            self._arrived.set()

    async def send(self, type: str, **fields: object) -> None:
        await self.pipe.client.send(json.dumps({"type": type, **fields}).encode())

    async def stream(self, pcm: bytes, *, chunk_ms: int = 100) -> None:
        """Send audio at the pace of speech."""
        size = RATE_HZ * chunk_ms // 1000 * 2
        for start in range(0, len(pcm), size):
            piece = pcm[start : start + size]
            await self.send("input_audio_buffer.append", audio=base64.b64encode(piece).decode())
            await asyncio.sleep(len(piece) / 2 / RATE_HZ)

    async def until(self, kind: str, count: int = 1, *, limit_s: float = 30.0) -> Frame:
        """The ``count``-th event of a kind, waiting for it."""
        async with asyncio.timeout(limit_s):
            while len(self.of(kind)) < count:
                self._arrived.clear()
                await self._arrived.wait()
        return self.of(kind)[count - 1]

    def of(self, kind: str) -> list[Frame]:
        return [frame for frame in self.frames if frame["type"] == kind]

    def audio(self, response_id: str | None = None) -> bytes:
        deltas = self.of("response.output_audio.delta")
        return b"".join(
            base64.b64decode(delta["delta"]) for delta in deltas if response_id in (None, delta["response_id"])
        )

    @property
    def kinds(self) -> list[str]:
        return [frame["type"] for frame in self.frames]


class Host:
    """A server with its engine."""

    def __init__(self, runtime: VirtualRuntime, port: EnginePort, server: RealtimeServer) -> None:
        self.runtime = runtime
        self.port = port
        self.server = server
        self._numbers = 0

    def kill_worker(self, why: str) -> None:
        """The one replica of the model dies as a worker process would."""
        assert isinstance(self.port, EngineFront)
        orchestrator = self.port._orchestrator
        assert isinstance(orchestrator, DuplexOrchestrator)
        client = orchestrator.stage_pools[0].stage_client
        assert isinstance(client, InprocClient)
        client.die(ConnectionError(why))

    @asynccontextmanager
    async def talker(self, query: str = "", *, opened: bool = True) -> AsyncIterator[Talker]:
        """A connection; ``opened``: with its session."""
        self._numbers += 1
        pipe = Pipe(self.runtime, Link(), lambda: 0.0, f"client-{self._numbers}")
        scope = {
            "type": "websocket",
            "path": "/v1/realtime",
            "raw_path": b"/v1/realtime",
            "root_path": "",
            "scheme": "ws",
            "query_string": query.encode(),
            "headers": [],
            "subprotocols": [],
            "server": ("test", 80),
            "client": ("test", self._numbers),
            "extensions": {EXTENSION: pipe.server, "websocket.http.response": {}},
        }
        connection = self.runtime.spawn(
            self.server.app(scope, pipe.server.asgi_receive, pipe.server.asgi_send), name=pipe.name
        )
        connection.add_done_callback(lambda _: pipe.over())
        talker = Talker(self.runtime, pipe)
        reading = self.runtime.spawn(talker.read(), name=f"{pipe.name} reads")
        try:
            if opened:
                await talker.until("session.created")
            yield talker
        finally:
            pipe.client.hang_up()
            await asyncio.wait([connection, reading])


def config(folder: Path, **options: str | int) -> DuologueConfig:
    """The native model in this process, without a detector: it takes turns by itself."""
    chosen: Options = {"backend": "inproc", "models_dir": str(folder), **options}
    return DuologueConfig(
        model=ModelChoice(plugin="native", options=chosen),
        session=SessionConfig(),
        sessions=DuplexSessionRuntimeConfig(max_sessions=8),
    )


@asynccontextmanager
async def host(runtime: VirtualRuntime, settings: DuologueConfig) -> AsyncIterator[Host]:
    """A server that listens while the block runs."""
    async with engine(settings, runtime) as port:
        hub = SessionHub(
            defaults=settings.session,
            names=ModelNames(port.models()),
            entropy=runtime.entropy,
            subscribe=port.subscribe,
            unsubscribe=port.unsubscribe,
        )
        server = RealtimeServer(engine=port, hub=hub, access=Access(), runtime=runtime, metrics=ServerMetrics())
        yield Host(runtime, port, server)
        assert await server.drain(5.0)
