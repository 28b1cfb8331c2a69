"""The borders of one engine, watched: what is put into it, what leaves it, what its stages are given and hand back.

Tests over the shell and simulated deployments use the same one, so that the same checkers judge both. Rules kept here:
everything is passed on as it is and in its order; what the engine declares of itself is noted at the moments that count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from duologue.engine.duplex.events import ResponseDone, SessionClosed, SessionCreated, SessionExpired, SessionQueued
from duologue.engine.duplex.messages import OpenSession, OutputInvalidated, SessionCommand, SessionEventMessage
from duologue.engine.duplex.plugin import AppendPlan, AppendPlanRequest, DuplexModelPlugin, DuplexModelSessionState
from duologue.engine.duplex_orchestrator import DuplexOrchestrator
from duologue.engine.messages import EngineQueueMessage, ErrorMessage, OutputMessage, ResultMessage
from duologue.engine.stage_pool import StagePool
from duologue.engine.stages.contract import StageClient, StageSink
from duologue.outputs import RequestOutput, StageRequest
from duologue.sim.observation import Admission, Fed, Observations
from duologue.sim.sample import Left, Occupancy, Slots, Terminal


class Border:
    """What passes in and out of one engine is noted in ``seen``. ``engine`` is told once it is built."""

    def __init__(self, seen: Observations) -> None:
        self.seen = seen
        self.withdrawn: set[str] = set()  # and what was cancelled
        self._engine: DuplexOrchestrator | None = None

    def watch(self, engine: DuplexOrchestrator) -> None:
        """The engine whose declared counters are noted."""
        self._engine = engine

    def watch_whole(self, engine: DuplexOrchestrator) -> None:
        """The same, and its replicas, its plugin and whatever is posted: for an engine without a simulated world.

        Before the engine is started.
        """
        self.watch(engine)
        for pool in engine.stage_pools:
            self.watch_stage(pool)
        self.watch_plugin(engine.session_manager.plugin)
        post = engine.post

        def posting(message: EngineQueueMessage) -> None:
            self.posted(message)
            post(message)

        engine.post = posting  # type: ignore[method-assign]

    # What is put in

    def posted(self, message: EngineQueueMessage) -> None:
        """A message is about to be posted."""
        control_id = getattr(message, "control_id", "")
        if control_id:
            self.seen.asked[control_id] = self.seen.asked.get(control_id, 0) + 1
        if isinstance(message, OpenSession):
            number = len(self.seen.admissions)
            self.seen.admissions.append(Admission(self.seen.trace.now(), message.session_id, self.look(), number))
            self.seen.control_sessions[message.control_id] = message.session_id
        elif isinstance(message, SessionCommand):
            self.seen.commands.setdefault(message.session_id, []).append((self.seen.trace.now(), message.command))

    # What leaves

    def left(self, message: EngineQueueMessage) -> None:
        """A message left through the queue of outputs."""
        match message:
            case SessionEventMessage(event=SessionQueued()):
                self.seen.trace.count("session.queued")  # it is none yet
                for admission in self.seen.admissions:
                    admission.queued |= admission.session_id == message.session_id
            case SessionEventMessage():
                if isinstance(message.event, ResponseDone) and message.event.status == "cancelled":
                    self.withdrawn.add(message.event.response_id)
                self.seen.event(message.session_id, message.number, message.event)
                if isinstance(message.event, SessionClosed | SessionExpired):
                    self._ended(message.session_id, message.event)
                    self._look_at_occupancy()
                elif isinstance(message.event, SessionCreated):
                    self._look_at_occupancy()
            case OutputInvalidated():
                self.withdrawn.add(message.response_id)
                self.seen.invalidated.setdefault(message.session_id, []).append(
                    (self.seen.trace.now(), message.response_id)
                )
            case OutputMessage():
                self.seen.errand(message.request_id, "finished" if message.finished else "output", message.output)
            case ErrorMessage():
                self.seen.errand(message.request_id, message.code, None)
            case _:
                pass

    def answered(self, message: EngineQueueMessage) -> None:
        """A message left through the queue of results."""
        if not isinstance(message, ResultMessage):
            return
        answers = self.seen.answers
        answers[message.control_id] = answers.get(message.control_id, 0) + 1
        session_id = self.seen.control_sessions.get(message.control_id)
        for admission in self.seen.admissions if session_id is not None else ():
            if admission.session_id == session_id:
                admission.refused, admission.answered = message.error_code, self.seen.trace.now()

    # What is declared

    def look(self) -> int:
        """Note the slots; returns how many are held."""
        if self._engine is None:
            return 0
        health, reservations = self._engine.session_manager.health(), self._engine.reservations
        held = health.limit - health.free
        placements = 0 if reservations is None else len(reservations)
        self.seen.samples.append(Slots(self.seen.trace.now(), held, health.limit, placements))
        return held

    def rested(self, when: str, tables: dict[str, int]) -> None:
        """Everything must be empty now: note what is not."""
        self.seen.samples.append(Left(when, {name: size for name, size in tables.items() if size}))

    def _ended(self, session_id: str, terminal: SessionClosed | SessionExpired) -> None:
        if self._engine is not None:
            held = self._engine.session_manager.runner(session_id) is not None
            self.seen.samples.append(Terminal(self.seen.trace.now(), session_id, terminal.slot_released, held))

    def _look_at_occupancy(self) -> None:
        self.look()
        engine = self._engine
        if engine is None or engine.reservations is None:
            return
        cap = engine.session_manager.runtime_config.max_sessions_per_replica
        if cap is None:
            return
        for (stage, replica), count in engine.reservations.occupancy().items():
            owners = len(engine.reservations.owners(stage, replica))
            self.seen.samples.append(Occupancy(self.seen.trace.now(), stage, replica, count, owners, cap))

    # What stages and plugins are given

    def watch_stage(self, pool: StagePool) -> None:
        """From now on every replica of a pool is watched."""
        make = pool.replicas.make_client
        pool.replicas.make_client = lambda replica_id: WatchedClient(pool.stage_id, make(replica_id), self.seen)

    def watch_plugin(self, plugin: DuplexModelPlugin) -> None:
        """From now on every append that the plugin is asked to plan is noted."""
        plan, commit = plugin.plan_append, plugin.commit_append

        def planning(state: DuplexModelSessionState, request: AppendPlanRequest) -> AppendPlan:
            self.seen.plan(request, accepted=False)
            return plan(state, request)

        def committing(state: DuplexModelSessionState, request: AppendPlanRequest) -> None:
            self.seen.plan(request, accepted=True)
            commit(state, request)

        plugin.plan_append = planning  # type: ignore[method-assign]
        plugin.commit_append = committing  # type: ignore[method-assign]


class WatchedClient(StageClient):
    """A replica behind glass. What it was fed counts when it took it, what it made when it hands it to the engine."""

    def __init__(self, stage_id: int, inner: StageClient, seen: Observations) -> None:
        self._stage_id = stage_id
        self._inner = inner
        self._seen = seen
        self._sink: StageSink | None = None
        self.default_sampling_params = inner.default_sampling_params
        self.model_config = inner.model_config

    @property
    def healthy(self) -> bool:
        return self._inner.healthy

    def held(self) -> Mapping[str, int]:
        return self._inner.held()

    def fill(self, slot: int) -> None:
        self._inner.fill(slot)

    async def start(self, sink: StageSink) -> None:
        self._sink = sink
        await self._inner.start(self)

    async def submit(self, request: StageRequest) -> None:
        self._fed(request)
        await self._inner.submit(request)

    async def update(self, request: StageRequest) -> None:
        self._fed(request)
        await self._inner.update(request)

    async def abort(self, request_ids: Sequence[str]) -> None:
        await self._inner.abort(request_ids)

    async def call(self, method: str, args: tuple[object, ...]) -> object:
        return await self._inner.call(method, args)

    async def close(self) -> None:
        await self._inner.close()

    def on_output(self, output: RequestOutput) -> None:
        """The replica pushes."""
        self._seen.made(self._stage_id, output)
        if self._sink is not None:
            self._sink.on_output(output)

    def on_dead(self, error: BaseException) -> None:
        """The replica is gone."""
        if self._sink is not None:
            self._sink.on_dead(error)

    def _fed(self, request: StageRequest) -> None:
        seen = self._seen
        client = seen.client_of(request.request_id)
        seen.fed(Fed(seen.trace.now(), self._stage_id, request.request_id, client, request.prompt))
