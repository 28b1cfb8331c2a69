"""What a resident model says of a function's result by itself is the answer that clients ask for after every result."""

from __future__ import annotations

import pytest
from msgspec import structs

from duologue.config.session import SessionConfig
from duologue.engine.duplex.commands import (
    BargeIn,
    CallOutput,
    CancelResponse,
    CreateItem,
    CreateResponse,
    DuplexCommand,
    InputItem,
    ResponseOptions,
)
from duologue.engine.duplex.core.effects import SubmitAppend
from duologue.engine.duplex.events import CallPart, ErrorRaised, FunctionCalled, ResponseCreated, ResponseDone
from duologue.engine.duplex.results import FunctionCall, TurnEnded
from duologue.errors import ErrorCode
from duologue.outputs import ToolDefinition
from tests.unit.core.harness import NATIVE, World, speech
from tests.unit.core.test_resident import UNIT

TOOLED = structs.replace(NATIVE, calls_functions=True)
CONFIG = SessionConfig(tools=(ToolDefinition(name="weather"),))
WISH = CreateResponse(options=ResponseOptions(metadata={"who": "me"}, modality="audio"), event_id="wish")
"""As some clients send it: what it asks for is what the session has."""


def asked(calls: int = 1) -> tuple[World, list[str]]:
    """A model that has called functions in an answer that is over; the ids of the calls."""
    world = World(CONFIG, capabilities=TOOLED)
    world.append(bytes(UNIT))
    world.speak(speech("Let me see.", 80), *[FunctionCall(name="weather", arguments="{}")] * calls, TurnEnded())
    world.advance(1.0)
    parts = [event.item.parts[0] for event in world.of(FunctionCalled)]
    return world, [part.call_id for part in parts if isinstance(part, CallPart)]


def give(world: World, *call_ids: str) -> None:
    for call_id in call_ids:
        world.send(CreateItem(item=InputItem(role="tool", output=CallOutput(call_id, "sunny"))))


def wishes(world: World) -> list[SubmitAppend]:
    return [submit for submit in world.submits if submit.final]


@pytest.mark.parametrize("sent", [False, True])
def test_the_answer_that_the_model_has_begun_is_the_one_that_is_wished_for(sent: bool) -> None:
    """``sent``: it has said all of it, and the sound is still leaving. An error would end some clients."""
    world, call_ids = asked()
    give(world, *call_ids)
    world.speak(speech("It is sunny.", 4_000), *([TurnEnded()] if sent else []))
    world.send(WISH)
    if not sent:
        world.speak(TurnEnded())
    world.advance(5.0)
    assert [done.full_text for done in world.of(ResponseDone)] == ["Let me see.", "It is sunny."]
    assert world.last(ResponseDone).metadata == {"who": "me"} and not world.of(ErrorRaised) and not wishes(world)


def test_the_answer_that_asked_goes_on_with_the_result() -> None:
    world = World(CONFIG, capabilities=TOOLED)
    world.append(bytes(UNIT))
    world.speak(speech("Let me see: ", 80), FunctionCall(name="weather", arguments="{}"))
    (part,) = world.last(FunctionCalled).item.parts
    give(world, part.call_id)
    world.speak(speech("sunny.", 2_000), TurnEnded())
    world.send(WISH)
    world.advance(5.0)
    assert [done.full_text for done in world.of(ResponseDone)] == ["Let me see: sunny."]
    assert not world.of(ErrorRaised) and not wishes(world)


def test_an_answer_that_waits_behind_another_is_the_one_that_is_wished_for() -> None:
    world, call_ids = asked()
    world.append(bytes(UNIT))
    world.speak(speech("By the way.", 4_000), TurnEnded())
    give(world, *call_ids)
    world.speak(speech("It is sunny.", 80), TurnEnded())
    world.send(WISH)
    world.advance(8.0)
    assert [done.full_text for done in world.of(ResponseDone)] == ["Let me see.", "By the way.", "It is sunny."]
    assert not world.of(ErrorRaised) and not wishes(world)


def test_an_answer_that_is_over_is_followed_by_a_response_without_content() -> None:
    world, call_ids = asked()
    give(world, *call_ids)
    world.speak(speech("It is sunny.", 80), TurnEnded())
    world.advance(1.0)
    world.send(WISH)
    created, done = world.last(ResponseCreated), world.last(ResponseDone)
    assert created.metadata == done.metadata == {"who": "me"} and created.response_id == done.response_id
    assert (done.status, done.full_text, done.item) == ("completed", "", None)
    assert not world.of(ErrorRaised) and not wishes(world)
    world.speak(speech("And tomorrow too.", 80), TurnEnded())  # what it says next is an answer of its own
    world.advance(1.0)
    assert world.last(ResponseDone).full_text == "And tomorrow too."
    world.send(WISH)
    assert [(e.code, e.event_id) for e in world.of(ErrorRaised)] == [(ErrorCode.RESPONSE_CREATE_WITHOUT_INPUT, "wish")]


def test_a_model_that_is_silent_yet_is_asked() -> None:
    world, call_ids = asked()
    give(world, *call_ids)
    world.send(WISH)
    assert world.last(ResponseCreated).metadata == {"who": "me"} and len(wishes(world)) == 1
    world.speak(speech("It is sunny.", 80), TurnEnded())
    world.advance(1.0)
    assert [done.full_text for done in world.of(ResponseDone)] == ["Let me see.", "It is sunny."]


@pytest.mark.parametrize("begun", [False, True])
def test_each_result_is_worth_one_wish(begun: bool) -> None:
    """Some clients wish for an answer after each of several results. ``begun``: the model was quicker than the first."""
    world, call_ids = asked(3)
    give(world, *call_ids)
    if begun:
        world.speak(speech("Sunny everywhere.", 80))
    for _ in range(3):
        world.send(WISH)
    if not begun:
        world.speak(speech("Sunny everywhere.", 80))
    world.speak(TurnEnded())
    world.advance(1.0)
    assert [done.full_text for done in world.of(ResponseDone)] == ["Let me see.", "Sunny everywhere."]
    assert not world.of(ErrorRaised) and len(wishes(world)) == (not begun)
    world.send(WISH)
    assert world.last(ErrorRaised).code is ErrorCode.RESPONSE_CREATE_WITHOUT_INPUT


def test_settings_of_its_own_are_a_wish_of_their_own() -> None:
    world, call_ids = asked()
    give(world, *call_ids)
    world.speak(speech("It is sunny.", 80))
    own = CreateResponse(options=ResponseOptions(instructions="In verse."))
    world.send(own)
    assert world.last(ErrorRaised).code is ErrorCode.RESPONSE_ALREADY_ACTIVE
    world.speak(TurnEnded())
    world.advance(1.0)
    world.send(own)
    assert len(wishes(world)) == 1 and wishes(world)[0].instructions == "In verse."


@pytest.mark.parametrize("stop", [CancelResponse(), BargeIn()])
def test_an_answer_that_was_stopped_may_be_asked_for(stop: DuplexCommand) -> None:
    world, call_ids = asked()
    give(world, *call_ids)
    world.speak(speech("It is sunny.", 4_000))
    world.send(stop)
    world.send(WISH)
    assert len(wishes(world)) == 1 and not world.of(ErrorRaised)
    assert any(entry.text == "sunny" for entry in wishes(world)[0].history)


def test_a_result_that_nobody_asked_about_is_forgotten_with_the_next_answer() -> None:
    world, call_ids = asked()
    give(world, *call_ids)
    for text in ("It is sunny.", "Something else."):
        world.advance(1.0)
        world.append(bytes(UNIT))
        world.speak(speech(text, 80), TurnEnded())
    world.advance(1.0)
    world.send(WISH)
    assert world.last(ErrorRaised).code is ErrorCode.RESPONSE_CREATE_WITHOUT_INPUT
