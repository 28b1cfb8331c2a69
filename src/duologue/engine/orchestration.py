"""Requests through a pipeline of stages: life, routing, forwarding, failure and cleanup, and the seams that siblings fill.

What starts a request is not decided here: :class:`duologue.engine.orchestrator.Orchestrator` dispatches turn-based ones.

Rules kept here:

* everything happens on one loop; stage outputs are pushed in and routed on the spot, without a task per output;
* what belongs to one request happens in order; requests do not wait for each other;
* an exception while one request is processed fails that request and nothing else;
* one funnel drops a request, and drops it completely: aborts it wherever it still runs, at every stage;
* a turn-based request gets exactly one last message: an output that says so, or an error; companions get none;
* a companion that fails or is dropped before it is done fails its parent, a parent that ends ends its companions.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from duologue.engine.companions import CompanionTracker
from duologue.engine.delivery import Delivery, client_message, placeholder
from duologue.engine.faults import as_fault, error_message, fault_of, of_companion, partial_messages
from duologue.engine.handoff import EmptyHandoff, NoPiece, hand_on
from duologue.engine.lanes import Lanes
from duologue.engine.life import EngineLife, LifeHooks
from duologue.engine.messages import EngineQueueMessage, OutputMessage, Shutdown
from duologue.engine.requests import OrchestratorRequestState
from duologue.engine.stage_pool import StageHealth, StagePool
from duologue.engine.stages.edge import Edge, Topology
from duologue.errors import DuologueError, ErrorCode, StageFault
from duologue.log import init_logger
from duologue.metrics.stats import StageRequestStats, stats_table
from duologue.outputs import CompanionOutput, RequestOutput, StagePrompt, StageRequest

if TYPE_CHECKING:
    from duologue.clock import Runtime

logger = init_logger(__name__)

NO_REPLICA = -1  # the replica of an output that the engine made itself
STOP_AGAIN_S = 5.0
"""A stage that could not be told to stop a request of nobody's is told again after so long."""


class MessageSink(Protocol):
    """Where messages leave the engine: anything with ``put_nowait``."""

    def put_nowait(self, message: EngineQueueMessage, /) -> None:
        """Take one message at once."""
        ...


class StageMeter(Protocol):
    """Who adds up what requests cost."""

    def observe(self, stage: str, stats: StageRequestStats, /) -> None:
        """A request is over at the stage with this name."""
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
        meters: StageMeter | None = None,
    ) -> None:
        """``log_stats``: one table per response in the log. ``meters`` hears what each request cost at each stage."""
        if not stage_pools:
            raise ValueError("a pipeline needs at least one stage")
        self.stage_pools: list[StagePool] = list(stage_pools)
        self.topology = Topology(edges, len(self.stage_pools))
        self.output_async_queue = output_async_queue
        self.rpc_async_queue = rpc_async_queue
        self.runtime = runtime
        self.async_chunk = async_chunk
        self.log_stats = log_stats
        self._meters = meters
        self.request_states: dict[str, OrchestratorRequestState] = {}
        self._cfg_tracker = CompanionTracker()
        self._running_requests = 0
        self._shutdown_event = asyncio.Event()
        self._lanes = Lanes(runtime)
        self._life = EngineLife(
            runtime=runtime,
            pools=self.stage_pools,
            lanes=self._lanes,
            shutdown=self._shutdown_event,
            hooks=LifeHooks(
                take=self._take_message,
                dispatch=self._dispatch_message,
                background_tasks=self._background_tasks,
                shutdown_extensions=self._shutdown_extensions,
                fail_all=self._fail_all,
            ),
        )
        self._delivery = Delivery(
            pools=self.stage_pools,
            topology=self.topology,
            states=self.request_states,
            runtime=runtime,
            on_submitted=self._on_stage_submitted,
            on_stalled=self._stalled,
        )

    # ---------------------------------------------------------------- seams

    def _take_message(self, _: EngineQueueMessage, /) -> bool:
        """Handle a message that never waits for anything; false for others, which are dispatched."""
        return False

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
        self._life.post(message)

    async def start(self) -> None:
        """Start every replica. Raises what the first failing one raised, after closing the others. Idempotent."""
        await self._life.start(self)

    async def run(self) -> None:
        """Serve until a :class:`Shutdown` message arrives (or the task is cancelled), then stop in order.

        Raises what a failed background task raised.
        """
        await self.start()
        await self._life.run()

    def tables(self) -> Mapping[str, int]:
        """Sizes of everything that must be empty at quiescence, by name."""
        sizes = {
            "request_states": len(self.request_states),
            "running_requests": self._running_requests,
            "companions": len(self._cfg_tracker),
            "tasks": len(self._lanes),
            "inbox": self._life.waiting,
        }
        for pool in self.stage_pools:
            sizes |= {f"stage{pool.stage_id}.{name}": size for name, size in pool.tables().items()}
        return sizes

    def health(self) -> tuple[StageHealth, ...]:
        """How each stage is, for ``/health``."""
        return tuple(pool.health() for pool in self.stage_pools)

    def held(self) -> Mapping[str, int]:
        """How much of what is bounded requests and stages hold now, by the names of `duologue_held`."""
        total = Counter(pieces=self._delivery.held_pieces, companions=self._cfg_tracker.running)
        for pool in self.stage_pools:
            total.update(pool.held())
        return total

    @property
    def alive(self) -> bool:
        """False once a fault of the engine itself ended it, or is about to."""
        return self._life.fatal is None

    def release_session_key(self, session_key: str) -> None:
        """The owner of a ``session_key`` is gone: its resident contexts need not be found again."""
        for pool in self.stage_pools:
            pool.release_session_key(session_key)

    # ---------------------------------------------------------------- outputs

    def on_stage_output(self, stage_id: int, replica_id: int, output: RequestOutput) -> None:
        """A replica pushed an output. Outputs of unknown requests are dropped."""
        state = self.request_states.get(output.request_id)
        if state is None:
            return
        if state.busy:
            state.lane.append(partial(self._route, state, stage_id, replica_id, output))
        else:
            self._lanes.run(state, self._route(state, stage_id, replica_id, output))

    def on_replica_dead(self, stage_id: int, replica_id: int, request_ids: Sequence[str], error: BaseException) -> None:
        """A replica is gone: fail what it held, once each, and nothing else."""
        fault = StageFault(
            ErrorCode.REPLICA_UNAVAILABLE,
            f"Worker {replica_id} of stage {stage_id}, which served this, is gone: {error}",
        )
        for request_id in request_ids:
            state = self.request_states.get(request_id)
            if state is not None:  # not in its lane: a job there may be waiting for the very replica that died
                self._lanes.launch(self._fail(state, stage_id, fault), name="replica-dead")

    async def _route(
        self, state: OrchestratorRequestState, stage_id: int, replica_id: int, output: RequestOutput
    ) -> None:
        """The one guard around everything that one output causes."""
        if not self._is_current(state):
            return
        try:
            if output.error is not None:
                raise fault_of(output.error)
            feeds = self.topology.feeds(stage_id, state.final_stage_id)
            consumed = await self._accept(state, stage_id, replica_id, output, feeds=feeds)
            if (output.finished or output.segment_finished) and feeds and not consumed:
                await self._forward(state, stage_id, output)
            if (output.finished or output.segment_finished) and stage_id in state.working:
                state.working.discard(stage_id)
                self._delivery.settle(state)
                await self._release_held(state)
            if output.finished and not state.session_owned and state.final_outputs <= state.finished:
                if state.parent_id is not None:
                    role = self._cfg_tracker.role_of(state.request_id)
                    self._cfg_tracker.finish(state.request_id, state.companion_output(role))
                await self._cleanup_request_ids([state.request_id])
        except Exception as error:
            await self._fail(state, stage_id, error)

    def _accept(
        self, state: OrchestratorRequestState, stage_id: int, replica_id: int, output: RequestOutput, *, feeds: bool
    ) -> Coroutine[object, object, bool]:
        """Account one output, show it to the client; the interceptor, still to be awaited, says whether it is consumed."""
        stats = state.stats(stage_id)
        audio_s = len(output.audio) / (2 * output.audio_rate_hz) if output.audio_rate_hz else 0.0
        tokens, ended = len(output.token_ids), output.finished
        stats.observe(self.runtime.now(), tokens=tokens, audio_s=audio_s, finished=ended, queue_s=output.queue_s)
        segment = state.streaming.segment(stage_id)
        if state.parent_id is None:
            segment.absorb(output, content=feeds)
        else:
            segment.absorb(output, content=True)
            segment.kept = True  # of a companion everything is kept until it is done
        if ended:
            state.finished.add(stage_id)
        if not state.session_owned and (message := client_message(state, stage_id, output, stats)) is not None:
            self.output_async_queue.put_nowait(message)
        sent_at = state.stage_submit_ts.get(stage_id)
        return self._intercept_stage_output(stage_id, replica_id, output, state, stats, sent_at)

    def _is_current(self, state: OrchestratorRequestState) -> bool:
        return self.request_states.get(state.request_id) is state

    # ---------------------------------------------------------------- forwarding

    async def _forward(self, state: OrchestratorRequestState, stage_id: int, output: RequestOutput) -> None:
        companions: tuple[CompanionOutput, ...] = ()
        if stage_id == state.entry_stage_id and self._cfg_tracker.has_companions(state.request_id):
            companions = await self._cfg_tracker.bundle(state.request_id, self.runtime)
        for edge in self.topology.edges[stage_id]:
            if edge.target > state.final_stage_id or not self._is_current(state):  # the interceptor may have ended it
                continue
            try:
                piece = hand_on(edge, state, output, companions)
                if isinstance(piece, StagePrompt):
                    await self._delivery.hand_over(state, edge.target, piece)
                elif piece is NoPiece.END_EMPTY:
                    await self._end_empty(state, edge.target)
            except Exception as error:
                await self._fail(state, edge.target, error)

    async def _end_empty(self, state: OrchestratorRequestState, target: int) -> None:
        """Nothing will reach ``target`` and the stages behind it: finish each as if it had said so itself."""
        for stage_id in self.topology.reachable(target, state.final_stage_id):
            if stage_id not in state.final_outputs and stage_id != state.final_stage_id:
                state.finished.add(stage_id)
            elif self._is_current(state):
                output = RequestOutput(request_id=state.request_id, finished=True, finish_reason="stop")
                await self._accept(state, stage_id, NO_REPLICA, output, feeds=False)

    async def _prewarm_async_chunk_stages(
        self, request_id: str, request: StageRequest, request_state: OrchestratorRequestState
    ) -> bool:
        """Open later stages before their input exists. False: that failed, and with it the whole request.

        Idempotent: a stage that has the request is left alone. The placeholder carries the option ``prewarm``.
        """
        del request_id
        piece = placeholder(request.prompt)
        for stage_id in self._delivery.prewarm_targets(request_state):
            try:
                opening = self._delivery.request(request_state, stage_id, piece)
                await self._delivery.submit(request_state, opening, stage_id)
            except Exception as error:
                await self._fail(request_state, stage_id, error)
                return False
        return self._is_current(request_state)

    # ---------------------------------------------------------------- pausing

    def set_paused(self, request_id: str, paused: bool) -> None:
        """Hold a request's pieces before later stages, or release them in order. Idempotent; unknown ids are ignored.

        At most ``MAX_HELD_PIECES`` of :mod:`duologue.engine.delivery` are held; one more fails the request.
        """
        state = self.request_states.get(request_id)
        if state is None or state.paused == paused:
            return
        state.paused = paused
        if not paused and state.held:
            self._lanes.enqueue(state, partial(self._release_held, state))

    def _stalled(self, state: OrchestratorRequestState) -> None:
        """A stage behind a paced edge has not ended its segment in time: the next piece goes to it all the same."""
        state.patience = None
        if self._is_current(state):
            logger.warning("a stage has not ended a segment of request %s; it gets the next piece", state.request_id)
            state.working.clear()
            self._lanes.enqueue(state, partial(self._release_held, state))

    async def _release_held(self, state: OrchestratorRequestState) -> None:
        while self._delivery.releasable(state) and self._is_current(state):
            stage_id = state.held[0][0]
            try:
                await self._delivery.release_next(state)
            except Exception as error:
                await self._fail(state, stage_id, error)

    # ---------------------------------------------------------------- ends

    async def _fail(self, state: OrchestratorRequestState, stage_id: int, error: Exception) -> None:
        """End one request with an error. Never raises; of one that has ended only what a stage still holds is stopped."""
        if not self._is_current(state):
            if not self._life.stopping and any(
                pool.replica_of(state.request_id) is not None for pool in self.stage_pools
            ):
                self._lanes.start(self._stop_again([state.request_id]), name="stop-again")
            return
        if not isinstance(error, DuologueError):
            logger.error("request %s failed at stage %d", state.request_id, stage_id, exc_info=error)
        fault = as_fault(error, f"Stage {stage_id} of request {state.request_id!r}")
        parent = None if state.parent_id is None else self.request_states.get(state.parent_id)
        if parent is not None:
            await self._fail(parent, stage_id, of_companion(fault, self._cfg_tracker.role_of(state.request_id)))
            return
        try:
            if isinstance(fault, EmptyHandoff):
                handled = await self._on_empty_handoff(state.request_id, stage_id, state, fault)
            else:
                handled = await self._handle_forward_failure(state.request_id, stage_id, state, fault)
            if handled or not self._is_current(state):
                return
        except Exception:
            logger.exception("the failure of request %s could not be handed to its owner", state.request_id)
        if not state.session_owned:
            self.output_async_queue.put_nowait(error_message(state.request_id, fault, stage_id))
        try:
            await self._cleanup_request_ids([state.request_id], abort=True, release_owners=True)
        except Exception:
            logger.exception("a stage could not be told to stop request %s", state.request_id)

    async def _fail_all(self, fault: StageFault) -> None:
        for state in list(self.request_states.values()):
            await self._fail(state, state.entry_stage_id, fault)

    async def _cleanup_request_ids(
        self, request_ids: list[str], *, abort: bool = False, release_owners: bool = False
    ) -> list[OutputMessage]:
        """Forget requests and their companions completely; whatever still runs of them is stopped.

        ``release_owners`` is for siblings whose requests have owners. Returns, with ``abort``, what the client of each
        turn-based request that was still running had got, one message per final stage. Raises if a stage could not be
        told; the state is gone even then. Calling again tells the stage again; of requests without an owner the engine does
        so itself.
        """
        del release_owners
        bereft = self._bereft(request_ids)
        companions = [child for request_id in request_ids for child in self._cfg_tracker.cleanup_parent(request_id)]
        ids = list(dict.fromkeys([*request_ids, *companions]))
        outputs: list[OutputMessage] = []
        ours: list[str] = []
        for request_id in ids:
            state = self.request_states.pop(request_id, None)
            if state is None:
                continue
            if not state.session_owned:
                ours.append(request_id)
            if state.running:
                state.running = False
                self._running_requests -= 1
            if state.deadline is not None:
                state.deadline.cancel()
            self._delivery.settle(state)
            if abort and not state.session_owned:
                outputs.extend(partial_messages(state))
            self._report_stats(state)
        try:
            await self._abort_request_ids(ids)
        except Exception:
            if ours and not self._life.stopping:
                self._lanes.start(self._stop_again(ours), name="stop-again")
            raise
        finally:
            for parent, fault in bereft:
                await self._fail(parent, parent.entry_stage_id, fault)
        return outputs

    def _report_stats(self, state: OrchestratorRequestState) -> None:
        """A request is over: what it cost at each stage goes to the meters and, if asked for, into the log."""
        rows = [(self.stage_pools[stage_id].name, stats) for stage_id, stats in sorted(state.stage_stats.items())]
        if self._meters is not None:
            for name, stats in rows:
                self._meters.observe(name, stats)
        if self.log_stats and rows and not state.session_owned:  # a session tells it per response
            logger.info("what the response cost\n%s", stats_table(rows), extra={"request_id": state.request_id})

    def _bereft(self, request_ids: Sequence[str]) -> list[tuple[OrchestratorRequestState, StageFault]]:
        """Parents that stay while a companion goes that is not done, and what that means for them."""
        found = []
        for request_id in request_ids:
            parent_id = self._cfg_tracker.parent_of(request_id)
            parent = None if parent_id is None else self.request_states.get(parent_id)
            if parent is not None and parent_id not in request_ids:
                role = self._cfg_tracker.role_of(request_id)
                stopped = StageFault(ErrorCode.REQUEST_ABORTED, "it was stopped before it had finished.")
                found.append((parent, of_companion(stopped, role)))
        return found

    async def _abort_request_ids(self, request_ids: list[str]) -> None:
        """Stop requests at every stage that holds them. Raises the first error after trying every stage."""
        failure: Exception | None = None
        for pool in self.stage_pools:
            try:
                await pool.abort(request_ids)
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure

    async def _stop_again(self, request_ids: list[str]) -> None:
        """Nobody but the engine knows of these any more: the stages are told until they have been."""
        failed = True
        while failed:
            await asyncio.sleep(STOP_AGAIN_S)
            left = [request_id for request_id in request_ids if request_id not in self.request_states]
            try:
                await self._abort_request_ids(left)
            except Exception:
                logger.warning("a stage could not be told to stop %d requests", len(left), exc_info=True)
            else:
                failed = False

    def _register_running_request(self, req_state: OrchestratorRequestState) -> None:
        """Count a request as running, once."""
        if not req_state.running:
            req_state.running = True
            self._running_requests += 1
