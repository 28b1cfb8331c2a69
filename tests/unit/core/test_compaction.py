"""A context that fills: rolled over in a pause, without a gap and without a lost sample, or the session ends in time."""

from __future__ import annotations

import pytest
from msgspec import structs

from duologue.engine.duplex.commands import BargeIn
from duologue.engine.duplex.events import ErrorRaised, ResponseAudio, ResponseCreated, ResponseDone
from duologue.engine.duplex.results import ContextUsed, Listened, TurnEnded
from duologue.errors import ErrorCode
from tests.unit.core.harness import MANUAL, NATIVE, RATE, VAD, World, audio, speech

UNIT = RATE * 80 // 1000 * 2
COMPACTS = structs.replace(NATIVE, compacts=True)


def filled(percent: int) -> ContextUsed:
    return ContextUsed(used=percent, limit=100)


@pytest.mark.parametrize(("percent", "rolled"), [(0, False), (74, False), (75, True), (76, True), (99, True)])
def test_in_a_pause_it_is_rolled_over_from_three_quarters_on(percent: int, rolled: bool) -> None:
    world = World(MANUAL, capabilities=COMPACTS)
    world.append(b"\x01\x00" * (UNIT // 2))
    first = world.submits[-1]
    world.speak(Listened(), filled(percent))
    world.append(b"\x02\x00" * (UNIT // 2))
    second = world.submits[-1]
    assert (second.request_id != first.request_id) is rolled
    assert (second.first, second.rebuild, second.compact) == (rolled, rolled, rolled)
    assert second.fence.epoch == first.fence.epoch and (first.request_id in world.aborted) is rolled
    world.append(b"\x03\x00" * (UNIT // 2))
    assert not world.submits[-1].rebuild and not world.of(ErrorRaised)
    assert world.core.acted().get("context", 0) == int(rolled)


def test_an_answer_in_progress_is_not_touched_and_the_pause_after_it_is_used() -> None:
    world = World(MANUAL, capabilities=COMPACTS)
    world.append(bytes(UNIT))
    first = world.submits[-1].request_id
    for percent in (80, 84, 88):
        world.speak(speech("Word. ", 80), filled(percent))
        world.append(bytes(UNIT))
        assert world.submits[-1].request_id == first and not world.submits[-1].force_listen
    world.speak(speech("End.", 80), TurnEnded(), filled(89))
    world.append(bytes(UNIT))
    assert world.submits[-1].request_id != first and world.submits[-1].compact
    world.advance(2.0)
    assert world.last(ResponseDone).status == "completed"
    assert world.last(ResponseDone).full_text == "Word. Word. Word. End."
    assert sum(event.duration_ms for event in world.of(ResponseAudio)) == 320


def test_an_answer_that_would_reach_the_limit_is_asked_to_end_and_then_ended() -> None:
    world = World(MANUAL, capabilities=COMPACTS)
    world.append(bytes(UNIT))
    world.speak(speech("One. ", 80), filled(90))
    world.append(bytes(UNIT))
    assert world.submits[-1].force_listen
    world.speak(speech("Two. ", 80), filled(96))
    world.append(bytes(UNIT))
    assert world.submits[-1].compact
    world.advance(2.0)
    done = world.last(ResponseDone)
    assert (done.status, done.full_text) == ("completed", "One. Two. ")


def test_what_the_user_is_saying_is_not_cut_in_two_while_there_is_room() -> None:
    world = World(VAD, capabilities=COMPACTS)
    world.say("." * 5 + "S" * 15)
    first = world.submits[-1].request_id
    world.speak(Listened(), filled(80))
    world.say("S" * 5)
    assert world.submits[-1].request_id == first
    world.speak(Listened(), filled(90))
    world.say("S" * 5)
    assert world.submits[-1].request_id != first
    assert b"".join(submit.audio for submit in world.submits).startswith(audio("." * 5 + "S" * 25)[: 15 * UNIT])


def test_a_unit_on_its_way_goes_to_the_new_request() -> None:
    world = World(MANUAL, capabilities=COMPACTS, auto=False)
    stream = bytes(range(250)) * 200
    world.append(stream[: 3 * UNIT])
    world.answer_all()
    world.append(stream[3 * UNIT : 5 * UNIT])  # one is in flight, one waits
    old = world.submits[-1].request_id
    world.speak(Listened(), filled(80))
    world.answer_all()
    again = [submit for submit in world.submits if submit.request_id != old]
    assert b"".join(submit.audio for submit in again) == stream[3 * UNIT : 5 * UNIT]
    assert [submit.compact for submit in again] == [True, False]


@pytest.mark.parametrize(("percent", "ends"), [(89, False), (90, True)])
def test_without_the_ability_the_session_ends_in_a_pause_before_the_limit(percent: int, ends: bool) -> None:
    world = World(MANUAL, capabilities=NATIVE)
    world.append(bytes(UNIT))
    world.speak(Listened(), filled(percent))
    assert (world.core.phase != "open") is ends
    if ends:
        assert world.last(ErrorRaised).code is ErrorCode.CONTEXT_FULL
        assert (world.ended[-1].kind, world.ended[-1].reason) == ("expired", "context_full")


@pytest.mark.parametrize(("percent", "ends"), [(95, False), (96, True)])
def test_without_the_ability_an_answer_may_come_to_its_end_if_it_does_in_time(percent: int, ends: bool) -> None:
    world = World(MANUAL, capabilities=NATIVE)
    world.append(bytes(UNIT))
    world.speak(speech("One.", 80), filled(percent))
    assert (world.core.phase != "open") is ends
    assert len(world.of(ResponseCreated)) == 1 and len(world.of(ResponseDone)) == int(ends)


def test_an_interruption_begins_afresh_and_forgets_the_roll_over() -> None:
    world = World(MANUAL, capabilities=COMPACTS, auto=False)
    world.append(bytes(UNIT))
    world.answer_all()
    world.speak(speech("One.", 80), TurnEnded(), filled(80))
    world.send(BargeIn())
    world.append(bytes(UNIT))
    world.answer_all()
    assert not world.submits[-1].rebuild and not world.submits[-1].compact


@pytest.mark.parametrize("limit", [0, -1])
def test_a_senseless_report_changes_nothing(limit: int) -> None:
    world = World(MANUAL, capabilities=NATIVE)
    world.append(bytes(UNIT))
    world.speak(Listened(), ContextUsed(used=5, limit=limit))
    assert world.core.phase == "open"
