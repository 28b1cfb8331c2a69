"""The waiting room: first come, first served, bounded, told of their place, forgotten when they leave."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.events import SessionClosed, SessionCreated, SessionQueued
from duologue.engine.duplex.messages import CloseSessionMessage, OpenSession
from duologue.models.scripted import ephemeral_pipeline
from duologue.sim.loop import VirtualRuntime, virtual
from tests.unit.session.world import MANUAL, Client, World, engine

ROOM = DuplexSessionRuntimeConfig(max_sessions=1, max_waiting_sessions=2, max_wait_s=30.0)


def ask(world: World, name: str) -> tuple[Client, str]:
    """Ask for a session; the answer may take its time."""
    control_id = world.control_id()
    client = world.clients[name] = Client(world, name)
    world.engine.post(OpenSession(session_id=name, control_id=control_id, config=MANUAL, seed=name))
    return client, control_id


def places(client: Client) -> list[int]:
    return [event.position for event in client.refusals if isinstance(event, SessionQueued)]


def give_up(world: World, name: str) -> str:
    control_id = world.control_id()
    world.engine.post(CloseSessionMessage(session_id=name, control_id=control_id, reason="open_abandoned"))
    return control_id


def forget(world: World, *names: str) -> None:
    for name in names:
        del world.clients[name]


@virtual
async def test_who_waits_is_admitted_in_order_and_hears_of_every_move(runtime: VirtualRuntime) -> None:
    async with engine(runtime, ephemeral_pipeline(runtime), config=ROOM) as world:
        anna, _ = ask(world, "anna")
        ben, bens = ask(world, "ben")
        carl, carls = ask(world, "carl")
        assert (places(ben), places(carl)) == ([1], [2])
        assert bens not in world.results and carls not in world.results
        for guest, others in ((anna, [ben, carl]), (ben, [carl])):
            await asyncio.sleep(5.0)
            world.close(guest)
            await others[0].until(SessionCreated)
            assert not [other for other in others[1:] if other.events]
        assert places(carl) == [2, 1] and places(ben) == [1]
        assert world.results[carls].error_code is None
        assert anna.of(SessionClosed)[0].slot_released


@pytest.mark.parametrize("waiting", [1, 2, 3])
def test_the_room_is_bounded(waiting: int) -> None:
    @virtual
    async def run(runtime: VirtualRuntime) -> None:
        async with engine(runtime, ephemeral_pipeline(runtime), config=ROOM) as world:
            ask(world, "anna")
            answers = [ask(world, f"guest-{number}")[1] for number in range(waiting)]
            refused = [world.results[answer].error_code for answer in answers if answer in world.results]
            assert refused == ["resource_exhausted"] * max(0, waiting - 2)
            assert world.engine.session_manager.health().waiting == min(waiting, 2)
            forget(world, *(f"guest-{number}" for number in range(waiting)))

    run()


@virtual
async def test_without_a_room_who_finds_no_slot_is_refused_at_once(runtime: VirtualRuntime) -> None:
    config = msgspec.structs.replace(ROOM, max_waiting_sessions=None)
    async with engine(runtime, ephemeral_pipeline(runtime), config=config) as world:
        ask(world, "anna")
        _, answer = ask(world, "ben")
        assert world.results[answer].error_code == "resource_exhausted"
        forget(world, "ben")


@virtual
async def test_who_leaves_is_forgotten_and_those_behind_move_up(runtime: VirtualRuntime) -> None:
    async with engine(runtime, ephemeral_pipeline(runtime), config=ROOM) as world:
        anna, _ = ask(world, "anna")
        _, bens = ask(world, "ben")
        carl, _ = ask(world, "carl")
        left = give_up(world, "ben")
        assert world.results[left].error_code is None
        assert world.results[bens].error_code == "session_closed"
        assert places(carl) == [2, 1]
        world.close(anna)
        await carl.until(SessionCreated)
        forget(world, "ben")


@pytest.mark.parametrize(("waited_s", "refused"), [(29.9, False), (30.0, True), (30.1, True)])
def test_nobody_waits_longer_than_the_longest_wait(waited_s: float, refused: bool) -> None:
    @virtual
    async def run(runtime: VirtualRuntime) -> None:
        async with engine(runtime, ephemeral_pipeline(runtime), config=ROOM) as world:
            ask(world, "anna")
            _, bens = ask(world, "ben")
            await asyncio.sleep(waited_s)
            assert (bens in world.results) is refused
            assert world.engine.session_manager.health().waiting == int(not refused)
            forget(world, "ben")

    run()


@virtual
async def test_nobody_overtakes_between_a_departure_and_the_next_admission(runtime: VirtualRuntime) -> None:
    async with engine(runtime, ephemeral_pipeline(runtime), config=ROOM) as world:
        anna, _ = ask(world, "anna")
        ben, _ = ask(world, "ben")
        world.close(anna)
        assert anna.terminals, "the close is over in the same loop turn: nothing had to be cleaned"
        carl, _ = ask(world, "carl")  # the slot is free, and it is ben's
        await ben.until(SessionCreated)
        assert not carl.events and places(carl)[-1] == 1
        forget(world, "carl")


@virtual
async def test_the_estimate_follows_how_often_a_slot_becomes_free(runtime: VirtualRuntime) -> None:
    config = msgspec.structs.replace(ROOM, max_waiting_sessions=4, max_wait_s=300.0, idle_ttl_s=None)
    async with engine(runtime, ephemeral_pipeline(runtime), config=config) as world:
        guests = [ask(world, f"g{number}")[0] for number in range(5)]
        for guest in guests[:3]:
            await guest.until(SessionCreated)
            await asyncio.sleep(20.0)
            world.close(guest)
        await guests[3].until(SessionCreated)
        told = [event for event in guests[4].refusals if isinstance(event, SessionQueued)]
        assert [event.position for event in told] == [4, 3, 2, 1]
        assert told[0].estimated_wait_s is None and told[1].estimated_wait_s is None
        assert told[-1].estimated_wait_s == pytest.approx(20.0, abs=1.0)
        forget(world, "g4")


@virtual
async def test_a_shutdown_sends_everybody_home(runtime: VirtualRuntime) -> None:
    async with engine(runtime, ephemeral_pipeline(runtime), config=ROOM) as world:
        ask(world, "anna")
        _, bens = ask(world, "ben")
        forget(world, "ben")
    assert world.results[bens].error_code == "shutting_down"


@virtual
async def test_an_id_that_waits_is_taken(runtime: VirtualRuntime) -> None:
    async with engine(runtime, ephemeral_pipeline(runtime), config=ROOM) as world:
        ask(world, "anna")
        ask(world, "ben")
        _, again = ask(world, "ben")
        assert world.results[again].error_code == "session_exists"
        forget(world, "ben")


@virtual
async def test_a_crowd_that_leaves_is_not_told_of_every_step(runtime: VirtualRuntime) -> None:
    crowd = 300
    config = msgspec.structs.replace(ROOM, max_waiting_sessions=crowd)
    async with engine(runtime, ephemeral_pipeline(runtime), config=config) as world:
        ask(world, "anna")
        names = [f"g{number}" for number in range(crowd)]
        guests = [ask(world, name)[0] for name in names]
        for name in names[:200]:
            give_up(world, name)
        await asyncio.sleep(3.0)
        assert [places(guest)[-1] for guest in guests[200:]] == list(range(1, 101))
        assert sum(len(places(guest)) for guest in guests) < 3 * crowd
        forget(world, *names)


@virtual
async def test_places_are_told_without_holding_up_the_loop(runtime: VirtualRuntime) -> None:
    crowd = 300
    config = msgspec.structs.replace(ROOM, max_waiting_sessions=crowd)
    async with engine(runtime, ephemeral_pipeline(runtime), config=config) as world:
        ask(world, "anna")
        names = [f"g{number}" for number in range(crowd)]
        guests = [ask(world, name)[0] for name in names]
        told: list[int] = []
        before = sum(len(places(guest)) for guest in guests)
        give_up(world, "g0")
        while not told or sum(told) < crowd - 1:
            now = sum(len(places(guest)) for guest in guests)
            told.append(now - before)
            before = now
            await asyncio.sleep(0)
        assert max(told) <= 64
        forget(world, *names)
