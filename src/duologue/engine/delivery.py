"""How pieces of input reach stages: submission, holding while a request is paused, opening stages ahead of their input.

Rules kept here:

* pieces of one request reach a stage in the order in which they arose, held ones included;
* a request that ended meanwhile gets nothing submitted, bound or reported;
* behind a paced edge one piece is worked on at a time, so that a paused request makes at most one segment more;
* at most :data:`MAX_HELD_PIECES` pieces of one request are held; one more fails it (``output_backpressure``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from duologue.engine.messages import OutputMessage, StageMetricsMessage
from duologue.engine.requests import OrchestratorRequestState, build_engine_core_request_from_tokens
from duologue.engine.stage_pool import StagePool
from duologue.engine.stages.contract import PREWARM
from duologue.engine.stages.edge import Topology
from duologue.errors import ErrorCode, StageFault
from duologue.metrics.stats import StageRequestStats
from duologue.outputs import RequestOutput, StagePrompt, StageRequest

if TYPE_CHECKING:
    from duologue.clock import Runtime

MAX_HELD_PIECES = 1024
PATIENCE_S = 10.0
"""So long a stage behind a paced edge may leave a piece without the end of its segment before it gets the next one."""

OnSubmitted = Callable[[int, str, int, OrchestratorRequestState], None]
"""Called with (stage id, request id, replica id, state) after each submission."""


class Delivery:
    """Gives stages their input. Everything raises what the stage or the pool raised, for the caller to judge."""

    def __init__(
        self,
        *,
        pools: Sequence[StagePool],
        topology: Topology,
        states: Mapping[str, OrchestratorRequestState],
        runtime: Runtime,
        on_submitted: OnSubmitted,
        on_stalled: Callable[[OrchestratorRequestState], None],
    ) -> None:
        self._pools = pools
        self._topology = topology
        self._states = states
        self._runtime = runtime
        self._on_submitted = on_submitted
        self._on_stalled = on_stalled

    @property
    def held_pieces(self) -> int:
        """Pieces of paused requests, or behind paced edges, that wait for later stages."""
        return sum(len(state.held) for state in self._states.values())

    def request(self, state: OrchestratorRequestState, stage_id: int, prompt: StagePrompt) -> StageRequest:
        """One piece for a stage, with the request's sampling parameters for it or the stage's defaults."""
        pool = self._pools[stage_id]
        params = state.sampling_params_list
        return build_engine_core_request_from_tokens(
            state.request_id,
            prompt,
            params[stage_id] if params else pool.default_sampling_params,
            pool.model_config,
            resumable=not prompt.final or stage_id in state.submitted,
        )

    async def submit(self, state: OrchestratorRequestState, request: StageRequest, stage_id: int) -> None:
        """Give a stage one piece: a new request there, or an update of the one it has."""
        if self._states.get(state.request_id) is not state:
            return  # it ended while the stage before this one was given its piece, and nothing would ever stop it here
        pool = self._pools[stage_id]
        if stage_id in state.submitted:
            replica_id = await pool.submit_update(state.request_id, state, request)
        else:
            replica_id = await pool.submit_initial(state.request_id, state, request)
        if self._states.get(state.request_id) is state:
            state.stage_submit_ts[stage_id] = self._runtime.now()
            self._on_submitted(stage_id, state.request_id, replica_id, state)

    async def hand_over(self, state: OrchestratorRequestState, stage_id: int, piece: StagePrompt) -> None:
        """Submit a piece that an edge made, or hold it while the request is paused or its stage still works."""
        state.fed.add(stage_id)
        if not state.paused and not state.held and stage_id not in state.working:
            await self._give(state, stage_id, piece)
            return
        if len(state.held) >= MAX_HELD_PIECES:
            raise StageFault(
                ErrorCode.OUTPUT_BACKPRESSURE,
                f"{MAX_HELD_PIECES} pieces of request {state.request_id!r} wait for later stages already.",
            )
        state.held.append((stage_id, piece))

    @staticmethod
    def releasable(state: OrchestratorRequestState) -> bool:
        """Whether the oldest held piece may go to its stage now."""
        return bool(state.held) and not state.paused and state.held[0][0] not in state.working

    @staticmethod
    def settle(state: OrchestratorRequestState) -> None:
        """Nothing is waited for any more."""
        if state.patience is not None:
            state.patience.cancel()
            state.patience = None

    async def release_next(self, state: OrchestratorRequestState) -> None:
        """Submit the oldest held piece."""
        stage_id, piece = state.held.popleft()
        await self._give(state, stage_id, piece)

    async def _give(self, state: OrchestratorRequestState, stage_id: int, piece: StagePrompt) -> None:
        if stage_id in self._topology.paced:
            state.working.add(stage_id)
            self.settle(state)
            state.patience = self._runtime.call_at(self._runtime.now() + PATIENCE_S, self._on_stalled, state)
        await self.submit(state, self.request(state, stage_id, piece), stage_id)

    def prewarm_targets(self, state: OrchestratorRequestState) -> list[int]:
        """Later stages that want to be opened ahead of their input and are not open yet, ascending."""
        path = self._topology.reachable(state.entry_stage_id, state.final_stage_id)
        return sorted(
            edge.target
            for source in path
            for edge in self._topology.edges[source]
            if edge.prewarm and edge.target <= state.final_stage_id and edge.target not in state.submitted
        )


def placeholder(prompt: StagePrompt) -> StagePrompt:
    """The first piece of a stage that is opened ahead of its input: what is known of the request and is not input.

    It carries the option :data:`PREWARM`. A stage makes ready what it can (reads the conversation, say) and answers nothing.
    """
    return StagePrompt(
        final=False,
        messages=prompt.messages,
        session_key=prompt.session_key,
        options={**prompt.options, PREWARM: True},
    )


def client_message(
    state: OrchestratorRequestState, stage_id: int, output: RequestOutput, stats: StageRequestStats
) -> OutputMessage | StageMetricsMessage | None:
    """What the client of an ordinary request hears of an output: all of a final stage, of any other the cost at its end."""
    if stage_id in state.final_outputs:
        last = output.finished and state.final_outputs <= state.finished
        state.show(stage_id, output)
        return OutputMessage(request_id=state.request_id, stage_id=stage_id, output=output, finished=last)
    if output.finished and state.parent_id is None:
        return StageMetricsMessage(request_id=state.request_id, stage_id=stage_id, values=stats.values())
    return None
