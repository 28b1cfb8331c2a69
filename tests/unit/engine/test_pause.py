"""Holding a request's pieces before later stages, and letting them go again."""

from __future__ import annotations

import asyncio

from duologue.engine.delivery import MAX_HELD_PIECES, PATIENCE_S
from duologue.engine.messages import AbortRequest
from duologue.engine.stages.edge import Edge, pass_on
from duologue.outputs import RequestOutput, StageRequest
from duologue.sim.loop import VirtualRuntime, virtual
from tests.unit.engine.rig import Rig, StageSpec, echo, running, said


def counting(count: int, gap_s: float = 0.01) -> StageSpec:
    """A stage that says ``count`` segments, one each ``gap_s``."""

    def script(request: StageRequest) -> list[RequestOutput | float]:
        steps: list[RequestOutput | float] = []
        for number in range(count):
            steps += [gap_s, said(request, f"{number} ", segment_finished=True)]
        return [*steps, said(request, finished=True)]

    return StageSpec(script)


@virtual
async def test_held_pieces_are_released_in_order_and_others_are_not_held(runtime: VirtualRuntime) -> None:
    stages = [counting(10), StageSpec()]
    async with running(Rig(runtime, stages)) as rig:
        rig.add("r", "x")
        rig.add("other", "x")
        await asyncio.sleep(0.035)
        rig.orchestrator.set_paused("r", True)
        rig.orchestrator.set_paused("r", True)
        rig.orchestrator.set_paused("ghost", True)
        await asyncio.sleep(1)
        assert stages[1].ledger.texts("r") == ["0 ", "1 ", "2 "]
        assert rig.endings() == {"other": 1}
        rig.orchestrator.set_paused("r", False)
        await asyncio.sleep(1)
        assert stages[1].ledger.texts("r") == [*(f"{number} " for number in range(10)), ""]
        assert stages[1].ledger.finals("r") == [False] * 10 + [True]
        assert rig.text("r") == rig.text("other")


@virtual
async def test_pausing_again_holds_what_comes_later(runtime: VirtualRuntime) -> None:
    stages = [counting(6, gap_s=1.0), StageSpec()]
    async with running(Rig(runtime, stages)) as rig:
        rig.add("r", "x")
        for paused, until_s, expected in ((True, 2.5, 0), (False, 0.1, 2), (True, 2.5, 2), (False, 5.0, 6)):
            rig.orchestrator.set_paused("r", paused)
            await asyncio.sleep(until_s)
            assert len([text for text in stages[1].ledger.texts("r") if text]) == expected
        assert stages[1].ledger.texts("r")[:6] == [f"{number} " for number in range(6)]


@virtual
async def test_more_than_can_be_held_fails_the_request_alone(runtime: VirtualRuntime) -> None:
    stages = [counting(MAX_HELD_PIECES + 1, gap_s=0.0), StageSpec()]
    async with running(Rig(runtime, stages)) as rig:
        rig.add("r", "x")
        await asyncio.sleep(0)
        rig.orchestrator.set_paused("r", True)
        await asyncio.sleep(5)
        assert [error.code for error in rig.errors("r")] == ["output_backpressure"]
        assert rig.leftovers() == {}
        assert not stages[1].ledger.opened


@virtual
async def test_a_paused_request_can_be_aborted(runtime: VirtualRuntime) -> None:
    stages = [counting(5), StageSpec()]
    async with running(Rig(runtime, stages)) as rig:
        rig.add("r", "x")
        await asyncio.sleep(0)
        rig.orchestrator.set_paused("r", True)
        await asyncio.sleep(1)
        rig.orchestrator.post(AbortRequest(request_ids=("r",)))
        await asyncio.sleep(0)
        assert rig.leftovers() == {}
        rig.orchestrator.set_paused("r", False)
        await asyncio.sleep(1)
        assert not stages[1].ledger.opened
        assert rig.endings() == {"r": 1}


def slow(gap_s: float) -> StageSpec:
    """A stage that takes so long for each piece, and then ends its segment."""

    def script(request: StageRequest) -> list[RequestOutput | float]:
        return [gap_s, *echo(request)]

    return StageSpec(script)


PACED = [Edge(source=0, target=1, processor=pass_on, paced=True)]


@virtual
async def test_behind_a_paced_edge_one_piece_is_worked_on_at_a_time(runtime: VirtualRuntime) -> None:
    """A source that is far ahead cannot fill the stage behind it: what is paused then makes one segment more."""
    stages = [counting(10, gap_s=0.0), slow(1.0)]
    async with running(Rig(runtime, stages, edges=PACED)) as rig:
        rig.add("r", "x")
        await asyncio.sleep(2.5)
        assert stages[1].ledger.texts("r") == ["0 ", "1 ", "2 "]
        rig.orchestrator.set_paused("r", True)
        await asyncio.sleep(60)
        assert stages[1].ledger.texts("r") == ["0 ", "1 ", "2 "]
        rig.orchestrator.set_paused("r", False)
        await asyncio.sleep(1.5)
        assert stages[1].ledger.texts("r") == ["0 ", "1 ", "2 ", "3 ", "4 "]
        rig.orchestrator.set_paused("r", True)
        rig.orchestrator.set_paused("r", False)
        assert len(stages[1].ledger.texts("r")) == 5
        await asyncio.sleep(60)
        assert stages[1].ledger.texts("r") == [*(f"{number} " for number in range(10)), ""]
        assert rig.text("r") == "".join(f"{number} " for number in range(10))


@virtual
async def test_pieces_of_different_requests_do_not_wait_for_each_other(runtime: VirtualRuntime) -> None:
    stages = [counting(3, gap_s=0.0), slow(1.0)]
    async with running(Rig(runtime, stages, edges=PACED)) as rig:
        rig.add("r", "x")
        rig.add("other", "x")
        await asyncio.sleep(4.5)
        assert rig.endings() == {"r": 1, "other": 1}


@virtual
async def test_so_many_pieces_wait_behind_a_paced_edge_and_one_more_fails_the_request(runtime: VirtualRuntime) -> None:
    for held, failed in ((MAX_HELD_PIECES - 1, False), (MAX_HELD_PIECES, False), (MAX_HELD_PIECES + 1, True)):
        stages = [counting(held, gap_s=0.0), slow(0.01)]  # one is at work, and the last piece says that it is the last
        async with running(Rig(runtime, stages, edges=PACED)) as rig:
            rig.add("r", "x")
            await asyncio.sleep(20)
            assert [error.code for error in rig.errors("r")] == ["output_backpressure"] * failed
            assert rig.endings() == {"r": 1}


@virtual
async def test_a_stage_that_does_not_end_its_segment_holds_up_a_request_only_so_long(runtime: VirtualRuntime) -> None:
    """It should, for each piece; a piece may also have been lost on its way."""

    def forgetful(request: StageRequest) -> list[RequestOutput | float]:
        return echo(request) if request.prompt.final else []

    stages = [counting(2, gap_s=0.0), StageSpec(forgetful)]
    async with running(Rig(runtime, stages, edges=PACED)) as rig:
        rig.add("r", "x")
        for waited_s, given in ((0.0, 1), (PATIENCE_S - 0.1, 1), (0.2, 2), (PATIENCE_S, 3)):
            await asyncio.sleep(waited_s)
            assert len(stages[1].ledger.texts("r")) == given or waited_s == 0.0
        assert rig.endings() == {"r": 1}
