"""A stop that comes at a bad moment: nothing that was begun is thrown away, and no replica is left to itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from duologue.engine.lanes import Lanes
from duologue.engine.life import EngineLife, LifeHooks
from duologue.engine.replicas import Replica, ReplicaSet
from duologue.engine.stages.contract import StageClient, StageSink
from duologue.engine.stages.inproc import DEFAULT_SAMPLING, UNKNOWN_MODEL
from duologue.engine.stages.supervisor import RestartPolicy
from duologue.outputs import RequestOutput, StageRequest
from duologue.sim.loop import VirtualRuntime, run, virtual

CLOSE_S = 3.0
DEATH = ConnectionError("killed")


async def _job_cut_short(runtime: VirtualRuntime) -> None:
    lanes = Lanes(runtime)
    seen: list[str] = []

    async def job() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.5)
            seen.append("cleaned")
            raise

    lanes.launch(job(), name="job")
    await lanes.close()
    assert seen == ["cleaned"]
    assert len(lanes) == 0


@pytest.mark.parametrize("seed", range(4))
def test_a_job_that_has_just_begun_to_wait_may_clean_up(seed: int) -> None:
    """Thrown away before the first step of its task, it would never hear of the stop."""
    run(_job_cut_short, seed=seed, shuffle=True)


@virtual
async def test_an_engine_that_is_told_to_stop_before_it_serves_drops_nothing(runtime: VirtualRuntime) -> None:
    seen: list[str] = []

    async def background() -> None:
        seen.append("begun")
        try:
            await asyncio.sleep(60)
        finally:
            seen.append("ended")

    async def nothing(*_: object) -> bool:
        return True

    async def over(*_: object) -> None:
        pass

    shutdown = asyncio.Event()
    hooks = LifeHooks(
        take=lambda _: False,
        dispatch=nothing,
        background_tasks=lambda: [background()],
        shutdown_extensions=over,
        fail_all=over,
    )
    life = EngineLife(runtime=runtime, pools=[], lanes=Lanes(runtime), shutdown=shutdown, hooks=hooks)
    shutdown.set()
    await life.run()
    assert seen in ([], ["begun", "ended"])


class _Slow(StageClient):
    """A replica that takes its time to close."""

    default_sampling_params = DEFAULT_SAMPLING
    model_config = UNKNOWN_MODEL
    healthy = True

    def __init__(self) -> None:
        self.begun = 0
        self.closed = 0

    async def start(self, sink: StageSink) -> None:
        self.sink = sink

    async def submit(self, request: StageRequest) -> None:
        raise NotImplementedError

    async def update(self, request: StageRequest) -> None:
        raise NotImplementedError

    async def abort(self, request_ids: Sequence[str]) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        self.begun += 1
        await asyncio.sleep(CLOSE_S)
        self.closed += 1


class _Nobody:
    def on_output(self, replica: Replica, output: RequestOutput) -> None:
        raise NotImplementedError

    def on_gone(self, replica: Replica, error: BaseException) -> None:
        pass


async def _replicas(runtime: VirtualRuntime, made: list[_Slow]) -> ReplicaSet:
    def make_client(replica_id: int) -> StageClient:
        made.append(_Slow())
        assert len(made) == replica_id + 1
        return made[-1]

    replicas = ReplicaSet(
        name="s", make_client=make_client, runtime=runtime, count=2, restart=RestartPolicy(), owner=_Nobody()
    )
    await replicas.start()
    return replicas


@pytest.mark.parametrize("wait_s", [0.0, 1.0])
@virtual
async def test_a_dead_replica_is_taken_down_whole_although_the_stage_closes(
    runtime: VirtualRuntime, wait_s: float
) -> None:
    """A worker that hangs is killed only at the end of its close: cut short, it would be left behind."""
    made: list[_Slow] = []
    replicas = await _replicas(runtime, made)
    made[0].sink.on_dead(DEATH)
    if wait_s:
        await asyncio.sleep(wait_s)
    await replicas.close()
    assert [(client.begun, client.closed) for client in made] == [(1, 1), (1, 1)]


@virtual
async def test_a_replica_that_dies_while_the_engine_stops_is_taken_down(runtime: VirtualRuntime) -> None:
    made: list[_Slow] = []
    replicas = await _replicas(runtime, made)
    replicas.stop_restarting()
    made[0].sink.on_dead(DEATH)
    await replicas.close()
    assert [(client.begun, client.closed) for client in made] == [(1, 1), (1, 1)]


@virtual
async def test_a_removed_replica_is_taken_down_whole_although_the_operation_is_cut_short(
    runtime: VirtualRuntime,
) -> None:
    made: list[_Slow] = []
    replicas = await _replicas(runtime, made)
    removing = asyncio.create_task(replicas.remove(0, drain_s=0.0))
    await asyncio.sleep(1.0)
    removing.cancel()
    await replicas.close()
    assert [(client.begun, client.closed) for client in made] == [(1, 1), (1, 1)]
