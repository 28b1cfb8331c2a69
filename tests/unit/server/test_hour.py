"""An hour of talk leaves a session as large as five minutes do: the whole server and engine in virtual time, measured.

The client reads what it is sent and acknowledges nothing, neither events nor playback. What is measured is everything that
can be reached from engine and server, in bytes; the simulated network, the models and the clock are not theirs.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import logging
import sys
import types
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from duologue.config.session import SessionConfig
from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.session.detection import ScriptedDetection
from duologue.engine.duplex_orchestrator import DuplexOrchestrator
from duologue.engine.messages import Shutdown
from duologue.models.scripted import Script, ephemeral_pipeline, resident_pipeline, silence, tone
from duologue.server.app import RealtimeServer
from duologue.server.engine import EngineFront, EngineHealth
from duologue.server.hello import Access
from duologue.server.metrics import ServerMetrics
from duologue.server.models import ModelCard, ModelNames
from duologue.server.registry import SessionHub
from duologue.server.transport import EXTENSION
from duologue.sim.loop import VirtualRuntime, virtual
from duologue.sim.network import Pipe
from duologue.sim.plan import Link

ITEMS = 32
"""The bound on items of a conversation: reached within five minutes, so that what is left to grow is what should not."""

RUNTIME = DuplexSessionRuntimeConfig(max_items_per_session=ITEMS, audio_delta_ms=1_000, send_ahead_ms=1_000)
TURN_S = 10
MINUTES_5, HOUR = 300 // TURN_S, 3600 // TURN_S
CHUNK_MS = 1_000
FOREIGN = ("duologue.sim", "duologue.models", "asyncio", "tests", "logging", "threading", "_pytest", "contextvars")


def weight(*roots: object) -> tuple[int, Counter[str]]:
    """Bytes of everything reachable from ``roots``, and how many objects of each type there are."""
    seen: set[int] = set()
    kinds: Counter[str] = Counter()
    total = 0
    todo: list[object] = list(roots)
    while todo:
        thing = todo.pop()
        kind = type(thing)
        if id(thing) in seen or isinstance(thing, type | types.ModuleType | types.CodeType | logging.Logger):
            continue
        module = kind.__module__
        if module.startswith(FOREIGN) or (kind is types.FunctionType and thing not in roots):
            continue
        seen.add(id(thing))
        total += sys.getsizeof(thing)
        kinds[kind.__qualname__] += 1
        todo.extend(gc.get_referents(thing))
    return total, kinds


SCRIPT = Script(sentences=3, sentence_ms=1_000, chunk_ms=1_000, unit_ms=1_000, quiet_units=1, answer_units=3)


class Served:
    """One engine and server, and the means to connect to it."""

    def __init__(
        self,
        runtime: VirtualRuntime,
        family: str,
        script: Script,
        config: DuplexSessionRuntimeConfig,
        detector: ScriptedDetection,
    ) -> None:
        self.runtime = runtime
        build = resident_pipeline if family == "resident" else ephemeral_pipeline
        pipeline = build(runtime, script)
        self.front = EngineFront(
            runtime=runtime, models=[ModelCard(id="m")], health=lambda: EngineHealth(alive=True), control_timeout_s=10.0
        )
        self.engine = DuplexOrchestrator(
            stage_pools=pipeline.stage_pools,
            edges=pipeline.edges,
            output_async_queue=self.front.outputs,
            rpc_async_queue=self.front.results,
            runtime=runtime,
            plugin=pipeline.plugin,
            duplex_session_config=config,
            detection=detector,
        )
        self.front.attach(self.engine)
        self.hub = SessionHub(
            defaults=SessionConfig(model="m"),
            names=ModelNames(self.front.models()),
            entropy=runtime.entropy,
            subscribe=self.front.subscribe,
            unsubscribe=self.front.unsubscribe,
        )
        self.server = RealtimeServer(
            engine=self.front, hub=self.hub, access=Access(()), runtime=runtime, metrics=ServerMetrics()
        )

    def measure(self) -> tuple[int, Counter[str]]:
        gc.collect()
        return weight(self.engine, self.front, self.hub, self.server)

    def connect(self, query: str) -> Pipe:
        pipe = Pipe(self.runtime, Link(), lambda: 0.0, "client")
        scope: dict[str, Any] = {
            "type": "websocket",
            "path": "/v1/realtime",
            "raw_path": b"/v1/realtime",
            "root_path": "",
            "scheme": "ws",
            "query_string": query.encode(),
            "headers": [],
            "subprotocols": [],
            "server": ("sim", 80),
            "client": ("sim", 1),
            "extensions": {EXTENSION: pipe.server, "websocket.http.response": {}},
        }
        app = self.server.app(scope, pipe.server.asgi_receive, pipe.server.asgi_send)
        pipe.task = self.runtime.spawn(app, name="connection")
        pipe.task.add_done_callback(lambda _: pipe.over())
        return pipe


@asynccontextmanager
async def served(
    runtime: VirtualRuntime,
    family: str,
    *,
    script: Script = SCRIPT,
    config: DuplexSessionRuntimeConfig | None = None,
    detection: ScriptedDetection | None = None,
) -> AsyncIterator[Served]:
    there = Served(runtime, family, script, config or DuplexSessionRuntimeConfig(), detection or ScriptedDetection())
    await there.engine.start()
    life = runtime.spawn(there.engine.run(), name="engine")
    await asyncio.sleep(0)
    yield there
    there.engine.post(Shutdown())
    await life


def append(pcm: bytes) -> bytes:
    return msgspec.json.encode({"type": "input_audio_buffer.append", "audio": base64.b64encode(pcm).decode()})


class Caller:
    """Talks by the clock, and listens to nothing but the types of events."""

    def __init__(self, pipe: Pipe, rate_hz: int) -> None:
        self.pipe = pipe
        self.heard: Counter[str] = Counter()
        self.cancelled = 0
        self._loud = append(tone(CHUNK_MS, rate_hz=rate_hz))
        self._quiet = append(silence(CHUNK_MS, rate_hz=rate_hz))
        self._kind = msgspec.json.Decoder(type=_Kind)

    async def read(self) -> None:
        while (frame := await self.pipe.down.get()) is not None:
            self.heard[self._kind.decode(frame).type] += 1
            self.cancelled += b'"status":"cancelled"' in frame

    async def turn(self, number: int) -> None:
        """A question of a second; in every third turn another one over the answer."""
        loud = {0} | ({3} if number % 3 == 0 else set())
        for chunk in range(TURN_S * 1000 // CHUNK_MS):
            self.pipe.up.put(self._loud if chunk in loud else self._quiet)
            await asyncio.sleep(CHUNK_MS / 1000)


class _Kind(msgspec.Struct):
    type: str


SETTINGS: dict[str, tuple[str, int, dict[str, object]]] = {
    "ga": (
        "model=m",
        24_000,
        {
            "type": "realtime",
            "audio": {"input": {"turn_detection": {"type": "server_vad"}}},
        },
    ),
    "duplex": ("model=m&duplex=1", 16_000, {"turn_detection": {"type": "server_vad"}}),
}


@pytest.mark.parametrize("dialect", ["ga", "duplex"])
@pytest.mark.parametrize("family", ["ephemeral", "resident"])
@virtual
async def test_an_hour_leaves_a_session_as_large_as_five_minutes(
    family: str, dialect: str, runtime: VirtualRuntime
) -> None:
    query, rate_hz, settings = SETTINGS[dialect]
    async with served(runtime, family, config=RUNTIME) as there:
        pipe = there.connect(query)
        caller = Caller(pipe, rate_hz)
        reading = runtime.spawn(caller.read(), name="reader")
        pipe.up.put(msgspec.json.encode({"type": "session.update", "session": settings}))
        await asyncio.sleep(1.0)
        sizes = []
        for number in range(HOUR):
            await caller.turn(number)
            if number + 1 in (MINUTES_5, HOUR):
                sizes.append(there.measure())
        assert caller.heard["error"] == 0, caller.heard
        assert caller.heard["response.done"] >= HOUR, caller.heard
        assert caller.cancelled >= HOUR // 4
        (small, before), (large, after) = sizes
        print(f"\n{family} {dialect}: {small} bytes after 5 minutes, {large} after an hour")
        grown = {kind: (before[kind], count) for kind, count in after.items() if count > before[kind] * 1.02 + 20}
        assert not grown
        assert abs(large - small) <= small * 0.01, (small, large)
        pipe.client.hang_up()
        await reading


@virtual
async def test_the_measure_sees_what_sessions_hold(runtime: VirtualRuntime) -> None:
    async with served(runtime, "ephemeral") as there:
        pipe = there.connect("model=m")
        await asyncio.sleep(1.0)
        empty, _ = there.measure()
        pipe.up.put(append(bytes(48_000)))
        pipe.up.put(
            msgspec.json.encode(
                {
                    "type": "conversation.item.create",
                    "item": {
                        "type": "message",
                        "role": "user",
                        "content": [{"type": "input_text", "text": "x" * 9_000}],
                    },
                }
            )
        )
        await asyncio.sleep(1.0)
        full, kinds = there.measure()
        assert 32_000 + 9_000 <= full - empty <= 32_000 + 12_000
        assert kinds["Item"] == 1 and kinds["DuplexSessionRunner"] == 1
