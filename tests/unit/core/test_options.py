"""What one response was asked for reaches the model and its terminal; what is counted; who waits for whom after it."""

from __future__ import annotations

import pytest
from msgspec import UNSET, UnsetType, structs

from duologue.config.session import ServerVad, SessionConfig, SessionPatch, TurnDetectionPatch
from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.commands import (
    AckPlayback,
    CallOutput,
    CancelResponse,
    ClearAudio,
    ClearOutput,
    CommitAudio,
    CreateItem,
    CreateResponse,
    InputItem,
    ItemReference,
    ResponseOptions,
    UpdateSession,
)
from duologue.engine.duplex.core.items import Attached, Detached
from duologue.engine.duplex.events import (
    CallPart,
    ErrorRaised,
    FunctionCalled,
    InputCommitted,
    InputTimedOut,
    ResponseAudio,
    ResponseCreated,
    ResponseDone,
    ResponseText,
    SpeechStopped,
)
from duologue.engine.duplex.plugin import ModelCapabilities
from duologue.engine.duplex.results import CutReason, CutShort, FunctionCall, TurnEnded, UserTranscript
from duologue.errors import ErrorCode
from duologue.outputs import ToolDefinition
from tests.unit.core.harness import CASCADE, MANUAL, VAD, World, audio, speech

OPTIONS = ResponseOptions(
    instructions="Be terse.", modality="text", metadata={"client_event_id": "7"}, max_output_tokens=9
)


def asked(options: ResponseOptions, config: SessionConfig = MANUAL) -> World:
    world = World(config)
    world.send(CreateItem(item=InputItem(role="user", texts=("hello",))))
    world.send(CreateResponse(options=options, event_id="create"))
    return world


def test_options_reach_the_submission_the_created_event_and_the_terminal() -> None:
    world = asked(OPTIONS, SessionConfig(instructions="Be kind.", max_output_tokens=500))
    submit = world.submits[-1]
    assert submit.instructions == "Be terse."
    assert submit.config.max_output_tokens == 9 and submit.config.output_modality == "text"
    created = world.last(ResponseCreated)
    assert created.metadata == OPTIONS.metadata and created.modality == "text"
    world.speak(speech("Words.", 500), TurnEnded(), finished=True)
    done = world.last(ResponseDone)
    assert done.metadata == OPTIONS.metadata and done.modality == "text" and done.full_text == "Words."
    assert [e.text for e in world.of(ResponseText)] == ["Words."] and not world.of(ResponseAudio)
    assert world.core.config == SessionConfig(instructions="Be kind.", max_output_tokens=500)


@pytest.mark.parametrize(("wished", "expected"), [(None, "Be kind."), ("", ""), ("Be terse.", "Be terse.")])
def test_instructions_override_even_when_they_are_empty(wished: str | None, expected: str) -> None:
    world = asked(ResponseOptions(instructions=wished), SessionConfig(instructions="Be kind."))
    assert world.submits[-1].instructions == expected


def test_the_next_response_has_the_sessions_settings_again() -> None:
    world = asked(OPTIONS)
    world.speak(speech("Words.", 0), TurnEnded(), finished=True)
    world.send(CreateItem(item=InputItem(role="user", texts=("again",))))
    world.send(CreateResponse())
    submit = world.submits[-1]
    assert (submit.instructions, submit.config) == ("", MANUAL)
    assert world.last(ResponseCreated).metadata == {} and world.last(ResponseCreated).modality == "audio"


def test_field_F38_a_response_in_progress_keeps_the_settings_it_began_with() -> None:
    world = World(MANUAL, auto=False)
    world.append(audio("S" * 20))
    world.send(CommitAudio(create_response=True))
    world.send(UpdateSession(patch=SessionPatch(instructions="New.", output_modality="text")))
    world.answer_all()
    first = world.submits[0]
    assert first.config.output_modality == "audio" and first.instructions == ""
    world.speak(speech("Words.", 500), TurnEnded(), finished=True)
    world.advance(1.0)
    assert world.last(ResponseDone).modality == "audio" and world.of(ResponseAudio)
    world.send(CreateResponse())
    assert world.submits[-1].instructions == "New." and world.submits[-1].config.output_modality == "text"


def test_options_of_an_answer_that_waits_are_kept_for_it() -> None:
    world = World(MANUAL)
    world.append(audio("S" * 20))
    world.send_turn("One.", 3_000)
    world.send(CreateItem(item=InputItem(role="user", texts=("more",))))
    world.send(CreateResponse(options=OPTIONS))
    assert len(world.of(ResponseCreated)) == 1
    world.advance(4.0)
    assert world.last(ResponseCreated).metadata == OPTIONS.metadata
    assert world.submits[-1].instructions == "Be terse."


def test_usage_counts_the_audio_of_the_turns_that_were_answered_and_of_the_answer() -> None:
    world = World(MANUAL)
    for script in ("S" * 20, "S" * 10):
        world.append(audio(script))
        world.send(CommitAudio())
        world.speak(UserTranscript(text="words", final=True), finished=True)
    world.send(CreateResponse())
    world.reply("Yes.", 700, transcript=None)
    world.advance(1.0)
    usage = world.last(ResponseDone).usage
    assert (usage.input_audio_ms, usage.output_audio_ms) == (30 * 32, 700)
    world.send(CreateItem(item=InputItem(role="user", texts=("more",))))
    world.send(CreateResponse())
    world.reply("No.", 100, transcript=None)
    world.advance(1.0)
    assert world.last(ResponseDone).usage.input_audio_ms == 0


# -- nobody speaks -------------------------------------------------------------------------------------------------------

IDLE = SessionConfig(turn_detection=ServerVad(idle_timeout_ms=2_000))


def idle(ms: int = 3_000, *, config: SessionConfig = IDLE, capabilities: ModelCapabilities = CASCADE) -> World:
    """A world in which an answer has just left."""
    world = World(config, capabilities=capabilities)
    world.say("S" * 20 + "." * 16)
    world.reply("An answer.", ms)
    world.advance(ms / 1000 - 0.3)
    assert world.last(ResponseDone).status == "completed"
    return world


def test_field_F37_the_time_to_speak_begins_when_the_answer_has_been_played() -> None:
    world = idle()
    world.advance(0.3 + 1.9)
    assert not world.of(InputTimedOut)
    world.advance(0.2)
    assert len(world.of(InputTimedOut)) == 1
    assert world.submits[-1].respond and len(world.of(ResponseCreated)) == 2


@pytest.mark.parametrize(
    "change",
    [None, TurnDetectionPatch(idle_timeout_ms=None), TurnDetectionPatch(type="semantic_vad")],
    ids=["detection off", "the time taken back", "a detector without it"],
)
def test_who_takes_it_back_is_not_asked(change: TurnDetectionPatch | None) -> None:
    world = idle()
    world.advance(1.0)
    world.send(UpdateSession(patch=SessionPatch(turn_detection=change)))
    world.advance(20.0)
    assert not world.of(InputTimedOut) and len(world.of(ResponseCreated)) == 1


def test_a_new_time_runs_from_its_setting_and_the_same_one_runs_on() -> None:
    world = idle()
    world.advance(0.3 + 1.0)
    world.send(UpdateSession(patch=SessionPatch(turn_detection=TurnDetectionPatch(threshold=0.6))))
    world.advance(0.95)
    assert not world.of(InputTimedOut)
    world.send(UpdateSession(patch=SessionPatch(turn_detection=TurnDetectionPatch(idle_timeout_ms=5_000))))
    world.advance(4.95)
    assert not world.of(InputTimedOut)
    world.advance(0.1)
    assert len(world.of(InputTimedOut)) == 1


def test_acknowledgements_move_it() -> None:
    slow = idle()
    slow.send(AckPlayback(played_ms=1_000))
    slow.advance(3.9)
    assert not slow.of(InputTimedOut)
    slow.advance(0.2)
    assert len(slow.of(InputTimedOut)) == 1
    quick = idle()
    quick.send(AckPlayback(played_ms=3_000))
    quick.advance(2.05)
    assert len(quick.of(InputTimedOut)) == 1


def test_asking_somebody_who_has_gone_does_not_keep_the_session() -> None:
    world = idle()
    world.advance(0.3)
    quiet_since, ttl_s = world.now, world.state.runtime.idle_ttl_s
    assert ttl_s is not None
    expired: list[float] = []
    while world.now < quiet_since + ttl_s + 10.0:
        asked = len(world.of(InputTimedOut))
        world.advance(2.1)
        if len(world.of(InputTimedOut)) > asked:
            world.reply("Are you there?", 500)
            world.advance(0.2)
            world.send(AckPlayback(played_ms=100))
        if world.core.lease_expiry(world.now) is not None:
            expired.append(world.now)
    assert len(world.of(InputTimedOut)) > 20
    assert expired and abs(expired[0] - quiet_since - ttl_s) < 6.0
    world.append(bytes(640))
    world.advance(1.0)
    assert world.core.lease_expiry(world.now) is None, "somebody is there again"


@pytest.mark.parametrize("late_s", [0.0, 3.0])
@pytest.mark.parametrize("asks", [False, True])
def test_functions_that_a_program_answers_do_not_keep_the_session_of_somebody_who_has_gone(
    asks: bool, late_s: float
) -> None:
    clock = SessionConfig(turn_detection=ServerVad(idle_timeout_ms=3_000), tools=(ToolDefinition(name="clock"),))
    world = idle(config=clock, capabilities=structs.replace(CASCADE, calls_functions=True))
    world.advance(0.3)
    quiet_since, ttl_s = world.now, world.state.runtime.idle_ttl_s
    assert ttl_s is not None
    while world.core.lease_expiry(world.now) is None and world.now < quiet_since + 2 * ttl_s:
        asked = len(world.of(InputTimedOut))
        world.advance(0.5)
        if len(world.of(InputTimedOut)) == asked:
            continue
        world.speak(FunctionCall(name="clock"), TurnEnded(), finished=True)
        (part,) = world.last(FunctionCalled).item.parts
        assert isinstance(part, CallPart)
        world.advance(late_s)
        world.send(CreateItem(item=InputItem(role="tool", output=CallOutput(part.call_id, "noon"))))
        if asks:
            world.send(CreateResponse())
        if world.state.response is not None:
            world.reply("It is noon.", 500)
    assert len(world.of(FunctionCalled)) > 20
    assert abs(world.now - quiet_since - ttl_s) < 6.0
    world.send(CreateResponse())
    assert world.core.lease_expiry(world.now) is not None, "it may still be the program"
    world.send(CreateItem(item=InputItem(role="user", texts=("I am here.",))))
    world.send(CreateResponse())
    assert world.core.lease_expiry(world.now) is None, "somebody is there again"


def test_clearing_the_answer_begins_it() -> None:
    world = idle()
    world.send(ClearOutput())
    world.advance(1.9)
    assert not world.of(InputTimedOut)
    world.advance(0.15)
    assert len(world.of(InputTimedOut)) == 1


def test_speech_ends_it_and_speech_that_came_to_nothing_begins_it_anew() -> None:
    world = idle()
    world.advance(1.0)
    world.say("S" * 10)
    world.send(ClearAudio())
    assert len(world.of(SpeechStopped)) == 2
    world.say("." * 55)
    assert not world.of(InputTimedOut)
    world.say("." * 15)
    assert len(world.of(InputTimedOut)) == 1


def test_nobody_is_asked_while_nobody_is_there() -> None:
    world = idle()
    world.apply(Detached())
    world.advance(25.0)
    assert not world.of(InputTimedOut)
    world.apply(Attached())
    world.advance(5.0)
    assert len(world.of(InputTimedOut)) == 1


@pytest.mark.parametrize("ms", [999, 1_000, 1_001])
def test_field_F06_a_turn_whose_input_stops_is_ended_by_the_watchdog(ms: int) -> None:
    world = World(VAD)
    world.say("S" * 40)
    world.advance(ms / 1000)
    assert bool(world.of(InputCommitted)) is (ms >= 1_000)
    if ms >= 1_000:
        assert world.last(SpeechStopped).audio_end_ms == 40 * 32
        assert len(world.of(ResponseCreated)) == 1


def test_field_F06_bursts_are_not_a_stop() -> None:
    world = World(VAD)
    for _ in range(4):
        world.append(audio("S" * 50))  # 1.6 s at once
        world.advance(1.6)
    world.advance(1.5)
    assert not world.of(InputCommitted)
    world.advance(0.2)
    assert len(world.of(InputCommitted)) == 1


@pytest.mark.parametrize(("frames", "ended"), [(61, False), (62, False), (63, True)])
def test_field_F22_a_turn_that_never_ends_is_ended(frames: int, ended: bool) -> None:
    world = World(VAD, runtime=DuplexSessionRuntimeConfig(max_turn_ms=2_000))
    world.say("S" * frames)
    assert bool(world.of(InputCommitted)) is ended


def test_field_F22_speech_that_goes_on_after_the_longest_turn_is_the_next_one() -> None:
    world = World(VAD, runtime=DuplexSessionRuntimeConfig(max_turn_ms=2_000))
    world.say("S" * 100 + "." * 20)
    first, second = world.of(InputCommitted)
    assert first.item.parts[0].duration_ms + second.item.parts[0].duration_ms == 116 * 32


@pytest.mark.parametrize("reason", ["max_output_tokens", "content_filter"])
@pytest.mark.parametrize("spoken", [True, False])
def test_an_answer_that_the_model_did_not_finish_is_incomplete_and_says_why(reason: CutReason, spoken: bool) -> None:
    world = asked(ResponseOptions(modality="audio" if spoken else "text"))
    world.speak(CutShort(reason=reason))
    assert not world.of(ResponseDone), "its voice may still be at work"
    world.speak(speech("As far as it", 500), TurnEnded(), finished=True)
    world.advance(2)
    (done,) = world.of(ResponseDone)
    assert (done.status, done.reason, done.error) == ("incomplete", reason, None)
    assert done.item is not None and done.item.status == "incomplete" and done.full_text == "As far as it"
    world.send(CreateResponse())
    assert len(world.of(ResponseCreated)) == 2


def test_a_cancel_of_an_answer_that_was_not_to_be_finished_is_a_cancel() -> None:
    world = asked(ResponseOptions())
    world.speak(CutShort(reason="max_output_tokens"), speech("As far as it", 9_000), TurnEnded(), finished=True)
    world.send(CancelResponse())
    assert (world.last(ResponseDone).status, world.last(ResponseDone).reason) == ("cancelled", "client_cancelled")


def test_what_was_sent_of_an_unfinished_answer_is_kept_where_all_that_is_sent_counts_as_heard() -> None:
    kept = []
    for cut in ((), (CutShort(reason="max_output_tokens"),)):
        world = asked(ResponseOptions(), SessionConfig(playback_commit_policy="commit_all_on_done"))
        world.speak(speech("As far as it goes", 800), *cut, TurnEnded(), finished=True)
        world.advance(0.5)
        assert world.of(ResponseDone)
        world.send(ClearOutput())
        (item,) = [item for item in world.state.history.items if item.role == "assistant"]
        kept.append(item.heard_text())
    assert kept == ["As far as it goes"] * 2


@pytest.mark.parametrize(
    ("options", "param"),
    [
        *((ResponseOptions(max_output_tokens=most), "response.max_output_tokens") for most in (-1, 0, 65_537, 2**53)),
        *((ResponseOptions(temperature=hot), "response.temperature") for hot in (-0.1, 2.1, float("nan"))),
    ],
)
@pytest.mark.parametrize("out_of_band", [False, True])
def test_a_number_out_of_range_is_refused_for_one_response_as_for_the_session(
    options: ResponseOptions, param: str, out_of_band: bool
) -> None:
    world = asked(structs.replace(options, out_of_band=out_of_band, modality="text"))
    (error,) = world.of(ErrorRaised)
    assert (error.code, error.param, error.event_id) == (ErrorCode.INVALID_SESSION_CONFIG, param, "create")
    assert not world.of(ResponseCreated) and not world.submits


@pytest.mark.parametrize(("most", "expected"), [(UNSET, 500), (None, None), (1, 1), (65_536, 65_536)])
def test_no_limit_is_a_limit_of_its_own(most: int | UnsetType | None, expected: int | None) -> None:
    world = asked(ResponseOptions(max_output_tokens=most), SessionConfig(max_output_tokens=500))
    assert world.submits[-1].config.max_output_tokens == expected
    assert world.last(ResponseCreated).max_output_tokens == expected


@pytest.mark.parametrize(("hot", "expected"), [(None, 0.4), (0.0, 0.0), (2.0, 2.0)])
def test_temperature_of_one_response(hot: float | None, expected: float) -> None:
    world = asked(ResponseOptions(temperature=hot), SessionConfig(temperature=0.4))
    assert world.submits[-1].config.temperature == expected


def test_an_item_may_be_named_any_number_of_times() -> None:
    world = World(MANUAL, runtime=DuplexSessionRuntimeConfig(max_history_chars=10))
    world.send(CreateItem(item=InputItem(item_id="a", role="user", texts=("0123456789",))))
    world.send(CreateResponse(options=ResponseOptions(input=(ItemReference("a"),) * 40)))
    assert [entry.text for entry in world.submits[-1].history] == ["0123456789"]
    assert world.state.history.get("a") is not None and not world.of(ErrorRaised)
