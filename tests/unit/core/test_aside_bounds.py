"""What bounds and stops responses outside the conversation."""

from __future__ import annotations

import msgspec
import pytest

from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.commands import (
    AckPlayback,
    ClearOutput,
    CreateResponse,
    InputItem,
    ResponseOptions,
)
from duologue.engine.duplex.core.tools import MAX_ARGUMENT_CHARS
from duologue.engine.duplex.events import (
    ErrorRaised,
    FunctionCalled,
    OutputCleared,
    PlaybackAcknowledged,
    ResponseCreated,
    ResponseDone,
)
from duologue.engine.duplex.results import FunctionCall, TurnEnded
from duologue.errors import ErrorCode
from duologue.outputs import ToolDefinition
from tests.unit.core.harness import CASCADE, MANUAL, World
from tests.unit.core.test_aside import aside, sent_ms, spoken

CALLING = msgspec.structs.replace(CASCADE, calls_functions=True)
WITH_CLOCK = msgspec.structs.replace(MANUAL, tools=(ToolDefinition(name="clock"),))


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_its_calls_may_have_arguments_as_long_as_those_of_the_conversation(extra: int) -> None:
    world = World(WITH_CLOCK, capabilities=CALLING)
    submit = aside(world)
    call = FunctionCall(name="clock", arguments="1" * (MAX_ARGUMENT_CHARS + extra))
    world.speak(call, TurnEnded(), finished=True, request_id=submit.request_id)
    assert [error.code for error in world.of(ErrorRaised)] == [ErrorCode.INVALID_FUNCTION_CALL] * (extra > 0)
    assert len(world.of(FunctionCalled)) == len(world.last(ResponseDone).calls) == (extra <= 0)


@pytest.mark.parametrize("made", [1, 2, 3])
def test_it_makes_as_many_calls_as_the_ledger_would_hold(made: int) -> None:
    world = World(WITH_CLOCK, capabilities=CALLING, runtime=DuplexSessionRuntimeConfig(max_tool_calls_per_session=2))
    submit = aside(world)
    world.speak(*[FunctionCall(name="clock")] * made, TurnEnded(), finished=True, request_id=submit.request_id)
    assert [error.code for error in world.of(ErrorRaised)] == [ErrorCode.RESOURCE_EXHAUSTED] * max(0, made - 2)
    assert len(world.of(FunctionCalled)) == len(world.last(ResponseDone).calls) == min(made, 2)
    assert world.last(ResponseDone).status == "completed" and len(world.state.tools) == 0


def test_it_makes_one_call_if_calls_are_not_to_be_parallel() -> None:
    world = World(msgspec.structs.replace(WITH_CLOCK, parallel_tool_calls=False), capabilities=CALLING)
    submit = aside(world)
    world.speak(*[FunctionCall(name="clock")] * 2, TurnEnded(), finished=True, request_id=submit.request_id)
    assert len(world.of(FunctionCalled)) == len(world.last(ResponseDone).calls) == 1 and not world.of(ErrorRaised)


@pytest.mark.parametrize("finished", [False, True])
def test_to_clear_its_output_stops_it(finished: bool) -> None:
    """A client that is told that the output was cleared hears no more of it."""
    world = spoken(3_000, finished=finished)
    response_id = world.last(ResponseCreated).response_id
    world.advance(0.5)
    world.send(ClearOutput(response_id=response_id))
    before = sent_ms(world, response_id)
    assert before < 3_000 and world.last(OutputCleared).response_id == response_id
    world.advance(5.0)
    assert sent_ms(world, response_id) == before
    (done,) = world.of(ResponseDone)
    assert (done.response_id, done.status, done.reason) == (response_id, "cancelled", "client_cancelled")


def test_to_clear_the_output_without_a_name_or_with_another_leaves_it() -> None:
    world = spoken(1_000)
    response_id = world.last(ResponseCreated).response_id
    for named in (None, "resp-unknown"):
        world.send(ClearOutput(response_id=named))
    world.advance(5.0)
    assert sent_ms(world, response_id) == 1_000


def test_an_acknowledgement_of_it_changes_nothing_and_is_no_error() -> None:
    world = spoken(3_000, finished=False)
    created = world.last(ResponseCreated)
    for response_id in (created.response_id, None):
        world.send(AckPlayback(played_ms=10, response_id=response_id, item_id=created.item_id))
    assert [event.note for event in world.of(PlaybackAcknowledged)] == ["superseded"] * 2
    assert not world.of(ErrorRaised) and world.state.playback.taken_ms == 0


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_what_is_to_be_read_instead_of_the_conversation_fits_or_is_refused(extra: int) -> None:
    """What no prompt can hold is not left out of it unsaid."""
    world = World(MANUAL, runtime=DuplexSessionRuntimeConfig(max_history_chars=100))
    given = (InputItem(role="user", texts=("One.",)), InputItem(role="user", texts=("x" * (100 + extra),)))
    world.send(CreateResponse(options=ResponseOptions(input=given[1:] if extra == 0 else given), event_id="e"))
    if extra > 0:
        (error,) = world.of(ErrorRaised)
        assert (error.code, error.param) == (ErrorCode.INVALID_ITEM, "response.input[1].content")
        assert error.event_id == "e" and not world.submits and not world.of(ResponseCreated)
    else:
        assert [len(entry.text) for entry in world.submits[-1].history] == [100 + extra]


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("out_of_band", [True, False])
def test_what_is_to_be_read_has_no_more_items_than_a_conversation(count: int, out_of_band: bool) -> None:
    world = World(MANUAL, runtime=DuplexSessionRuntimeConfig(max_items_per_session=3))
    given = (InputItem(role="user", texts=("One.",)),) * count
    world.send(CreateResponse(options=ResponseOptions(input=given, out_of_band=out_of_band), event_id="e"))
    errors = [(error.code, error.param, error.event_id) for error in world.of(ErrorRaised)]
    assert errors == ([] if count <= 3 else [(ErrorCode.INVALID_ITEM, "response.input", "e")])
    assert bool(world.submits) is (count <= 3)
