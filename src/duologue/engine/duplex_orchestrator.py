"""DuplexOrchestrator: the duplex sibling of ``Orchestrator``.

It hosts the :class:`DuplexSessionManager` and is the stage port through which sessions submit resumable stage-0
requests. Forwarding, prewarm and cleanup stay in ``OrchestratorBase``; this class fills the template seams and applies
what is special about requests that a session owns. The dependency runs duplex to turn-based, never back.

Rules kept here:

* a session message is handled on the spot; any other is an ordinary request's;
* output of a request whose session is gone or closing is swallowed: nothing of it is forwarded or reaches a client;
* a session hears of a failure before the request is cleaned up, so that its client hears why before it hears the end;
* a submission whose request was dropped meanwhile leaves nothing behind and writes no state.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from duologue.config.stage_config import DuplexSessionRuntimeConfig, ModelConfig, replica_groups
from duologue.engine.duplex.contracts import (
    DuplexFence,
    DuplexOutputContext,
    DuplexRequestIdentity,
    DuplexStagePort,
    DuplexStageRequestContext,
    DuplexStageSubmission,
    DuplexStageSubmissionResult,
)
from duologue.engine.duplex.plugin import DuplexModelPlugin
from duologue.engine.duplex.session.detection import DetectionService
from duologue.engine.duplex.session.engine_session import DuplexFenceMismatchError
from duologue.engine.duplex.session.manager import DuplexSessionManager
from duologue.engine.messages import EngineQueueMessage, OutputMessage
from duologue.engine.orchestrator import (
    Orchestrator,
    OrchestratorRequestState,
    build_engine_core_request_from_tokens,
)
from duologue.engine.reservations import Reservations
from duologue.engine.stage_pool import StagePool
from duologue.errors import ErrorCode, StageFault
from duologue.log import init_logger
from duologue.metrics.stats import StageRequestStats
from duologue.outputs import RequestOutput

logger = init_logger(__name__)

BRIDGE = "duplex"
"""Under this name a session's request keeps what stage code may want to know of its session."""


@dataclass
class DuplexOrchestratorRequestState(OrchestratorRequestState):
    """Bookkeeping for a session-owned (resumable duplex) stage request.

    ``fence``: under which input was submitted last; ``stage_fences``: the same per stage, for its outputs.
    """

    session_id: str = ""
    fence: DuplexFence | None = None
    stage_fences: dict[int, DuplexFence] = field(default_factory=dict)
    config_generation: int = -1


class DuplexOrchestrator(Orchestrator, DuplexStagePort):
    """Stage management for a duplex deployment; owns one :class:`DuplexSessionManager`.

    It extends the turn-based orchestrator rather than sitting beside it, so that one engine serves both a duplex
    session and an ordinary request.
    """

    def __init__(
        self,
        *args: Any,
        plugin: DuplexModelPlugin,
        duplex_session_config: DuplexSessionRuntimeConfig,
        model_config: ModelConfig | None = None,
        detection: DetectionService | None = None,
        **kwargs: Any,
    ) -> None:
        """``args`` and ``kwargs`` go to ``OrchestratorBase`` as they are. ``detection`` ``None``: no speech detector."""
        super().__init__(*args, **kwargs)
        self.plugin = plugin
        self.duplex_session_config = duplex_session_config
        self.session_manager = DuplexSessionManager(
            plugin=plugin,
            stage_port=self,
            output_sink=self.output_async_queue,
            result_sink=self.rpc_async_queue,
            runtime_config=self.duplex_session_config,
            model_config=model_config,
            log_stats=self.log_stats,
            runtime=self.runtime,
            detection=detection,
        )
        self.reservations = self._reserve_groups(duplex_session_config)

    def _reserve_groups(self, config: DuplexSessionRuntimeConfig) -> Reservations | None:
        """``None``: each request is placed by itself. ``ValueError`` for groups that do not fit the stages."""
        cap = config.max_sessions_per_replica
        if config.replica_policy != "least_sessions" or cap is None:
            return None
        replica_groups(config.replica_groups, [pool.replicas.slot_count for pool in self.stage_pools])
        return Reservations(self.stage_pools, cap=cap, groups=config.replica_groups)

    def tables(self) -> dict[str, int]:
        """Sizes of everything that must be empty at quiescence, the sessions' included."""
        reserved = 0 if self.reservations is None else len(self.reservations)
        return {**super().tables(), **self.session_manager.tables(), "reservations": reserved}

    def on_replica_dead(self, stage_id: int, replica_id: int, request_ids: Sequence[str], error: BaseException) -> None:
        """Fail what the replica held. A session that had it, an idle one too, goes on elsewhere if its model can be rebuilt,
        and ends otherwise."""
        manager = self.session_manager
        owners = [] if self.reservations is None else self.reservations.owners(stage_id, replica_id)
        runners = {request_id: manager.runner_for_request_id(request_id) for request_id in request_ids}
        owner_of = {name: runner.session.session_id for name, runner in runners.items() if runner is not None}
        sessions = dict.fromkeys([*owners, *owner_of.values()])
        message = f"Worker {replica_id} of stage {stage_id}, which served this session, is gone: {error}"
        rebuilt = {name for name in sessions if manager.recovery.lost(name, message, pinned=name in owners)}
        # What a rebuilt session left behind is cleaned on its behalf, without a word.
        failed = [request_id for request_id in request_ids if owner_of.get(request_id) not in rebuilt]
        super().on_replica_dead(stage_id, replica_id, failed, error)
        for session_id in owners:
            if session_id not in rebuilt:
                manager.end_session(session_id, "closed", "replica_unavailable", ErrorCode.REPLICA_UNAVAILABLE)

    # Template seams

    def _take_message(self, msg: EngineQueueMessage, /) -> bool:
        if self.session_manager.accepts(msg):
            self.session_manager.dispatch(msg)
            return True
        return False

    async def _dispatch_message(self, msg: EngineQueueMessage) -> bool:
        return self._take_message(msg) or await super()._dispatch_message(msg)

    def _background_tasks(self) -> list[Coroutine[object, object, None]]:
        return [self.session_manager.reaper_loop(self._shutdown_event)]

    async def _shutdown_extensions(self) -> None:
        if not self.alive:
            self.session_manager.engine_fault = ErrorCode.ENGINE_DEAD
        await self.session_manager.shutdown()

    def _on_stage_submitted(
        self, stage_id: int, request_id: str, replica_id: int, req_state: OrchestratorRequestState
    ) -> None:
        del replica_id
        if not isinstance(req_state, DuplexOrchestratorRequestState) or req_state.fence is None:
            return
        runner = self.session_manager.runner_for_request_id(request_id)
        if runner is None:
            return
        fence = req_state.fence
        req_state.stage_fences[stage_id] = fence
        try:
            runner.bind_stage_request(stage_id, request_id, fence=fence)
        except DuplexFenceMismatchError:
            # A cancel raced the submission; its abort reaches this stage under this id.
            logger.debug("stale stage binding ignored", extra={"request_id": request_id, "stage_id": stage_id})
            return
        self._note_submitted(stage_id, req_state)
        self.session_manager.register_request(request_id, req_state.session_id)

    def _note_submitted(self, stage_id: int, req_state: DuplexOrchestratorRequestState) -> None:
        req_state.stage_submit_ts[stage_id] = self.runtime.now()
        self._register_running_request(req_state)

    async def _intercept_stage_output(
        self,
        stage_id: int,
        replica_id: int,
        output: RequestOutput,
        req_state: OrchestratorRequestState,
        stage_metrics: StageRequestStats | None,
        submit_ts: float | None,
    ) -> bool:
        del replica_id, submit_ts
        if not isinstance(req_state, DuplexOrchestratorRequestState) or req_state.fence is None:
            return False
        request_id = output.request_id
        runner = self.session_manager.runner_for_request_id(request_id)
        if runner is None:
            return True
        segment = req_state.streaming.segment(stage_id)
        context = DuplexOutputContext(
            identity=DuplexRequestIdentity(
                session_id=req_state.session_id,
                fence=req_state.stage_fences.get(stage_id, req_state.fence),
            ),
            final_stage_id=req_state.final_stage_id,
            segment_finished=req_state.streaming.enabled and segment.finished,
            segment_token_ids=tuple(segment.token_ids),
            segment_output_metadata=segment.output_metadata,
        )
        return runner.on_stage_output(stage_id, output, stage_metrics, request_id=request_id, context=context)

    async def _handle_forward_failure(
        self, req_id: str, next_stage_id: int, req_state: OrchestratorRequestState, exc: BaseException
    ) -> bool:
        if not req_state.session_owned:
            return False
        runner = self.session_manager.runner_for_request_id(req_id)
        goes_on = runner is not None and self._goes_on_elsewhere(runner.session.session_id, exc)
        if runner is not None and not goes_on:
            runner.on_stage_failure(next_stage_id, exc, request_id=req_id)
        await self._cleanup_request_ids(
            [req_id, *self._cfg_tracker.cleanup_parent(req_id)],
            abort=True,
            # An ephemeral model loses this response and keeps its session.
            release_owners=self.plugin.capabilities.family == "resident" and not goes_on,
        )
        return True

    def _goes_on_elsewhere(self, session_id: str, exc: BaseException) -> bool:
        """Whether the failure is the loss of a replica that died before it had the request, and the session is rebuilt."""
        if not isinstance(exc, StageFault) or exc.code is not ErrorCode.REPLICA_UNAVAILABLE:
            return False
        if all(pool.stage_client is not None for pool in self.stage_pools):
            return False  # a stage said so of something else than its replicas
        pinned = self.reservations is not None and self.reservations.get(session_id) is not None
        return self.session_manager.recovery.lost(session_id, exc.message, pinned=pinned)

    async def _cleanup_request_ids(
        self, request_ids: list[str], *, abort: bool = False, release_owners: bool = False
    ) -> list[OutputMessage]:
        if not request_ids:
            return []
        manager = self.session_manager
        cleanup_ids = list(dict.fromkeys(request_ids))
        closing: list[str] = []
        if release_owners:
            closed = manager.close_sessions_for_request_ids(cleanup_ids, abort=abort, cleanup_in_progress=True)
            for session_id, stale_ids in closed.items():
                closing.append(session_id)
                cleanup_ids.extend(stale_ids)
                logger.info(
                    "session closed with its failed requests",
                    extra={"session_id": session_id, "request_ids": list(stale_ids)},
                )
            cleanup_ids = list(dict.fromkeys(cleanup_ids))
        try:
            outputs = await super()._cleanup_request_ids(cleanup_ids, abort=abort)
        except BaseException:
            if closing:
                manager.defer_request_cleanups(closing)
            raise
        if closing:
            manager.finalize_closed_sessions(closing)
        for request_id in cleanup_ids:
            manager.unregister_request(request_id)
        return outputs

    # DuplexStagePort

    @property
    def stage_count(self) -> int:
        """Number of stages."""
        return len(self.stage_pools)

    def stage_name(self, stage_id: int) -> str:
        """As it is configured."""
        return self.stage_pools[stage_id].name

    def sampling_defaults(self) -> tuple[object, ...]:
        """One per stage; ``RuntimeError`` naming the first stage without a live replica."""
        defaults = []
        for pool in self.stage_pools:
            client = pool.stage_client
            if client is None:
                raise RuntimeError(f"stage {pool.stage_id} has no live replica")
            defaults.append(client.default_sampling_params)
        return tuple(defaults)

    @staticmethod
    def _sync_bridge_state(request_state: OrchestratorRequestState, context: DuplexStageRequestContext) -> None:
        bridge = request_state.streaming.bridge_states.get(BRIDGE)
        if not isinstance(bridge, dict):
            bridge = request_state.streaming.bridge_states[BRIDGE] = {}
        fence = context.fence
        if bridge.get("context") is context:
            return  # one more piece under the same fence and settings
        bridge["context"] = context
        turn = bridge.get("model_turn_id")
        if not isinstance(turn, int) or bridge.get("epoch") != fence.epoch or turn < fence.turn_id:
            # A response can end at a safety limit, before the model says that its turn is over: catch up here.
            bridge["model_turn_id"] = fence.turn_id
        bridge.update(
            session_id=context.session_id,
            fence=fence,
            epoch=fence.epoch,
            turn_id=fence.turn_id,
            session_config=dict(context.session_config),
            runtime_config=dict(context.runtime_config),
        )

    def ensure_request(self, context: DuplexStageRequestContext) -> None:
        """Register a session's request, or refresh it. ``RuntimeError`` if a turn-based request has the id."""
        request_state = self.request_states.get(context.request_id)
        if request_state is None:
            request_state = DuplexOrchestratorRequestState(
                request_id=context.request_id,
                prompt=None,
                sampling_params_list=list(context.sampling_params),
                final_stage_id=context.final_stage_id,
                session_owned=True,
                session_id=context.session_id,
                fence=context.fence,
                config_generation=context.config_generation,
                pinned_replicas=self._pins(context.session_id),
            )
            request_state.streaming.enabled = True
            self.request_states[context.request_id] = request_state
        elif isinstance(request_state, DuplexOrchestratorRequestState):
            if request_state.config_generation != context.config_generation:
                request_state.sampling_params_list = list(context.sampling_params)
                request_state.config_generation = context.config_generation
            request_state.session_id = context.session_id
            request_state.fence = context.fence
            request_state.final_stage_id = context.final_stage_id
        else:
            raise RuntimeError(f"request {context.request_id} is not session-owned")
        self._sync_bridge_state(request_state, context)
        self.session_manager.register_request(context.request_id, context.session_id)

    async def submit(self, submission: DuplexStageSubmission) -> DuplexStageSubmissionResult:
        """Submit one piece.

        ``RuntimeError`` if the request is not registered, or was dropped while this waited; ``StageFault`` (``stale_fence``)
        if the stage ended it before it had this piece, and the session has heard of that.
        """
        context = submission.context
        request_id, stage_id = context.request_id, context.stage_id
        request_state = self.request_states.get(request_id)
        if not isinstance(request_state, DuplexOrchestratorRequestState):
            raise RuntimeError(f"duplex request was not preregistered: {request_id}")
        if self.reservations is not None:
            self.reservations.route(context.session_id)
        pool = self.stage_pools[stage_id]
        request = build_engine_core_request_from_tokens(
            request_id=request_id,
            prompt=submission.prompt,
            params=context.stage_sampling_params,
            model_config=pool.stage_vllm_config.model_config,
            resumable=True,
        )
        request.external_req_id = request.request_id
        if submission.already_submitted:
            replica_id = await pool.submit_update(request_id, request_state, request)
        else:
            replica_id = await pool.submit_initial(request_id, request_state, request, prompt_text=None)
        if self.request_states.get(request_id) is not request_state:
            raise RuntimeError(f"duplex request {request_id} was dropped while it was being submitted")
        if submission.already_submitted:
            self._check_taken(pool, request_id)
        if (
            self.async_chunk
            and stage_id == 0
            and not await self._prewarm_async_chunk_stages(request_id, request, request_state)
        ):
            # The request is failed and gone: nothing may be written onto what is left of it.
            raise RuntimeError(f"async-chunk prewarm failed for duplex request {request_id}; the request was aborted")
        request_state.stage_fences[stage_id] = context.fence
        self._note_submitted(stage_id, request_state)
        return DuplexStageSubmissionResult(request_id=request_id, stage_id=stage_id, replica_id=replica_id)

    def _check_taken(self, pool: StagePool, request_id: str) -> None:
        """Asked in the instant in which the replica has been given a piece: one that holds the request then has taken it."""
        if pool.replica_of(request_id) is None and self.session_manager.runner_for_request_id(request_id) is None:
            raise StageFault(ErrorCode.STALE_FENCE, "The model ended its request before it had this input.")

    async def cleanup(self, request_ids: list[str], *, abort: bool = False) -> None:
        """Forget requests; their owners stay."""
        await self._cleanup_request_ids(request_ids, abort=abort)

    async def abort_requests(self, request_ids: list[str]) -> None:
        """Stop requests at every stage."""
        if request_ids:
            await self._abort_request_ids(list(dict.fromkeys(request_ids)))

    def reserve_session(self, session_id: str) -> bool:
        """Reserve a replica of every stage; false when no group has room. Idempotent."""
        return self.reservations is None or self.reservations.reserve(session_id) is not None

    def recover_session(self, session_id: str) -> bool:
        """Give a session that is rebuilt a new placement, one generation later. False: no group has room and lives."""
        if any(pool.stage_client is None for pool in self.stage_pools):
            return False
        if self.reservations is None or self.reservations.get(session_id) is None:
            return True
        return self.reservations.replace(session_id) is not None

    def _pins(self, session_id: str) -> dict[int, int]:
        placement = None if self.reservations is None else self.reservations.get(session_id)
        return {} if placement is None else dict(enumerate(placement.replicas))

    def release_session(self, session_id: str) -> None:
        """The session is gone: its replicas are free, and contexts under its id need not be found again."""
        if self.reservations is not None:
            self.reservations.release(session_id)
        self.release_session_key(session_id)


__all__ = ["DuplexOrchestrator", "DuplexOrchestratorRequestState"]
