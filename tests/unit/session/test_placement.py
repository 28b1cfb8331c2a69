"""Sessions in groups of replicas: admission, pins, and what the death of a replica means for those who had it."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.commands import CommitAudio
from duologue.engine.duplex.events import (
    ErrorRaised,
    ResponseAudio,
    ResponseCreated,
    ResponseDone,
    SessionClosed,
    SessionRecovered,
)
from duologue.engine.duplex_orchestrator import DuplexOrchestratorRequestState
from duologue.models.scripted import Script, ephemeral_pipeline, resident_pipeline, silence, tone
from duologue.sim.loop import VirtualRuntime, virtual
from tests.unit.session.world import MANUAL, RATE_HZ, Client, World, engine

GROUPED = DuplexSessionRuntimeConfig(max_sessions=8, replica_policy="least_sessions", max_sessions_per_replica=1)
LONG = Script(sentences=20, sentence_ms=1_000, think_s=0.3)


def speak(client: Client) -> None:
    client.append(tone(500, rate_hz=RATE_HZ))
    client.send(CommitAudio(create_response=True))


def replicas_of(world: World, session_id: str) -> set[tuple[int, int | None]]:
    """Where the requests of a session are, at every stage."""
    return {
        (pool.stage_id, pool.replica_of(state.request_id))
        for state in world.engine.request_states.values()
        if isinstance(state, DuplexOrchestratorRequestState) and state.session_id == session_id
        for pool in world.engine.stage_pools
        if pool.replica_of(state.request_id) is not None
    }


@virtual
async def test_a_session_keeps_its_group_and_the_next_one_gets_another(runtime: VirtualRuntime) -> None:
    async with engine(runtime, ephemeral_pipeline(runtime, LONG, replicas=2), config=GROUPED) as world:
        clients = [world.open(MANUAL, session_id=name) for name in ("anna", "ben")]
        refused = world.try_open(MANUAL, session_id="carl")
        assert refused.error_code == "resource_exhausted"
        del world.clients["carl"]
        for turn in range(1, 3):
            for client in clients:
                speak(client)
            for client in clients:
                await client.until(ResponseAudio, turn)
            assert {replica for _, replica in replicas_of(world, "anna")} == {0}
            assert {replica for _, replica in replicas_of(world, "ben")} == {1}
            for client in clients:
                await client.until(ResponseDone, turn, limit_s=60)
        world.close(clients[0])
        await asyncio.sleep(0.1)
        world.open(MANUAL, session_id="dora")
        assert world.engine.tables()["reservations"] == 2


@virtual
async def test_a_session_that_is_placed_anew_goes_on_in_the_next_turn(runtime: VirtualRuntime) -> None:
    pipeline = ephemeral_pipeline(runtime, LONG, replicas=2)
    async with engine(runtime, pipeline, config=GROUPED) as world:
        anna = world.open(MANUAL, session_id="anna")
        speak(anna)
        await anna.until(ResponseAudio)
        pipeline.clients[1][0].die(ConnectionError("killed"))
        failed = await anna.until(ResponseDone)
        assert failed.status == "failed"
        assert world.engine.reservations is not None
        placement = world.engine.reservations.get("anna")
        assert placement is not None
        assert (placement.generation, placement.replicas) == (1, (1, 1, 1))
        speak(anna)
        await anna.until(ResponseAudio, len(anna.of(ResponseAudio)) + 1)
        assert {replica for _, replica in replicas_of(world, "anna")} == {1}


@virtual
async def test_without_another_group_in_time_every_owner_ends_idle_ones_too(runtime: VirtualRuntime) -> None:
    pipeline = ephemeral_pipeline(runtime, LONG, replicas=2)
    config = msgspec.structs.replace(GROUPED, rebuild_timeout_s=0.2)
    async with engine(runtime, pipeline, config=config) as world:
        anna, ben = (world.open(MANUAL, session_id=name) for name in ("anna", "ben"))
        await asyncio.sleep(1)
        pipeline.clients[2][0].die(ConnectionError("killed"))
        closed = await anna.until(SessionClosed)
        assert (closed.reason, closed.fault) == ("replica_unavailable", "replica_unavailable")
        assert ben.terminals == []
        assert world.try_open(MANUAL, session_id="carl").error_code == "resource_exhausted"
        del world.clients["carl"]
        await asyncio.sleep(2)
        world.open(MANUAL, session_id="dora")  # the stage is back


@virtual
async def test_a_resident_model_has_lost_what_it_knew_and_its_session_ends(runtime: VirtualRuntime) -> None:
    pipeline = resident_pipeline(runtime, replicas=2)
    config = DuplexSessionRuntimeConfig(replica_policy="least_sessions", max_sessions_per_replica=4)
    async with engine(runtime, pipeline, config=config) as world:
        anna, ben = (world.open(session_id=name) for name in ("anna", "ben"))
        await anna.hear(tone(300, rate_hz=RATE_HZ))
        pipeline.clients[0][0].die(ConnectionError("killed"))
        await asyncio.sleep(1)
        assert len(anna.terminals) == 1
        assert "replica_unavailable" in [event.code for event in anna.of(ErrorRaised)]
        assert ben.terminals == []


@virtual
async def test_a_resident_model_that_can_be_rebuilt_goes_on_with_what_it_knew(runtime: VirtualRuntime) -> None:
    """Speech before the loss and quiet after it make one turn, and the answer to it comes once."""
    pipeline = resident_pipeline(runtime, Script(rebuilds=True), replicas=2)
    async with engine(runtime, pipeline, config=GROUPED) as world:
        anna, ben = (world.open(session_id=name) for name in ("anna", "ben"))
        await anna.hear(tone(600, rate_hz=RATE_HZ))
        pipeline.clients[0][0].die(ConnectionError("killed"))
        assert not anna.of(SessionRecovered), "the other replica has no room"
        await anna.hear(silence(1_000, rate_hz=RATE_HZ))
        recovered = await anna.until(SessionRecovered)
        assert (recovered.epoch, recovered.placement) == (1, 1)
        await anna.hear(silence(1_000, rate_hz=RATE_HZ))
        done = await anna.until(ResponseDone)
        assert done.status == "completed" and done.full_text.startswith("Unit 1 of answer 1.")
        assert not anna.of(ErrorRaised) and not ben.of(SessionRecovered)


@pytest.mark.parametrize("config", [GROUPED, DuplexSessionRuntimeConfig()], ids=["grouped", "anywhere"])
@pytest.mark.parametrize("told", [True, False])
@virtual
async def test_a_replica_that_refuses_before_anybody_was_told_of_its_death_costs_no_more(
    config: DuplexSessionRuntimeConfig, told: bool, runtime: VirtualRuntime
) -> None:
    """What it refuses is heard by the next one, which knows what was said before; the session is told once, and no error."""
    pipeline = resident_pipeline(runtime, Script(rebuilds=True), replicas=2)
    async with engine(runtime, pipeline, config=config) as world:
        anna = world.open(session_id="anna")
        await anna.hear(tone(600, rate_hz=RATE_HZ))
        dead, error = pipeline.clients[0][0], ConnectionError("killed")
        sink, dead._sink = dead._sink, None
        dead.die(error)
        await anna.hear(silence(400, rate_hz=RATE_HZ))
        if told and sink is not None:
            sink.on_dead(error)
        await anna.hear(silence(1_600, rate_hz=RATE_HZ))
        done = await anna.until(ResponseDone)
        assert done.status == "completed" and done.full_text.startswith("Unit 1 of answer 1.")
        assert [(event.epoch, event.placement) for event in anna.of(SessionRecovered)] == [(1, 1)]
        assert not anna.of(ErrorRaised)


@pytest.mark.parametrize("config", [GROUPED, DuplexSessionRuntimeConfig()], ids=["grouped", "anywhere"])
@virtual
async def test_a_request_that_a_dead_replica_is_the_first_to_hear_of_is_made_again(
    config: DuplexSessionRuntimeConfig, runtime: VirtualRuntime
) -> None:
    pipeline = ephemeral_pipeline(runtime, Script())
    async with engine(runtime, pipeline, config=config) as world:
        anna = world.open(MANUAL, session_id="anna")
        dead = pipeline.clients[0][0]
        dead._sink = None
        dead.die(ConnectionError("killed"))
        speak(anna)
        await anna.until(SessionRecovered)
        await anna.until(ResponseAudio, limit_s=60)
        assert not anna.of(ErrorRaised)


@virtual
async def test_a_resident_model_whose_replica_does_not_come_back_ends_with_the_reason(runtime: VirtualRuntime) -> None:
    pipeline = resident_pipeline(runtime, Script(rebuilds=True))
    config = DuplexSessionRuntimeConfig(rebuild_timeout_s=0.3)
    async with engine(runtime, pipeline, config=config) as world:
        anna = world.open(session_id="anna")
        await anna.hear(tone(600, rate_hz=RATE_HZ))
        pipeline.clients[0][0].die(ConnectionError("killed"))
        closed = await anna.until(SessionClosed)
        assert closed.fault == "replica_unavailable" and closed.slot_released


@virtual
async def test_an_answer_that_nobody_heard_is_made_again_by_the_next_worker(runtime: VirtualRuntime) -> None:
    pipeline = ephemeral_pipeline(runtime, LONG)
    async with engine(runtime, pipeline) as world:
        anna = world.open(MANUAL, session_id="anna")
        speak(anna)
        await anna.until(ResponseCreated)
        pipeline.clients[1][0].die(ConnectionError("killed"))
        await anna.until(SessionRecovered)
        await anna.until(ResponseAudio)
        failed, _ = anna.of(ResponseDone)[0], await anna.until(ResponseDone, 2, limit_s=60)
        assert failed.error == "replica_unavailable" and failed.full_text == ""
        assert [done.status for done in anna.of(ResponseDone)] == ["failed", "completed"]
        assert not anna.of(ErrorRaised)


@virtual
async def test_a_loss_in_the_middle_of_a_close_leaves_nothing_behind(runtime: VirtualRuntime) -> None:
    pipeline = resident_pipeline(runtime, Script(rebuilds=True))
    async with engine(runtime, pipeline) as world:
        anna, ben = (world.open(session_id=name) for name in ("anna", "ben"))
        for client in (anna, ben):
            await client.hear(tone(600, rate_hz=RATE_HZ))
        world.close(anna)
        pipeline.clients[0][0].die(ConnectionError("killed"))
        world.close(ben)
        for client in (anna, ben):
            await client.until(SessionClosed)


@virtual
async def test_groups_that_do_not_fit_the_stages_are_refused_at_once(runtime: VirtualRuntime) -> None:
    config = DuplexSessionRuntimeConfig(
        replica_policy="least_sessions", max_sessions_per_replica=1, replica_groups=((0, 0, 1),)
    )
    with pytest.raises(ValueError, match="stage 2 has replicas 0 to 0, got 1"):
        async with engine(runtime, ephemeral_pipeline(runtime), config=config):
            pass
