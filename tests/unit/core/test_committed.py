"""Committed turns: what the user said is answered or transcribed, and its audio is kept as long as somebody needs it."""

from __future__ import annotations

import pytest
from msgspec import structs

from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.commands import (
    BargeIn,
    CancelInput,
    CancelResponse,
    CommitAudio,
    CreateResponse,
    DeleteItem,
    RetrieveItem,
)
from duologue.engine.duplex.core.items import StageFailed
from duologue.engine.duplex.events import (
    ErrorRaised,
    InputCommitted,
    ItemDeleted,
    ItemRetrieved,
    ResponseCreated,
    ResponseDone,
)
from duologue.engine.duplex.results import ModelFailed, TurnEnded, UserTranscript
from duologue.errors import ErrorCode
from tests.unit.core.harness import CASCADE, MANUAL, PLAIN, World, audio, speech

SPEECH_ONLY = structs.replace(PLAIN, supports_text_turns=False)
"""Hears audio, answers it, and never says what it heard."""
SPEECH_AND_WORDS = structs.replace(CASCADE, supports_text_turns=False)


def commit(world: World, script: str = "S" * 20, *, answer: bool | None = None) -> str:
    world.append(audio(script))
    world.send(CommitAudio(create_response=answer))
    return world.last(InputCommitted).item.item_id  # type: ignore[no-any-return]


def test_nothing_is_kept_of_turns_that_were_transcribed_and_answered() -> None:
    world = World(MANUAL)
    for number in range(5):
        commit(world)
        world.speak(UserTranscript(text=f"question {number}", final=True), finished=True)
        world.send(CreateResponse())
        world.reply("Answer.", 100, transcript=None)
        world.advance(1.0)
    assert not world.state.committed and len(world.of(ResponseDone)) == 5


def test_turns_that_no_words_are_known_of_are_answered_together() -> None:
    """A model that cannot transcribe hears all that was said since its last answer, in order, once."""
    world = World(MANUAL, capabilities=SPEECH_ONLY)
    for _ in range(3):
        commit(world, "S" * 5)
        commit(world, "S" * 7)
        world.send(CreateResponse())
        assert world.submits[-1].audio == audio("S" * 12)
        world.reply("Answer.", 100, transcript=None)
        world.advance(1.0)
        assert not world.state.committed
    assert not world.of(ErrorRaised)


def test_audio_of_turns_that_are_forgotten_is_let_go() -> None:
    """A client that commits and never asks: bounded by the items of the conversation, and committing goes on working."""
    world = World(
        MANUAL, capabilities=PLAIN, runtime=DuplexSessionRuntimeConfig(max_items_per_session=8, turns_per_minute=None)
    )
    for _ in range(30):
        commit(world, "S" * 5)
    assert len(world.state.committed) == 8
    assert world.state.held_input_bytes == 8 * len(audio("S" * 5))


def test_a_client_that_only_ever_commits_is_heard_to_the_end() -> None:
    """When its turns fill the input buffer, the oldest that nobody asked about are forgotten; what was asked for is not."""
    size = len(audio("S" * 20))
    runtime = DuplexSessionRuntimeConfig(max_pending_input_bytes_per_session=10 * size, turns_per_minute=None)
    world = World(MANUAL, capabilities=SPEECH_ONLY, runtime=runtime, auto=False)
    commit(world, answer=True)
    world.answer_all()
    asked = commit(world, answer=True)
    for _ in range(50):
        last = commit(world)
        world.answer_all()
        assert world.state.held_input_bytes <= 10 * size
    assert not world.of(ErrorRaised)
    kept = list(world.state.committed)
    assert asked in kept and kept[-1] == last and 5 < len(kept) <= 10
    world.append(audio("S" * 190), event_id="e")
    assert world.last(ErrorRaised).event_id == "e", "what is being worked on is not given up"


@pytest.mark.parametrize("command", [CancelResponse(), BargeIn(), CancelInput()])
def test_field_F17_a_cancel_does_not_lose_what_waits_to_be_asked_for(command: object) -> None:
    world = World(MANUAL, capabilities=SPEECH_ONLY)
    commit(world, answer=True)
    world.reply("A long answer.", 5_000, end=False)
    commit(world, "S" * 25)
    world.send(command)
    world.send(CreateResponse())
    assert not world.of(ErrorRaised)
    assert world.submits[-1].audio == audio("S" * 25)


@pytest.mark.parametrize("command", [BargeIn(), CancelInput()])
def test_field_F17_cancelling_input_does_not_lose_the_words_of_what_was_committed(command: object) -> None:
    world = World(MANUAL)
    item_id = commit(world)
    world.send(command)
    assert len(world.submits) == 1 and not world.aborted, "nothing is submitted again that need not be"
    world.speak(UserTranscript(text="my name is Ann", final=True), finished=True)
    world.send(RetrieveItem(item_id=item_id))
    assert world.last(ItemRetrieved).item.parts[0].transcript == "my name is Ann"


@pytest.mark.parametrize("command", [BargeIn(), CancelInput()])
def test_field_F17_a_turn_whose_answer_is_called_off_with_the_input_is_transcribed_all_the_same(
    command: object,
) -> None:
    world = World(MANUAL)
    item_id = commit(world, answer=True)
    first = world.submits[-1]
    world.send(command)
    again = world.submits[-1]
    assert first.request_id in world.aborted
    assert again.request_id != first.request_id and again.audio == first.audio and not again.respond
    world.speak(UserTranscript(text="my name is Ann", final=True), finished=True)
    world.send(RetrieveItem(item_id=item_id))
    assert world.last(ItemRetrieved).item.parts[0].transcript == "my name is Ann"


def test_a_deleted_turn_is_not_answered() -> None:
    world = World(MANUAL, capabilities=SPEECH_ONLY)
    commit(world, answer=True)
    world.reply("A long answer.", 5_000, end=False)
    item_id = commit(world, answer=True)
    assert world.last(InputCommitted).deferred
    world.send(DeleteItem(item_id=item_id))
    assert world.last(ItemDeleted).item_id == item_id
    submitted = len(world.submits)
    world.send(CancelResponse())
    assert len(world.submits) == submitted and len(world.of(ResponseCreated)) == 1
    assert not world.state.committed and not world.state.wanted


def test_deleting_what_is_being_transcribed_stops_that() -> None:
    world = World(MANUAL)
    item_id = commit(world)
    world.send(DeleteItem(item_id=item_id))
    assert world.submits[-1].request_id in world.aborted
    assert not world.state.committed and not world.core.live_request_ids()


def test_field_F25_deleting_what_is_being_said_ends_it() -> None:
    world = World(MANUAL)
    commit(world, answer=True)
    world.reply("A long answer.", 5_000, end=False)
    item_id = world.last(ResponseCreated).item_id
    world.send(DeleteItem(item_id=item_id))
    assert world.last(ResponseDone).status == "cancelled"
    world.send(DeleteItem(item_id=item_id, event_id="twice"))
    assert (world.last(ErrorRaised).code, world.last(ErrorRaised).event_id) == (ErrorCode.ITEM_NOT_FOUND, "twice")


@pytest.mark.parametrize("capabilities", [CASCADE, PLAIN, SPEECH_ONLY, SPEECH_AND_WORDS])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("how", ["model", "stage", "append"])
def test_field_F25_a_failed_response_can_be_asked_for_again(capabilities: object, known: bool, how: str) -> None:
    """Whatever failed, and whether the words were known already: the turn is answered by the next response.create."""
    world = World(MANUAL, capabilities=capabilities, auto=False)  # type: ignore[arg-type]
    commit(world, answer=True)
    first = world.submits[-1]
    if how == "append":
        world.answer(world.pending.popleft(), ok=False)
    else:
        world.answer_all()
        if known:
            world.speak(UserTranscript(text="what time is it", final=True))
        if how == "model":
            world.speak(ModelFailed(message="no"))
        else:
            world.apply(StageFailed(request_id=first.request_id, code=ErrorCode.RUNTIME_STREAM_FAILED, message="lost"))
    assert world.last(ResponseDone).status == "failed"
    world.send(CreateResponse(event_id="again"))
    world.answer_all()
    assert all(error.event_id is None for error in world.of(ErrorRaised))
    again = world.submits[-1]
    assert again.request_id != first.request_id
    assert again.audio or again.history, "the model was given nothing"
    world.speak(speech("Noon.", 200), TurnEnded(), finished=True)
    world.advance(1.0)
    assert world.last(ResponseDone).status == "completed" and not world.state.committed


def test_a_model_that_answers_speech_only_is_given_the_speech_even_if_its_words_are_known() -> None:
    """Field case F19: nothing empty reaches a model that cannot take it."""
    world = World(MANUAL, capabilities=SPEECH_AND_WORDS)
    commit(world)
    world.speak(UserTranscript(text="what time is it", final=True), finished=True)
    world.send(CreateResponse())
    assert world.submits[-1].audio == audio("S" * 20)


def test_text_items_are_refused_by_a_model_that_answers_speech_only() -> None:
    world = World(MANUAL, capabilities=SPEECH_ONLY)
    world.send(CreateResponse(event_id="a"))
    commit(world, answer=True)
    assert [(e.code, e.event_id) for e in world.of(ErrorRaised)] == [(ErrorCode.RESPONSE_CREATE_WITHOUT_INPUT, "a")]
