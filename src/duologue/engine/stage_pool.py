"""One stage as the engine sees it: which replica has which request, and which one gets the next.

Rules kept here:

* a request stays where it is bound; it is bound before anything is sent, so that an abort always finds it, and
  unbound when it finished there, was aborted, or its replica died;
* a binding outlives an abort that failed, so that the abort can be repeated;
* a replica that takes nothing any more is gone, however that is noticed first: it says so, or it refuses a piece;
* what the pool's replicas push reaches the listener in order; of a replica that is gone nothing does.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from duologue.config.stage_config import ModelConfig
from duologue.engine.placement import SessionKeys, choose_replica
from duologue.engine.replicas import Replica, ReplicaFactory, ReplicaHealth, ReplicaSet
from duologue.engine.requests import OrchestratorRequestState
from duologue.engine.stages.contract import StageClient
from duologue.engine.stages.supervisor import RestartPolicy
from duologue.errors import ErrorCode, StageFault
from duologue.outputs import RequestOutput, SamplingParams, StageRequest

if TYPE_CHECKING:
    from duologue.clock import Runtime

DEFAULT_RESTART = RestartPolicy()


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


class StageHealth(msgspec.Struct, frozen=True, kw_only=True):
    """One stage as ``/health`` shows it. ``ready``: at least one replica takes work."""

    stage_id: int
    name: str
    ready: bool
    restarts: int
    replicas: tuple[ReplicaHealth, ...]


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
        self.replicas = ReplicaSet(
            name=self.name, make_client=make_client, runtime=runtime, count=replicas, restart=restart, owner=self
        )
        self._runtime = runtime
        self._bindings: dict[str, Replica] = {}
        self._session_keys = SessionKeys()
        self._cursor = -1
        self._listener: PoolListener | None = None

    # ---------------------------------------------------------------- life

    async def start(self, listener: PoolListener) -> None:
        """Start every replica; returns when all are ready. Raises what the first failing one raised."""
        self._listener = listener
        await self.replicas.start()

    def stop_restarting(self) -> None:
        """From now on deaths are expected: no replica is started again."""
        self.replicas.stop_restarting()

    async def close(self) -> None:
        """Stop every replica, each within its own bound. Idempotent."""
        self._bindings.clear()
        self._session_keys = SessionKeys()
        self._listener = None
        await self.replicas.close()
        self._bindings.clear()

    def on_output(self, replica: Replica, output: RequestOutput) -> None:
        if output.finished or output.error is not None:
            self._unbind(output.request_id, replica)
        if self._listener is not None:
            self._listener.on_stage_output(self.stage_id, replica.replica_id, output)

    def on_gone(self, replica: Replica, error: BaseException) -> None:
        stranded = list(replica.request_ids)
        replica.request_ids.clear()
        for request_id in stranded:
            self._bindings.pop(request_id, None)
        self._session_keys.forget_replicas({replica.replica_id})
        if self._listener is not None:
            self._listener.on_replica_dead(self.stage_id, replica.replica_id, stranded, error)

    # ---------------------------------------------------------------- what others ask

    @property
    def stage_client(self) -> StageClient | None:
        """The client of a live replica (the one with the lowest id), or ``None``."""
        return self.replicas.first_client()

    @property
    def model_config(self) -> ModelConfig:
        """What is known of the stage's model; kept while no replica lives."""
        return self.replicas.model_config

    @property
    def stage_vllm_config(self) -> StageVllmConfig:
        """The documented way to :attr:`model_config`."""
        return StageVllmConfig(self.model_config)

    @property
    def default_sampling_params(self) -> SamplingParams:
        """The stage's sampling defaults. ``StageFault`` when no replica lives."""
        for replica in self.replicas.by_id.values():
            if replica.phase == "ready":
                return replica.client.default_sampling_params
        raise StageFault(ErrorCode.REPLICA_UNAVAILABLE, f"No replica of stage {self.name} is up.")

    @property
    def live_replica_ids(self) -> list[int]:
        """Replicas that take work now, ascending."""
        return self.replicas.live_ids()

    def clients(self) -> dict[int, StageClient]:
        """The clients of live replicas, by replica id, ascending."""
        return {replica_id: self.replicas.by_id[replica_id].client for replica_id in self.live_replica_ids}

    def tables(self) -> dict[str, int]:
        """How many requests are bound to replicas, and how many sessions' resident contexts are remembered."""
        return {"bindings": len(self._bindings), "session_keys": len(self._session_keys)}

    def held(self) -> Mapping[str, int]:
        """How much of what is bounded the stage holds now, by the names of `duologue_held`."""
        total = Counter(session_keys=len(self._session_keys))
        for client in self.clients().values():
            total.update(client.held())
        return total

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
            restarts=self.replicas.restarts,
            replicas=self.replicas.health(),
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
        any more, or still bound if even the abort failed, also that of a request which was aborted on its way.
        ``prompt_text`` is kept for callers that have it.
        """
        del prompt_text
        key = request.prompt.session_key
        replica = self._bindings.get(request_id)
        if replica is None:
            replica = self._place(request_state, key)
            self._bindings[request_id] = replica
            replica.request_ids[request_id] = None
        else:
            self._check_pin(request_state, replica)
        self._session_keys.remember(key, replica.replica_id)
        self._note(request_state, request, replica.replica_id)
        try:
            await self._hand_over(replica, replica.client.submit(request))
        except GeneratorExit:
            # Dropped, and not cancelled: nothing can be waited for. The request is still bound, for its owner's abort.
            request_state.submitted.discard(self.stage_id)
            raise
        except BaseException:
            request_state.submitted.discard(self.stage_id)
            await self.abort([request_id])
            raise
        if self._bindings.get(request_id) is not replica:
            # Aborted while it was on its way: the replica may have had it only after it was told to stop.
            await self._stop_late(request_id, replica)
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
        await self._hand_over(replica, replica.client.update(request))
        return replica.replica_id

    async def _hand_over(self, replica: Replica, sending: Coroutine[object, object, None]) -> None:
        """Let a replica take a piece. One that refuses it because it does not run has died, although nobody said so yet:
        whoever had something there hears of that before the refusal, which would cost a session all that was known of it."""
        try:
            await sending
        except StageFault as fault:
            if fault.code is ErrorCode.REPLICA_UNAVAILABLE and not replica.client.healthy:
                await asyncio.sleep(0)  # the session that submits is in the middle of a step
                replica.on_dead(fault)
            raise

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Stop requests at the replicas that hold them; others are ignored.

        Tries every replica, then raises the first error; what could not be aborted stays bound.
        """
        by_replica: dict[Replica, list[str]] = {}
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

    def _check_pin(self, state: OrchestratorRequestState, replica: Replica) -> None:
        pinned = state.pinned_replicas.get(self.stage_id)
        if pinned is not None and pinned != replica.replica_id:
            raise StageFault(
                ErrorCode.REPLICA_UNAVAILABLE,
                f"Request {state.request_id!r} is at replica {replica.replica_id} of stage {self.name}, "
                f"not at its pin {pinned}.",
            )

    def _place(self, state: OrchestratorRequestState, session_key: str) -> Replica:
        pinned = state.pinned_replicas.get(self.stage_id)
        # One that is about to be found dead tells so when it is asked: its session is then placed anew, and not refused.
        live = (
            (self.replicas.live_ids() or self.replicas.ready_ids()) if pinned is None else self.replicas.serving_ids()
        )
        resident = self._session_keys.find(session_key)
        if resident is None:
            resident = state.inherited_replica
        replica_id = choose_replica(live, cursor=self._cursor, pinned=pinned, resident=resident)
        if pinned is None and replica_id != resident:
            self._cursor = replica_id
        return self.replicas.by_id[replica_id]

    def _note(self, state: OrchestratorRequestState, request: StageRequest, replica_id: int) -> None:
        state.submitted.add(self.stage_id)
        if self.stage_id == state.entry_stage_id:
            state.prompt = request.prompt
        stats = state.stats(self.stage_id)
        stats.replica_id = replica_id
        if request.prompt.audio_rate_hz:
            stats.input_audio_s += len(request.prompt.audio) / (2 * request.prompt.audio_rate_hz)
        if stats.submitted_at is None:
            stats.submitted_at = self._runtime.now()

    async def _stop_late(self, request_id: str, replica: Replica) -> None:
        """Stop what nobody knows to be there. It is bound until that has succeeded, so that it can be tried again."""
        if request_id in self._bindings or not replica.serving:
            await replica.client.abort([request_id])
            return
        self._bindings[request_id] = replica
        replica.request_ids[request_id] = None
        await self.abort([request_id])

    def _unbind(self, request_id: str, replica: Replica) -> None:
        if self._bindings.get(request_id) is replica:
            del self._bindings[request_id]
        replica.drop(request_id)
