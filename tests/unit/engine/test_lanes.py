"""Coroutines driven inline, and the order of one request's jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import pytest

from duologue.engine.lanes import Lanes, drive
from duologue.engine.requests import OrchestratorRequestState
from duologue.sim.loop import VirtualRuntime, virtual


def test_what_does_not_wait_ends_on_the_spot() -> None:
    seen: list[int] = []

    async def inner() -> int:
        return 1

    async def outer() -> None:
        seen.append(await inner())

    assert drive(outer()) is None
    assert seen == [1]


def test_what_raises_on_the_spot_raises_there() -> None:
    async def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        drive(fail())


@virtual
async def test_what_waits_goes_on_as_a_task_with_results_errors_and_cancellation() -> None:
    seen: list[object] = []
    gate: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    broken: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def work() -> None:
        seen.append("start")
        seen.append(await gate)
        await asyncio.sleep(0)
        try:
            await broken
        except ValueError as error:
            seen.append(str(error))
        async with asyncio.timeout(1):
            await asyncio.sleep(0.5)
        try:
            await asyncio.sleep(60)
        finally:
            seen.append("cancelled")

    rest = drive(work())
    assert rest is not None
    assert seen == ["start"]
    task = asyncio.create_task(rest)
    gate.set_result("open")
    await asyncio.sleep(0.1)
    broken.set_exception(ValueError("bad"))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["start", "open", "bad", "cancelled"]


@virtual
async def test_a_future_that_is_done_before_the_rest_starts_is_not_missed() -> None:
    gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def work() -> None:
        await gate

    rest = drive(work())
    assert rest is not None
    gate.set_result(None)
    await rest


@virtual
async def test_jobs_of_one_request_keep_their_order_and_others_do_not_wait(runtime: VirtualRuntime) -> None:
    lanes = Lanes(runtime)
    seen: list[str] = []
    slow, quick = (OrchestratorRequestState(name, None, [], 0) for name in ("slow", "quick"))

    def job(name: str, wait_s: float) -> Coroutine[object, object, None]:
        async def work() -> None:
            if wait_s:
                await asyncio.sleep(wait_s)
            seen.append(name)

        return work()

    lanes.enqueue(slow, lambda: job("slow-1", 1.0))
    lanes.enqueue(slow, lambda: job("slow-2", 0.0))
    lanes.enqueue(slow, lambda: job("slow-3", 0.5))
    lanes.enqueue(quick, lambda: job("quick-1", 0.0))
    assert seen == ["quick-1"]
    await asyncio.sleep(1.1)
    assert seen == ["quick-1", "slow-1", "slow-2"]
    assert len(lanes) == 1
    await asyncio.sleep(1)
    assert seen[-1] == "slow-3"
    lanes.enqueue(slow, lambda: job("slow-4", 0.0))
    assert seen[-1] == "slow-4"
    assert len(lanes) == 0
    lanes.launch(job("never", 60.0), name="launched")
    await lanes.close()
    assert "never" not in seen


@virtual
async def test_a_job_that_adds_jobs_to_its_own_lane_does_not_overtake_itself(runtime: VirtualRuntime) -> None:
    lanes = Lanes(runtime)
    state = OrchestratorRequestState("r", None, [], 0)
    seen: list[str] = []

    async def leaf(name: str) -> None:
        seen.append(name)

    async def root() -> None:
        lanes.enqueue(state, lambda: leaf("child"))
        seen.append("root")

    lanes.enqueue(state, root)
    assert seen == ["root", "child"]
