"""One bad request fails alone: whatever goes wrong in stage code, edges, interceptors or payloads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from duologue.engine.orchestrator import Orchestrator, OrchestratorRequestState
from duologue.engine.stages.edge import Edge, EdgeInput, EdgeResult, pass_on
from duologue.errors import ClientFault, ErrorCode, StageFault
from duologue.metrics.stats import StageRequestStats
from duologue.outputs import RequestOutput, StageError, StageRequest
from duologue.sim.loop import VirtualRuntime, virtual
from tests.unit.engine.rig import Rig, StageSpec, echo, running, said


def bad_stage(make: Callable[[StageRequest], RequestOutput]) -> StageSpec:
    """Echoes, but for requests whose text is bad does what ``make`` does."""

    def script(request: StageRequest) -> list[RequestOutput | float]:
        return [make(request)] if request.prompt.text == "bad" else echo(request)

    return StageSpec(script)


def raising(error: Exception) -> Callable[[StageRequest], RequestOutput]:
    def make(_request: StageRequest) -> RequestOutput:
        raise error

    return make


@pytest.mark.parametrize(
    ("make", "code", "text"),
    [
        (raising(RuntimeError("boom")), "runtime_data_plane_stream_failed", "RuntimeError: boom"),
        (raising(StageFault(ErrorCode.TIMEOUT, "too slow")), "timeout", "too slow"),
        (raising(ClientFault(ErrorCode.BAD_AUDIO, "odd")), "bad_audio", "odd"),
        (lambda request: RequestOutput(request_id="else", finished=True), "runtime_data_plane_stream_failed", "'else'"),
        (lambda request: said(request, error=StageError("bad_audio", "odd")), "bad_audio", "odd"),
        (lambda request: said(request, error=StageError("no_such_code", "x")), "runtime_data_plane_stream_failed", "x"),
    ],
)
def test_stage_code_that_fails_fails_its_request(
    make: Callable[[StageRequest], RequestOutput], code: str, text: str
) -> None:
    @virtual
    async def scenario(runtime: VirtualRuntime) -> None:
        for position in (0, 1):
            stages = [StageSpec(), StageSpec()]
            stages[position] = bad_stage(make)
            async with running(Rig(runtime, stages)) as rig:
                rig.add("bad", "bad")
                rig.add("good", "good")
                await asyncio.sleep(1)
                (error,) = rig.errors("bad")
                assert (error.code, error.stage_id) == (code, position)
                assert text in error.message
                assert rig.text("good") == "good"
                assert rig.endings() == {"bad": 1, "good": 1}
                assert rig.leftovers() == {}

    scenario()


@virtual
async def test_an_edge_that_raises_fails_its_request(runtime: VirtualRuntime) -> None:
    def edge(source: EdgeInput) -> EdgeResult:
        if source.text == "bad":
            raise KeyError("missing")
        return pass_on(source)

    rig = Rig(runtime, [StageSpec(), StageSpec()], edges=[Edge(source=0, target=1, processor=edge)])
    async with running(rig):
        rig.add("bad", "bad")
        rig.add("good", "good")
        await asyncio.sleep(1)
        (error,) = rig.errors("bad")
        assert (error.code, error.stage_id, error.http_status) == ("runtime_data_plane_stream_failed", 1, 500)
        assert "KeyError" in error.message
        assert rig.text("good") == "good"


@virtual
async def test_state_that_cannot_be_closed_harms_nobody(runtime: VirtualRuntime) -> None:
    class Sticky(StageSpec):
        def stage(self):  # type: ignore[no-untyped-def]
            stage = super().stage()
            close = stage.close

            def bad_close(state: str) -> None:
                close(state)
                raise OSError("stuck")

            stage.close = bad_close  # type: ignore[method-assign]
            return stage

    async with running(Rig(runtime, [Sticky(), StageSpec()])) as rig:
        rig.add("r", "x")
        await asyncio.sleep(1)
        assert rig.text("r") == "x"


class Sibling(Orchestrator):
    """Owns the requests whose id starts with ``s``; its seams misbehave on demand."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.seen: list[tuple[int, int, str, bool]] = []
        self.failures: list[tuple[str, int, str]] = []
        self.submitted: list[tuple[int, str, int]] = []
        self.consume: set[int] = set()
        self.interceptor_raises = False
        self.handler_raises = False
        self.suspend_s = 0.0

    def own(self, request_id: str, final_stage_id: int) -> OrchestratorRequestState:
        state = OrchestratorRequestState(
            request_id=request_id,
            prompt=None,
            sampling_params_list=[],
            final_stage_id=final_stage_id,
            session_owned=True,
        )
        state.streaming.enabled = True
        self.request_states[request_id] = state
        return state

    def _on_stage_submitted(
        self, stage_id: int, request_id: str, replica_id: int, req_state: OrchestratorRequestState
    ) -> None:
        self.submitted.append((stage_id, request_id, replica_id))

    async def _intercept_stage_output(
        self,
        stage_id: int,
        replica_id: int,
        output: RequestOutput,
        req_state: OrchestratorRequestState,
        stage_metrics: StageRequestStats | None,
        submit_ts: float | None,
    ) -> bool:
        if self.suspend_s:
            await asyncio.sleep(self.suspend_s)
        if self.interceptor_raises:
            raise LookupError("interceptor")
        segment = req_state.streaming.segment(stage_id)
        self.seen.append((stage_id, replica_id, output.text, segment.finished))
        assert stage_metrics is not None
        return stage_id in self.consume

    async def _handle_forward_failure(
        self, req_id: str, next_stage_id: int, req_state: OrchestratorRequestState, exc: BaseException
    ) -> bool:
        if self.handler_raises:
            raise ValueError("handler")
        if not req_state.session_owned:
            return False
        assert isinstance(exc, StageFault)
        self.failures.append((req_id, next_stage_id, exc.code.value))
        await self._cleanup_request_ids([req_id], abort=True)
        return True


async def submit(rig: Rig, state: OrchestratorRequestState, text: str, *, final: bool) -> None:
    """Submit a piece as a sibling's stage port does."""
    from duologue.engine.orchestrator import build_engine_core_request_from_tokens
    from duologue.outputs import SamplingParams, StagePrompt

    pool = rig.orchestrator.stage_pools[0]
    request = build_engine_core_request_from_tokens(
        state.request_id,
        StagePrompt(text=text, final=final),
        SamplingParams(),
        pool.stage_vllm_config.model_config,
        resumable=True,
    )
    if 0 in state.submitted:
        await pool.submit_update(state.request_id, state, request)
    else:
        await pool.submit_initial(state.request_id, state, request, prompt_text=None)


@virtual
async def test_a_session_owned_request_speaks_to_its_owner_alone(runtime: VirtualRuntime) -> None:
    rig = Rig(runtime, [StageSpec(), StageSpec()], kind=Sibling)
    sibling = rig.orchestrator
    assert isinstance(sibling, Sibling)
    async with running(rig):
        state = sibling.own("s1", 1)
        await submit(rig, state, "a", final=False)
        await asyncio.sleep(0.1)
        await submit(rig, state, "b", final=True)
        await asyncio.sleep(0.1)
        assert [(stage, text) for stage, _, text, _ in sibling.seen] == [(0, "a"), (1, "a"), (0, "b"), (1, "b")]
        assert sibling.submitted == [(1, "s1", 0), (1, "s1", 0)]
        assert rig.outbox.messages == []
        assert "s1" in sibling.request_states, "its owner ends it, not the engine"
        await sibling._cleanup_request_ids(["s1"])
        assert rig.leftovers() == {}


@virtual
async def test_a_consumed_output_is_not_forwarded(runtime: VirtualRuntime) -> None:
    stages = [StageSpec(), StageSpec()]
    rig = Rig(runtime, stages, kind=Sibling)
    assert isinstance(rig.orchestrator, Sibling)
    rig.orchestrator.consume = {0}
    async with running(rig):
        await submit(rig, rig.orchestrator.own("s1", 1), "a", final=False)
        await asyncio.sleep(0.1)
        assert not stages[1].ledger.opened
        await rig.orchestrator._cleanup_request_ids(["s1"], abort=True)


@virtual
async def test_failures_of_owned_requests_go_to_the_owner_and_nowhere_else(runtime: VirtualRuntime) -> None:
    rig = Rig(runtime, [bad_stage(raising(RuntimeError("boom")))], kind=Sibling)
    assert isinstance(rig.orchestrator, Sibling)
    async with running(rig):
        await submit(rig, rig.orchestrator.own("s1", 0), "bad", final=True)
        await asyncio.sleep(0.1)
        assert rig.orchestrator.failures == [("s1", 0, "runtime_data_plane_stream_failed")]
        assert rig.outbox.messages == []
        assert rig.leftovers() == {}


@virtual
async def test_an_empty_handoff_of_an_owned_request_goes_to_the_owner(runtime: VirtualRuntime) -> None:
    edges = [Edge(source=0, target=1, processor=lambda source: None)]
    rig = Rig(runtime, [StageSpec(), StageSpec()], edges=edges, kind=Sibling)
    assert isinstance(rig.orchestrator, Sibling)
    async with running(rig):
        await submit(rig, rig.orchestrator.own("s1", 1), "x", final=True)
        await asyncio.sleep(0.1)
        assert rig.orchestrator.failures == [("s1", 1, "empty_handoff")]
        assert rig.leftovers() == {}


@virtual
async def test_an_interceptor_or_handler_that_raises_costs_one_request(runtime: VirtualRuntime) -> None:
    for handler_raises in (False, True):
        rig = Rig(runtime, [StageSpec(), StageSpec()], kind=Sibling)
        sibling = rig.orchestrator
        assert isinstance(sibling, Sibling)
        async with running(rig):
            rig.add("good", "good")
            await asyncio.sleep(0.1)
            sibling.interceptor_raises, sibling.handler_raises = True, handler_raises
            rig.add("bad", "bad")
            await submit(rig, sibling.own("s1", 1), "x", final=True)
            await asyncio.sleep(0.1)
            assert sibling.request_states == {}
            sibling.interceptor_raises = sibling.handler_raises = False
            rig.add("later", "later")
            await asyncio.sleep(0.1)
            assert (rig.text("good"), rig.text("later")) == ("good", "later")
            assert len(rig.errors("bad")) == 1
            assert rig.errors("s1") == []


@virtual
async def test_order_holds_when_the_interceptor_waits(runtime: VirtualRuntime) -> None:
    def fast(request: StageRequest) -> list[RequestOutput | float]:
        return [*(said(request, f"{n} ", segment_finished=True) for n in range(20)), said(request, finished=True)]

    rig = Rig(runtime, [StageSpec(fast), StageSpec()], kind=Sibling)
    assert isinstance(rig.orchestrator, Sibling)
    rig.orchestrator.suspend_s = 0.05
    async with running(rig):
        rig.add("a", "x")
        rig.add("b", "x")
        await asyncio.sleep(10)
        for name in ("a", "b"):
            assert rig.text(name).split() == [str(n) for n in range(20)]
            assert rig.stages[1].ledger.texts(name)[:20] == [f"{n} " for n in range(20)]
        assert rig.leftovers() == {}


@virtual
async def test_a_shutdown_tells_every_running_request(runtime: VirtualRuntime) -> None:
    rig = Rig(runtime, [StageSpec(lambda request: [5.0, *echo(request)])])
    async with running(rig):
        rig.add("r", "x")
        await asyncio.sleep(0.1)
    assert [error.code for error in rig.errors("r")] == ["shutting_down"]
    assert rig.stages[0].ledger.balanced()
    rig.add("late", "x")
    assert [error.code for error in rig.errors("late")] == ["shutting_down"], "nobody is left without an answer"
    assert rig.leftovers() == {}


@virtual
async def test_background_tasks_and_extensions_end_in_order_on_a_shutdown(runtime: VirtualRuntime) -> None:
    seen: list[str] = []

    class Extended(Orchestrator):
        def _background_tasks(self):  # type: ignore[no-untyped-def]
            async def reap() -> None:
                try:
                    await asyncio.Event().wait()
                finally:
                    seen.append("background ended")

            return [reap()]

        async def _shutdown_extensions(self) -> None:
            seen.append(f"extension ends, stage works: {self.stage_pools[0].stage_client is not None}")
            raise RuntimeError("an extension must not keep the engine from stopping")

    async with running(Rig(runtime, [StageSpec()], kind=Extended)):
        await asyncio.sleep(5)
    assert seen == ["background ended", "extension ends, stage works: True"]


@virtual
async def test_a_failed_background_task_ends_the_engine_and_says_so(runtime: VirtualRuntime) -> None:
    class Doomed(Orchestrator):
        def _background_tasks(self):  # type: ignore[no-untyped-def]
            async def fail() -> None:
                await asyncio.sleep(0.5)
                raise ArithmeticError("background")

            return [fail()]

    rig = Rig(runtime, [StageSpec(lambda request: [5.0, *echo(request)])], kind=Doomed)
    run = runtime.spawn(rig.orchestrator.run(), name="orchestrator")
    await asyncio.sleep(0.1)
    rig.add("r", "x")
    with pytest.raises(ArithmeticError):
        await run
    assert [error.code for error in rig.errors("r")] == ["engine_dead"]
    assert rig.leftovers() == {}
    runtime.failed_tasks.clear()
