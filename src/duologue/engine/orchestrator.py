"""The turn-based engine: requests through a pipeline of stages.

:class:`OrchestratorBase` holds the generic machinery (life, routing, forwarding, failure, cleanup) and the template seams
that a sibling fills; :class:`Orchestrator` adds the dispatch of turn-based requests. Neither knows anything of sessions.

Rules kept here:

* everything happens on one loop; stage outputs are pushed in and routed on the spot, without a task per output;
* what belongs to one request happens in order; requests do not wait for each other;
* an exception while one request is processed fails that request and nothing else;
* one funnel drops a request, and drops it completely: aborts it wherever it still runs, at every stage.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from duologue.engine.companions import CompanionTracker
from duologue.engine.handoff import EmptyHandoff, NoPiece, hand_on
from duologue.engine.lanes import drive
from duologue.engine.messages import (
    AbortRequest,
    AddCompanionRequest,
    AddRequest,
    CollectiveRpc,
    EngineQueueMessage,
    ErrorMessage,
    OutputMessage,
    ResultMessage,
    Shutdown,
    StreamingUpdate,
)
from duologue.engine.requests import (
    LaneJob,
    OrchestratorRequestState,
    build_engine_core_request_from_tokens,
)
from duologue.engine.stage_pool import StagePool
from duologue.engine.stages.edge import Edge, edges_by_source
from duologue.errors import ClientFault, DuologueError, ErrorCode, StageFault
from duologue.log import init_logger
from duologue.metrics.stats import StageRequestStats
from duologue.outputs import RequestOutput, SamplingParams, StagePrompt, StageRequest

if TYPE_CHECKING:
    from duologue.clock import Runtime

logger = init_logger(__name__)

MAX_HELD_PIECES = 1024


class MessageSink(Protocol):
    """Where messages leave the engine: anything with ``put_nowait``."""

    def put_nowait(self, message: EngineQueueMessage, /) -> None:
        """Take one message at once."""
        ...


class OrchestratorBase:
    """Stages, requests and the seams between them. See the module docstring for the rules.

    ``stage_pools`` are the stages in order, ``edges`` how they feed each other. Messages leave through
    ``output_async_queue`` (outputs and errors) and ``rpc_async_queue`` (answers to correlated operations).
    """

    def __init__(
        self,
        *,
        stage_pools: Sequence[StagePool],
        edges: Sequence[Edge] = (),
        output_async_queue: MessageSink,
        rpc_async_queue: MessageSink,
        runtime: Runtime,
        async_chunk: bool = False,
        log_stats: bool = False,
    ) -> None:
        if not stage_pools:
            raise ValueError("a pipeline needs at least one stage")
        self.stage_pools: list[StagePool] = list(stage_pools)
        self.edges = edges_by_source(edges, len(self.stage_pools))
        self.output_async_queue = output_async_queue
        self.rpc_async_queue = rpc_async_queue
        self.runtime = runtime
        self.async_chunk = async_chunk
        self.log_stats = log_stats
        self.request_states: dict[str, OrchestratorRequestState] = {}
        self._cfg_tracker = CompanionTracker()
        self._shutdown_event = asyncio.Event()
        self._inbox: deque[EngineQueueMessage] = deque()
        self._tasks: set[asyncio.Future[None]] = set()
        self._running_requests = 0
        self._serving = False
        self._dispatching = False
        self._started = False
        self._stopping = False
        self._fatal: BaseException | None = None

    # ---------------------------------------------------------------- seams

    async def _dispatch_message(self, msg: EngineQueueMessage) -> bool:
        """Handle one message; true when it was handled. Driven inline: a suspension does not hold up later messages."""
        if isinstance(msg, Shutdown):
            self._shutdown_event.set()
            return True
        return False

    def _background_tasks(self) -> list[Coroutine[object, object, None]]:
        """Coroutines that run beside the engine. One that raises ends the engine."""
        return []

    async def _shutdown_extensions(self) -> None:
        """Called on shutdown while the stages still work."""

    def _on_stage_submitted(
        self, stage_id: int, request_id: str, replica_id: int, req_state: OrchestratorRequestState
    ) -> None:
        """The engine itself has submitted a piece of a request to a stage."""
        del stage_id, request_id, replica_id, req_state

    async def _intercept_stage_output(
        self,
        stage_id: int,
        replica_id: int,
        output: RequestOutput,
        req_state: OrchestratorRequestState,
        stage_metrics: StageRequestStats | None,
        submit_ts: float | None,
    ) -> bool:
        """See every output before it is forwarded; true consumes it. Driven inline while it does not suspend."""
        del stage_id, replica_id, output, req_state, stage_metrics, submit_ts
        return False

    async def _handle_forward_failure(
        self, req_id: str, next_stage_id: int, req_state: OrchestratorRequestState, exc: BaseException
    ) -> bool:
        """A request failed at a stage or on its way to ``next_stage_id``. True: dealt with, cleanup included."""
        del req_id, next_stage_id, req_state, exc
        return False

    async def _on_empty_handoff(
        self, req_id: str, next_stage_id: int, req_state: OrchestratorRequestState, exc: EmptyHandoff
    ) -> bool:
        """A finished stage handed nothing to ``next_stage_id``, which never got anything. True: dealt with."""
        return await self._handle_forward_failure(req_id, next_stage_id, req_state, exc)

    # ---------------------------------------------------------------- life

    def post(self, message: EngineQueueMessage) -> None:
        """Take one message, in order. Handled at once when the engine serves, else when it starts to."""
        self._inbox.append(message)
        if self._serving and not self._dispatching:
            self._drain_inbox()

    async def start(self) -> None:
        """Start every replica. Raises what the first failing one raised, after closing the others. Idempotent."""
        if self._started:
            return
        self._started = True
        results = await asyncio.gather(*(pool.start(self) for pool in self.stage_pools), return_exceptions=True)
        errors = [result for result in results if isinstance(result, BaseException)]
        if errors:
            await asyncio.gather(*(pool.close() for pool in self.stage_pools), return_exceptions=True)
            raise errors[0]

    async def run(self) -> None:
        """Serve until a :class:`Shutdown` message arrives (or the task is cancelled), then stop in order."""
        await self.start()
        background = [
            self.runtime.spawn(self._guard_background(coro), name="orchestrator-background")
            for coro in self._background_tasks()
        ]
        self._serving = True
        self._drain_inbox()
        try:
            await self._shutdown_event.wait()
        finally:
            await self._stop(background)
        if self._fatal is not None:
            raise self._fatal

    def tables(self) -> Mapping[str, int]:
        """Sizes of everything that must be empty at quiescence, by name."""
        sizes = {
            "request_states": len(self.request_states),
            "running_requests": self._running_requests,
            "companions": len(self._cfg_tracker),
            "tasks": len(self._tasks),
            "inbox": len(self._inbox),
        }
        for pool in self.stage_pools:
            sizes[f"stage{pool.stage_id}.bindings"] = pool.binding_count
            sizes[f"stage{pool.stage_id}.session_keys"] = pool.session_key_count
        return sizes

    def release_session_key(self, session_key: str) -> None:
        """The owner of a ``session_key`` is gone: its resident contexts need not be found again."""
        for pool in self.stage_pools:
            pool.release_session_key(session_key)

    async def _guard_background(self, coro: Coroutine[object, object, None]) -> None:
        try:
            await coro
        except Exception as error:
            logger.exception("a background task of the engine failed; the engine stops")
            self._fatal = error
            self._shutdown_event.set()

    def _drain_inbox(self) -> None:
        self._dispatching = True
        try:
            while self._inbox:
                self._launch(self._dispatch_guarded(self._inbox.popleft()), name="orchestrator-dispatch")
        finally:
            self._dispatching = False

    async def _dispatch_guarded(self, message: EngineQueueMessage) -> None:
        try:
            if not await self._dispatch_message(message):
                logger.warning("message of unknown type %s ignored", type(message).__name__)
        except Exception:
            logger.exception("handling a %s message failed", type(message).__name__)

    def _launch(self, coro: Coroutine[object, object, None], *, name: str) -> None:
        rest = drive(coro)
        if rest is not None:
            self._track(rest, name=name)

    def _track(self, coro: Coroutine[object, object, None], *, name: str) -> None:
        task = self.runtime.spawn(coro, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _stop(self, background: Sequence[asyncio.Future[None]]) -> None:
        self._stopping = True
        for pool in self.stage_pools:
            pool.stop_restarting()
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        try:
            await self._shutdown_extensions()
        except Exception:
            logger.exception("an extension failed to shut down")
        fault = StageFault(ErrorCode.SHUTTING_DOWN, "The server is shutting down.")
        if self._fatal is not None:
            fault = StageFault(ErrorCode.ENGINE_DEAD, "The engine has stopped after a fault.")
        for state in list(self.request_states.values()):
            await self._fail(state, state.entry_stage_id, fault)
        self._serving = False
        await asyncio.gather(*(pool.close() for pool in self.stage_pools), return_exceptions=True)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---------------------------------------------------------------- order within one request

    def _enqueue(self, state: OrchestratorRequestState, job: LaneJob) -> None:
        """Run ``job`` after everything that is still to be done for this request; at once if that is nothing."""
        state.lane.append(job)
        if not state.busy:
            self._drain_lane(state)

    def _drain_lane(self, state: OrchestratorRequestState) -> None:
        state.busy = True
        while state.lane:
            rest = drive(state.lane.popleft()())
            if rest is not None:
                self._track(self._finish_lane(state, rest), name="orchestrator-request")
                return
        state.busy = False

    async def _finish_lane(self, state: OrchestratorRequestState, rest: Coroutine[object, object, None]) -> None:
        try:
            await rest
        finally:
            self._drain_lane(state)

    def _is_current(self, state: OrchestratorRequestState) -> bool:
        return self.request_states.get(state.request_id) is state

    # ---------------------------------------------------------------- outputs

    def on_stage_output(self, stage_id: int, replica_id: int, output: RequestOutput) -> None:
        """A replica pushed an output. Outputs of unknown requests are dropped."""
        state = self.request_states.get(output.request_id)
        if state is not None:
            self._enqueue(state, partial(self._route, state, stage_id, replica_id, output))

    def on_replica_dead(self, stage_id: int, replica_id: int, request_ids: Sequence[str], error: BaseException) -> None:
        """A replica is gone: fail what it held, once each, and nothing else."""
        fault = StageFault(
            ErrorCode.REPLICA_UNAVAILABLE, f"The worker {replica_id} of stage {stage_id} that served this is gone: {error}"
        )
        for request_id in request_ids:
            state = self.request_states.get(request_id)
            if state is not None:
                self._launch(self._fail(state, stage_id, fault), name="orchestrator-replica-dead")

    async def _route(
        self, state: OrchestratorRequestState, stage_id: int, replica_id: int, output: RequestOutput
    ) -> None:
        if not self._is_current(state):
            return
        try:
            await self._process(state, stage_id, replica_id, output)
        except EmptyHandoff as error:
            await self._fail(state, stage_id + 1, error)
        except Exception as error:
            if not isinstance(error, DuologueError):
                logger.exception("routing an output of stage %d failed for request %s", stage_id, state.request_id)
            await self._fail(state, stage_id, error)

    async def _process(
        self, state: OrchestratorRequestState, stage_id: int, replica_id: int, output: RequestOutput
    ) -> None:
        if output.error is not None:
            await self._fail(state, stage_id, fault_of(output))
            return
        raise NotImplementedError

    # ---------------------------------------------------------------- pausing

    def set_paused(self, request_id: str, paused: bool) -> None:
        """Hold a request's pieces before later stages, or release them in order. Idempotent; unknown ids are ignored.

        At most :data:`MAX_HELD_PIECES` are held; one more fails the request (``output_backpressure``).
        """
        raise NotImplementedError

    # ---------------------------------------------------------------- ends

    async def _fail(self, state: OrchestratorRequestState, stage_id: int, error: BaseException) -> None:
        raise NotImplementedError

    async def _cleanup_request_ids(
        self, request_ids: list[str], *, abort: bool = False, release_owners: bool = False
    ) -> list[OutputMessage]:
        """Forget requests and their companions completely; whatever still runs of them is stopped.

        ``release_owners`` is for siblings whose requests have owners. Returns, with ``abort``, the terminal output of
        each ordinary request that was still running. Raises if a stage could not be told, with the state gone anyway.
        """
        raise NotImplementedError

    async def _abort_request_ids(self, request_ids: list[str]) -> None:
        """Stop requests at every stage that holds them. Raises the first error after trying every stage."""
        raise NotImplementedError

    async def _prewarm_async_chunk_stages(
        self, request_id: str, request: StageRequest, request_state: OrchestratorRequestState
    ) -> bool:
        """Open later stages before their input exists. False: that failed, and with it the whole request."""
        raise NotImplementedError

    def _register_running_request(self, req_state: OrchestratorRequestState) -> None:
        """Count a request as running, once."""
        if not req_state.running:
            req_state.running = True
            self._running_requests += 1


class Orchestrator(OrchestratorBase):
    """The engine for turn-based requests."""

    async def _dispatch_message(self, msg: EngineQueueMessage) -> bool:
        return await super()._dispatch_message(msg)


def fault_of(output: RequestOutput) -> StageFault:
    """The error that an output carries."""
    raise NotImplementedError


__all__ = [
    "MessageSink",
    "Orchestrator",
    "OrchestratorBase",
    "OrchestratorRequestState",
    "build_engine_core_request_from_tokens",
]
