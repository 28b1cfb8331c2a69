"""Nothing hangs: whatever does not end by itself is ended, and what follows is in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from duologue.engine.messages import Shutdown
from duologue.engine.orchestrator import Orchestrator
from duologue.engine.stages.contract import AsyncStage, StageControl
from duologue.engine.stages.inproc import InprocClient
from duologue.errors import StageFault
from duologue.outputs import RequestOutput, StageRequest
from duologue.sim.loop import VirtualRuntime, virtual
from tests.unit.engine.rig import Rig, StageSpec, echo, running, said


def never(request: StageRequest) -> list[RequestOutput | float]:
    return [1e9]


@virtual
async def test_a_request_that_does_not_end_is_ended(runtime: VirtualRuntime) -> None:
    stages = [StageSpec(lambda request: never(request) if request.request_id == "r" else echo(request)), StageSpec()]
    async with running(Rig(runtime, stages)) as rig:
        rig.add("r", "x", timeout_s=5.0)
        rig.add("patient", "x", resumable=True, final=False, timeout_s=None)
        rig.add("quick", "x", timeout_s=5.0)
        await asyncio.sleep(4.9)
        assert rig.endings() == {"quick": 1}
        await asyncio.sleep(0.2)
        (error,) = rig.errors("r")
        assert (error.code, error.http_status) == ("timeout", 504)
        assert "has not ended within 5 s" in error.message
        await asyncio.sleep(10_000)
        assert rig.endings() == {"quick": 1, "r": 1}


@virtual
async def test_by_default_there_is_a_bound_too(runtime: VirtualRuntime) -> None:
    async with running(Rig(runtime, [StageSpec(never)])) as rig:
        rig.add("r", "x")
        rig.add("wrong", "x", timeout_s=0.0)
        assert "timeout_s must be above 0 or null, got 0.0" in rig.errors("wrong")[0].message
        await asyncio.sleep(601)
        assert [error.code for error in rig.errors("r")] == ["timeout"]


@virtual
async def test_a_request_stuck_on_its_way_into_a_stage_is_ended_too(runtime: VirtualRuntime) -> None:
    class Stuck(InprocClient):
        async def submit(self, request: StageRequest) -> None:
            await asyncio.Event().wait()

    spec = StageSpec()
    rig = Rig(runtime, [spec])
    rig.orchestrator.stage_pools[0].replicas.make_client = lambda _id: Stuck(spec.stage(), runtime=runtime)
    run = runtime.spawn(rig.orchestrator.run(), name="orchestrator")
    await asyncio.sleep(0.001)
    rig.add("r", "x", timeout_s=5.0)
    await asyncio.sleep(6)
    assert [error.code for error in rig.errors("r")] == ["timeout"]
    rig.orchestrator.post(Shutdown())
    await run  # which cancels what is stuck
    assert rig.leftovers() == {}


class Lazy(AsyncStage[None]):
    """Asynchronous stage code that never gets ready, or never ends."""

    def __init__(self, *, loads: bool) -> None:
        self.loads = loads

    async def load(self) -> None:
        if not self.loads:
            await asyncio.Event().wait()

    def open(self, request: StageRequest) -> None:
        return None

    async def process(self, state: None, request: StageRequest, control: StageControl) -> AsyncIterator[RequestOutput]:
        yield said(request, finished=True)

    async def shutdown(self) -> None:
        await asyncio.Event().wait()


class Nobody:
    def on_output(self, output: RequestOutput) -> None:
        raise AssertionError(output)

    def on_dead(self, error: BaseException) -> None:
        raise AssertionError(error)


@virtual
async def test_a_stage_of_this_process_has_bounds_for_its_start_and_its_end(runtime: VirtualRuntime) -> None:
    began = runtime.now()
    client = InprocClient(Lazy(loads=False), runtime=runtime, start_timeout_s=3.0)
    with pytest.raises(StageFault, match="Lazy was not loaded after 3 s"):
        await client.start(Nobody())
    assert runtime.now() == began + 3.0
    client = InprocClient(Lazy(loads=True), runtime=runtime, close_timeout_s=2.0)
    await client.start(Nobody())
    await client.close()
    assert runtime.now() == began + 5.0
    assert not client.healthy


@virtual
async def test_an_engine_stops_even_if_nothing_of_it_does(runtime: VirtualRuntime) -> None:
    class Unwilling(Orchestrator):
        async def _shutdown_extensions(self) -> None:
            await asyncio.Event().wait()

    class Deaf(InprocClient):
        async def abort(self, request_ids: Sequence[str]) -> None:
            await asyncio.Event().wait()

        async def close(self) -> None:
            await asyncio.Event().wait()

    spec = StageSpec(never)
    rig = Rig(runtime, [spec], kind=Unwilling)
    rig.orchestrator.stage_pools[0].replicas.make_client = lambda _id: Deaf(spec.stage(), runtime=runtime)
    run = runtime.spawn(rig.orchestrator.run(), name="orchestrator")
    await asyncio.sleep(0.001)
    rig.add("r", "x")
    began = runtime.now()
    rig.orchestrator.post(Shutdown())
    await run
    assert runtime.now() - began <= 90.0
    assert rig.endings() == {"r": 1}, "the client hears of the end all the same"
    spec_client = rig.orchestrator.stage_pools[0]
    assert spec_client.live_replica_ids == []
    for task in list(runtime.tasks):
        task.cancel()


@virtual
async def test_a_fault_of_the_engine_is_known_before_anything_ends(runtime: VirtualRuntime) -> None:
    seen: list[bool] = []

    class Doomed(Orchestrator):
        def _background_tasks(self):  # type: ignore[no-untyped-def]
            async def fail() -> None:
                await asyncio.sleep(0.5)
                raise ArithmeticError("background")

            return [fail()]

        async def _shutdown_extensions(self) -> None:
            seen.append(self.alive)

    rig = Rig(runtime, [StageSpec(never)], kind=Doomed)
    run = runtime.spawn(rig.orchestrator.run(), name="orchestrator")
    await asyncio.sleep(0.1)
    assert rig.orchestrator.alive
    rig.add("r", "x")
    with pytest.raises(ArithmeticError):
        await run
    assert seen == [False]
    assert [error.code for error in rig.errors("r")] == ["engine_dead"]
    runtime.failed_tasks.clear()
