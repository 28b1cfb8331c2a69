"""Responses outside the conversation, and responses that read something else than it."""

from __future__ import annotations

import msgspec
import pytest

from duologue.audio.format import AudioFormat
from duologue.config.session import SessionConfig
from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.commands import (
    BargeIn,
    CallOutput,
    CancelResponse,
    CommitAudio,
    CreateItem,
    CreateResponse,
    InputItem,
    ItemReference,
    ResponseOptions,
)
from duologue.engine.duplex.core.effects import SubmitAppend
from duologue.engine.duplex.core.items import AppendFailed, Replaced, ReplicaLost, StageFailed
from duologue.engine.duplex.events import (
    ErrorRaised,
    FunctionCalled,
    ResponseAudio,
    ResponseCreated,
    ResponseDone,
    ResponseText,
)
from duologue.engine.duplex.results import CutShort, FunctionCall, ModelFailed, Speech, TokensUsed, TurnEnded
from duologue.errors import ErrorCode
from duologue.outputs import ToolDefinition
from tests.unit.core.harness import CASCADE, MANUAL, NATIVE, World, audio

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


@pytest.mark.parametrize(
    ("world", "options", "param"),
    [
        (World(MANUAL, capabilities=NATIVE), ASIDE, "response.conversation"),
        (World(MANUAL), ResponseOptions(out_of_band=True), "response.output_modalities"),
    ],
)
def test_what_cannot_be_had_outside_the_conversation(world: World, options: ResponseOptions, param: str) -> None:
    world.send(CreateResponse(options=options, event_id="e"))
    error = world.last(ErrorRaised)
    assert (error.code, error.param, error.event_id) == (ErrorCode.UNSUPPORTED_RESPONSE_OPTIONS, param, "e")
    assert not world.of(ResponseCreated)


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
