"""A lost placement: the epoch moves, nothing is said twice, and nothing that was heard is lost."""

from __future__ import annotations

import pytest
from msgspec import structs

from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.commands import BargeIn, CancelResponse, CommitAudio, DeleteItem
from duologue.engine.duplex.core.effects import SubmitAppend
from duologue.engine.duplex.core.items import ModelSpoke, Replaced, ReplicaLost
from duologue.engine.duplex.core.rebuild import MOST_ATTEMPTS
from duologue.engine.duplex.events import (
    ErrorRaised,
    InputCommitted,
    InputTranscribed,
    ResponseAudio,
    ResponseCreated,
    ResponseDone,
    SessionRecovered,
)
from duologue.engine.duplex.results import (
    ContextUsed,
    FunctionCall,
    Listened,
    ModelResult,
    TurnEnded,
    UserTranscript,
)
from duologue.errors import ErrorCode
from tests.unit.core.harness import MANUAL, NATIVE, PLAIN, RATE, VAD, World, audio, speech

UNIT = RATE * 80 // 1000 * 2
LOST = ReplicaLost(message="worker 0 is gone")


def ask(world: World) -> None:
    world.append(audio("S" * 20))
    world.send(CommitAudio(create_response=True))


def test_a_session_without_an_answer_in_progress_is_told_and_nothing_else() -> None:
    world = World(MANUAL)
    epoch = world.core.epoch
    world.apply(LOST)
    assert world.core.awaits_placement and world.core.epoch == epoch + 1
    world.apply(Replaced())
    assert world.last(SessionRecovered) == SessionRecovered(epoch=epoch + 1, placement=1)
    assert not world.of(ErrorRaised) and not world.of(ResponseDone)
    ask(world)
    world.reply("Fine.")
    world.advance(2.0)
    assert world.last(ResponseDone).status == "completed"


def test_decision_9_an_answer_of_which_nothing_was_heard_is_made_again() -> None:
    world = World(MANUAL)
    ask(world)
    first = world.last(ResponseCreated)
    heard = world.submits[-1].audio
    world.apply(LOST)
    done = world.last(ResponseDone)
    assert (done.status, done.error, done.item) == ("failed", ErrorCode.REPLICA_UNAVAILABLE, None)
    second = world.last(ResponseCreated)
    assert second.response_id != first.response_id and second.epoch == first.epoch + 1
    count = len(world.submits)
    world.advance(1.0)
    assert len(world.submits) == count, "nothing is submitted before there is a place"
    world.apply(Replaced())
    assert world.submits[-1].audio == heard and world.submits[-1].first
    world.reply("Here.")
    world.advance(2.0)
    assert [done.status for done in world.of(ResponseDone)] == ["failed", "completed"]
    assert len(world.of(InputCommitted)) == 1 and not world.of(ErrorRaised)


def test_decision_9_an_answer_that_was_partly_heard_is_not_said_again() -> None:
    world = World(MANUAL)
    ask(world)
    world.reply("One two three four.", 4_000, end=False)
    world.advance(1.0)
    world.apply(LOST)
    done = world.last(ResponseDone)
    assert done.status == "failed" and done.item is not None
    assert world.names().index("ErrorRaised") < world.names().index("ResponseDone")
    said = world.state.history.items[-1].heard_text()
    assert said and said != "One two three four."
    world.apply(Replaced())
    world.advance(5.0)
    assert len(world.of(ResponseCreated)) == 1
    world.append(audio("S" * 20))
    world.send(CommitAudio(create_response=True))
    assert [entry.text for entry in world.submits[-1].history if entry.role == "assistant"] == [said]


def test_late_output_of_the_dead_placement_never_speaks() -> None:
    """The old owner is fenced: at once, and after the new one has begun."""
    world = World(MANUAL)
    ask(world)
    old = world.submits[-1]
    late = ModelSpoke(
        request_id=old.request_id, fence=old.fence, results=(speech("Late.", 500), TurnEnded()), finished=True
    )
    world.apply(LOST)
    assert old.request_id in world.aborted
    world.apply(late)
    world.apply(Replaced())
    assert world.submits[-1].request_id != old.request_id
    world.apply(late)
    world.reply("New.")
    world.advance(2.0)
    assert "".join(event.text for event in world.of(ResponseAudio)) == "New."


def test_an_answer_that_was_made_to_its_end_plays_on() -> None:
    world = World(MANUAL)
    ask(world)
    world.reply("All of it.", 3_000)
    world.advance(0.5)
    before = len(world.of(ResponseAudio))
    world.apply(LOST)
    world.apply(Replaced())
    assert not world.of(ResponseDone)
    world.advance(4.0)
    assert world.last(ResponseDone).status == "completed"
    assert sum(event.duration_ms for event in world.of(ResponseAudio)) == 3_000
    # Content of an epoch that has ended would not leave the engine.
    assert {event.epoch for event in world.of(ResponseAudio)[before:]} == {world.state.fences.epoch}


def test_what_is_being_said_is_heard_from_its_beginning_by_the_new_placement() -> None:
    capabilities = structs.replace(World(VAD).state.capabilities, streams_input=True, stream_interval_ms=64)
    world = World(VAD, capabilities=capabilities)
    world.say("." * 5 + "S" * 20)
    streamed = b"".join(submit.audio for submit in world.submits)
    assert streamed
    world.apply(LOST)
    world.say("S" * 5)
    world.apply(Replaced())
    world.say("S" * 5 + "." * 20)
    again = [submit for submit in world.submits if submit.fence.epoch == 1]
    assert again[0].first and b"".join(submit.audio for submit in again).startswith(streamed)
    world.reply("Yes.")
    world.advance(2.0)
    assert world.last(ResponseDone).status == "completed"


def test_words_that_were_not_known_yet_are_asked_for_again() -> None:
    capabilities = structs.replace(World(MANUAL).state.capabilities, transcribes_input=True)
    world = World(MANUAL, capabilities=capabilities)
    world.append(audio("S" * 20))
    world.send(CommitAudio())
    assert not world.submits[-1].respond
    world.apply(LOST)
    world.apply(Replaced())
    assert not world.submits[-1].respond and world.submits[-1].fence.epoch == 1
    world.speak(UserTranscript(text="hello", final=True), finished=True)
    assert world.state.history.items[0].transcript == "hello"
    assert len(world.of(InputTranscribed)) <= 1


def test_a_resident_model_is_told_once_that_it_is_rebuilt_and_misses_no_input() -> None:
    world = World(MANUAL, capabilities=NATIVE, auto=False)
    stream = bytes(range(250)) * 200
    world.append(stream[: 3 * UNIT])
    world.answer(world.take(SubmitAppend))  # the second is on its way, the third waits
    world.apply(LOST)
    world.append(stream[3 * UNIT : 4 * UNIT])
    assert len(world.submits) == 2
    world.apply(Replaced())
    world.answer_all()
    again = [submit for submit in world.submits if submit.fence.epoch == 1]
    assert [submit.rebuild for submit in again] == [True, False, False]
    assert b"".join(submit.audio for submit in again) == stream[UNIT : 4 * UNIT]
    assert world.last(SessionRecovered).epoch == 1


@pytest.mark.parametrize("heard", [False, True])
def test_an_answer_of_a_resident_model_is_over_and_its_model_begins_no_other_for_us(heard: bool) -> None:
    world = World(MANUAL, capabilities=NATIVE)
    world.append(bytes(UNIT))
    world.speak(speech("One.", 80 if heard else 0))
    world.apply(LOST)
    assert world.last(ResponseDone).status == "failed"
    world.apply(Replaced())
    world.advance(1.0)
    assert len(world.of(ResponseCreated)) == 1


def behind_an_answer(*results: ModelResult) -> World:
    """A resident model has made more than its first answer, which is being said, when its worker is lost."""
    world = World(MANUAL, capabilities=NATIVE)
    world.append(bytes(UNIT))
    world.speak(speech("One.", 2_000), TurnEnded())
    world.speak(*results)
    world.advance(0.5)
    world.apply(LOST)
    return world


@pytest.mark.parametrize("replaced_after_s", [0.0, 3.0])
def test_answers_that_wait_behind_another_play_on_when_they_were_made_to_their_end(replaced_after_s: float) -> None:
    world = behind_an_answer(speech("Two.", 500), TurnEnded(), Listened(), speech("Three.", 80), TurnEnded())
    world.advance(replaced_after_s)
    world.apply(Replaced())
    world.append(bytes(UNIT))
    world.speak(speech("Four.", 80), TurnEnded())
    world.advance(5.0)
    done = [(done.full_text, done.status) for done in world.of(ResponseDone)]
    assert done == [(text, "completed") for text in ("One.", "Two.", "Three.", "Four.")]
    assert not world.of(ErrorRaised)
    assert [done.epoch for done in world.of(ResponseDone)][1:] == [1, 1, 1]


@pytest.mark.parametrize(
    "rest",
    [
        (speech("Three", 80),),
        (FunctionCall(name="clock"), TurnEnded()),
        (speech("Three", 80), FunctionCall(name="clock")),
    ],
    ids=["unfinished", "asks", "both"],
)
def test_an_answer_behind_another_that_still_needed_its_model_is_not_said_and_that_is_told(
    rest: tuple[ModelResult, ...],
) -> None:
    world = behind_an_answer(speech("Two.", 500), TurnEnded(), *rest)
    assert [error.code for error in world.of(ErrorRaised)] == [ErrorCode.REPLICA_UNAVAILABLE]
    world.apply(Replaced())
    world.advance(5.0)
    assert [done.full_text for done in world.of(ResponseDone)] == ["One.", "Two."]
    assert world.state.response is None and not world.state.tools.records


def test_a_cancel_while_the_session_waits_begins_the_model_anew() -> None:
    """It stops whatever was to be gone on with."""
    world = World(MANUAL, capabilities=NATIVE)
    world.append(bytes(UNIT))
    world.apply(LOST)
    world.append(bytes(UNIT))
    world.send(BargeIn())
    world.apply(Replaced())
    world.append(bytes(UNIT))
    assert not world.submits[-1].rebuild


def test_a_second_loss_while_the_session_waits_changes_nothing_but_the_epoch() -> None:
    world = World(MANUAL)
    ask(world)
    world.apply(LOST)
    world.apply(LOST)
    assert [done.status for done in world.of(ResponseDone)] == ["failed", "failed"]
    world.apply(Replaced())
    world.apply(Replaced())
    assert len(world.of(SessionRecovered)) == 1
    world.reply("Here.")
    world.advance(2.0)
    assert world.last(ResponseDone).status == "completed" and len(world.of(InputCommitted)) == 1


@pytest.mark.parametrize(("waited_s", "ended"), [(2.9, False), (3.0, True), (3.1, True)])
def test_the_wait_is_bounded_and_a_resident_session_ends_then(waited_s: float, ended: bool) -> None:
    world = World(MANUAL, capabilities=NATIVE, runtime=DuplexSessionRuntimeConfig(rebuild_timeout_s=3.0))
    world.apply(LOST)
    world.advance(2.0)
    world.apply(LOST)  # does not prolong it
    assert world.core.phase == "open"
    world.advance(waited_s - 2.0)
    assert [error.code for error in world.of(ErrorRaised)] == [ErrorCode.REPLICA_UNAVAILABLE] * ended
    assert (world.core.phase != "open") is ended


@pytest.mark.parametrize("losses", [MOST_ATTEMPTS - 1, MOST_ATTEMPTS, MOST_ATTEMPTS + 1])
def test_an_answer_that_each_worker_dies_of_is_not_made_for_ever(losses: int) -> None:
    world = World(MANUAL)
    ask(world)
    for _ in range(losses):
        world.apply(LOST)
        world.apply(Replaced())
    given_up = losses > MOST_ATTEMPTS
    assert [error.code for error in world.of(ErrorRaised)] == [ErrorCode.REPLICA_UNAVAILABLE] * given_up
    assert [done.status for done in world.of(ResponseDone)] == ["failed"] * losses
    assert len(world.of(ResponseCreated)) == losses + (not given_up)


@pytest.mark.parametrize("pinned", [False, True])
def test_an_ephemeral_session_outlives_the_wait_unless_it_had_its_replica_reserved(pinned: bool) -> None:
    world = World(MANUAL, runtime=DuplexSessionRuntimeConfig(rebuild_timeout_s=3.0))
    ask(world)
    world.apply(ReplicaLost(message="gone", pinned=pinned))
    count = len(world.submits)
    world.advance(3.1)
    assert (world.core.phase == "open") is not pinned
    assert len(world.submits) == count + (not pinned), "what waited is tried, and fails by itself if need be"


def test_a_closing_session_is_not_rebuilt() -> None:
    world = World(MANUAL)
    world.close()
    epoch = world.core.epoch
    world.apply(LOST)
    world.apply(Replaced())
    assert world.core.epoch == epoch and not world.of(SessionRecovered)


def test_the_client_may_cancel_the_answer_that_waits_for_a_place() -> None:
    world = World(MANUAL)
    ask(world)
    world.apply(LOST)
    world.send(CancelResponse())
    assert world.last(ResponseDone).status == "cancelled"
    world.apply(Replaced())
    world.advance(1.0)
    assert not [submit for submit in world.submits[1:] if submit.respond], "nobody waits for an answer any more"


def test_audio_of_turns_that_wait_for_a_place_is_held_once() -> None:
    """What is kept with its turn does not fill the input buffer as well, however many places are lost."""
    world = World(MANUAL)
    ask(world)
    world.apply(LOST)
    held = world.state.held_input_bytes
    for _ in range(5):
        world.apply(LOST)
    assert world.state.held_input_bytes == held
    world.apply(Replaced())
    world.reply("Here.")
    world.advance(2.0)
    assert world.state.held_input_bytes == 0


def test_a_rebuilt_context_is_as_full_as_the_lost_one_was() -> None:
    """Input that waited for the placement does not overflow it before its model has told how full it is."""
    world = World(MANUAL, capabilities=structs.replace(NATIVE, context_units=24, compacts=False))
    world.append(bytes(UNIT))
    world.speak(ContextUsed(used=20, limit=24, heard=1))
    world.apply(LOST)
    world.append(bytes(4 * UNIT))
    world.apply(Replaced())
    assert [submit.rebuild for submit in world.submits[1:]] == [True]
    world.speak(ContextUsed(used=21, limit=24, heard=1))
    assert len(world.submits) == 3, "from here on piece by piece"


@pytest.mark.parametrize("ended", [False, True])
def test_what_follows_a_request_that_the_model_ended_takes_nothings_place_after_a_loss_either(ended: bool) -> None:
    """It begins with an empty context, as it does without a loss: nothing of what the lost one held is owed to it."""
    world = World(MANUAL, capabilities=structs.replace(NATIVE, context_units=24, compacts=False))
    world.append(bytes(UNIT))
    world.speak(ContextUsed(used=20, limit=24, heard=1), finished=ended)
    world.apply(LOST)
    world.apply(Replaced())
    world.append(bytes(UNIT))
    first = world.submits[-1]
    assert (first.first, first.rebuild) == (True, not ended)
    world.apply(LOST)
    world.apply(Replaced())
    world.append(bytes(UNIT))
    assert world.submits[-1].rebuild, "this one is lost as any other"


def test_a_context_that_was_to_be_rolled_over_when_its_placement_was_lost_is_rolled_over_in_the_next() -> None:
    world = World(MANUAL, capabilities=structs.replace(NATIVE, context_units=24, compacts=True))
    world.append(bytes(UNIT))
    world.speak(Listened(), ContextUsed(used=22, limit=24, heard=1))
    world.apply(LOST)
    world.apply(Replaced())
    world.append(bytes(UNIT))
    assert (world.submits[-1].rebuild, world.submits[-1].compact) == (True, True)
    world.apply(LOST)
    world.apply(Replaced())
    world.append(bytes(UNIT))
    assert (world.submits[-1].rebuild, world.submits[-1].compact) == (True, False)


@pytest.mark.parametrize("deleted", [False, True])
def test_an_answer_that_is_made_again_hears_its_own_turn_and_no_later_one(deleted: bool) -> None:
    """Of a model that tells no words: it hears turns together that nobody has answered, up to the one that it answers."""
    world = World(MANUAL, capabilities=PLAIN)
    ask(world)
    if deleted:
        world.send(DeleteItem(item_id=world.last(InputCommitted).item.item_id))
    world.append(audio("S" * 12))
    world.send(CommitAudio())
    world.apply(LOST)
    world.apply(Replaced())
    assert world.submits[-1].audio == audio("S" * 20)
