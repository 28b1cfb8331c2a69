"""Resident models: whole units in order, silence only when nothing better is there, and no word lost to an interruption."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from duologue.config.session import ServerVad, SessionConfig
from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.commands import BargeIn, CancelResponse, CommitAudio, CreateResponse, ResponseOptions
from duologue.engine.duplex.core.effects import SetPaused, SubmitAppend
from duologue.engine.duplex.core.items import Attached, Detached
from duologue.engine.duplex.events import (
    ErrorRaised,
    InputCommitted,
    ResponseCreated,
    ResponseDone,
    ResponseListen,
    SpeechStarted,
    SpeechStopped,
)
from duologue.engine.duplex.plugin import ModelCapabilities
from duologue.engine.duplex.results import Listened, ModelFailed, TurnEnded
from duologue.errors import ErrorCode
from tests.unit.core.harness import MANUAL, NATIVE, RATE, VAD, World, audio, speech

UNIT = RATE * 80 // 1000 * 2
BY_CLIENT = ModelCapabilities(family="resident", unit_ms=80, chunk_period_ms=80, input_rate_hz=RATE)
AUTO_WITH_COMMIT = SessionConfig(auto_response=True)


def fed(world: World, epoch: int | None = None) -> bytes:
    return b"".join(s.audio for s in world.submits if not s.silence and epoch in (None, s.fence.epoch))


# -- units ---------------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 4_000), max_size=30), st.sampled_from([80, 200, 1_000, 0]))
def test_units_are_exact_and_nothing_is_lost_whatever_the_appends_were(sizes: list[int], unit_ms: int) -> None:
    world = World(MANUAL, capabilities=structs.replace(NATIVE, unit_ms=unit_ms))
    stream = bytes(range(256)) * 1_000
    start = 0
    for size in sizes:
        world.append(stream[start : start + 2 * size])
        start += 2 * size
    if unit_ms:
        assert {len(s.audio) for s in world.submits} <= {RATE * unit_ms // 1000 * 2}
    assert fed(world) + bytes(world.state.resident.buffer) == stream[:start]
    assert len(world.state.resident.buffer) < (RATE * unit_ms // 1000 * 2 or 1)


def test_an_append_of_many_units_is_fed_at_once() -> None:
    """Decision 16: no more than one unit per append would let latency grow."""
    world = World(MANUAL, capabilities=NATIVE)
    world.append(bytes(10 * UNIT))
    assert len(world.submits) == 10
    assert [s.seq for s in world.submits] == list(range(1, 11))


def test_units_wait_for_each_other_and_a_failure_gives_them_back_in_order() -> None:
    world = World(MANUAL, capabilities=NATIVE, auto=False)
    stream = bytes(range(250)) * 100
    world.append(stream[: 4 * UNIT])
    assert len(world.submits) == 1
    world.answer(world.take(SubmitAppend))
    world.answer(world.take(SubmitAppend), ok=False)
    assert world.last(ErrorRaised).code is ErrorCode.RUNTIME_APPEND_FAILED
    world.append(stream[4 * UNIT : 5 * UNIT])
    world.answer_all()
    again = world.submits[2:]
    assert b"".join(s.audio for s in again) == stream[UNIT : 5 * UNIT]
    assert len({s.request_id for s in again}) == 1
    assert again[0].first and again[0].request_id != world.submits[0].request_id


def test_the_id_of_a_request_that_was_stopped_is_never_used_again() -> None:
    """Late output and a late abort of the old one must not meet the new one."""
    world = World(MANUAL, capabilities=NATIVE)
    seen = []
    for _ in range(4):
        world.append(bytes(UNIT))
        seen.append(world.submits[-1].request_id)
        world.speak(ModelFailed(message="no"))
        world.speak(speech("late", 100), request_id=seen[-1])
    assert len(set(seen)) == 4 and not world.of(ResponseCreated)
    assert world.core.epoch == 0


# -- silence -------------------------------------------------------------------------------------------------------------


def test_field_F12_an_answer_goes_on_when_the_input_stops_in_mid_unit() -> None:
    world = World(MANUAL, capabilities=NATIVE)
    world.append(bytes(UNIT))
    world.speak(speech("One.", 80))
    world.advance(0.04)
    world.append(b"\x01\x00" * 100)  # completes no unit
    world.advance(0.08)
    padded = world.submits[-1]
    assert not padded.silence and padded.audio == b"\x01\x00" * 100 + bytes(UNIT - 200)
    world.speak(speech("Two.", 80))
    world.advance(0.1)
    assert world.submits[-1].silence
    world.speak(speech("Three.", 80), TurnEnded())
    world.advance(1.0)
    assert world.last(ResponseDone).full_text == "One.Two.Three."
    count = len(world.submits)
    world.advance(10.0)
    assert len(world.submits) == count, "silence after its owner ended"


def test_silence_is_bounded_and_the_answer_is_closed_then() -> None:
    world = World(MANUAL, capabilities=NATIVE)
    world.append(bytes(UNIT))
    world.speak(speech("One.", 80))
    for _ in range(20):
        world.advance(0.08)
        if world.state.response is not None and world.state.response.generating:
            world.speak(Listened())
    units = [s for s in world.submits if s.silence]
    assert len(units) == NATIVE.max_silence_units
    assert [s.force_listen for s in units] == [False] * (len(units) - 1) + [True]
    assert world.last(ResponseListen).reason == "continuation_limit"
    world.advance(1.0)
    assert world.last(ResponseDone).status == "completed"


def test_no_silence_while_real_input_is_on_its_way() -> None:
    world = World(MANUAL, capabilities=NATIVE, auto=False)
    world.append(bytes(UNIT))
    world.answer_all()
    world.speak(speech("One.", 80))
    world.advance(0.07)
    world.append(bytes(UNIT))
    world.advance(1.0)
    assert not [s for s in world.submits if s.silence]
    world.answer_all()
    world.advance(0.09)
    assert [s.silence for s in world.submits] == [False, False, True]


def test_units_of_silence_keep_real_time_when_the_model_is_quicker_than_the_acceptance() -> None:
    world = World(MANUAL, capabilities=structs.replace(NATIVE, max_silence_units=64), auto=False)
    world.append(bytes(UNIT))
    world.answer_all()
    world.speak(speech("One.", 80))
    at = []
    for _ in range(100):
        world.advance(0.01)
        for effect in [e for e in world.pending if isinstance(e, SubmitAppend)]:
            at.append(world.now)
            world.speak(speech("More.", 80))  # before the acceptance
            world.pending.remove(effect)
            world.answer(effect)
    assert len(at) >= 10
    assert all(later - earlier >= 0.08 - 0.0101 for earlier, later in itertools.pairwise(at))


# -- interruption --------------------------------------------------------------------------------------------------------


def test_field_F24_the_new_request_hears_the_interruption_from_its_beginning() -> None:
    world = World(VAD, capabilities=NATIVE)
    world.say("." * 40)
    world.speak(speech("Again and again and again.", 8_000))
    world.advance(0.5)
    world.say("." * 10 + "S" * 20)
    assert world.last(ResponseDone).reason == "turn_detected" and world.core.epoch == 1
    everything = audio("." * 50 + "S" * 20)
    heard = fed(world, 1) + bytes(world.state.resident.buffer)
    assert everything.endswith(heard)
    assert len(heard) == len(audio("S" * 20)) + 300 * RATE // 1000 * 2
    assert next(s for s in world.submits if s.fence.epoch == 1).history[-1].role == "assistant"


@pytest.mark.parametrize("detected", [True, False])
def test_a_cancel_in_mid_speech_loses_no_sample(detected: bool) -> None:
    world = World(VAD if detected else MANUAL, capabilities=NATIVE, auto=detected)
    world.append(audio("." * 40))
    world.answer_all()
    world.speak(speech("A long answer.", 8_000))
    stream = audio("S" * 10)
    if detected:
        world.send(BargeIn())
        world.append(stream)
        world.reply("Another.", 5_000, transcript=None, end=False)
    else:
        world.append(stream)  # the first unit is in flight, the others wait
    epoch = world.core.epoch
    world.send(CancelResponse())
    assert world.core.epoch == epoch + 1
    world.append(audio("S" * 5))
    world.answer_all()
    heard = fed(world, epoch + 1) + bytes(world.state.resident.buffer)
    assert heard.endswith(audio("S" * 15))


def test_clearing_input_leaves_nothing_of_it_for_the_new_request() -> None:
    world = World(VAD, capabilities=NATIVE)
    world.append(audio("." * 40))
    world.speak(speech("A long answer.", 8_000))
    world.append(audio("S" * 4))
    world.send(BargeIn())
    world.append(audio("." * 5))
    assert fed(world, 1) + bytes(world.state.resident.buffer) == audio("." * 5)


def test_detection_keeps_no_more_of_a_resident_models_input_than_it_may_need() -> None:
    world = World(VAD, capabilities=NATIVE)
    for _ in range(100):
        world.append(audio("." * 10))
    assert world.state.audio.buffered_bytes < 2 * RATE * 2
    world.say("S" * 20 + "." * 20)
    assert len(world.of(SpeechStarted)) == len(world.of(SpeechStopped)) == 1
    world.say("." * 40)
    assert world.state.audio.buffered_bytes < 2 * RATE * 2


# -- backlog -------------------------------------------------------------------------------------------------------------


def test_a_request_that_was_paused_goes_on_when_its_audio_has_left_at_once() -> None:
    world = World(MANUAL, capabilities=NATIVE, runtime=DuplexSessionRuntimeConfig(send_ahead_ms=None))
    world.append(bytes(UNIT))
    world.apply(Detached())
    world.speak(speech("A very long answer.", 12_000), TurnEnded())
    world.apply(Attached())
    assert world.last(ResponseDone).status == "completed"
    assert [e.paused for e in world.effects if isinstance(e, SetPaused)] == [True, False]


# -- commits -------------------------------------------------------------------------------------------------------------


def test_a_commit_to_a_model_that_decides_by_itself_makes_an_item_and_no_response() -> None:
    world = World(AUTO_WITH_COMMIT, capabilities=BY_CLIENT)
    world.append(audio("S" * 20))
    world.send(CommitAudio())
    assert world.last(InputCommitted).item.parts[0].duration_ms == 640 and not world.of(ErrorRaised)
    assert not world.of(ResponseCreated)
    assert fed(world) == audio("S" * 20)
    world.send(CommitAudio(event_id="again"))
    assert world.last(ErrorRaised).code is ErrorCode.INPUT_AUDIO_BUFFER_EMPTY
    world.append(audio("S" * 5) + b"\x00\x40" * 10)
    world.send(CommitAudio())
    assert len(world.of(InputCommitted)) == 2
    assert world.submits[-1].final and len(world.submits[-1].audio) == UNIT
    assert fed(world).rstrip(b"\x00") + b"" == (audio("S" * 25) + b"\x00\x40" * 10).rstrip(b"\x00")


def test_a_model_whose_turns_the_client_ends_answers_when_it_is_asked() -> None:
    world = World(MANUAL, capabilities=BY_CLIENT)
    world.append(audio("S" * 20))
    world.send(CommitAudio())
    assert fed(world) == audio("S" * 20) and {s.respond for s in world.submits} == {False}
    assert not world.of(ResponseCreated)
    world.send(CreateResponse(options=ResponseOptions(metadata={"who": "me"})))
    created = world.last(ResponseCreated)
    assert created.metadata == {"who": "me"}
    wish = world.submits[-1]
    assert wish.respond and wish.final and wish.audio == bytes(UNIT)
    world.speak(speech("Yes.", 200), TurnEnded())
    world.advance(1.0)
    assert world.last(ResponseDone).response_id == created.response_id
    world.send(CreateResponse(event_id="nothing"))
    assert world.last(ErrorRaised).code is ErrorCode.RESPONSE_CREATE_WITHOUT_INPUT


def test_a_second_answer_waits_for_the_first() -> None:
    world = World(MANUAL, capabilities=BY_CLIENT)
    for _ in range(2):
        world.append(audio("S" * 20))
        world.send(CommitAudio(create_response=True))
    assert len(world.of(ResponseCreated)) == 1
    world.speak(speech("One.", 2_000), TurnEnded())
    assert len(world.of(ResponseCreated)) == 1 and not world.of(ErrorRaised)
    world.advance(3.0)
    assert len(world.of(ResponseCreated)) == 2
    world.speak(speech("Two.", 200), TurnEnded())
    world.advance(1.0)
    assert [e.full_text for e in world.of(ResponseDone)] == ["One.", "Two."]


@pytest.mark.parametrize("unit_ms", [80, 1_000, 0])
def test_a_turn_that_was_refused_is_heard_before_the_next_one(unit_ms: int) -> None:
    world = World(MANUAL, capabilities=structs.replace(BY_CLIENT, unit_ms=unit_ms), auto=False)
    first, second = b"\x01\x40" * 3_300, b"\x02\x40" * 5_000
    world.append(first)
    world.send(CommitAudio(create_response=True))
    world.answer(world.take(SubmitAppend), ok=False)
    assert world.last(ResponseDone).status == "failed"
    world.append(second)
    world.send(CommitAudio(create_response=True))
    world.answer_all()
    again = world.submits[1:]
    unit = RATE * unit_ms // 1000 * 2
    padding = bytes(-len(first) % unit) if unit else b""
    assert b"".join(s.audio for s in again).startswith(first + padding + second)
    assert {len(s.audio) for s in again} == ({unit} if unit else {len(first), len(second)})
    assert [s.final for s in again] == [False] * (len(again) - 1) + [True]


@pytest.mark.parametrize("unit_ms", [80, 0])
def test_a_turn_that_was_refused_may_be_answered_all_the_same(unit_ms: int) -> None:
    world = World(MANUAL, capabilities=structs.replace(BY_CLIENT, unit_ms=unit_ms), auto=False)
    world.append(audio("S" * 20))
    world.send(CommitAudio(create_response=True))
    world.answer(world.take(SubmitAppend), ok=False)
    count = len(world.submits)
    world.send(CreateResponse())
    world.answer_all()
    again = world.submits[count:]
    assert b"".join(s.audio for s in again) == audio("S" * 20) and again[-1].final and again[-1].respond
    world.speak(speech("Yes.", 200), TurnEnded())
    world.advance(1.0)
    assert world.last(ResponseDone).status == "completed"
    world.send(CreateResponse(event_id="nothing"))
    assert world.last(ErrorRaised).code is ErrorCode.RESPONSE_CREATE_WITHOUT_INPUT


def test_many_units_that_were_refused_are_fed_as_units_when_silence_is_due() -> None:
    world = World(MANUAL, capabilities=NATIVE, auto=False)
    world.append(audio("S" * 5))
    world.answer(world.take(SubmitAppend))
    world.append(audio("S" * 10))
    world.answer(world.take(SubmitAppend), ok=False)
    world.append(b"\x01\x40")
    world.answer_all()
    world.speak(speech("One.", 80))
    world.advance(0.2)
    world.answer_all()
    assert {len(s.audio) for s in world.submits} == {UNIT}


def test_detected_turns_of_a_model_whose_turns_the_client_ends() -> None:
    world = World(SessionConfig(turn_detection=ServerVad()), capabilities=BY_CLIENT)
    world.say("." * 30 + "S" * 20 + "." * 20)
    assert len(world.of(InputCommitted)) == len(world.of(ResponseCreated)) == 1
    spoken = audio("." * 30 + "S" * 20 + "." * 16)[(30 * 512 - 4_800) * 2 :]
    assert fed(world) == spoken + bytes(-len(spoken) % UNIT)
    world.speak(speech("Yes.", 200), TurnEnded())
    world.advance(1.0)
    assert world.last(ResponseDone).status == "completed"


def test_the_wish_to_be_listened_to_reaches_the_units_that_the_append_fills() -> None:
    world = World(MANUAL, capabilities=NATIVE)
    world.append(bytes(UNIT))
    world.append(bytes(UNIT // 2), force_listen=True)
    world.append(bytes(UNIT))
    world.append(bytes(2 * UNIT), force_listen=True)
    world.append(bytes(UNIT))
    assert [s.force_listen for s in world.submits] == [False, True, True, True, False]


# -- faster than it is said ------------------------------------------------------------------------------------------------


def test_an_answer_that_is_made_while_another_is_being_sent_comes_after_it_whole() -> None:
    """A burst of input is answered faster than it can be said."""
    world = World(MANUAL, capabilities=NATIVE)
    world.append(bytes(UNIT))
    world.speak(speech("One.", 2_000), TurnEnded())
    world.speak(Listened(), speech("Two, ", 1_000))
    world.speak(speech("all of it.", 80), TurnEnded())
    world.speak(speech("Three.", 80), TurnEnded(), Listened())
    assert len(world.of(ResponseCreated)) == 1
    world.advance(6.0)
    assert [done.full_text for done in world.of(ResponseDone)] == ["One.", "Two, all of it.", "Three."]
    assert {done.status for done in world.of(ResponseDone)} == {"completed"}
    assert [done.audio_ms for done in world.of(ResponseDone)] == [2_000, 1_080, 80]


def test_an_answer_that_waits_behind_another_goes_on_when_its_turn_has_come() -> None:
    world = World(MANUAL, capabilities=NATIVE)
    world.append(bytes(UNIT))
    world.speak(speech("One.", 2_000), TurnEnded())
    world.speak(speech("Two, ", 80))
    world.advance(2.0)
    assert len(world.of(ResponseCreated)) == 2
    world.speak(speech("all of it.", 80), TurnEnded())
    world.advance(1.0)
    assert [done.full_text for done in world.of(ResponseDone)] == ["One.", "Two, all of it."]


def test_an_interruption_voids_the_answers_that_wait() -> None:
    world = World(MANUAL, capabilities=NATIVE)
    world.append(bytes(UNIT))
    world.speak(speech("One.", 2_000), TurnEnded())
    world.speak(speech("Two.", 80), TurnEnded())
    world.send(BargeIn())
    world.append(bytes(UNIT))
    world.advance(5.0)
    assert [(done.full_text, done.status) for done in world.of(ResponseDone)] == [("One.", "cancelled")]


def test_an_answer_that_waits_outlives_the_request_that_made_it() -> None:
    """The request is over with it: what is heard next goes to another one, which is not asked to go on with it."""
    world = World(MANUAL, capabilities=NATIVE)
    world.append(bytes(UNIT))
    first = world.submits[-1].request_id
    world.speak(speech("One.", 2_000), TurnEnded())
    world.speak(speech("Two.", 80), finished=True)
    world.append(bytes(UNIT))
    assert world.submits[-1].request_id != first and world.submits[-1].first
    world.speak(speech("Three.", 80), TurnEnded())
    world.advance(5.0)
    assert [done.full_text for done in world.of(ResponseDone)] == ["One.", "Two.", "Three."]


@pytest.mark.parametrize(("ahead_ms", "waits"), [(9_999, False), (10_000, True), (10_001, True)])
@pytest.mark.parametrize("behind", [False, True])
def test_a_model_that_is_too_far_ahead_is_fed_when_that_is_played(ahead_ms: int, waits: bool, behind: bool) -> None:
    """``behind``: most of it waits as an answer of its own. Else bursts would be turned into audio without a bound."""
    world = World(MANUAL, capabilities=NATIVE)
    world.append(bytes(UNIT))
    if behind:
        world.speak(speech("Before.", 1_000), TurnEnded())
        world.speak(speech("Far.", ahead_ms - 600))  # 400 ms have left
    else:
        world.speak(speech("Far.", ahead_ms + 400))
    world.append(b"\x05\x00" * (UNIT // 2))
    assert (b"\x05" not in fed(world)) is waits
    assert world.state.held_input_bytes == (UNIT if waits else 0)
    world.advance(8.0)
    assert b"\x05" in fed(world)
    world.speak(TurnEnded())
    world.advance(20.0)
    assert world.of(ResponseDone)[-1].full_text == "Far."


# -- listening -----------------------------------------------------------------------------------------------------------


def test_that_a_model_listens_is_said_once_and_again_after_anything_else() -> None:
    world = World(MANUAL, capabilities=NATIVE)
    world.append(bytes(UNIT))
    for _ in range(3):
        world.speak(Listened())
    assert [event.reason for event in world.of(ResponseListen)] == ["model"]
    world.speak(Listened(reason="noise"))
    world.speak(Listened(reason="noise"))
    assert [event.reason for event in world.of(ResponseListen)] == ["model", "noise"]
    world.speak(speech("One.", 80), TurnEnded())
    world.advance(1.0)
    world.append(bytes(UNIT))
    world.speak(Listened(reason="noise"))
    world.speak(Listened(reason="noise"))
    assert [event.reason for event in world.of(ResponseListen)] == ["model", "noise", "noise"]
