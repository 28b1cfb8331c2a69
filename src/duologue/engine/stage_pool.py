"""The replicas of one stage: placement, binding, death and restart.

Rules kept here:

* replica ids are stable and never reused; a dead replica leaves a hole, its successor gets the next id;
* a request stays where it is bound; it is bound before anything is sent, so that an abort always finds it, and
  unbound when it finished there, was aborted, or its replica died;
* a binding outlives an abort that failed, so that the abort can be repeated;
* eviction never waits: a dead replica is out of the tables at once and taken down in the background.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from duologue.config.stage_config import ModelConfig
from duologue.engine.placement import SessionKeys, choose_replica
from duologue.engine.requests import OrchestratorRequestState
from duologue.engine.stages.contract import StageClient
from duologue.engine.stages.supervisor import Backoff, RestartPolicy
from duologue.errors import ErrorCode, StageFault
from duologue.log import init_logger
from duologue.outputs import RequestOutput, SamplingParams, StageRequest

if TYPE_CHECKING:
    from duologue.clock import Runtime

logger = init_logger(__name__)

ReplicaFactory = Callable[[int], StageClient]
"""Makes the client of a new replica, given its id; the pool starts it."""

DEFAULT_RESTART = RestartPolicy()

ReplicaPhase = Literal["starting", "ready", "dead"]


class PoolListener(Protocol):
    """Who hears what replicas push: the orchestrator."""

    def on_stage_output(self, stage_id: int, replica_id: int, output: RequestOutput) -> None:
        """One output, in the order in which the replica pushed it."""
        ...

    def on_replica_dead(self, stage_id: int, replica_id: int, request_ids: Sequence[str], error: BaseException) -> None:
        """A replica is gone; ``request_ids`` are what it held, oldest first. It is already out of the pool."""
        ...


class StageVllmConfig(msgspec.Struct, frozen=True):
    """Keeps the documented path ``pool.stage_vllm_config.model_config``."""

    model_config: ModelConfig


class ReplicaHealth(msgspec.Struct, frozen=True, kw_only=True):
    """One replica as ``/health`` shows it. ``requests``: how many it holds."""

    replica_id: int
    phase: ReplicaPhase
    requests: int


class StageHealth(msgspec.Struct, frozen=True, kw_only=True):
    """One stage as ``/health`` shows it. ``ready``: at least one replica takes work."""

    stage_id: int
    name: str
    ready: bool
    restarts: int
    replicas: tuple[ReplicaHealth, ...]


@dataclass(slots=True, eq=False)
class _Replica:
    """One replica and, as the sink of its client, the way its outputs take."""

    pool: StagePool
    replica_id: int
    slot: int
    client: StageClient
    phase: ReplicaPhase = "starting"
    ready_at: float = 0.0
    request_ids: dict[str, None] = field(default_factory=dict)

    def on_output(self, output: RequestOutput) -> None:
        if output.finished or output.error is not None:
            self.pool._unbind(output.request_id, self)
        listener = self.pool._listener
        if listener is not None and self.phase == "ready":
            listener.on_stage_output(self.pool.stage_id, self.replica_id, output)

    def on_dead(self, error: BaseException) -> None:
        self.pool._evict(self, error)


class StagePool:
    """Replicas of one stage behind one face. Used from the orchestrator's loop only.

    ``make_client`` makes replicas; ``final_output`` marks a stage whose outputs go to clients even if it is not the
    request's last.
    """

    def __init__(
        self,
        *,
        stage_id: int,
        make_client: ReplicaFactory,
        runtime: Runtime,
        name: str = "",
        replicas: int = 1,
        final_output: bool = False,
        restart: RestartPolicy | None = DEFAULT_RESTART,
    ) -> None:
        """``restart`` ``None``: a dead replica stays dead. Raises ``ValueError`` for less than one replica."""
        if replicas < 1:
            raise ValueError(f"stage {name or stage_id} needs at least one replica, got {replicas}")
        self.stage_id = stage_id
        self.name = name or f"stage{stage_id}"
        self.final_output = final_output
        self._make_client = make_client
        self._runtime = runtime
        self._restart = restart
        self._backoffs = [Backoff(restart or RestartPolicy()) for _ in range(replicas)]
        self._replicas: dict[int, _Replica] = {}
        self._bindings: dict[str, _Replica] = {}
        self._session_keys = SessionKeys()
        self._next_replica_id = 0
        self._cursor = -1
        self._restarts = 0
        self._restarting = True
        self._listener: PoolListener | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._model_config = ModelConfig()

    # ---------------------------------------------------------------- life

    async def start(self, listener: PoolListener) -> None:
        """Start every replica; returns when all are ready. Raises what the first failing one raised."""
        self._listener = listener
        results = await asyncio.gather(
            *(self._start_replica(slot) for slot in range(len(self._backoffs))), return_exceptions=True
        )
        errors = [result for result in results if isinstance(result, BaseException)]
        if errors:
            await self.close()
            raise errors[0]

    def stop_restarting(self) -> None:
        """From now on deaths are expected: no replica is started again."""
        self._restarting = False

    async def close(self) -> None:
        """Stop every replica, each within its own bound. Idempotent."""
        self._restarting = False
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        replicas, self._replicas = list(self._replicas.values()), {}
        for replica in replicas:
            replica.phase = "dead"
        self._bindings.clear()
        self._session_keys = SessionKeys()
        await asyncio.gather(*(self._close_client(replica) for replica in replicas))

    async def _start_replica(self, slot: int) -> None:
        replica_id = self._next_replica_id
        self._next_replica_id += 1
        replica = _Replica(pool=self, replica_id=replica_id, slot=slot, client=self._make_client(replica_id))
        self._replicas[replica_id] = replica
        try:
            await replica.client.start(replica)
            if replica.phase == "dead":
                raise StageFault(ErrorCode.REPLICA_UNAVAILABLE, f"Stage {self.name} died while it started.")
        except BaseException:
            replica.phase = "dead"
            self._replicas.pop(replica_id, None)
            await self._close_client(replica)
            raise
        replica.phase = "ready"
        replica.ready_at = self._runtime.now()
        self._model_config = replica.client.model_config

    async def _close_client(self, replica: _Replica) -> None:
        try:
            await replica.client.close()
        except Exception:
            logger.exception("replica %d of stage %s did not close cleanly", replica.replica_id, self.name)

    def _evict(self, replica: _Replica, error: BaseException) -> None:
        was = replica.phase
        if was == "dead":
            return
        replica.phase = "dead"
        if was == "starting":
            return  # whoever awaits its start raises
        self._replicas.pop(replica.replica_id, None)
        stranded = list(replica.request_ids)
        replica.request_ids.clear()
        for request_id in stranded:
            del self._bindings[request_id]
        self._session_keys.forget_replicas({replica.replica_id})
        if not self._restarting:
            return
        logger.error(
            "replica %d of stage %s is gone with %d requests: %s", replica.replica_id, self.name, len(stranded), error
        )
        self._spawn(self._revive(replica), name=f"revive-{self.name}-{replica.slot}")
        if self._listener is not None:
            self._listener.on_replica_dead(self.stage_id, replica.replica_id, stranded, error)

    async def _revive(self, dead: _Replica) -> None:
        await self._close_client(dead)
        if self._restart is None:
            return
        backoff = self._backoffs[dead.slot]
        lived_s = self._runtime.now() - dead.ready_at
        while self._restarting:
            await asyncio.sleep(backoff.next_delay_s(lived_s))
            lived_s = 0.0
            try:
                await self._start_replica(dead.slot)
            except Exception as error:
                logger.error("stage %s did not start again: %s", self.name, error)
            else:
                self._restarts += 1
                logger.warning("stage %s is back", self.name)
                return

    def _spawn(self, coro: Coroutine[object, object, None], *, name: str) -> None:
        task = self._runtime.spawn(coro, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---------------------------------------------------------------- what others ask

    @property
    def stage_client(self) -> StageClient | None:
        """The client of a live replica (the one with the lowest id), or ``None``."""
        for replica in self._replicas.values():
            if replica.phase == "ready":
                return replica.client
        return None

    @property
    def model_config(self) -> ModelConfig:
        """What is known of the stage's model; kept while no replica lives."""
        return self._model_config

    @property
    def stage_vllm_config(self) -> StageVllmConfig:
        """The documented way to :attr:`model_config`."""
        return StageVllmConfig(self._model_config)

    @property
    def default_sampling_params(self) -> SamplingParams:
        """The stage's sampling defaults. ``StageFault`` when no replica lives."""
        client = self.stage_client
        if client is None:
            raise StageFault(ErrorCode.REPLICA_UNAVAILABLE, f"No replica of stage {self.name} is up.")
        return client.default_sampling_params

    @property
    def live_replica_ids(self) -> list[int]:
        """Replicas that take work now, ascending."""
        return [
            replica_id
            for replica_id, replica in self._replicas.items()
            if replica.phase == "ready" and replica.client.healthy
        ]

    @property
    def binding_count(self) -> int:
        """How many requests are bound to replicas."""
        return len(self._bindings)

    @property
    def session_key_count(self) -> int:
        """How many sessions' resident contexts are remembered."""
        return len(self._session_keys)

    def replica_of(self, request_id: str) -> int | None:
        """Where a request is bound."""
        replica = self._bindings.get(request_id)
        return None if replica is None else replica.replica_id

    def health(self) -> StageHealth:
        """A snapshot for ``/health``."""
        return StageHealth(
            stage_id=self.stage_id,
            name=self.name,
            ready=bool(self.live_replica_ids),
            restarts=self._restarts,
            replicas=tuple(
                ReplicaHealth(replica_id=replica.replica_id, phase=replica.phase, requests=len(replica.request_ids))
                for replica in self._replicas.values()
            ),
        )

    # ---------------------------------------------------------------- requests

    async def submit_initial(
        self,
        request_id: str,
        request_state: OrchestratorRequestState,
        request: StageRequest,
        prompt_text: str | None = None,
    ) -> int:
        """Place a new request, bind it and hand it to its replica; returns the replica id.

        Raises :class:`StageFault` (``replica_unavailable``) or what the replica raised; the request is then not there
        any more, or still bound if even the abort failed. ``prompt_text`` is kept for callers that have it.
        """
        del prompt_text
        key = request.prompt.session_key
        replica = self._bindings.get(request_id)
        if replica is None:
            replica = self._place(request_state.pinned_replicas.get(self.stage_id), key)
            self._bindings[request_id] = replica
            replica.request_ids[request_id] = None
        self._session_keys.remember(key, replica.replica_id)
        self._note(request_state, request, replica.replica_id)
        try:
            await replica.client.submit(request)
        except BaseException:
            request_state.submitted.discard(self.stage_id)
            await self.abort([request_id])
            raise
        if self._bindings.get(request_id) is not replica:
            # Aborted while it was on its way: the replica may have had it only after it was told to stop.
            await replica.client.abort([request_id])
        return replica.replica_id

    async def submit_update(
        self, request_id: str, request_state: OrchestratorRequestState, request: StageRequest
    ) -> int:
        """Hand one more piece to the replica that has the request; returns its id.

        Raises :class:`StageFault` (``replica_unavailable``) when no replica has it any more.
        """
        replica = self._bindings.get(request_id)
        if replica is None:
            if self.stage_id in request_state.finished:
                # The stage ended the request by itself while this piece was on its way: nothing is left to feed.
                return request_state.stats(self.stage_id).replica_id or 0
            raise StageFault(
                ErrorCode.REPLICA_UNAVAILABLE, f"No worker of stage {self.name} holds request {request_id!r} any more."
            )
        self._note(request_state, request, replica.replica_id)
        await replica.client.update(request)
        return replica.replica_id

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Stop requests at the replicas that hold them; others are ignored.

        Tries every replica, then raises the first error; what could not be aborted stays bound.
        """
        by_replica: dict[_Replica, list[str]] = {}
        for request_id in request_ids:
            replica = self._bindings.get(request_id)
            if replica is not None:
                by_replica.setdefault(replica, []).append(request_id)
        failure: Exception | None = None
        for replica, bound in by_replica.items():
            try:
                await replica.client.abort(bound)
            except Exception as error:
                failure = failure or error
                continue
            for request_id in bound:
                self._unbind(request_id, replica)
        if failure is not None:
            raise failure

    def release_session_key(self, session_key: str) -> None:
        """Forget where a session's resident context is."""
        self._session_keys.forget(session_key)

    def _place(self, pinned: int | None, session_key: str) -> _Replica:
        live = self.live_replica_ids
        resident = self._session_keys.find(session_key)
        replica_id = choose_replica(live, cursor=self._cursor, pinned=pinned, resident=resident)
        if pinned is None and replica_id != resident:
            self._cursor = replica_id
        return self._replicas[replica_id]

    def _note(self, state: OrchestratorRequestState, request: StageRequest, replica_id: int) -> None:
        state.submitted.add(self.stage_id)
        if self.stage_id == state.entry_stage_id:
            state.prompt = request.prompt
        stats = state.stats(self.stage_id)
        stats.replica_id = replica_id
        if stats.submitted_at is None:
            stats.submitted_at = self._runtime.now()

    def _unbind(self, request_id: str, replica: _Replica) -> None:
        if self._bindings.get(request_id) is replica:
            del self._bindings[request_id]
        replica.request_ids.pop(request_id, None)
