"""Responses outside the conversation, and responses that read something else than it."""

from __future__ import annotations

import msgspec
import pytest

from duologue.audio.format import AudioFormat
from duologue.config.session import SessionConfig
from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.commands import (
    AckPlayback,
    BargeIn,
    CallOutput,
    CancelResponse,
    CommitAudio,
    CreateItem,
    CreateResponse,
    InputItem,
    ItemReference,
    ResponseOptions,
    RetrieveItem,
    TruncateItem,
)
from duologue.engine.duplex.core.effects import Emit, SetPaused, SubmitAppend
from duologue.engine.duplex.core.items import (
    AppendFailed,
    Attached,
    Detached,
    OutputTaken,
    Replaced,
    ReplicaLost,
    StageFailed,
)
from duologue.engine.duplex.events import (
    AudioPart,
    ErrorRaised,
    FunctionCalled,
    ItemRetrieved,
    OverlapDecided,
    PlaybackAcknowledged,
    ResponseAudio,
    ResponseCreated,
    ResponseDone,
    ResponseText,
    SpeechStarted,
)
from duologue.engine.duplex.results import (
    CutShort,
    FunctionCall,
    ModelFailed,
    Speech,
    TokensUsed,
    TurnEnded,
    UserTranscript,
)
from duologue.errors import ErrorCode
from duologue.outputs import ToolDefinition
from tests.unit.core.harness import CASCADE, MANUAL, NATIVE, VAD, World, audio, speech

ASIDE = ResponseOptions(out_of_band=True, modality="text", metadata={"topic": "a"}, instructions="Classify.")
SAID = CreateItem(item=InputItem(item_id="u", role="user", texts=("Hello.",)))


def aside(world: World, options: ResponseOptions = ASIDE) -> SubmitAppend:
    """Ask for a response outside the conversation; returns what is submitted for it."""
    world.send(CreateResponse(options=options))
    return world.submits[-1]


def says(world: World, submit: SubmitAppend, *texts: str, finished: bool = True) -> None:
    results = (*(Speech(text=text) for text in texts), TokensUsed(input_tokens=4, output_tokens=2))
    ended = (TurnEnded(),) if finished else ()
    world.speak(*results, *ended, finished=finished, request_id=submit.request_id)


def test_it_reads_the_conversation_and_changes_nothing_of_it() -> None:
    world = World(MANUAL)
    world.send(SAID)
    submit = aside(world)
    assert [entry.text for entry in submit.history] == ["Hello."]
    assert (submit.instructions, submit.out_of_band, submit.config.output_modality) == ("Classify.", True, "text")
    before = list(world.state.history.items)
    says(world, submit, "A ", "greeting.")
    assert world.state.history.items == before and not before[0].answered
    created, done = world.last(ResponseCreated), world.last(ResponseDone)
    assert created.out_of_band and created.metadata == done.metadata == {"topic": "a"}
    assert "".join(event.text for event in world.of(ResponseText)) == done.full_text == "A greeting."
    assert (done.status, done.usage.input_tokens, done.usage.output_tokens) == ("completed", 4, 2)
    assert world.released == [submit.request_id]
    world.send(CreateResponse())
    assert world.last(ResponseCreated).previous_item_id == "u"


def test_it_runs_beside_the_answer_of_the_conversation() -> None:
    world = World(MANUAL)
    world.append(audio("S" * 20))
    world.send_turn("A long answer.", 3_000, end=False)
    submit = aside(world)
    says(world, submit, "Beside.")
    world.speak(TurnEnded(), finished=True, request_id=world.submits[0].request_id)
    world.advance(5.0)
    first, second = world.of(ResponseDone)
    assert (first.full_text, first.status) == ("Beside.", "completed")
    assert (second.full_text, second.status) == ("A long answer.", "completed")
    assert sum(event.duration_ms for event in world.of(ResponseAudio)) == 3_000


def test_an_interruption_of_the_conversation_does_not_touch_it() -> None:
    world = World(MANUAL)
    world.append(audio("S" * 20))
    world.send_turn("A long answer.", 3_000, end=False)
    submit = aside(world)
    says(world, submit, "Half", finished=False)
    world.send(BargeIn())
    assert submit.request_id not in world.aborted
    says(world, submit, " and half.")
    world.core.bind_stage_request(
        1, submit.request_id, fence=submit.fence
    ) if submit.request_id in world.state.asides else None
    cancelled, completed = world.of(ResponseDone)
    assert cancelled.status == "cancelled" and (completed.status, completed.full_text) == (
        "completed",
        "Half and half.",
    )


def test_one_submission_is_in_flight_at_a_time() -> None:
    world = World(MANUAL, auto=False)
    first, _ = aside(world), aside(world)
    world.append(audio("S" * 20))
    world.send(CommitAudio(create_response=True))
    assert len(world.submits) == 1
    world.answer(world.take(SubmitAppend))
    assert len(world.submits) == 2 and not world.submits[1].out_of_band  # who speaks goes first
    assert (world.submits[1].seq, world.submits[1].turn_seq) == (1, 1)
    world.answer(world.take(SubmitAppend))
    assert len(world.submits) == 3 and world.submits[2].out_of_band
    assert world.submits[2].request_id != first.request_id


def test_it_is_cancelled_by_its_name_and_by_nothing_else() -> None:
    world = World(MANUAL)
    submit = aside(world)
    world.send(CancelResponse())
    assert world.last(ErrorRaised).code is ErrorCode.RESPONSE_NOT_ACTIVE
    response_id = world.last(ResponseCreated).response_id
    world.send(CancelResponse(response_id=response_id))
    assert (world.last(ResponseDone).status, world.aborted) == ("cancelled", [submit.request_id])
    says(world, submit, "Too late.")
    assert not world.of(ResponseText) and len(world.of(ResponseDone)) == 1
    world.send(CancelResponse(response_id=response_id))
    assert world.last(ErrorRaised).code is ErrorCode.RESPONSE_NOT_ACTIVE


def test_what_is_cancelled_while_it_is_being_submitted_is_stopped_there_too() -> None:
    world = World(MANUAL, auto=False)
    submit = aside(world)
    world.send(CancelResponse(response_id=world.last(ResponseCreated).response_id))
    world.append(audio("S" * 20))
    world.send(CommitAudio(create_response=True))
    assert len(world.submits) == 1
    world.answer(world.take(SubmitAppend))
    assert world.aborted == [submit.request_id] * 2 and len(world.submits) == 2


@pytest.mark.parametrize("how", ["append", "stage", "model"])
def test_its_failure_is_its_own(how: str) -> None:
    world = World(MANUAL, auto=False)
    submit = aside(world)
    world.append(audio("S" * 20))
    world.send(CommitAudio(create_response=True))
    if how == "append":
        world.apply(AppendFailed(number=submit.number, code=ErrorCode.RUNTIME_APPEND_FAILED, message="no"))
    else:
        world.answer(world.take(SubmitAppend))
        if how == "stage":
            world.apply(StageFailed(request_id=submit.request_id, code=ErrorCode.RUNTIME_STREAM_FAILED, message="lost"))
        else:
            world.speak(ModelFailed(message="no"), request_id=submit.request_id)
    done = world.last(ResponseDone)
    assert (done.status, done.response_id) == ("failed", world.of(ResponseCreated)[0].response_id)
    assert world.last(ErrorRaised).response_id == done.response_id
    assert world.state.response is not None and world.state.response.open


def test_a_lost_replica_ends_what_was_submitted_and_not_what_waits() -> None:
    world = World(MANUAL, auto=False)
    first = aside(world)
    aside(world)
    world.apply(ReplicaLost(message="gone"))
    assert [event.status for event in world.of(ResponseDone)] == ["failed"]
    assert world.last(ErrorRaised).code is ErrorCode.REPLICA_UNAVAILABLE
    world.answer(world.take(SubmitAppend))
    assert first.request_id in world.aborted and len(world.submits) == 1
    world.apply(Replaced())
    says(world, world.submits[-1], "Here.")
    assert world.last(ResponseDone).status == "completed" and len(world.submits) == 2


@pytest.mark.parametrize("count", [1, 2, 3])
def test_so_many_may_be_open(count: int) -> None:
    world = World(MANUAL, runtime=DuplexSessionRuntimeConfig(max_pending_turns_per_session=2))
    for _ in range(count):
        aside(world)
    assert len(world.of(ResponseCreated)) == min(count, 2)
    refused = [event.code for event in world.of(ErrorRaised)]
    assert refused == [ErrorCode.INPUT_BACKPRESSURE] * max(0, count - 2)


def test_the_session_s_end_is_its_end() -> None:
    world = World(MANUAL, auto=False)
    submit, _ = aside(world), aside(world)
    world.close()
    assert [event.status for event in world.of(ResponseDone)] == ["cancelled", "cancelled"]
    assert submit.request_id in world.cleanups[0].request_ids


@pytest.mark.parametrize("options", [ASIDE, ResponseOptions(out_of_band=True)])
def test_a_resident_model_has_nothing_outside_the_conversation(options: ResponseOptions) -> None:
    world = World(MANUAL, capabilities=NATIVE)
    world.send(CreateResponse(options=options, event_id="e"))
    error = world.last(ErrorRaised)
    assert (error.code, error.event_id) == (ErrorCode.UNSUPPORTED_RESPONSE_OPTIONS, "e")
    assert error.param == "response.conversation" and not world.of(ResponseCreated)


def test_a_call_outside_the_conversation_is_nobody_s_to_answer() -> None:
    tools = (ToolDefinition(name="label"),)
    world = World(MANUAL, capabilities=msgspec.structs.replace(CASCADE, calls_functions=True))
    submit = aside(world, msgspec.structs.replace(ASIDE, tools=tools, tool_choice="required"))
    assert submit.config.menu is not None
    world.speak(FunctionCall(name="label"), FunctionCall(name="other"), finished=True, request_id=submit.request_id)
    (call,) = world.last(ResponseDone).calls
    assert len(world.of(FunctionCalled)) == 1 and not world.state.history.items
    world.send(CreateItem(item=InputItem(role="tool", output=CallOutput(call.parts[0].call_id, "x"))))
    assert world.last(ErrorRaised).code is ErrorCode.TOOL_CALL_UNKNOWN


# -- spoken --------------------------------------------------------------------------------------------------------------

SPOKEN = ResponseOptions(out_of_band=True, modality="audio", metadata={"topic": "a"})
PACED = DuplexSessionRuntimeConfig(send_ahead_ms=400, audio_delta_ms=100, max_backlog_ms=2_000)


def spoken(ms: int, text: str = "Said beside it.", *, finished: bool = True, **world_options: object) -> World:
    """A response outside the conversation of which the model has said ``ms``."""
    world = World(MANUAL, runtime=PACED, **world_options)  # type: ignore[arg-type]
    world.send(SAID)
    aside(world, SPOKEN)
    world.speak(speech(text, ms), *((TurnEnded(),) if finished else ()), finished=finished)
    return world


def sent_ms(world: World, response_id: str) -> int:
    return sum(event.duration_ms for event in world.of(ResponseAudio) if event.response_id == response_id)


def test_a_spoken_one_leaves_as_it_can_be_played() -> None:
    world = spoken(1_000)
    created = world.last(ResponseCreated)
    assert (created.modality, world.submits[-1].config.output_modality) == ("audio", "audio")
    assert sent_ms(world, created.response_id) == 400 and world.released == [world.submits[-1].request_id]
    world.advance(0.35)
    assert sent_ms(world, created.response_id) == 700 and not world.of(ResponseDone)
    world.advance(0.26)
    done = world.last(ResponseDone)
    assert [event.start_ms for event in world.of(ResponseAudio)] == list(range(0, 1_000, 100))
    assert (done.status, done.modality, done.audio_ms, done.usage.output_audio_ms) == (
        "completed",
        "audio",
        1_000,
        1_000,
    )
    assert done.item.parts[0].transcript == done.full_text == "Said beside it."
    assert all(not count for count in world.core.tables().values())


def test_a_session_that_speaks_speaks_beside_its_conversation_too() -> None:
    world = World(MANUAL)
    aside(world, ResponseOptions(out_of_band=True))
    assert world.last(ResponseCreated).modality == "audio"


def test_it_and_the_answer_of_the_conversation_are_paced_each_for_itself() -> None:
    world = spoken(1_000)
    world.append(audio("S" * 20))
    world.send_turn("An answer.", 1_000)
    aside_id, answer_id = (event.response_id for event in world.of(ResponseCreated))
    assert (sent_ms(world, aside_id), sent_ms(world, answer_id)) == (400, 400)
    world.advance(0.31)
    assert (sent_ms(world, aside_id), sent_ms(world, answer_id)) == (700, 700)
    world.advance(1.0)
    assert [event.audio_ms for event in world.of(ResponseDone)] == [1_000, 1_000]


def test_it_moves_nothing_of_what_was_heard_of_the_conversation() -> None:
    world = spoken(1_000)
    playback = world.state.playback
    assert not world.state.answering and (playback.released_ms, playback.taken_ms) == (0.0, 0.0)
    before = list(world.state.history.items)
    world.send(AckPlayback(played_ms=200, response_id=world.last(ResponseCreated).response_id))
    assert not world.last(PlaybackAcknowledged).history_committed
    assert world.state.history.items == before and playback.position(world.now) == 0.0
    world.send(TruncateItem(item_id=world.last(ResponseCreated).item_id, audio_end_ms=100))
    assert world.last(ErrorRaised).code is ErrorCode.ITEM_NOT_FOUND


@pytest.mark.parametrize("given", [None, "answer"])
def test_it_reads_of_an_answer_in_progress_what_was_sent(given: str | None) -> None:
    world = World(MANUAL, runtime=PACED)
    world.append(audio("S" * 20))
    world.send(CommitAudio(create_response=True))
    world.speak(
        UserTranscript(text="hi", final=True), speech("One. ", 300), speech("Two. ", 400), speech("Three.", 900)
    )
    item_id = world.last(ResponseCreated).item_id
    options = SPOKEN if given is None else msgspec.structs.replace(SPOKEN, input=(ItemReference(item_id),))
    world.send(RetrieveItem(item_id=item_id))
    assert world.last(ItemRetrieved).item.parts[0] == AudioPart(transcript="One. T", duration_ms=400)
    assert [entry.text for entry in aside(world, options).history][-1:] == ["One. T"]


def test_speech_does_not_stop_it_and_is_no_interruption() -> None:
    world = World(VAD, runtime=PACED)
    world.send(SAID)
    aside(world, SPOKEN)
    world.speak(speech("Said beside it.", 2_000), TurnEnded(), finished=True)
    response_id = world.last(ResponseCreated).response_id
    world.say("." * 10 + "S" * 30)
    assert world.of(SpeechStarted) and not world.of(OverlapDecided)
    world.send(BargeIn())
    world.advance(2.0)
    assert sent_ms(world, response_id) == 2_000
    (done,) = [event for event in world.of(ResponseDone) if event.response_id == response_id]
    assert done.status == "completed"


@pytest.mark.parametrize("finished", [False, True])
def test_a_cancel_takes_back_what_no_socket_took(finished: bool) -> None:
    world = spoken(1_000, finished=finished, takes=False)
    submit, created = world.submits[-1], world.last(ResponseCreated)
    numbers = [effect.number for effect in world.effects if isinstance(effect, Emit)]
    world.apply(OutputTaken(number=numbers[-3]))
    world.send(CancelResponse(response_id=created.response_id))
    assert world.invalidated == [created.response_id]
    assert world.aborted == ([] if finished else [submit.request_id])
    done = world.last(ResponseDone)
    assert (done.status, done.item.parts[0].duration_ms) == ("cancelled", 200)
    assert "Said beside it.".startswith(done.item.parts[0].transcript) and len(done.item.parts[0].transcript) < 15
    world.takes = True
    world.advance(3.0)
    assert sent_ms(world, created.response_id) == 400, "nothing leaves after its end"


def test_a_socket_that_takes_nothing_holds_it_back_and_its_stages_too() -> None:
    world = spoken(3_000, finished=False, takes=False)
    submit, response_id = world.submits[-1], world.last(ResponseCreated).response_id
    world.advance(5.0)
    assert sent_ms(world, response_id) == 400
    assert [effect for effect in world.effects if isinstance(effect, SetPaused)] == [
        SetPaused(request_id=submit.request_id, paused=True)
    ]
    world.takes = True
    world.apply(OutputTaken(number=max(effect.number for effect in world.effects if isinstance(effect, Emit))))
    world.advance(2.0)
    assert [effect.paused for effect in world.effects if isinstance(effect, SetPaused)] == [True, False]
    world.speak(TurnEnded(), finished=True)
    world.advance(2.0)
    assert (sent_ms(world, response_id), world.last(ResponseDone).status) == (3_000, "completed")


def test_nobody_there_nothing_leaves() -> None:
    world = World(MANUAL, runtime=PACED)
    submit = aside(world, SPOKEN)
    world.apply(Detached())
    world.speak(speech("Said beside it.", 600), TurnEnded(), finished=True, request_id=submit.request_id)
    assert not world.of(ResponseAudio) and not world.of(ResponseDone)
    world.apply(Attached())
    world.advance(1.0)
    assert world.last(ResponseDone).status == "completed" and len(world.of(ResponseAudio)) == 6


def test_what_was_made_to_its_end_outlives_its_replica_and_what_was_not_fails() -> None:
    world = spoken(1_000)
    other = aside(world, SPOKEN)
    world.speak(speech("Half of", 200))
    world.apply(ReplicaLost(message="gone"))
    (failed,) = world.of(ResponseDone)
    assert (failed.status, failed.response_id) == ("failed", world.of(ResponseCreated)[1].response_id)
    assert world.aborted[-1] == other.request_id
    world.advance(1.0)
    assert [event.status for event in world.of(ResponseDone)] == ["failed", "completed"]


def test_a_request_that_is_over_has_no_consequence_for_what_still_leaves() -> None:
    world = spoken(1_000)
    request_id = world.submits[-1].request_id
    world.apply(StageFailed(request_id=request_id, code=ErrorCode.RUNTIME_STREAM_FAILED, message="late"))
    world.speak(speech("More of it.", 200), request_id=request_id)
    assert request_id not in world.core.live_request_ids()
    world.advance(1.0)
    assert (world.last(ResponseDone).status, world.last(ResponseDone).audio_ms) == ("completed", 1_000)


def test_the_session_s_end_is_the_end_of_a_spoken_one() -> None:
    world = spoken(1_000)
    world.close()
    assert (world.last(ResponseDone).status, world.aborted) == ("cancelled", [])
    world.advance(1.0)
    assert sent_ms(world, world.last(ResponseDone).response_id) == 400


# -- what a response reads -----------------------------------------------------------------------------------------------


def test_input_replaces_the_conversation_for_one_response() -> None:
    world = World(MANUAL)
    world.send(SAID)
    world.send(CreateItem(item=InputItem(item_id="v", role="user", texts=("Bye.",))))
    given = (ItemReference("v"), InputItem(role="user", texts=("What did I say?",)))
    submit = aside(world, msgspec.structs.replace(ASIDE, input=given))
    assert [entry.text for entry in submit.history] == ["Bye.", "What did I say?"]
    empty = aside(world, msgspec.structs.replace(ASIDE, input=()))
    assert empty.history == ()
    world.send(CreateResponse(options=ResponseOptions(input=given)))
    assert [entry.text for entry in world.submits[-1].history] == ["Bye.", "What did I say?"]
    world.reply("Bye.", 100, transcript=None)
    world.advance(1.0)
    assert [item.item_id for item in world.state.history.items][:2] == ["u", "v"]
    assert len(world.state.history.items) == 3 and len(world.state.history.unanswered()) == 2
    world.send(CreateResponse())
    assert [entry.text for entry in world.submits[-1].history] == ["Hello.", "Bye.", "Bye."]


def test_a_reference_to_nothing_is_refused() -> None:
    world = World(MANUAL)
    world.send(SAID)
    options = ResponseOptions(input=(ItemReference("u"), ItemReference("x")))
    world.send(CreateResponse(options=options, event_id="e"))
    error = world.last(ErrorRaised)
    assert (error.code, error.param, error.event_id) == (ErrorCode.ITEM_NOT_FOUND, "response.input[1].id", "e")
    assert not world.of(ResponseCreated)


def test_voice_and_format_of_one_response() -> None:
    world = World(SessionConfig(voice="a"))
    world.send(SAID)
    pcmu = AudioFormat(encoding="pcmu", rate_hz=8_000)
    world.send(CreateResponse(options=ResponseOptions(voice="b", output_format=pcmu, max_output_tokens=9)))
    created = world.last(ResponseCreated)
    assert (created.voice, created.output_format, created.max_output_tokens) == ("b", pcmu, 9)
    assert (world.submits[-1].config.voice, world.submits[-1].config.max_output_tokens) == ("b", 9)
    world.reply("Hi.", 100, transcript=None)
    world.advance(1.0)
    world.send(CreateResponse(options=ResponseOptions(voice="c")))
    assert (world.last(ErrorRaised).code, world.last(ErrorRaised).param) == (
        ErrorCode.VOICE_UPDATE_UNSUPPORTED,
        "response.audio.output.voice",
    )
    assert world.core.config.voice == "a"


def test_one_that_the_model_did_not_finish_is_incomplete() -> None:
    world = World(MANUAL)
    world.send(SAID)
    submit = aside(world)
    world.speak(Speech(text="A "), CutShort(reason="max_output_tokens"), request_id=submit.request_id)
    says(world, submit, "greeting")
    done = world.last(ResponseDone)
    assert (done.status, done.reason, done.item.status) == ("incomplete", "max_output_tokens", "incomplete")
