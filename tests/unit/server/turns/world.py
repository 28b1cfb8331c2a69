"""The server's HTTP side over the real engine with the scripted model, in virtual time, and a client without a socket."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from duologue.clock import Runtime
from duologue.config.session import SessionConfig
from duologue.config.stage_config import DuplexSessionRuntimeConfig, ModelConfig
from duologue.config.turns import TurnLimits
from duologue.engine.duplex.session.detection import ScriptedDetection
from duologue.engine.duplex_orchestrator import DuplexOrchestrator
from duologue.engine.messages import Shutdown
from duologue.models.scripted import ScriptedPipeline, ephemeral_pipeline, resident_pipeline
from duologue.models.scripted.script import Script
from duologue.server.app import RealtimeServer
from duologue.server.assembly import turn_desk
from duologue.server.engine import EngineFront, EngineHealth
from duologue.server.hello import Access
from duologue.server.metrics import ServerMetrics
from duologue.server.models import ModelCard, ModelNames
from duologue.server.registry import SessionHub

Json = dict[str, Any]


class Answer:
    """What a client got. ``cut``: the connection was broken within the answer."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.pieces: list[bytes] = []
        self.complete = False
        self.cut = False

    @property
    def json(self) -> Any:
        return json.loads(bytes(self.body))

    @property
    def error(self) -> Json:
        error: Json = self.json["error"]
        return error

    @property
    def events(self) -> list[Any]:
        """Data of the events: JSON, or the text itself for ``[DONE]``."""
        blocks = bytes(self.body).decode().split("\n\n")
        assert blocks[-1] == "", "a stream ends with a whole event"
        data = [block.removeprefix("data: ") for block in blocks[:-1] if not block.startswith(":")]
        return [text if text == "[DONE]" else json.loads(text) for text in data]

    @property
    def comments(self) -> int:
        return bytes(self.body).decode().count(": keep-alive")


class Call:
    """One request under way."""

    def __init__(self, app: Any, scope: Json, pieces: Iterable[bytes], *, stuck: bool) -> None:
        self.answer = Answer()
        self.moving = asyncio.Event()  # while not set, the connection takes nothing more
        if not stuck:
            self.moving.set()
        self._left = asyncio.Event()
        self._arrived = asyncio.Event()
        self._pieces = list(pieces)
        self.task = asyncio.ensure_future(self._run(app, scope))

    async def _run(self, app: Any, scope: Json) -> Answer:
        try:
            await app(scope, self._receive, self._send)
        except RuntimeError as fault:
            assert "broken off" in str(fault)
            self.answer.cut = True
        return self.answer

    async def _receive(self) -> Json:
        if self._pieces:
            piece = self._pieces.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(self._pieces)}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Json) -> None:
        await self.moving.wait()
        answer = self.answer
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            answer.body += message["body"]
            answer.pieces.append(message["body"])
            answer.complete = not message["more_body"]
        self._arrived.set()

    def leave(self) -> None:
        """The client goes away."""
        self._left.set()

    async def until(self, condition: Callable[[Answer], object]) -> None:
        """Wait until the answer so far is as wanted."""
        while not condition(self.answer):
            self._arrived.clear()
            await self._arrived.wait()


class World:
    """A server and its engine."""

    def __init__(
        self,
        front: EngineFront,
        server: RealtimeServer,
        orchestrator: DuplexOrchestrator,
        pipeline: ScriptedPipeline,
    ) -> None:
        self.front = front
        self.server = server
        self.orchestrator = orchestrator
        self.pipeline = pipeline

    def busy(self) -> dict[str, int]:
        """Whatever is not at rest, in the engine, its stages and the server."""
        gate = self.server.turns.gate
        sizes = {
            **self.orchestrator.tables(),
            "stage states": self.pipeline.open_states,
            "requests": self.server.turns.active,
            "places": gate.places,
            "running": gate.running,
            "held": gate.held_bytes,
        }
        return {name: size for name, size in sizes.items() if size}

    def call(
        self,
        path: str,
        body: bytes | Iterable[bytes],
        *,
        headers: Mapping[str, str] | None = None,
        media_type: str = "application/json",
        stuck: bool = False,
    ) -> Call:
        fields = {"content-type": media_type, **(headers or {})}
        if isinstance(body, bytes):
            fields.setdefault("content-length", str(len(body)))
            body = [body]
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in fields.items()],
            "scheme": "http",
            "http_version": "1.1",
            "server": ("testserver", 80),
            "client": ("127.0.0.1", 1),
            "state": {},
        }
        return Call(self.server.app, scope, body, stuck=stuck)

    async def post(self, path: str, payload: object, **options: Any) -> Answer:
        body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        return await self.call(path, body, **options).task

    async def chat(self, text: str = "hello", **fields: object) -> Answer:
        return await self.post("/v1/chat/completions", chat_body(text, **fields))

    async def speech(self, text: str, **fields: object) -> Answer:
        return await self.post("/v1/audio/speech", {"model": "tts-1", "input": text, "voice": "alloy", **fields})

    async def transcribe(self, content: bytes, name: str = "a.wav", **fields: str) -> Answer:
        body, media_type = form(content, name, **fields)
        return await self.post("/v1/audio/transcriptions", body, media_type=media_type)


def chat_body(text: str = "hello", **fields: object) -> Json:
    return {"model": "scripted", "messages": [{"role": "user", "content": text}], **fields}


def form(content: bytes, name: str = "a.wav", kind: str = "audio/wav", **fields: str) -> tuple[bytes, str]:
    """A form with a file and fields, and its media type."""
    boundary = b"x0x0x"
    parts = [
        b'--%s\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % (boundary, key.encode(), value.encode())
        for key, value in fields.items()
    ]
    parts.append(
        b'--%s\r\nContent-Disposition: form-data; name="file"; filename="%s"\r\nContent-Type: %s\r\n\r\n%s\r\n'
        % (boundary, name.encode(), kind.encode(), content)
    )
    return b"".join(parts) + b"--%s--\r\n" % boundary, f"multipart/form-data; boundary={boundary.decode()}"


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@asynccontextmanager
async def world(
    runtime: Runtime,
    script: Script | None = None,
    *,
    limits: TurnLimits | None = None,
    keys: tuple[str, ...] = (),
    sessions: int = 4,
    resident: bool = False,
) -> AsyncIterator[World]:
    """A running engine with a server before it; everything must be at rest when it ends."""
    pipeline = (resident_pipeline if resident else ephemeral_pipeline)(runtime, script)
    front = EngineFront(runtime=runtime, models=[ModelCard(id="scripted")], health=lambda: EngineHealth(alive=True))
    orchestrator = DuplexOrchestrator(
        stage_pools=pipeline.stage_pools,
        edges=pipeline.edges,
        output_async_queue=front.outputs,
        rpc_async_queue=front.results,
        runtime=runtime,
        plugin=pipeline.plugin,
        duplex_session_config=DuplexSessionRuntimeConfig(max_sessions=sessions),
        model_config=ModelConfig(model="scripted"),
        detection=ScriptedDetection(),
    )
    limits = limits or TurnLimits()
    front.attach(orchestrator)
    front.serve_turns(turn_desk(front, orchestrator, limits))
    await orchestrator.start()
    life = runtime.spawn(orchestrator.run(), name="engine")
    metrics = ServerMetrics()
    hub = SessionHub(
        defaults=SessionConfig(),
        names=ModelNames(front.models()),
        entropy=runtime.entropy,
        subscribe=front.subscribe,
        unsubscribe=front.unsubscribe,
        observer=metrics,
    )
    server = RealtimeServer(engine=front, hub=hub, access=Access(keys), runtime=runtime, metrics=metrics, turns=limits)
    place = World(front, server, orchestrator, pipeline)
    try:
        yield place
        await asyncio.sleep(1)
        assert place.busy() == {}
    finally:
        orchestrator.post(Shutdown())
        await life
