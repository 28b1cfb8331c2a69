"""Rules of the reference that stay, each test named after its section (see `tests/arch/kept.py`)."""

from __future__ import annotations

import pytest

from duologue.engine.duplex.commands import (
    AckPlayback,
    BargeIn,
    CancelResponse,
    ClearAudio,
    CommitAudio,
    CreateItem,
    CreateResponse,
    InputItem,
)
from duologue.engine.duplex.core.effects import SubmitAppend
from duologue.engine.duplex.core.items import AppendAccepted, AppendFailed
from duologue.engine.duplex.events import ErrorRaised, PlaybackAcknowledged, ResponseDone
from duologue.engine.duplex.results import UserTranscript
from duologue.errors import ErrorCode
from tests.unit.core.harness import CASCADE, MANUAL, NATIVE, World, audio, speech

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
