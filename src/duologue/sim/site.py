"""One simulated deployment: the real engine and the real server over simulated stages, detector and sockets.

Rules kept here: everything between the sockets and the stages is the code that runs in production; this module only builds
it, listens at its borders, and starts and stops it.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Final

from duologue.config.session import SessionConfig
from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.config.turns import TurnLimits
from duologue.engine.duplex.messages import OutputInvalidated, SessionEventMessage
from duologue.engine.duplex_orchestrator import DuplexOrchestrator
from duologue.engine.messages import EngineQueueMessage, ErrorMessage, OutputMessage, Shutdown
from duologue.engine.stage_pool import StagePool
from duologue.server.app import RealtimeServer
from duologue.server.assembly import turn_desk
from duologue.server.engine import EngineFront, EngineHealth, PoolHealth
from duologue.server.hello import Access
from duologue.server.metrics import ServerMetrics
from duologue.server.models import ModelCard, ModelNames
from duologue.server.registry import ConnectionLimits, SessionHub
from duologue.server.transport import EXTENSION
from duologue.sim.border import Border
from duologue.sim.detector import detection_of
from duologue.sim.loop import VirtualRuntime
from duologue.sim.network import Pipe
from duologue.sim.observation import Observations
from duologue.sim.plan import Deployment, Plan, WorkFault
from duologue.sim.plugin import HookFaults, edges_for, plugin_for
from duologue.sim.replica import ReplicaFaults, SimReplica
from duologue.sim.sample import Withdrawn
from duologue.sim.stages import STAGES, StageDesk
from duologue.sim.trace import Trace

_CONTENT: Final = (
    b'{"type":"response.output_audio.delta"',
    b'{"type":"response.output_audio_transcript.delta"',
    b'{"type":"response.output_text.delta"',
)
_RESPONSE: Final = re.compile(rb'"response_id":"([^"]+)"')
_SEQ: Final = re.compile(rb'"server_event_seq":(\d+)')
MODEL: Final = "sim"
DRAIN_S: Final = 10.0


def key_id(client: str) -> str:
    """How the server calls the key of a client, which is the client's name."""
    return hashlib.sha256(client.encode()).hexdigest()[:12]


class Site:
    """One engine with its server (see module docstring)."""

    def __init__(self, runtime: VirtualRuntime, plan: Plan, index: int, trace: Trace) -> None:
        self.plan: Deployment = plan.deployments[index]
        self.runtime = runtime
        self.trace = trace
        self.seen = Observations(trace, prefix=f"d{index}.s")
        self.border = Border(self.seen)
        self._keys = {key_id(person.name): person.name for person in plan.people}
        people = [person for person in plan.people if person.deployment == index]
        work = {person.name: person.work for person in people}
        for errand in plan.errands:
            if errand.misfortune == "fails":
                work[f"{errand.name}-0"] = (WorkFault(stage=0, nth=1, how="raise"),)
        self.desk = StageDesk(plan.seed, self.plan, self.seen, work, runtime.loop.pause)
        self.hooks = HookFaults({person.name: person.hooks for person in people if person.hooks}, self.seen)
        faults = [fault for fault in plan.replica_faults if fault.deployment == index]
        stages = len(STAGES[self.plan.family])
        self._replica_faults = [
            ReplicaFaults(tuple(fault for fault in faults if fault.stage == stage)) for stage in range(stages)
        ]
        self.replicas: list[list[SimReplica]] = [[] for _ in range(stages)]
        self.detection, self._healing = detection_of(self.plan.detector, runtime, trace)
        self.config = DuplexSessionRuntimeConfig(**self.plan.runtime)  # type: ignore[arg-type]
        self.limits = ConnectionLimits(**self.plan.limits)  # type: ignore[arg-type]
        self.stopped_at: float | None = None
        self._pipes: dict[asyncio.Task[None], Pipe] = {}
        self.crashed = False
        self._handed: dict[str, int] = {}
        self._life: asyncio.Task[None] | None = None
        self._stop: asyncio.Task[None] | None = None
        self._build()

    def _build(self) -> None:
        runtime, plan = self.runtime, self.plan
        self.front = EngineFront(
            runtime=runtime,
            models=[ModelCard(id=MODEL)],
            health=self._health,
            control_timeout_s=self.config.control_timeout_s,
            wait_s=self.config.max_wait_s if self.config.max_waiting_sessions else 0.0,
        )
        self.orchestrator = DuplexOrchestrator(
            stage_pools=[self._pool(stage) for stage in range(len(self.replicas))],
            edges=edges_for(plan, self.hooks),
            output_async_queue=_Tap(self._output),
            rpc_async_queue=_Tap(self._result),
            runtime=runtime,
            plugin=plugin_for(plan, self.hooks, self.seen),
            duplex_session_config=self.config,
            detection=self.detection,
            async_chunk=plan.prewarm,
        )
        self.border.watch(self.orchestrator)
        self.front.attach(_Door(self._post))
        turns = TurnLimits(**plan.turns)  # type: ignore[arg-type]
        self.front.serve_turns(turn_desk(self.front, self.orchestrator, turns))
        self.hub = SessionHub(
            defaults=SessionConfig(model=MODEL),
            names=ModelNames(self.front.models()),
            entropy=runtime.entropy,
            subscribe=self._subscribe,
            unsubscribe=self.front.unsubscribe,
            limits=self.limits,
        )
        access = Access(tuple(self._keys.values()))
        self.server = RealtimeServer(
            engine=self.front, hub=self.hub, access=access, runtime=runtime, metrics=ServerMetrics(), turns=turns
        )

    def _pool(self, stage: int) -> StagePool:
        def make_client(replica_id: int) -> SimReplica:
            del replica_id
            replica = SimReplica(stage, self.desk, self._replica_faults[stage], self.runtime, self.seen)
            self.replicas[stage].append(replica)
            return replica

        return StagePool(stage_id=stage, make_client=make_client, runtime=self.runtime, replicas=self.plan.replicas)

    # Borders

    def _subscribe(self, session_id: str, sink: Callable[[SessionEventMessage | OutputInvalidated], None]) -> None:
        attachment = self.hub.get(session_id)
        if attachment is not None:
            self.seen.key_of_session[session_id] = self._keys.get(attachment.key_id, "?")
        self.front.subscribe(session_id, sink)

    def _post(self, message: EngineQueueMessage) -> None:
        self.border.posted(message)
        self.orchestrator.post(message)

    def _output(self, message: EngineQueueMessage) -> None:
        if isinstance(message, OutputMessage | ErrorMessage) and not message.request_id.startswith("turn-"):
            self.border.left(message)
            return
        if not isinstance(message, OutputMessage | ErrorMessage):  # of an HTTP request: its caller says what came of it
            self.border.left(message)
        self.front.outputs.put_nowait(message)

    def _result(self, message: EngineQueueMessage) -> None:
        self.border.answered(message)
        self.front.results.put_nowait(message)

    def handed_over(self, frame: bytes) -> None:
        """The server gives a frame to a socket: content that was withdrawn must not be among it (a replay may)."""
        if not frame.startswith(_CONTENT):
            return
        found = _RESPONSE.search(frame)
        response_id = found.group(1).decode() if found is not None else ""
        seq = _SEQ.search(frame)
        number = int(seq.group(1)) if seq is not None else 0
        session_id = response_id[5:44]
        replayed = 0 < number <= self._handed.get(session_id, 0)
        if number:
            self._handed[session_id] = max(number, self._handed.get(session_id, 0))
        if response_id in self.border.withdrawn and not replayed:
            self.seen.samples.append(Withdrawn(self.trace.now(), response_id))

    @property
    def acted(self) -> Mapping[str, int]:
        """How often each limit acted, as declared."""
        return self.orchestrator.session_manager.health().acted

    # Life

    async def start(self) -> None:
        """Start the engine. Replicas that take their time are not waited for."""
        if not self.plan.load_ms:
            await self.orchestrator.start()
        self._life = self.runtime.spawn(self._run(), name="engine")
        await asyncio.sleep(0)

    async def _run(self) -> None:
        try:
            await self.orchestrator.run()
        except _Crash:
            pass
        finally:
            self.front.died()

    def connect(self, pipe: Pipe, client: str, query: str) -> None:
        """A client's connection reaches the server."""
        scope = {
            "type": "websocket",
            "path": "/v1/realtime",
            "raw_path": b"/v1/realtime",
            "root_path": "",
            "scheme": "ws",
            "query_string": query.encode(),
            "headers": [(b"authorization", f"Bearer {client}".encode())],
            "subprotocols": [],
            "server": ("sim", 80),
            "client": ("sim", 1),
            "extensions": {EXTENSION: pipe.server, "websocket.http.response": {}},
        }
        task = self.runtime.spawn(
            self.server.app(scope, pipe.server.asgi_receive, pipe.server.asgi_send),
            name=f"connection {pipe.name}",
        )
        pipe.task = task
        self._pipes[task] = pipe
        task.add_done_callback(self._disconnected)

    def _disconnected(self, task: asyncio.Task[None]) -> None:
        self._pipes.pop(task).over()

    def halt(self) -> None:
        """The engine is told to stop although its server has not drained."""
        self.stopped_at = self.trace.now()
        self.orchestrator.post(Shutdown())

    async def stop(self, *, crash: bool = False) -> None:
        """Drain the server and stop the engine, once; with ``crash`` the engine fails first. Returns when it has stopped."""
        if self._stop is None:
            self._stop = self.runtime.spawn(self._stop_all(crash=crash), name="stop")
        await asyncio.shield(self._stop)

    async def _stop_all(self, *, crash: bool) -> None:
        self.stopped_at = self.trace.now() if self.stopped_at is None else self.stopped_at
        if crash:
            self.trace.count("site.crash")
            self.crashed = True
            self.orchestrator._life._fatal = _Crash()
            self.orchestrator._shutdown_event.set()
            await asyncio.sleep(1.0)
        if not await self.server.drain(DRAIN_S):
            self.trace.count("site.drain_late")
            self.trace.note("world", "drain", "not in time")
        self.orchestrator.post(Shutdown())
        if self._life is not None:
            await asyncio.wait([self._life])

    def heal(self) -> None:
        """From now on nothing goes wrong any more."""
        self.desk.heal()
        for pipe in list(self._pipes.values()):
            pipe.heal()
        self.hooks.healed = True
        self._healing.healed = True
        for faults in self._replica_faults:
            faults.healed = True
        for replicas in self.replicas:
            for replica in replicas:
                replica.heal()

    def tables(self) -> Mapping[str, int]:
        """Sizes of everything that must be empty at quiescence, where it is not."""
        health = self.orchestrator.session_manager.health()
        sizes = {
            **self.orchestrator.tables(),
            "hub": len(self.hub.sessions),
            "connections": self.server.connections,
            "stage_states": self.desk.open_states,
            "control": len(self.front._waiting),
            "turns": self.server.turns.active,
            "turn_places": self.server.turns.gate.places,
            "turn_bytes": self.server.turns.gate.held_bytes,
            "sinks": len(self.front._sinks),
            "slots": health.limit - health.free,
            **{f"held.{name}": size for name, size in health.held.items()},
        }
        return {name: size for name, size in sizes.items() if size}

    def _health(self) -> EngineHealth:
        slots = self.orchestrator.session_manager.health()
        pools = tuple(
            PoolHealth(name=stage.name, replicas=len(stage.replicas), available=len(stage.replicas))
            for stage in self.orchestrator.health()
        )
        return EngineHealth(
            alive=True,
            pools=pools,
            slots_limit=slots.limit,
            slots_used=slots.limit - slots.free,
            slots_quarantined=slots.quarantined,
        )


class _Crash(Exception):
    """The engine fails as the plan says."""


class _Tap:
    """A queue that hands everything on at once."""

    def __init__(self, take: Callable[[EngineQueueMessage], None]) -> None:
        self._take = take

    def put_nowait(self, message: EngineQueueMessage, /) -> None:
        self._take(message)


class _Door:
    """The way into the engine."""

    def __init__(self, post: Callable[[EngineQueueMessage], None]) -> None:
        self.post = post
