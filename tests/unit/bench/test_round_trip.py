"""The loop that measures round trips: every trip waits for its own echo, and what is in between is what is measured."""

from __future__ import annotations

import asyncio

import pytest

from duologue.bench.echo import EchoStage
from duologue.bench.round_trip import client_echo, samples_us
from duologue.engine.stages.inproc import InprocClient
from duologue.errors import ErrorCode, StageFault
from duologue.sim.loop import VirtualRuntime, virtual


@virtual
async def test_each_round_trip_is_answered_before_the_next_and_the_client_is_closed(runtime: VirtualRuntime) -> None:
    client = InprocClient(EchoStage(), runtime=runtime)
    async with client_echo(client, 4_096) as round_trip:
        samples = await samples_us(round_trip, 7)
        assert len(samples) == 7 and samples == sorted(samples) and samples[0] >= 0
    assert not client.healthy


@virtual
async def test_a_replica_that_dies_ends_the_measurement(runtime: VirtualRuntime) -> None:
    client = InprocClient(EchoStage(), runtime=runtime)
    with pytest.raises(StageFault, match="gone"):
        async with client_echo(client, 4_096) as round_trip:
            trip = asyncio.ensure_future(round_trip())
            await asyncio.sleep(0)
            client.die(StageFault(ErrorCode.REPLICA_UNAVAILABLE, "it is gone"))
            await trip
