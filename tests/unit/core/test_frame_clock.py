"""Frame-locked models: their clock is that of their input, and silence stands in only where input really stopped."""

from __future__ import annotations

import pytest
from msgspec import structs

from duologue.engine.duplex.commands import BargeIn
from duologue.engine.duplex.core.items import Replaced, ReplicaLost
from duologue.engine.duplex.events import ResponseDone, ResponseListen
from duologue.engine.duplex.results import TurnEnded
from tests.unit.core.harness import MANUAL, NATIVE, RATE, World, speech

UNIT_S = 0.08
UNIT = int(RATE * UNIT_S) * 2
LOCKED = structs.replace(NATIVE, frame_locked=True, max_silence_units=5)


def silence(world: World) -> int:
    return sum(submit.silence for submit in world.submits)


def stream(world: World, pieces: int, piece_ms: int) -> None:
    for _ in range(pieces):
        world.append(b"\x05\x00" * (RATE * piece_ms // 1000))
        world.advance(piece_ms / 1000)


@pytest.mark.parametrize("piece_ms", [20, 80, 100, 250, 1_000])
def test_no_silence_lies_between_the_pieces_of_a_client_that_streams(piece_ms: int) -> None:
    """Nor is a unit that is not full padded: the model would hear more time than has passed."""
    world = World(MANUAL, capabilities=LOCKED)
    stream(world, 4_000 // piece_ms, piece_ms)
    assert silence(world) == 0
    world.speak(speech("One.", 80))
    stream(world, 4_000 // piece_ms, piece_ms)
    assert silence(world) == 0
    assert b"".join(submit.audio for submit in world.submits) == b"\x05\x00" * (len(world.submits) * UNIT // 2)
    assert len(world.submits) == 8_000 // 80


def test_a_client_that_stops_is_followed_by_silence_at_the_pace_of_the_clock_and_only_for_a_while() -> None:
    world = World(MANUAL, capabilities=LOCKED)
    stream(world, 8, 100)
    world.advance(0.1)
    first = silence(world)
    world.advance(2 * UNIT_S)
    assert silence(world) == first + 2
    world.advance(60.0)
    units = [submit for submit in world.submits if submit.silence]
    assert len(units) == LOCKED.max_silence_units and not any(unit.force_listen for unit in units)
    assert not world.of(ResponseListen) and world.core.next_deadline() is None
    stream(world, 1, 80)
    world.advance(60.0)
    assert silence(world) == 2 * LOCKED.max_silence_units, "what it heard then is followed by silence of its own"


def test_the_last_piece_is_padded_when_nothing_follows_it() -> None:
    world = World(MANUAL, capabilities=LOCKED)
    world.append(b"\x05\x00" * (UNIT // 2 + 100))
    world.advance(1.0)
    assert world.submits[1].audio == b"\x05\x00" * 100 + bytes(UNIT - 200) and not world.submits[1].silence


def test_an_answer_that_begins_in_silence_has_units_of_its_own() -> None:
    world = World(MANUAL, capabilities=LOCKED)
    stream(world, 1, 80)
    world.advance(3 * UNIT_S)
    before = silence(world)
    assert before >= 2
    world.speak(speech("One.", 80))
    for _ in range(LOCKED.max_silence_units):
        world.advance(UNIT_S)
        world.speak(speech("More.", 80))
    assert silence(world) - before == LOCKED.max_silence_units
    world.speak(TurnEnded())
    world.advance(2.0)
    assert world.last(ResponseDone).status == "completed"
    assert silence(world) - before == LOCKED.max_silence_units, "it has nothing to notice any more"


def test_after_an_interruption_only_new_input_starts_the_clock() -> None:
    world = World(MANUAL, capabilities=LOCKED)
    stream(world, 1, 80)
    world.speak(speech("One.", 80))
    world.send(BargeIn())
    count = silence(world)
    world.advance(10.0)
    assert silence(world) == count
    stream(world, 1, 80)
    world.advance(10.0)
    assert silence(world) == count + LOCKED.max_silence_units


def test_other_resident_models_hear_nothing_while_nothing_is_said() -> None:
    world = World(MANUAL, capabilities=NATIVE)
    stream(world, 3, 80)
    world.advance(10.0)
    assert silence(world) == 0


@pytest.mark.parametrize("stood", [True, False])
def test_a_clock_that_ran_when_its_placement_was_lost_runs_on_in_the_next_one(stood: bool) -> None:
    """All input had been taken, so nothing else would begin the request in which the model hears it again."""
    world = World(MANUAL, capabilities=LOCKED)
    stream(world, 4, 80)
    if not stood:
        world.advance(60.0)
    count = len(world.submits)
    world.apply(ReplicaLost(message="gone"))
    world.advance(1.0)
    assert len(world.submits) == count
    world.apply(Replaced())
    world.advance(60.0)
    again = world.submits[count:]
    assert len(again) == LOCKED.max_silence_units * stood and all(unit.silence for unit in again)
    assert [unit.rebuild for unit in again[:2]] == [True, False][: 2 * stood]
