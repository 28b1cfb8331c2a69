"""What only the Ray backend does: placement, the death of actors and how it is noticed, and the clear errors."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence

import msgspec
import pytest

from duologue.clock import AsyncioRuntime
from duologue.config.pipeline import PipelineConfig, RayPlacement, StageConfig
from duologue.engine.assembly import build_pools
from duologue.engine.requests import OrchestratorRequestState
from duologue.engine.stages.ray_client import RayClient
from duologue.errors import StageFault
from duologue.outputs import RequestOutput
from tests.backends.cluster import SPEC, Nodes
from tests.integration.backends.replica import PATIENCE_S, STAGES, Replica, piece, play


def client_on(
    nodes: Nodes, placement: RayPlacement, runtime: AsyncioRuntime, factory: str, **changes: object
) -> RayClient:
    spec = msgspec.structs.replace(SPEC, factory=factory, **changes)  # type: ignore[arg-type]
    return RayClient(spec, placement, runtime=runtime)


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def until(condition: Callable[[], bool]) -> None:
    """Look again and again: another process tells nobody."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def gone(pid: int) -> None:
    await until(lambda: not alive(pid))


def test_a_replica_is_put_where_the_placement_says(nodes: Nodes) -> None:
    async def where(placement: RayPlacement) -> str:
        runtime = AsyncioRuntime()
        one = Replica(client_on(nodes, placement, runtime, "tests.backends.stages:Where"), runtime)
        try:
            await one.client.start(one.sink)
            return (await one.ask("r", ""))[-1].text
        finally:
            await one.client.close()
            await runtime.aclose()

    async def scenario() -> None:
        assert await where(nodes.placement) == nodes.far
        assert await where(RayPlacement(address=nodes.address, cpus=0, node=nodes.head)) == nodes.head

    play(scenario)


def test_a_placement_that_no_node_offers_says_what_was_asked_for(nodes: Nodes) -> None:
    async def scenario() -> None:
        runtime = AsyncioRuntime()
        placement = RayPlacement(address=nodes.address, cpus=2, resources={"lasers": 3})
        client = client_on(nodes, placement, runtime, f"{STAGES}:Blocking", start_timeout_s=0.5)
        with pytest.raises(StageFault, match=r"cpus 2, lasers 3 free in the cluster"):
            await client.start(Replica(client, runtime).sink)
        await client.close()
        await runtime.aclose()

    play(scenario)


def test_a_killed_actor_is_reported_once_and_takes_nothing_more(nodes: Nodes) -> None:
    async def scenario() -> None:
        runtime = AsyncioRuntime()
        client = client_on(nodes, nodes.placement, runtime, f"{STAGES}:Parallel")
        one = Replica(client, runtime)
        await client.start(one.sink)
        await one.submit("r", "echo x", final=False)
        await one.submit("flood", "flood", final=False)
        await one.sink.until(lambda: len(one.sink.of("flood")) > 50)
        assert client.pid is not None
        os.kill(client.pid, signal.SIGKILL)
        await one.sink.until(lambda: bool(one.sink.deaths))
        assert not client.healthy
        with pytest.raises(StageFault, match="is not running"):
            await one.submit("late", "echo x")
        await client.abort(["r"])
        await client.close()
        await runtime.aclose()
        assert len(one.sink.deaths) == 1
        assert isinstance(one.sink.deaths[0], StageFault)
        assert "is gone" in str(one.sink.deaths[0])

    play(scenario)


def test_an_actor_that_hangs_is_found_by_its_silence_and_killed(nodes: Nodes) -> None:
    async def scenario() -> None:
        runtime = AsyncioRuntime()
        timing = {"heartbeat_s": 0.5, "heartbeat_timeout_s": 4.0}
        client = client_on(nodes, nodes.placement, runtime, f"{STAGES}:Blocking", **timing)
        one = Replica(client, runtime)
        await client.start(one.sink)
        await one.submit("r", "freeze", final=False)
        await one.sink.until(lambda: bool(one.sink.deaths))
        assert "has not answered for 4 s" in str(one.sink.deaths[0])
        assert client.pid is not None
        await gone(client.pid)
        await client.close()
        await runtime.aclose()

    play(scenario)


def test_an_actor_gets_no_client_keys_and_one_inference_thread(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUOLOGUE__SERVER__API_KEYS", "secret")

    async def scenario() -> None:
        runtime = AsyncioRuntime()
        client = client_on(nodes, nodes.placement, runtime, f"{STAGES}:Blocking", environment={"MINE": "yes"})
        one = Replica(client, runtime)
        await client.start(one.sink)
        for name, expected in (("DUOLOGUE__SERVER__API_KEYS", ""), ("OMP_NUM_THREADS", "1"), ("MINE", "yes")):
            assert (await one.ask(name, f"environment {name}"))[-1].text == expected
        await client.close()
        await runtime.aclose()

    play(scenario)


def test_closing_ends_the_process(nodes: Nodes) -> None:
    async def scenario() -> None:
        runtime = AsyncioRuntime()
        client = client_on(nodes, nodes.placement, runtime, f"{STAGES}:Parallel")
        one = Replica(client, runtime)
        await client.start(one.sink)
        await one.submit("r", "flood", final=False)
        await one.sink.until(lambda: len(one.sink.outputs) > 50)
        await client.close()
        assert client.pid is not None
        await gone(client.pid)
        await runtime.aclose()
        assert one.sink.deaths == []

    play(scenario)


class Listener:
    """The orchestrator's place behind a pool."""

    def __init__(self) -> None:
        self.outputs: list[RequestOutput] = []
        self.stranded: list[str] = []

    def on_stage_output(self, stage_id: int, replica_id: int, output: RequestOutput) -> None:
        self.outputs.append(output)

    def on_replica_dead(self, stage_id: int, replica_id: int, request_ids: Sequence[str], error: BaseException) -> None:
        self.stranded += request_ids


def state_of(request_id: str) -> OrchestratorRequestState:
    one = piece(request_id, "")
    return OrchestratorRequestState(request_id, one.prompt, [one.params], final_stage_id=0)


def test_a_pool_configured_for_ray_replaces_an_actor_that_died(nodes: Nodes) -> None:
    async def scenario() -> None:
        runtime = AsyncioRuntime()
        stage = StageConfig(name="far", factory=f"{STAGES}:Blocking", backend="ray", ray=nodes.placement)
        (pool,) = build_pools(PipelineConfig(stages=(stage,)), runtime)
        listener = Listener()
        await pool.start(listener)
        client = pool.stage_client
        assert isinstance(client, RayClient)
        state = state_of("r")
        await pool.submit_initial("r", state, piece("r", "die"))
        await until(lambda: bool(listener.stranded and pool.live_replica_ids))
        assert listener.stranded == ["r"]
        assert pool.live_replica_ids == [1]
        again = state_of("s")
        await pool.submit_initial("s", again, piece("s", "echo back"))
        await until(lambda: bool(listener.outputs))
        assert listener.outputs[-1].text == "back"
        await pool.close()
        await runtime.aclose()

    play(scenario)
