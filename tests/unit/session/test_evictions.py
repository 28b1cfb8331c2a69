"""A worker that is gone is taken down in the background, however long that takes, and nobody else waits for it."""

from __future__ import annotations

import asyncio

import pytest

from duologue.engine.duplex.commands import CancelResponse, CreateItem, CreateResponse, Heartbeat, InputItem
from duologue.engine.duplex.events import HeartbeatAcknowledged, ResponseCreated, ResponseDone, SessionClosed
from duologue.engine.stages.inproc import InprocClient
from duologue.models.scripted import Script, ephemeral_pipeline
from duologue.sim.loop import VirtualRuntime, virtual
from tests.unit.session.world import MANUAL, Client, engine

LONG = Script(sentences=20, sentence_ms=1_000)
SAID = CreateItem(item=InputItem(role="user", texts=("hello",)))


def hold_up(client: InprocClient, taken_down: list[float], runtime: VirtualRuntime, seconds: float) -> None:
    """Let the end of this replica take ``seconds``, as the wait for a process that will not go does."""
    close = client.close

    async def slowly() -> None:
        await asyncio.sleep(seconds)
        await close()
        taken_down.append(runtime.now())

    client.close = slowly  # type: ignore[method-assign]


async def answering(client: Client) -> None:
    client.send(SAID)
    client.send(CreateResponse())
    await client.until(ResponseCreated)


@pytest.mark.parametrize("takes_s", [0.0, 5.0, 600.0])
@virtual(limit_s=2_000)
async def test_field_F50_nobody_waits_for_the_end_of_a_dead_worker(takes_s: float, runtime: VirtualRuntime) -> None:
    """Heartbeat, cancel and close of others are done in the same instant, and so is the shutdown's part for them."""
    pipeline = ephemeral_pipeline(runtime, LONG, replicas=2)
    async with engine(runtime, pipeline) as world:
        beating, cancelling, closing = clients = [world.open(MANUAL, session_id=f"s{n}") for n in range(3)]
        for client in clients:
            await answering(client)
        taken_down: list[float] = []
        dead = pipeline.clients[0][0]
        hold_up(dead, taken_down, runtime, takes_s)
        at = runtime.now()
        dead.die(RuntimeError("ended with SIGKILL"))
        beating.send(Heartbeat())
        cancelling.send(CancelResponse())
        world.close(closing)
        await asyncio.sleep(0)
        assert len(beating.of(HeartbeatAcknowledged)) == 1
        assert cancelling.of(ResponseDone)[0].status == "cancelled"
        assert runtime.now() == at and taken_down == []
        await closing.until(SessionClosed, limit_s=2.0)
        await answering(world.open(MANUAL, session_id="new"))  # at the other replica
        assert runtime.now() - at <= 2.0 and not (takes_s > 2.0 and taken_down)
        await asyncio.sleep(takes_s + 1.0)
        assert taken_down == [pytest.approx(at + takes_s)]
        await asyncio.sleep(1.0)
        assert len(world.engine.stage_pools[0].live_replica_ids) == 2, "its successor came when it was gone"
