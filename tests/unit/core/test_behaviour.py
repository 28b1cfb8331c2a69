"""Rules of the reference that stay, each test named after its section (see `tests/arch/kept.py`)."""

from __future__ import annotations

import pytest
from msgspec import structs

from duologue.config.session import SessionConfig, SessionPatch
from duologue.engine.duplex.commands import (
    AckPlayback,
    BargeIn,
    CallOutput,
    CancelInput,
    CancelResponse,
    ClearAudio,
    CommitAudio,
    CreateItem,
    CreateResponse,
    DeleteItem,
    InputItem,
    ResponseOptions,
    UpdateSession,
)
from duologue.engine.duplex.core.effects import Detect, JudgeConfig, SubmitAppend
from duologue.engine.duplex.core.items import AppendAccepted, AppendFailed
from duologue.engine.duplex.events import (
    ErrorRaised,
    FunctionCalled,
    InputCommitted,
    ItemAdded,
    PlaybackAcknowledged,
    ResponseDone,
    SessionUpdated,
)
from duologue.engine.duplex.results import FunctionCall, UserTranscript
from duologue.errors import ErrorCode
from duologue.outputs import ToolDefinition
from tests.unit.core.harness import CASCADE, MANUAL, NATIVE, PLAIN, SEMANTIC, VAD, World, audio, speech

UNIT = 1_280 * 2  # 80 ms at 16 kHz


def fed(count: int) -> tuple[World, list[SubmitAppend]]:
    """A resident model with so many units waiting: the first is on its way."""
    world = World(MANUAL, capabilities=NATIVE, auto=False)
    for number in range(count):
        world.append(bytes([number + 1]) * UNIT)
    return world, world.submits


def answer(world: World, *, ok: bool = True) -> SubmitAppend:
    effect = world.take(SubmitAppend)
    assert isinstance(effect, SubmitAppend)
    world.answer(effect, ok=ok)
    return effect


def test_behaviour_08_tail_submission_order_is_wire_order() -> None:
    world, submits = fed(5)
    assert len(submits) == 1  # one at a time
    for _ in range(5):
        answer(world)
    assert [submit.audio[0] for submit in submits] == [1, 2, 3, 4, 5]
    assert [submit.seq for submit in submits] == [1, 2, 3, 4, 5]


def test_behaviour_08_tail_a_failure_takes_along_what_is_behind_it_and_gives_the_audio_back() -> None:
    world, submits = fed(4)
    answer(world)
    answer(world, ok=False)
    assert len(submits) == 2 and world.state.tail.idle
    assert bytes(world.state.resident.buffer) == b"".join(bytes([n]) * UNIT for n in (2, 3, 4))
    world.append(bytes([5]) * UNIT)  # a later append starts a new chain
    while world.pending:
        answer(world)
    assert [submit.audio[0] for submit in submits[2:]] == [2, 3, 4, 5]
    assert submits[2].seq == 2 and world.core.phase == "open"


def test_behaviour_08_tail_a_failure_fails_the_response_that_was_made_for_it() -> None:
    world = World(MANUAL, auto=False)
    world.append(audio("S" * 20))
    world.send(CommitAudio(create_response=True))
    answer(world, ok=False)
    assert [type(e).__name__ for e in world.events[-2:]] == ["ErrorRaised", "ResponseDone"]
    assert world.last(ErrorRaised).code is ErrorCode.RUNTIME_APPEND_FAILED
    assert world.last(ResponseDone).status == "failed" and world.core.phase == "open"


@pytest.mark.parametrize("command", [CancelResponse(), BargeIn()])
@pytest.mark.parametrize("taken", [True, False])
def test_behaviour_08_tail_what_a_cancel_withdraws_is_the_cancels_to_end(command: object, taken: bool) -> None:
    world = World(MANUAL, auto=False)
    world.append(audio("S" * 20))
    world.send(CommitAudio(create_response=True))
    on_its_way = world.take(SubmitAppend)
    assert isinstance(on_its_way, SubmitAppend)
    world.send(command)
    assert [event.status for event in world.of(ResponseDone)] == ["cancelled"]
    if taken:
        world.apply(AppendAccepted(number=on_its_way.number, submitted_at=world.now))
    else:
        world.apply(AppendFailed(number=on_its_way.number, code=ErrorCode.STALE_FENCE, message="withdrawn"))
    assert len(world.of(ResponseDone)) == 1 and not world.of(ErrorRaised)


def test_behaviour_08_tail_a_closing_session_submits_nothing() -> None:
    world, submits = fed(3)
    world.close()
    on_its_way = world.take(SubmitAppend)
    assert isinstance(on_its_way, SubmitAppend)
    world.apply(AppendAccepted(number=on_its_way.number, submitted_at=world.now))
    world.answer_all()
    assert len(submits) == 1


def test_behaviour_08_tail_cleared_input_is_not_submitted() -> None:
    world = World(MANUAL, auto=False)
    world.append(audio("S" * 20))
    world.send(ClearAudio())
    world.append(audio("." * 20))
    world.send(CommitAudio(create_response=True))
    assert [submit.audio for submit in world.submits] == [audio("." * 20)]


def test_behaviour_08_tail_an_answer_waits_for_what_was_appended_before_it() -> None:
    """A commit takes exactly what was sent before it, however slow the stage is."""
    world = World(MANUAL, capabilities=CASCADE, auto=False)
    for letter in "S.":
        world.append(audio(letter * 10))
    world.send(CommitAudio(create_response=True))
    world.append(audio("S" * 30))
    assert b"".join(submit.audio for submit in world.submits) == audio("S" * 10 + "." * 10)


def told(world: World, event_id: str) -> list[ErrorCode]:
    return [error.code for error in world.of(ErrorRaised) if error.event_id == event_id]


def settings(instructions: str) -> UpdateSession:
    return UpdateSession(patch=SessionPatch(instructions=instructions), event_id=instructions)


def test_behaviour_08_tail_new_settings_reach_nothing_that_was_sent_before_them() -> None:
    world, submits = fed(3)
    world.send(settings("new"))
    world.append(bytes([9]) * UNIT)  # the shell holds this back, see below; the session keeps the order without it
    assert len(world.of(SessionUpdated)) == 1 and world.core.holding
    world.answer_all()
    assert [submit.instructions for submit in submits[:3]] == [""] * 3
    world.append(bytes([10]) * UNIT)
    world.answer_all()
    assert submits[-1].instructions == "new" and not world.core.holding
    assert len(world.of(SessionUpdated)) == 2 and not world.of(ErrorRaised)


def test_behaviour_08_tail_settings_are_changed_one_after_the_other() -> None:
    world, submits = fed(2)
    for name in ("one", "two", "three"):
        world.send(settings(name))
    world.answer_all()
    assert [event.config.instructions for event in world.of(SessionUpdated)[1:]] == ["one", "two", "three"]
    assert [submit.instructions for submit in submits] == ["", ""]


def test_behaviour_08_tail_settings_behind_a_failed_tail_are_not_changed() -> None:
    world, submits = fed(3)
    world.send(settings("new"))
    answer(world, ok=False)
    assert told(world, "new") == [ErrorCode.SESSION_UPDATE_ABORTED] and world.core.phase == "open"
    world.send(settings("newer"))  # nothing is on its way any more
    world.append(bytes([4]) * UNIT)
    world.answer_all()
    assert world.core.config.instructions == "newer" and not told(world, "newer")
    assert [submit.audio[0] for submit in submits[1:]] == [1, 2, 3, 4]


COMMITS = SessionConfig(auto_response=True)


@pytest.mark.parametrize("ok", [True, False])
def test_behaviour_08_tail_a_commit_of_a_resident_model_waits(ok: bool) -> None:
    world = World(COMMITS, capabilities=structs.replace(NATIVE, supports_client_commit=True), auto=False)
    for number in range(3):
        world.append(bytes([number + 1]) * UNIT)
    world.send(CommitAudio(event_id="c"))
    answer(world)
    assert not world.of(InputCommitted)
    answer(world, ok=ok)
    world.answer_all()
    assert told(world, "c") == ([] if ok else [ErrorCode.COMMIT_ABORTED])
    assert len(world.of(InputCommitted)) == ok and world.core.phase == "open"
    world.append(bytes([4]) * UNIT * 2)
    world.send(CommitAudio(event_id="d"))
    world.answer_all()
    assert not told(world, "d") and len(world.of(InputCommitted)) == 1 + ok


@pytest.mark.parametrize("ok", [True, False])
def test_behaviour_08_tail_a_commit_of_a_turn_that_is_streamed_waits(ok: bool) -> None:
    world = World(VAD, auto=False)
    world.say("S" * 30)
    world.answer_all(Detect)
    world.send(CommitAudio(create_response=True, event_id="c"))
    world.say("." * 5)
    world.answer_all(Detect)
    assert not world.of(InputCommitted) and world.core.holding
    answer(world, ok=ok)
    assert told(world, "c") == ([] if ok else [ErrorCode.COMMIT_ABORTED])
    assert len(world.of(InputCommitted)) == ok and not world.core.holding
    world.say("." * 20)
    world.answer_all()
    assert len(world.of(InputCommitted)) == 1  # the detector ends the turn that the commit did not
    assert audio("S" * 30) in b"".join(submit.audio for submit in world.submits[not ok :])


@pytest.mark.parametrize("ok", [True, False])
def test_behaviour_08_tail_a_second_turn_waits_for_the_first(ok: bool) -> None:
    world = World(MANUAL, capabilities=PLAIN, auto=False)
    for name in ("one", "two"):
        world.append(audio("S" * 10))
        world.send(CommitAudio(create_response=True, event_id=name))
    world.send(settings("new"))
    assert len(world.of(InputCommitted)) == 1
    answer(world, ok=ok)
    world.answer_all()
    assert not told(world, "one")
    assert told(world, "two") == ([] if ok else [ErrorCode.COMMIT_ABORTED])
    assert told(world, "new") == ([] if ok else [ErrorCode.SESSION_UPDATE_ABORTED])
    assert world.core.config.instructions == ("new" if ok else "") and world.core.phase == "open"


def asked_for_a_function() -> tuple[World, CreateItem]:
    """A resident model that asked for a function, with input on its way; and the result."""
    config = SessionConfig(tools=(ToolDefinition(name="weather"),))
    world = World(config, capabilities=structs.replace(NATIVE, calls_functions=True), auto=False)
    world.append(bytes([1]) * UNIT)
    answer(world)
    world.speak(speech("Let me see.", 80), FunctionCall(name="weather", arguments="{}"))
    call = world.last(FunctionCalled).item.parts[0]
    world.append(bytes([2]) * UNIT)
    return world, CreateItem(item=InputItem(role="tool", output=CallOutput(call.call_id, "sunny")), event_id="r")


@pytest.mark.parametrize("ok", [True, False])
def test_behaviour_08_tail_a_functions_result_waits(ok: bool) -> None:
    world, result = asked_for_a_function()
    world.send(result)
    assert not world.of(ItemAdded)
    answer(world, ok=ok)
    world.answer_all()
    assert len(world.of(ItemAdded)) == ok
    assert told(world, "r") == ([] if ok else [ErrorCode.COMMIT_ABORTED])
    assert [submit.result.text for submit in world.submits if submit.result is not None] == ["sunny"] * ok
    assert world.core.phase == "open"


@pytest.mark.parametrize("command", [BargeIn(), CancelInput()])
def test_behaviour_08_tail_a_cancel_waits_for_nothing_that_waits(command: object) -> None:
    world = World(VAD, auto=False)
    world.say("S" * 30)
    world.answer_all(Detect)
    world.send(CommitAudio(event_id="c"))
    world.send(settings("new"))
    world.send(command)
    assert world.state.commit_wait is None and world.state.tail.idle
    world.answer_all()
    assert not world.of(InputCommitted) and not world.of(ErrorRaised)
    assert world.core.config.instructions == "new"


def test_behaviour_08_tail_an_answer_that_is_asked_for_later_changes_nothing_in_units_before_it() -> None:
    world = World(MANUAL, capabilities=structs.replace(NATIVE, supports_text_turns=True), auto=False)
    for number in range(3):
        world.append(bytes([number + 1]) * UNIT)
    world.send(CreateResponse(options=ResponseOptions(instructions="shout")))
    world.answer_all(SubmitAppend)
    assert [submit.instructions for submit in world.submits] == ["", "", "", "shout"]


def test_behaviour_08_tail_an_answer_reads_the_conversation_that_it_was_asked_for_in() -> None:
    world = World(MANUAL, auto=False)
    beside = ResponseOptions(out_of_band=True, modality="text")
    world.send(CreateResponse(options=beside))  # the stage is busy with it
    item = InputItem(role="user", texts=("before",), item_id="before")
    world.send(CreateItem(item=item))
    world.send(CreateResponse())
    world.send(CreateItem(item=InputItem(role="user", texts=("after",))))
    world.send(DeleteItem(item_id="before"))
    world.answer_all(SubmitAppend)
    assert [entry.text for entry in world.submits[-1].history] == ["before"]


def test_behaviour_08_tail_an_answer_in_preparation_is_begun_anew_under_new_settings() -> None:
    world = World(SEMANTIC, auto=False)
    for char in "S" * 20 + "." * 8:
        world.say(char)
        world.answer_all(Detect, SubmitAppend)
    assert world.state.turn is not None and world.state.turn.state == "provisional"
    world.send(settings("new"))
    world.answer_all(JudgeConfig, SubmitAppend)
    world.answer_all()
    final = [submit for submit in world.submits if submit.final]
    assert [submit.instructions for submit in final] == ["", "new"]
    assert final[0].request_id in world.aborted


def test_behaviour_16_the_place_in_history_is_the_answers_from_its_first_acknowledgement() -> None:
    world = World(MANUAL)
    world.append(audio("S" * 20))
    world.send(CommitAudio(create_response=True))
    world.speak(UserTranscript(text="hi", final=True), speech("One two three four.", 2_000))
    world.advance(0.5)
    world.send(AckPlayback(played_ms=300))
    mine = world.last(PlaybackAcknowledged)
    assert mine.history_committed
    world.send(CreateItem(item=InputItem(role="user", item_id="later", texts=("more",))))
    world.send(AckPlayback(played_ms=400))
    order = [item.item_id for item in world.state.history.items]
    assert order.index(mine.item_id) == 1 and order[-1] == "later"
    world.send(CancelResponse())
    world.send(CreateResponse())
    assert [entry.role for entry in world.submits[-1].history] == ["user", "assistant", "user"]
