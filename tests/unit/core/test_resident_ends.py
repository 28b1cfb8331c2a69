"""Resident models that end their request by themselves: what it was not given goes to the next, in order and once."""

from __future__ import annotations

import msgspec
import pytest

from duologue.engine.duplex.commands import CancelInput, ClearAudio, CommitAudio, CreateResponse
from duologue.engine.duplex.core.effects import SubmitAppend
from duologue.engine.duplex.events import ErrorRaised, ResponseDone
from duologue.engine.duplex.plugin import ModelCapabilities
from duologue.engine.duplex.results import TurnEnded
from tests.unit.core.harness import MANUAL, NATIVE, RATE, World, speech

UNIT = RATE * 80 // 1000 * 2
BY_CLIENT = ModelCapabilities(family="resident", unit_ms=80, chunk_period_ms=80, input_rate_hz=RATE)
STREAM = (bytes(range(250)) * 100)[: 6 * UNIT]


def fed(world: World) -> bytes:
    return b"".join(submit.audio for submit in world.submits if not submit.silence)


@pytest.mark.parametrize("said", [False, True])
def test_what_a_request_that_ended_was_not_given_goes_to_the_next(said: bool) -> None:
    """Models end their request when they like, in the middle of a burst too."""
    world = World(MANUAL, capabilities=NATIVE, auto=False)
    stream = (bytes(range(250)) * 100)[: 6 * UNIT]
    world.append(stream)
    world.answer(world.take(SubmitAppend))
    world.speak(*([speech("One.", 80)] if said else []), finished=True)
    world.answer_all()
    again = [submit for submit in world.submits if submit.request_id != world.submits[0].request_id]
    assert fed(world) == stream and len(world.submits) == 6
    assert len({submit.request_id for submit in again}) == 1 and again[0].first
    world.speak(speech("Two.", 80), TurnEnded(), request_id=again[0].request_id)
    world.advance(5.0)
    assert [done.full_text for done in world.of(ResponseDone)] == ["One."] * said + ["Two."]


def test_silence_alone_begins_no_request_after_one_that_ended() -> None:
    world = World(MANUAL, capabilities=NATIVE)
    world.append(bytes(UNIT))
    world.speak(speech("One.", 2_000))
    world.auto = False
    world.advance(0.2)
    assert world.submits[-1].silence
    world.speak(finished=True)
    world.answer_all()
    world.advance(5.0)
    assert len({submit.request_id for submit in world.submits}) == 1


def test_an_answer_that_was_still_to_be_asked_for_is_asked_of_the_next_request() -> None:
    world = World(MANUAL, capabilities=BY_CLIENT, auto=False)
    world.append(bytes(range(250)) * 2 * UNIT)
    world.send(CommitAudio(create_response=True))
    world.answer(world.take(SubmitAppend))
    world.speak(finished=True)
    assert not world.of(ResponseDone)
    world.answer_all()
    assert world.submits[-1].final and world.submits[-1].respond
    world.speak(speech("Yes.", 80), TurnEnded())
    world.advance(5.0)
    assert [(done.full_text, done.status) for done in world.of(ResponseDone)] == [("Yes.", "completed")]


@pytest.mark.parametrize("units", [2, 3, 6])
@pytest.mark.parametrize("more", [False, True])
def test_what_was_in_flight_when_a_request_ended_and_is_refused_is_the_first_of_the_next(
    units: int, more: bool
) -> None:
    """The stage may not have heard yet that the model is done, or have forgotten the request already."""
    world = World(MANUAL, capabilities=NATIVE, auto=False)
    world.append(STREAM[: units * UNIT])
    world.answer(world.take(SubmitAppend))
    flying = world.take(SubmitAppend)
    world.speak(finished=True)
    if more:
        world.append(STREAM[units * UNIT :])
    sent = STREAM if more else STREAM[: units * UNIT]
    assert len(world.submits) == 2 and world.state.held_input_bytes == len(sent) - UNIT
    world.answer(flying, ok=False)
    assert world.state.held_input_bytes == len(sent) - UNIT
    world.answer_all()
    again = world.submits[2:]
    assert b"".join(submit.audio for submit in again) == sent[UNIT:]
    assert {submit.request_id for submit in again} == {again[0].request_id}
    assert [submit.first for submit in again] == [True] + [False] * (len(again) - 1)
    assert again[0].request_id != world.submits[0].request_id
    assert not world.of(ErrorRaised) and world.state.held_input_bytes == 0
    assert [submit.seq for submit in again] == list(range(2, 2 + len(again)))


def test_what_was_in_flight_when_a_request_ended_and_is_taken_is_not_said_again() -> None:
    world = World(MANUAL, capabilities=NATIVE, auto=False)
    world.append(STREAM)
    world.answer(world.take(SubmitAppend))
    flying = world.take(SubmitAppend)
    world.speak(finished=True)
    world.answer(flying)
    assert world.submits[0].request_id in world.aborted
    world.answer_all()
    assert fed(world) == STREAM and len(world.submits) == 6
    assert [submit.seq for submit in world.submits] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("ok", [False, True])
def test_the_first_piece_of_a_request_that_ended_was_taken_whatever_is_said_of_it(ok: bool) -> None:
    """A model that ends every request with its first piece would be given that piece for ever."""
    world = World(MANUAL, capabilities=NATIVE, auto=False)
    world.append(STREAM[: 2 * UNIT])
    flying = world.take(SubmitAppend)
    world.speak(finished=True)
    world.answer(flying, ok=ok)
    world.answer_all()
    assert fed(world) == STREAM[: 2 * UNIT] and len(world.submits) == 2


@pytest.mark.parametrize("ok", [False, True])
def test_an_epoch_that_ends_meanwhile_takes_what_was_in_flight_along_once(ok: bool) -> None:
    world = World(MANUAL, capabilities=NATIVE, auto=False)
    world.append(STREAM[: 2 * UNIT])
    world.answer(world.take(SubmitAppend))
    flying = world.take(SubmitAppend)
    world.speak(finished=True)
    world.send(CancelInput())
    world.answer(flying, ok=ok)
    world.append(STREAM[2 * UNIT :])
    world.answer_all()
    later = b"".join(submit.audio for submit in world.submits[2:])
    assert later == STREAM[2 * UNIT :] and world.state.held_input_bytes == 0


@pytest.mark.parametrize("ok", [False, True])
@pytest.mark.parametrize("behind", [0, 2])
def test_an_answer_that_was_being_asked_for_waits_for_what_becomes_of_that(ok: bool, behind: int) -> None:
    world = World(MANUAL, capabilities=BY_CLIENT, auto=False)
    world.append(STREAM[: 2 * UNIT])
    world.send(CommitAudio(create_response=True))
    world.answer(world.take(SubmitAppend))
    flying = world.take(SubmitAppend)
    assert flying.final and flying.respond
    if behind:
        world.append(STREAM[2 * UNIT : (2 + behind) * UNIT])
        world.send(CommitAudio(create_response=False))
    world.speak(finished=True)
    assert not world.of(ResponseDone)
    world.answer(flying, ok=ok)
    world.answer_all()
    if not ok:
        assert world.submits[2].audio == STREAM[UNIT : 2 * UNIT] and world.submits[2].first
        assert world.submits[2].final and world.submits[2].respond
        world.speak(speech("Yes.", 80), TurnEnded())
    world.advance(5.0)
    done = [(done.full_text, done.status) for done in world.of(ResponseDone)]
    assert done == [("" if ok else "Yes.", "completed")]
    again = b"" if ok else STREAM[UNIT : 2 * UNIT]
    assert fed(world) == STREAM[: 2 * UNIT] + again + STREAM[2 * UNIT : (2 + behind) * UNIT]


@pytest.mark.parametrize("ok", [False, True])
@pytest.mark.parametrize("finished", [False, True])
def test_behaviour_08_tail_cleared_units_are_not_fed_whatever_became_of_their_request(finished: bool, ok: bool) -> None:
    """What is on its way is not called back, but should the stage refuse it, it is not fed again either."""
    world = World(MANUAL, capabilities=NATIVE, auto=False)
    world.append(STREAM)
    world.answer(world.take(SubmitAppend))
    flying = world.take(SubmitAppend)
    if finished:
        world.speak(finished=True)
    world.send(ClearAudio())
    assert world.state.held_input_bytes == UNIT
    world.answer(flying, ok=ok)
    assert len(world.submits) == 2 and world.state.held_input_bytes == 0
    assert world.core.tables()["append_queue"] == 0
    world.append(STREAM[::-1])
    world.answer_all()
    assert b"".join(submit.audio for submit in world.submits[2:]) == STREAM[::-1]
    assert world.submits[2].first is (finished or not ok)
    world.speak(speech("Yes.", 80), TurnEnded())
    world.advance(5.0)
    assert [done.full_text for done in world.of(ResponseDone)] == ["Yes."]


def test_input_that_an_answer_was_asked_for_with_is_not_cleared() -> None:
    asked = msgspec.structs.replace(NATIVE, supports_text_turns=True)
    world = World(MANUAL, capabilities=asked, auto=False)
    world.append(STREAM[: 3 * UNIT + 100])
    world.send(CreateResponse())
    world.append(STREAM[3 * UNIT + 100 :])
    world.send(ClearAudio())
    world.answer_all()
    padded = STREAM[: 3 * UNIT + 100] + bytes(UNIT - 100)
    assert fed(world) == padded and world.submits[-1].final and world.state.held_input_bytes == 0
    world.speak(speech("Yes.", 80), TurnEnded())
    world.advance(5.0)
    assert [done.full_text for done in world.of(ResponseDone)] == ["Yes."]


def test_a_request_of_which_all_input_is_cleared_is_none() -> None:
    world = World(MANUAL, capabilities=NATIVE, auto=False)
    world.append(STREAM[: 2 * UNIT])
    flying = world.take(SubmitAppend)
    world.send(CancelInput())
    world.append(STREAM[2 * UNIT :])
    assert world.core.tables()["requests"] == 1, "it waits for what becomes of the first"
    world.send(ClearAudio())
    assert world.core.tables()["requests"] == 0
    world.answer(flying)
    world.append(STREAM)
    world.answer_all()
    assert b"".join(submit.audio for submit in world.submits[1:]) == STREAM and world.submits[1].first


@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.parametrize("behind", [False, True])
def test_an_answer_that_silence_asks_for_is_asked_of_the_next_request(behind: bool, taken: bool) -> None:
    """Nothing is left to be fed, so a unit of silence carries the wish; the request ends before it takes that."""
    world = World(MANUAL, capabilities=BY_CLIENT, auto=False)
    world.append(STREAM[: 2 * UNIT])
    world.send(CommitAudio())
    world.answer(world.take(SubmitAppend))
    if not behind:
        world.answer(world.take(SubmitAppend))
    world.send(CreateResponse())
    first = world.submits[0].request_id
    flying = world.take(SubmitAppend)
    assert flying.silence is not behind
    world.speak(finished=True)
    world.answer(flying, ok=taken)
    world.answer_all()
    if behind or not taken:
        wish = world.submits[-1]
        assert wish.silence and wish.final and wish.respond and wish.request_id != first
        assert not world.of(ResponseDone)
        world.speak(speech("Yes.", 80), TurnEnded(), request_id=wish.request_id)
    world.advance(5.0)
    said = "Yes." if behind or not taken else ""
    assert [(done.full_text, done.status) for done in world.of(ResponseDone)] == [(said, "completed")]
    assert not world.of(ErrorRaised)
