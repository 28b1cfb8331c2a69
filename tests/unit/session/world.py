"""A whole engine in virtual time: the real core, the real shell, scripted stages in this process, and a client by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from duologue.audio.format import AudioFormat
from duologue.config.session import ServerVad, SessionConfig
from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.commands import AppendAudio, DuplexCommand
from duologue.engine.duplex.events import (
    ResponseDone,
    SessionClosed,
    SessionEvent,
    SessionExpired,
)
from duologue.engine.duplex.messages import (
    CloseSessionMessage,
    OpenSession,
    OutputInvalidated,
    SessionCommand,
    SessionEventMessage,
)
from duologue.engine.duplex.session.detection import DetectionService, ScriptedDetection
from duologue.engine.duplex_orchestrator import DuplexOrchestrator
from duologue.engine.messages import EngineQueueMessage, ResultMessage, Shutdown
from duologue.models.scripted import ScriptedPipeline, silence, tone
from duologue.sim.border import Border
from duologue.sim.checkers import engine_evidence, judge
from duologue.sim.loop import VirtualRuntime
from duologue.sim.observation import Observations
from duologue.sim.trace import Trace

RATE_HZ = 16_000
FORMAT = AudioFormat(encoding="pcm16", rate_hz=RATE_HZ)
VAD = SessionConfig(input_format=FORMAT, turn_detection=ServerVad())
MANUAL = SessionConfig(input_format=FORMAT)

EventT = TypeVar("EventT")


@dataclass(slots=True)
class Client:
    """What one session said, and the means to speak to it."""

    world: World
    session_id: str
    events: list[SessionEvent] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    invalidated: list[str] = field(default_factory=list)
    refusals: list[SessionEvent] = field(default_factory=list)

    def send(self, command: DuplexCommand) -> None:
        self.world.engine.post(SessionCommand(session_id=self.session_id, command=command))

    def append(self, pcm: bytes) -> None:
        self.send(AppendAudio(audio=pcm))

    async def hear(self, pcm: bytes, *, chunk_ms: int = 20) -> None:
        """Send audio at the pace of speech."""
        size = RATE_HZ * chunk_ms // 1000 * 2
        for start in range(0, len(pcm), size):
            self.append(pcm[start : start + size])
            await asyncio.sleep(chunk_ms / 1000)

    async def say(self, duration_ms: int = 600, *, level: int = 4, pause_ms: int = 700) -> None:
        """Speak, then be quiet."""
        await self.hear(tone(duration_ms, rate_hz=RATE_HZ, level=level) + silence(pause_ms, rate_hz=RATE_HZ))

    def of(self, kind: type[EventT]) -> list[EventT]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def terminals(self) -> list[SessionEvent]:
        return [event for event in self.events if isinstance(event, SessionClosed | SessionExpired)]

    @property
    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.events]

    async def until(self, kind: type[EventT], count: int = 1, *, limit_s: float = 30.0) -> EventT:
        """The ``count``-th event of a kind, waiting for it."""
        end = self.world.runtime.now() + limit_s
        while len(self.of(kind)) < count:
            if self.world.runtime.now() > end:
                raise AssertionError(f"no {kind.__name__} number {count} within {limit_s:g} s; got {self.kinds}")
            await asyncio.sleep(0.005)
        return self.of(kind)[count - 1]


@dataclass(slots=True)
class World:
    """One engine and its clients."""

    runtime: VirtualRuntime
    pipeline: ScriptedPipeline
    config: DuplexSessionRuntimeConfig
    detection: DetectionService | None
    clients: dict[str, Client] = field(default_factory=dict)
    results: dict[str, ResultMessage] = field(default_factory=dict)
    others: list[EngineQueueMessage] = field(default_factory=list)
    controls: int = 0
    idle_tasks: set[object] = field(default_factory=set)
    engine: DuplexOrchestrator = field(init=False)
    border: Border = field(init=False)

    def __post_init__(self) -> None:
        self.engine = DuplexOrchestrator(
            stage_pools=self.pipeline.stage_pools,
            edges=self.pipeline.edges,
            output_async_queue=_Sink(self),
            rpc_async_queue=_Sink(self),
            runtime=self.runtime,
            plugin=self.pipeline.plugin,
            duplex_session_config=self.config,
            detection=self.detection,
        )
        self.border = Border(Observations(Trace(self.runtime.now), prefix="s"))
        self.border.watch_whole(self.engine)

    def take(self, message: EngineQueueMessage) -> None:
        match message:
            case SessionEventMessage():
                client = self.clients.setdefault(message.session_id, Client(self, message.session_id))
                if message.number == 0:  # not of the session: there is none
                    client.refusals.append(message.event)
                    return
                client.events.append(message.event)
                client.numbers.append(message.number)
                client.times.append(self.runtime.now())
            case OutputInvalidated():
                self.clients[message.session_id].invalidated.append(message.response_id)
            case ResultMessage():
                assert message.control_id not in self.results, "answered twice"
                self.results[message.control_id] = message
            case _:
                self.others.append(message)

    def control_id(self) -> str:
        self.controls += 1
        return f"control-{self.controls}"

    def open(
        self,
        config: SessionConfig = VAD,
        *,
        session_id: str = "s1",
        resumable: bool = False,
        takes_output: bool = False,
    ) -> Client:
        """Open a session that must be admitted."""
        result = self.try_open(config, session_id=session_id, resumable=resumable, takes_output=takes_output)
        assert result.error_code is None, result
        return self.clients[session_id]

    def try_open(
        self,
        config: SessionConfig = VAD,
        *,
        session_id: str = "s1",
        resumable: bool = False,
        takes_output: bool = False,
    ) -> ResultMessage:
        control_id = self.control_id()
        self.clients[session_id] = Client(self, session_id)
        self.engine.post(
            OpenSession(
                session_id=session_id,
                control_id=control_id,
                config=config,
                seed=f"seed-{session_id}",
                resumable=resumable,
                takes_output=takes_output,
            )
        )
        return self.results[control_id]

    def close(self, client: Client, reason: str = "client_close") -> str:
        control_id = self.control_id()
        self.engine.post(CloseSessionMessage(session_id=client.session_id, control_id=control_id, reason=reason))
        return control_id

    def forget(self, client: Client) -> None:
        """A session whose end could not be seen is not judged."""
        del self.clients[client.session_id]
        self.border.seen.told.pop(client.session_id, None)

    def everything(self) -> dict[str, int]:
        """Every table that must be empty at quiescence, by name, where it is not."""
        tables = {**self.engine.tables(), "stage_states": self.pipeline.open_states}
        return {name: size for name, size in tables.items() if size}


class _Sink:
    def __init__(self, world: World) -> None:
        self._world = world

    def put_nowait(self, message: EngineQueueMessage, /) -> None:
        world = self._world
        if isinstance(message, ResultMessage):
            world.border.answered(message)
        else:
            world.border.left(message)
        world.take(message)


@asynccontextmanager
async def engine(
    runtime: VirtualRuntime,
    pipeline: ScriptedPipeline,
    *,
    config: DuplexSessionRuntimeConfig | None = None,
    detection: DetectionService | None = None,
    empty: bool = True,
) -> AsyncIterator[World]:
    """An engine that serves while the block runs; checks afterwards that nothing is left of anything."""
    world = World(
        runtime,
        pipeline,
        DuplexSessionRuntimeConfig() if config is None else config,
        ScriptedDetection() if detection is None else detection,
    )
    await world.engine.start()
    task = runtime.spawn(world.engine.run(), name="engine")
    await asyncio.sleep(0)
    world.idle_tasks = set(runtime.tasks)
    try:
        yield world
    finally:
        if not task.done():
            world.engine.post(Shutdown())
        await task
    if empty:
        world.border.rested("after the stop", world.everything())
    violations = judge(engine_evidence(world.border.seen, world.config, pipeline.plugin.capabilities))
    assert not violations, "\n".join(f"{found.rule}: {found.text}" for found in violations)


def words(responses: Sequence[ResponseDone]) -> list[str]:
    return [response.full_text for response in responses]
