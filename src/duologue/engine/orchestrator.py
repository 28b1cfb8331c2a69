"""The turn-based engine: what starts, updates and stops requests, and what operates on replicas.

:class:`Orchestrator` dispatches messages; everything that follows from them is in
:class:`duologue.engine.orchestration.OrchestratorBase`. Neither knows of sessions.

Rules kept here:

* a message is handled on the spot; what has to wait does not hold up the next message;
* a correlated operation is answered exactly once, within its own bound, also when the engine stops meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from duologue.engine.calls import call_replicas
from duologue.engine.faults import aborted_message, error_message, partial_messages, result_message
from duologue.engine.messages import (
    AbortRequest,
    AddCompanionRequest,
    AddRequest,
    CollectiveRpc,
    EngineQueueMessage,
    RegisterReplica,
    StreamingUpdate,
    UnregisterReplica,
)
from duologue.engine.orchestration import MessageSink, OrchestratorBase
from duologue.engine.requests import (
    OrchestratorRequestState,
    admit,
    admit_companion,
    build_engine_core_request_from_tokens,
)
from duologue.engine.stage_pool import StagePool
from duologue.errors import ClientFault, DuologueError, ErrorCode, StageFault
from duologue.log import init_logger
from duologue.outputs import StagePrompt

logger = init_logger(__name__)

_STOPPING = "The server is shutting down."


class Orchestrator(OrchestratorBase):
    """The engine for turn-based requests: adds, updates and aborts them."""

    async def _dispatch_message(self, msg: EngineQueueMessage) -> bool:
        match msg:
            case AddRequest():
                self._add(msg)
            case StreamingUpdate():
                self._update(msg)
            case AbortRequest():
                await self._abort(msg)
            case AddCompanionRequest():
                self._add_companion(msg)
            case CollectiveRpc():
                self._operate(msg.control_id, partial(call_replicas, self.stage_pools, msg, self.runtime))
            case RegisterReplica():
                self._operate(msg.control_id, partial(self._register_replica, msg))
            case UnregisterReplica():
                self._operate(msg.control_id, partial(self._unregister_replica, msg))
            case _:
                return await super()._dispatch_message(msg)
        return True

    def _add(self, message: AddRequest) -> None:
        request_id = message.request_id
        if request_id in self.request_states:
            # Answering would end the request that has the id.
            logger.warning("request %s is added although it runs; ignored", request_id)
            return
        try:
            self._check_serving()
            final_stages = frozenset(pool.stage_id for pool in self.stage_pools if pool.final_output)
            state = admit(message, self.topology, final_stages)
        except DuologueError as fault:
            self.output_async_queue.put_nowait(error_message(request_id, fault, None))
            return
        if message.companion_roles:
            self._cfg_tracker.expect(request_id, message.companion_roles, message.companion_wait_s)
        if message.timeout_s is not None:
            due = self.runtime.now() + message.timeout_s
            state.deadline = self.runtime.call_at(due, self._overdue, state, message.timeout_s)
        self._begin(state, message.prompt, resumable=message.resumable)

    def _overdue(self, state: OrchestratorRequestState, timeout_s: float) -> None:
        fault = StageFault(ErrorCode.TIMEOUT, f"Request {state.request_id!r} has not ended within {timeout_s:g} s.")
        # Not in its lane: what holds it up may be a job there.
        self._lanes.launch(self._fail(state, state.entry_stage_id, fault), name="overdue")

    def _add_companion(self, message: AddCompanionRequest) -> None:
        request_id, parent_id = message.request_id, message.parent_id
        if request_id in self.request_states:
            logger.warning("companion %s is added although a request with this id runs; ignored", request_id)
            return
        try:
            self._check_serving()
            state = admit_companion(message, self.request_states.get(parent_id), len(self.stage_pools))
            try:
                self._cfg_tracker.add(parent_id, message.role, request_id)
            except ValueError as error:
                raise ClientFault(ErrorCode.REQUEST_INVALID, f"{error}.", param="role") from None
        except DuologueError as fault:
            self.output_async_queue.put_nowait(error_message(request_id, fault, None))
            return
        self._begin(state, message.prompt, resumable=False)

    def _begin(self, state: OrchestratorRequestState, prompt: StagePrompt, *, resumable: bool) -> None:
        self.request_states[state.request_id] = state
        self._register_running_request(state)
        if not resumable and not prompt.final:
            prompt = msgspec.structs.replace(prompt, final=True)
        self._lanes.run(state, self._enter(state, prompt))

    def _check_serving(self) -> None:
        if self._life.stopping:
            raise StageFault(ErrorCode.SHUTTING_DOWN, _STOPPING)

    def _update(self, message: StreamingUpdate) -> None:
        state = self.request_states.get(message.request_id)
        if state is not None and not state.session_owned:
            self._lanes.enqueue(state, partial(self._enter, state, message.prompt))

    async def _enter(self, state: OrchestratorRequestState, prompt: StagePrompt) -> None:
        if not self._is_current(state):
            return
        entry = state.entry_stage_id
        first = entry not in state.submitted
        try:
            if not first and not state.streaming.enabled:
                raise ClientFault(
                    ErrorCode.REQUEST_INVALID,
                    f"Request {state.request_id!r} was not added as resumable.",
                    param="prompt",
                )
            request = self._delivery.request(state, entry, prompt)
            await self._delivery.submit(state, request, entry)
            if first and self.async_chunk and self._is_current(state):
                await self._prewarm_async_chunk_stages(state.request_id, request, state)
        except Exception as error:
            await self._fail(state, entry, error)

    async def _abort(self, message: AbortRequest) -> None:
        states = {request_id: self.request_states.get(request_id) for request_id in message.request_ids}
        ids = [request_id for request_id, state in states.items() if state is None or not state.session_owned]
        # Made before the cleanup: a stage that can't be told must not cost a client its last message.
        ours = [s for s in states.values() if s is not None and not s.session_owned and s.parent_id is None]
        partials = tuple(message for state in ours for message in partial_messages(state))
        last = [aborted_message(state.request_id, state.final_stage_id) for state in ours]
        failure: Exception | None = None
        try:
            await self._cleanup_request_ids(ids, abort=True)
        except asyncio.CancelledError:
            failure = StageFault(ErrorCode.SHUTTING_DOWN, _STOPPING)
            raise
        except DuologueError as error:
            failure = error
        except Exception as error:
            logger.warning("a stage could not be told to stop %d requests", len(ids), exc_info=error)
            failure = StageFault(
                ErrorCode.RUNTIME_ABORT_FAILED, f"A stage could not be told to stop ({type(error).__name__})."
            )
        finally:
            for output in last:
                self.output_async_queue.put_nowait(output)
            if message.control_id is not None:
                self.rpc_async_queue.put_nowait(result_message(message.control_id, partials, failure))

    # ---------------------------------------------------------------- operations

    def _operate(self, control_id: str, operation: Callable[[], Awaitable[object]]) -> None:
        self._lanes.start(self._answer(control_id, operation), name="operation")

    async def _answer(self, control_id: str, operation: Callable[[], Awaitable[object]]) -> None:
        """Carry out a correlated operation and answer it, once, whatever becomes of it."""
        value: object = None
        failure: Exception | None = None
        try:
            self._check_serving()
            value = await operation()
        except asyncio.CancelledError:
            fault = StageFault(ErrorCode.SHUTTING_DOWN, _STOPPING)
            self.rpc_async_queue.put_nowait(result_message(control_id, None, fault))
            raise
        except Exception as error:
            failure = error
        self.rpc_async_queue.put_nowait(result_message(control_id, value, failure))

    async def _register_replica(self, message: RegisterReplica) -> int:
        return await self._pool(message.stage_id).replicas.add()

    async def _unregister_replica(self, message: UnregisterReplica) -> None:
        await self._pool(message.stage_id).replicas.remove(message.replica_id, drain_s=message.drain_s)

    def _pool(self, stage_id: int) -> StagePool:
        if not 0 <= stage_id < len(self.stage_pools):
            known = len(self.stage_pools) - 1
            raise ClientFault(
                ErrorCode.REQUEST_INVALID, f"stage_id must be between 0 and {known}, got {stage_id}.", param="stage_id"
            )
        return self.stage_pools[stage_id]


__all__ = [
    "MessageSink",
    "Orchestrator",
    "OrchestratorBase",
    "OrchestratorRequestState",
    "build_engine_core_request_from_tokens",
]
