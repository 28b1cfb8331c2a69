"""Turns that the client of a resident model ends: what no stage has taken of them is kept, and goes with their items."""

from __future__ import annotations

import pytest

from duologue.config.session import SessionConfig
from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.commands import (
    BargeIn,
    CancelInput,
    CancelResponse,
    ClearAudio,
    ClearOutput,
    CommitAudio,
    CreateResponse,
    DeleteItem,
    DuplexCommand,
    SignalTurn,
)
from duologue.engine.duplex.core.effects import SubmitAppend
from duologue.engine.duplex.events import ErrorRaised, InputCommitted, ResponseDone
from duologue.engine.duplex.results import TurnEnded
from duologue.errors import ErrorCode
from tests.unit.core.harness import MANUAL, World, audio, speech
from tests.unit.core.test_resident import BY_CLIENT, UNIT, fed


def committed_in_part(config: SessionConfig = MANUAL) -> tuple[World, bytes]:
    """An answer is asked for whose turn has reached the stage with its first unit alone; returns what it has yet to take."""
    world = World(config, capabilities=BY_CLIENT, auto=False)
    stream = bytes(range(1, 251)) * 60
    world.append(stream[: 4 * UNIT])
    world.send(CommitAudio(create_response=True))
    world.answer(world.take(SubmitAppend))
    return world, stream[UNIT : 4 * UNIT]


@pytest.mark.parametrize("stop", [CancelResponse(), ClearOutput(), CancelInput(), BargeIn(), SignalTurn(name="cancel")])
def test_behaviour_08_tail_what_no_stage_has_taken_of_a_committed_turn_outlives_the_answer(stop: DuplexCommand) -> None:
    world, rest = committed_in_part()
    world.send(stop)
    assert world.last(ResponseDone).status == "cancelled" and world.core.epoch == 1
    assert world.core.held()["input_bytes"] == len(rest)
    second = b"\x02\x40" * UNIT
    world.append(second)
    world.send(CommitAudio(create_response=True))
    world.answer_all()
    assert fed(world, 1) == rest + second
    assert [s.final for s in world.submits if s.fence.epoch == 1] == [False] * 4 + [True]
    assert world.core.held()["input_bytes"] == 0


def test_behaviour_08_tail_a_turn_whose_answer_was_cancelled_may_be_answered_all_the_same() -> None:
    world, rest = committed_in_part()
    world.send(CancelResponse())
    world.send(CreateResponse())
    world.answer_all()
    assert fed(world, 1) == rest and world.submits[-1].final and not world.of(ErrorRaised)
    world.speak(speech("Yes.", 200), TurnEnded())
    world.advance(1.0)
    world.send(CancelResponse())
    world.send(CreateResponse(event_id="nothing"))
    assert world.last(ErrorRaised).code is ErrorCode.RESPONSE_CREATE_WITHOUT_INPUT


def test_the_wish_for_an_answer_that_was_cancelled_is_not_kept() -> None:
    world = World(MANUAL, capabilities=BY_CLIENT, auto=False)
    world.append(audio("S" * 5))
    world.send(CommitAudio())
    world.answer_all()
    world.send(CreateResponse())  # in flight: a unit that nobody said
    world.send(CancelResponse())
    world.answer_all()
    assert world.core.held()["input_bytes"] == 0
    world.send(CreateResponse(event_id="nothing"))
    assert world.last(ErrorRaised).code is ErrorCode.RESPONSE_CREATE_WITHOUT_INPUT


@pytest.mark.parametrize("refused", [True, False])
def test_the_audio_of_a_turn_that_waits_goes_with_its_item(refused: bool) -> None:
    """``refused`` by the stage, or withdrawn with the answer it was for. What waits of other turns stays."""
    world, rest = committed_in_part()
    if refused:
        world.answer(world.take(SubmitAppend), ok=False)
    else:
        world.send(CancelResponse())
        world.answer_all()
    world.append(b"\x02\x40" * 3_300)
    world.send(CommitAudio())
    world.answer(world.take(SubmitAppend), ok=False)
    first, second = (event.item.item_id for event in world.of(InputCommitted))
    assert world.core.held()["input_bytes"] == len(rest) + 3 * UNIT
    world.send(DeleteItem(item_id=first))
    assert world.core.held()["input_bytes"] == 3 * UNIT
    world.send(DeleteItem(item_id=second))
    assert world.core.held()["input_bytes"] == 0
    count = len(world.submits)
    world.append(audio("S" * 5))
    world.send(CommitAudio(create_response=True))
    world.answer_all()
    assert b"".join(s.audio for s in world.submits[count:]) == audio("S" * 5)


def test_input_that_is_cleared_leaves_what_was_committed() -> None:
    world, rest = committed_in_part()
    world.send(CancelResponse())
    world.append(b"\x02\x40" * 3_300)
    world.send(ClearAudio())
    assert world.core.held()["input_bytes"] == len(rest)
    world.send(CreateResponse())
    world.answer_all()
    assert fed(world, 1) == rest


def test_turns_that_are_refused_again_and_again_make_room_for_the_next() -> None:
    """The oldest goes first, or a client that only ever commits would be deaf for good."""
    limit = 4 * UNIT
    runtime = DuplexSessionRuntimeConfig(max_pending_input_bytes_per_session=limit)
    world = World(MANUAL, capabilities=BY_CLIENT, auto=False, runtime=runtime)
    for number in range(1, 5):
        world.append(bytes([number]) * (2 * UNIT))
        world.send(CommitAudio())
        world.answer(world.take(SubmitAppend), ok=False)
        assert world.core.held()["input_bytes"] <= limit
    assert not [e for e in world.of(ErrorRaised) if e.code is ErrorCode.INPUT_BACKPRESSURE]
    assert world.core.acted()["input_reclaimed"] == 4
    assert b"".join(piece for _, piece in world.state.resident.waiting) == b"\x03" * (2 * UNIT) + b"\x04" * (2 * UNIT)


@pytest.mark.parametrize("stopped", [True, False])
def test_the_silence_that_asks_for_an_answer_is_nothing_that_the_user_said(stopped: bool) -> None:
    """A unit of it that no stage takes is not input, and is not given to the next request."""
    world = World(MANUAL, capabilities=BY_CLIENT, auto=False)
    world.append(audio("S" * 20))
    world.send(CommitAudio())
    world.answer_all()
    world.send(CreateResponse())
    wish = world.take(SubmitAppend)
    assert wish.silence and wish.final
    if stopped:
        world.send(CancelResponse())
    world.answer(wish, ok=False)
    assert world.core.held()["input_bytes"] == 0
    second = b"\x02\x40" * UNIT
    count = len(world.submits)
    world.append(second)
    world.send(CommitAudio(create_response=True))
    world.answer_all()
    assert b"".join(s.audio for s in world.submits[count:]) == second


def test_the_silence_that_asks_for_an_answer_is_followed_by_the_clock_a_period_later() -> None:
    """It is sent when the client asks, and not when the clock says so: the schedule begins with it."""
    world = World(MANUAL, capabilities=BY_CLIENT, auto=False)
    world.append(audio("S" * 20))
    world.send(CommitAudio())
    world.answer_all()
    world.advance(1.0)
    world.send(CreateResponse())
    world.answer(world.take(SubmitAppend))
    count = len(world.submits)
    world.speak(speech("Yes.", 80))
    world.advance(0.079)
    assert len(world.submits) == count
    world.advance(0.002)
    assert len(world.submits) == count + 1 and world.submits[-1].silence and not world.submits[-1].final
