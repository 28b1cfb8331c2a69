"""A context that fills: rolled over in a pause, without a gap and without a lost sample, or the session ends in time."""

from __future__ import annotations

import pytest
from msgspec import structs

from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.commands import BargeIn, CallOutput, CommitAudio, CreateItem, InputItem
from duologue.engine.duplex.core.items import TimerFired
from duologue.engine.duplex.core.submission import TELL_S
from duologue.engine.duplex.events import ErrorRaised, FunctionCalled, ResponseAudio, ResponseCreated, ResponseDone
from duologue.engine.duplex.results import ContextUsed, FunctionCall, Listened, TurnEnded
from duologue.errors import ErrorCode
from duologue.outputs import ToolDefinition
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


TOLD = structs.replace(NATIVE, compacts=True, context_units=20)


def heard(world: World, pieces: int, used: int) -> None:
    world.speak(Listened(), ContextUsed(used=used, limit=20, heard=pieces))


@pytest.mark.parametrize(("burst", "submitted"), [(4, 4), (5, 5), (6, 5), (60, 5)])
def test_before_it_has_told_anything_a_burst_fills_a_quarter_of_the_context(burst: int, submitted: int) -> None:
    """Half of it may be full already."""
    world = World(MANUAL, capabilities=TOLD)
    world.append(bytes(UNIT * burst))
    assert len(world.submits) == submitted and not world.of(ErrorRaised)


def test_behind_what_is_on_its_way_it_is_filled_to_where_it_is_rolled_over() -> None:
    world = World(MANUAL, capabilities=TOLD)
    stream = bytes(range(250)) * (UNIT * 40 // 250)
    world.append(stream)
    heard(world, 1, 1)
    assert len(world.submits) == 15  # one is in it, fourteen are on their way
    for pieces in range(2, 15):
        heard(world, pieces, pieces)
        assert len(world.submits) == 15
    first = world.submits[-1].request_id
    assert first not in world.aborted
    heard(world, 15, 15)
    assert world.aborted == [first]
    again = [submit for submit in world.submits if submit.request_id != first]
    assert again[0].compact and len(again) == 5
    assert b"".join(submit.audio for submit in world.submits) == stream[: 20 * UNIT]


@pytest.mark.parametrize(("used", "fits"), [(18, True), (19, True), (20, False)])
def test_an_answer_in_progress_gets_unit_after_unit_while_one_fits(used: int, fits: bool) -> None:
    world = World(MANUAL, capabilities=TOLD)
    world.append(bytes(UNIT))
    first = world.submits[0].request_id
    world.speak(speech("Word.", 80), ContextUsed(used=17, limit=20, heard=1))
    world.append(bytes(UNIT * 3))
    assert len(world.submits) == 2  # no second one behind one of which the model has not told
    world.speak(speech("Word.", 80), ContextUsed(used=used, limit=20, heard=2))
    assert len(world.submits) == (3 if fits else 4) and (world.submits[-1].request_id == first) is fits
    assert (first in world.aborted) is not fits


@pytest.mark.parametrize("compacts", [True, False])
@pytest.mark.parametrize(("ms", "fits"), [(799, True), (800, True), (801, False), (5_000, False)])
def test_a_piece_that_never_fits_ends_the_session_and_reaches_no_stage(ms: int, fits: bool, compacts: bool) -> None:
    """A model that takes pieces of any length: ten units of 80 ms are half of its context."""
    world = World(MANUAL, capabilities=structs.replace(TOLD, unit_ms=0, compacts=compacts))
    world.append(bytes(ms * RATE // 1000 * 2))
    assert (world.core.phase == "open") is fits and len(world.submits) == int(fits)
    if not fits:
        assert world.last(ErrorRaised).code is ErrorCode.CONTEXT_FULL and world.ended[-1].reason == "context_full"


@pytest.mark.parametrize(("ms", "rolled"), [(639, False), (640, False), (641, True)])
def test_a_piece_that_no_longer_fits_has_the_context_rolled_over_first(ms: int, rolled: bool) -> None:
    world = World(MANUAL, capabilities=structs.replace(TOLD, unit_ms=0))
    world.append(bytes(UNIT))
    world.speak(speech("Word.", 80), ContextUsed(used=12, limit=20, heard=1))
    world.append(bytes(ms * RATE // 1000 * 2))
    first, last = world.submits[0].request_id, world.submits[-1]
    assert len(world.submits) == 2 and last.compact is rolled and (first in world.aborted) is rolled
    world.speak(TurnEnded())
    world.advance(1.0)
    assert world.last(ResponseDone).status == "completed" and not world.of(ErrorRaised)


def test_a_roll_over_waits_for_what_is_being_taken() -> None:
    """The model was quicker to answer than the stage to say that it took the piece: it must not hear it twice."""
    world = World(MANUAL, capabilities=TOLD, auto=False)
    world.append(b"\x01\x00" * (UNIT // 2))
    first = world.submits[-1].request_id
    heard(world, 1, 15)
    assert first not in world.aborted
    world.append(b"\x02\x00" * (UNIT // 2))
    world.answer_all()
    assert first not in world.aborted
    heard(world, 2, 16)
    world.append(b"\x03\x00" * (UNIT // 2))
    world.answer_all()
    assert [submit.audio[:1] for submit in world.submits] == [b"\x01", b"\x02", b"\x03"]
    assert first in world.aborted and world.submits[-1].compact


def test_an_answer_that_waits_behind_another_outlives_the_roll_over() -> None:
    world = World(MANUAL, capabilities=TOLD)
    world.append(bytes(UNIT))
    world.speak(speech("One.", 2_000), TurnEnded(), ContextUsed(used=5, limit=20, heard=1))
    world.append(bytes(UNIT))
    world.speak(speech("Two ", 80), ContextUsed(used=16, limit=20, heard=2))
    assert not world.aborted  # it is being made
    world.append(bytes(UNIT))
    world.speak(speech("wholes.", 80), TurnEnded(), ContextUsed(used=17, limit=20, heard=3))
    assert len(world.aborted) == 1 and len(world.of(ResponseCreated)) == 1
    world.advance(6.0)
    assert [done.full_text for done in world.of(ResponseDone)] == ["One.", "Two wholes."]


def test_an_answer_behind_another_is_cut_where_the_context_ends() -> None:
    world = World(MANUAL, capabilities=TOLD)
    world.append(bytes(UNIT))
    world.speak(speech("One.", 2_000), TurnEnded(), ContextUsed(used=5, limit=20, heard=1))
    world.append(bytes(UNIT))
    world.speak(speech("Two ", 80), ContextUsed(used=20, limit=20, heard=2))
    assert len(world.aborted) == 1
    world.append(bytes(UNIT))
    world.advance(6.0)
    assert [done.full_text for done in world.of(ResponseDone)] == ["One.", "Two "]


def test_a_turn_of_which_a_part_is_submitted_is_answered_by_the_next_request_that_gets_the_rest() -> None:
    """The client asked for the answer: the end of its turn, and the wish, wait for room with it."""
    world = World(MANUAL, capabilities=structs.replace(TOLD, supports_client_commit=True))
    stream = bytes(range(250)) * (UNIT * 23 // 250) + bytes(UNIT)
    stream = stream[: UNIT * 22]
    world.append(stream)
    world.send(CommitAudio(create_response=True))
    first = world.submits[0].request_id
    for pieces in range(1, 16):
        assert first not in world.aborted
        heard(world, pieces, pieces)
    assert first in world.aborted and not world.of(ResponseDone)
    again = [submit for submit in world.submits if submit.request_id != first]
    assert again[0].compact and len(again) == 5
    heard(world, 1, 6)
    assert world.submits[-1].final and world.submits[-1].respond and len(world.submits) == 22
    assert b"".join(submit.audio for submit in world.submits) == stream and not world.submits[-1].force_listen
    world.speak(speech("All of it.", 80), TurnEnded())
    world.advance(1.0)
    assert [(done.full_text, done.status) for done in world.of(ResponseDone)] == [("All of it.", "completed")]
    assert len(world.of(ResponseCreated)) == 1


@pytest.mark.parametrize("late", [False, True])
def test_the_result_of_a_function_is_told_once_whether_it_comes_before_the_roll_over_or_after(late: bool) -> None:
    config = structs.replace(MANUAL, tools=(ToolDefinition(name="clock"),))
    limits = DuplexSessionRuntimeConfig(tool_result_timeout_s=5.0)
    world = World(config, capabilities=structs.replace(TOLD, calls_functions=True), runtime=limits)
    world.append(bytes(UNIT))
    world.speak(FunctionCall(name="clock"), TurnEnded(), ContextUsed(used=14, limit=20, heard=1))
    call = world.last(FunctionCalled).item.parts[0].call_id
    world.append(bytes(UNIT * 2))
    first = world.submits[0].request_id
    assert len(world.submits) == 2  # the other one has no room behind it
    if late:
        world.advance(world.state.runtime.tool_result_timeout_s + 0.1)
    else:
        world.send(CreateItem(item=InputItem(role="tool", output=CallOutput(call, "noon"))))
    world.speak(Listened(), ContextUsed(used=15, limit=20, heard=2))
    again = [submit for submit in world.submits if submit.request_id != first]
    assert first in world.aborted and again[0].compact and len(again[0].audio) == UNIT
    told = sum(submit.result is not None for submit in world.submits)
    known = sum(entry.role == "tool" and "yet" not in entry.text for entry in again[0].history)
    assert (told, known) == ((0, 1) if late else (1, 0))


@pytest.mark.parametrize("compacts", [True, False])
def test_what_a_model_says_after_its_session_has_ended_begins_no_answer(compacts: bool) -> None:
    world = World(MANUAL, capabilities=structs.replace(NATIVE, compacts=compacts))
    world.append(bytes(UNIT))
    world.speak(filled(96), speech("One.", 80))
    assert len(world.of(ResponseCreated)) == 0 and (world.core.phase == "open") is compacts


def test_input_that_has_no_room_keeps_no_session_whose_model_hangs() -> None:
    world = World(MANUAL, capabilities=TOLD)
    world.append(bytes(UNIT * 10))
    assert world.state.tail.queue
    idle_ttl_s = world.state.runtime.idle_ttl_s
    assert idle_ttl_s is not None and world.core.lease_expiry(world.now + idle_ttl_s - 0.1) is None
    assert world.core.lease_expiry(world.now + idle_ttl_s) == "idle_ttl_expired"


def behind(*, compacts: bool = True, told: int = 3) -> World:
    """Three pieces are heard, twelve are on their way, and more waits for what the model tells."""
    world = World(MANUAL, capabilities=structs.replace(TOLD, compacts=compacts))
    world.append(bytes(range(250)) * (UNIT * 30 // 250))
    if told:
        heard(world, told, told)
        assert len(world.submits) == 15
    return world


def test_what_a_stage_took_and_the_model_never_heard_is_not_waited_for_longer_than_it_may_take() -> None:
    world = behind()
    first = world.submits[0].request_id
    heard(world, 14, 14)  # the fifteenth was lost on the way
    world.advance(TELL_S - 0.1)
    assert len(world.submits) == 15 and not world.aborted
    world.advance(0.2)
    assert world.aborted == [first] and not world.of(ErrorRaised)
    again = [submit for submit in world.submits if submit.request_id != first]
    assert again[0].rebuild and again[0].compact and len(again) == 5
    heard(world, 5, 8)
    stream = b"".join(submit.audio for submit in world.submits)
    assert stream == (bytes(range(250)) * (UNIT * 30 // 250))[: len(stream)] and len(stream) > 20 * UNIT


@pytest.mark.parametrize(("compacts", "told"), [(False, 3), (True, 0), (False, 0)])
def test_a_model_that_tells_nothing_and_cannot_be_rolled_over_loses_its_session_in_time(
    compacts: bool, told: int
) -> None:
    world = behind(compacts=compacts, told=told)
    world.advance(TELL_S - 0.1)
    assert world.core.phase == "open"
    world.advance(0.2)
    assert world.core.phase == "closing" and world.last(ErrorRaised).code is ErrorCode.CONTEXT_FULL


def test_a_model_that_is_slow_is_waited_for_as_long_as_it_tells() -> None:
    world = behind()
    for pieces in range(4, 15):
        world.advance(TELL_S - 0.5)
        heard(world, pieces, pieces)
    assert not world.aborted and world.core.phase == "open"


def test_a_process_that_stood_still_does_not_blame_the_model() -> None:
    world = behind()
    world.now += 3 * TELL_S
    world.apply(TimerFired())
    assert not world.aborted
    heard(world, 4, 4)
    world.advance(TELL_S - 0.1)
    assert not world.aborted
    world.advance(0.2)
    assert len(world.aborted) == 1


def test_input_that_was_forgotten_waits_for_nothing() -> None:
    world = behind()
    world.send(BargeIn())
    aborted = len(world.aborted)
    world.advance(3 * TELL_S)
    assert world.core.phase == "open" and len(world.aborted) == aborted and not world.of(ErrorRaised)
