"""Function calls: each result is applied once, in its epoch, before its deadline, and every other is refused by name."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from duologue.config.session import SessionConfig, SessionPatch
from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.commands import (
    BargeIn,
    CallOutput,
    CancelResponse,
    CommitAudio,
    CreateItem,
    CreateResponse,
    DeleteItem,
    InputItem,
    ResponseOptions,
    RetrieveItem,
    TruncateItem,
    UpdateSession,
)
from duologue.engine.duplex.core.items import Attached, Detached, ResumeRequested
from duologue.engine.duplex.events import (
    CallPart,
    ErrorRaised,
    FunctionCalled,
    ItemAdded,
    ItemRetrieved,
    ItemTruncated,
    ResponseAudio,
    ResponseCreated,
    ResponseDone,
    SessionUpdated,
)
from duologue.engine.duplex.plugin import HistoryEntry
from duologue.engine.duplex.results import FunctionCall, TokensUsed, TurnEnded, UserTranscript
from duologue.errors import ErrorCode
from duologue.outputs import NamedTool, ToolCall, ToolDefinition
from tests.unit.core.harness import CASCADE, World, audio, speech

TOOLED = msgspec.structs.replace(CASCADE, calls_functions=True)
WEATHER = ToolDefinition(name="weather", description="The weather.", parameters='{"type": "object"}')
CLOCK = ToolDefinition(name="clock")
CONFIG = SessionConfig(tools=(WEATHER, CLOCK))
ASK = FunctionCall(name="weather", arguments='{"city": "Rome"}')


def world_of(config: SessionConfig = CONFIG, **runtime: object) -> World:
    limits = DuplexSessionRuntimeConfig(**runtime)  # type: ignore[arg-type]
    return World(config, capabilities=TOOLED, runtime=limits)


def ask(world: World, *calls: FunctionCall, said: str = "", end: bool = True) -> list[str]:
    """The user says something and the model asks for these functions; returns the ids of the calls."""
    before = len(world.of(FunctionCalled))
    world.append(audio("S" * 20))
    world.send(CommitAudio(create_response=True))
    world.speak(UserTranscript(text="How is it in Rome?", final=True))
    if said:
        world.speak(speech(said, 2_000))
    world.speak(*(calls or (ASK,)))
    if end:
        world.speak(TurnEnded(), finished=True)
    return [call_id(event) for event in world.of(FunctionCalled)[before:]]


def call_id(event: FunctionCalled) -> str:
    (part,) = event.item.parts
    assert isinstance(part, CallPart)
    return part.call_id


def result(world: World, call: str, text: str = "sunny", **fields: object) -> None:
    item = InputItem(role="tool", output=CallOutput(call, text), **fields)  # type: ignore[arg-type]
    world.send(CreateItem(item=item, event_id=f"result-{call}"))


def codes(world: World) -> list[ErrorCode]:
    return [event.code for event in world.of(ErrorRaised)]


def prompt(world: World) -> list[tuple[str, str]]:
    """What the model last read: role and text, a call by its name."""
    return [(entry.role, entry.text or entry.calls[0].name) for entry in world.submits[-1].history]


def test_a_call_is_an_item_and_its_result_is_what_the_model_reads_next() -> None:
    world = world_of()
    (call,) = ask(world)
    event = world.last(FunctionCalled)
    assert event.leads and event.response_id == world.last(ResponseCreated).response_id
    done = world.last(ResponseDone)
    assert (done.status, done.item, done.calls) == ("completed", None, (event.item,))
    result(world, call)
    added = world.last(ItemAdded)
    assert added.item.role == "tool" and added.previous_item_id == event.item.item_id
    world.send(CreateResponse())
    assert prompt(world) == [("user", "How is it in Rome?"), ("assistant", "weather"), ("tool", "sunny")]
    entry = world.submits[-1].history[1]
    assert entry.calls == (ToolCall(name="weather", arguments='{"city": "Rome"}', call_id=call),)
    assert world.submits[-1].history[2].call_id == call
    assert not world.of(ErrorRaised)


def test_a_call_does_not_wait_behind_the_audio_before_it() -> None:
    world = world_of()
    ask(world, said="Let me look that up.")
    assert world.state.outbox.backlog_ms > 0 and len(world.of(FunctionCalled)) == 1
    assert not world.of(ResponseDone) and not world.last(FunctionCalled).leads
    world.advance(3.0)
    done = world.last(ResponseDone)
    assert done.item is not None and len(done.calls) == 1
    assert world.state.history.items[-2].item_id == done.item.item_id


def test_what_was_said_first_stands_first_although_its_sound_comes_later() -> None:
    world = world_of()
    first, second = ask(world, ASK, ASK, end=False)
    world.speak(speech("Let me see.", 500), TurnEnded(), finished=True)
    world.advance(1.0)
    user, message, *calls = world.state.history.items
    assert [call_id(event) for event in world.of(FunctionCalled)] == [first, second]
    assert message.item_id == world.last(ResponseCreated).item_id
    assert [event.previous_item_id for event in world.of(FunctionCalled)] == [user.item_id, calls[0].item_id]
    world.send(CreateResponse())
    assert [role for role, _ in prompt(world)] == ["user", "assistant", "assistant", "tool", "assistant", "tool"]
    assert prompt(world)[1] == ("assistant", "Let me see.")


def test_the_assistant_goes_on_talking_while_a_tool_runs() -> None:
    world = world_of()
    (call,) = ask(world)
    world.append(audio("S" * 20))
    world.send_turn("It will take a moment.", 500, end=False)
    assert ("tool", "No result yet: the function is still running.") in prompt(world)
    world.advance(0.2)
    result(world, call)
    world.speak(TurnEnded(), finished=True)
    world.advance(1.0)
    assert world.last(ResponseDone).status == "completed" and world.of(ResponseAudio)
    world.send(CreateResponse())
    assert ("tool", "sunny") in prompt(world) and not world.of(ErrorRaised)


def test_a_second_result_changes_nothing() -> None:
    world = world_of()
    (call,) = ask(world)
    result(world, call, "sunny")
    result(world, call, "rainy")
    error = world.last(ErrorRaised)
    assert (error.code, error.event_id, error.param) == (
        ErrorCode.TOOL_RESULT_DUPLICATE,
        f"result-{call}",
        "item.call_id",
    )
    assert call in error.message
    world.send(CreateResponse())
    assert [text for role, text in prompt(world) if role == "tool"] == ["sunny"]


def test_a_result_that_was_deleted_is_not_applied_again() -> None:
    world = world_of()
    (call,) = ask(world)
    result(world, call)
    world.send(DeleteItem(item_id=world.last(ItemAdded).item.item_id))
    result(world, call)
    assert codes(world) == [ErrorCode.TOOL_RESULT_DUPLICATE]


def test_a_result_for_a_call_that_nobody_made() -> None:
    world = world_of()
    ask(world)
    result(world, "call_other")
    error = world.last(ErrorRaised)
    assert error.code is ErrorCode.TOOL_CALL_UNKNOWN and "call_other" in error.message
    assert not world.of(ItemAdded)


@pytest.mark.parametrize(("after_s", "late"), [(9.999, False), (10.0, True), (10.001, True)])
def test_a_result_at_the_deadline_is_late(after_s: float, late: bool) -> None:
    world = world_of(tool_result_timeout_s=10.0)
    (call,) = ask(world)
    world.now += after_s  # before any timer could fire
    result(world, call)
    assert bool(world.of(ItemAdded)) is not late
    assert codes(world) == ([ErrorCode.TOOL_RESULT_TIMEOUT] * 2 if late else [])


def test_a_time_out_is_reported_once_and_the_model_knows() -> None:
    world = world_of(tool_result_timeout_s=10.0)
    (call,) = ask(world)
    world.advance(60.0)
    assert codes(world) == [ErrorCode.TOOL_RESULT_TIMEOUT] and call in world.last(ErrorRaised).message
    assert world.core.next_deadline() is None
    world.send(CreateResponse())
    assert ("tool", "No result: the function did not answer in time.") in prompt(world)
    for times in (2, 3):  # each that comes later is refused, which is no second notice
        result(world, call)
        assert codes(world) == [ErrorCode.TOOL_RESULT_TIMEOUT] * times and not world.of(ItemAdded)


@pytest.mark.parametrize("how", [BargeIn(), CancelResponse()])
def test_field_F07_an_interruption_ends_the_call_and_the_next_turn_is_answered(how: object) -> None:
    world = world_of()
    (call,) = ask(world, said="Let me see.")
    world.advance(0.1)
    world.send(how)  # the result is ready in the same loop turn
    result(world, call)
    error = world.last(ErrorRaised)
    assert error.code is ErrorCode.TOOL_CALL_CANCELLED and call in error.message
    assert not world.of(ItemAdded)
    world.append(audio("S" * 20))
    world.send(CommitAudio(create_response=True))
    assert ("tool", "No result: the call was cancelled.") in prompt(world)
    world.reply("Yes?", 300)
    world.advance(1.0)
    assert world.last(ResponseDone).status == "completed"


def test_field_F46_a_call_is_whole_or_absent_whenever_the_answer_is_stopped() -> None:
    for calls in range(3):
        world = world_of()
        ask(world, *([ASK] * calls or [TokensUsed(input_tokens=1, output_tokens=1)]), said="Well.", end=False)
        world.send(BargeIn())
        done = world.last(ResponseDone)
        assert (done.status, len(done.calls)) == ("cancelled", calls)
        assert all(call.status == "completed" for call in done.calls)
        world.send(CreateResponse())
        entries = world.submits[-1].history
        for entry, following in pairwise(entries):
            assert not entry.calls or (following.role, following.call_id) == ("tool", entry.calls[0].call_id)


def test_field_F30_rounds_are_not_counted() -> None:
    world = world_of(max_tool_calls_per_session=4)
    for _ in range(12):
        (call,) = ask(world)
        result(world, call)
        world.send(CreateResponse())
        world.reply("Sunny.", 300, transcript=None)
        world.advance(1.0)
    assert not world.of(ErrorRaised) and len(world.of(FunctionCalled)) == 12
    assert len(world.state.tools) == 4


@pytest.mark.parametrize("pending", [3, 4, 5])
def test_the_ledger_holds_so_many_calls_that_wait(pending: int) -> None:
    world = world_of(max_tool_calls_per_session=4)
    calls = ask(world, *[ASK] * pending)
    assert len(calls) == min(pending, 4) and len(world.state.tools.pending()) == len(calls)
    assert codes(world) == [ErrorCode.RESOURCE_EXHAUSTED] * max(0, pending - 4)
    assert world.last(ResponseDone).status == "completed"
    result(world, calls[0])
    (more,) = ask(world)
    assert more not in calls


def test_a_result_survives_that_the_connection_is_lost_and_is_not_applied_twice() -> None:
    world = world_of()
    (call,) = ask(world)
    world.apply(Detached())
    world.apply(Attached())
    world.apply(ResumeRequested(control_id="c", expected_generation=world.core.generation))
    result(world, call)
    result(world, call)
    assert codes(world) == [ErrorCode.TOOL_RESULT_DUPLICATE] and len(world.of(ItemAdded)) == 1


def test_a_call_that_is_deleted_waits_for_nothing() -> None:
    world = world_of(tool_result_timeout_s=10.0)
    (call,) = ask(world)
    world.send(DeleteItem(item_id=world.last(FunctionCalled).item.item_id))
    world.advance(20.0)
    assert not world.of(ErrorRaised)
    result(world, call)
    assert codes(world) == [ErrorCode.TOOL_CALL_CANCELLED]
    world.send(CreateResponse())
    assert [role for role, _ in prompt(world)] == ["user"]


def test_a_call_that_history_forgot_takes_no_result() -> None:
    world = world_of(max_items_per_session=3)
    (call,) = ask(world)
    for _ in range(3):
        world.send(CreateItem(item=InputItem(role="system", texts=("x",))))
    result(world, call)
    assert codes(world) == [ErrorCode.TOOL_CALL_CANCELLED]


def test_two_calls_are_answered_in_any_order() -> None:
    world = world_of()
    first, second = ask(world, ASK, FunctionCall(name="clock"))
    result(world, second, "noon")
    result(world, first, "sunny")
    world.send(CreateResponse())
    assert prompt(world)[1:] == [("assistant", "weather"), ("tool", "sunny"), ("assistant", "clock"), ("tool", "noon")]


def test_one_call_where_the_client_wants_one() -> None:
    world = world_of(msgspec.structs.replace(CONFIG, parallel_tool_calls=False))
    assert len(ask(world, ASK, FunctionCall(name="clock"))) == 1
    assert not world.of(ErrorRaised)


@pytest.mark.parametrize("call", [FunctionCall(name="unknown"), FunctionCall(name="clock", arguments="x" * 65_537)])
def test_a_call_that_nobody_can_answer_is_not_made(call: FunctionCall) -> None:
    world = world_of()
    assert ask(world, call) == []
    assert codes(world) == [ErrorCode.INVALID_FUNCTION_CALL] and world.last(ResponseDone).status == "completed"


def test_a_response_has_its_own_tools() -> None:
    world = world_of()
    only = ResponseOptions(tools=(CLOCK,), tool_choice=NamedTool("clock"))
    world.send(CreateItem(item=InputItem(role="user", texts=("What time is it?",))))
    world.send(CreateResponse(options=only))
    menu = world.submits[-1].config.menu
    assert menu is not None and (menu.tools, menu.choice) == ((CLOCK,), NamedTool("clock"))
    world.speak(FunctionCall(name="clock"), TurnEnded(), finished=True)
    assert len(world.of(FunctionCalled)) == 1
    world.send(CreateResponse(options=ResponseOptions(tool_choice="none")))
    assert world.submits[-1].config.menu is None
    world.speak(TurnEnded(), finished=True)
    world.send(CreateResponse(options=ResponseOptions(tool_choice=NamedTool("weather"), tools=()), event_id="e"))
    assert (world.last(ErrorRaised).event_id, world.last(ErrorRaised).param) == ("e", "response.tool_choice")


def test_a_model_that_calls_no_functions_is_offered_none() -> None:
    world = World(SessionConfig())
    world.send(UpdateSession(patch=SessionPatch(tools=(CLOCK,), instructions="new"), event_id="e"))
    world.send(CreateResponse(options=ResponseOptions(tools=(CLOCK,))))
    assert codes(world) == [ErrorCode.TOOLS_UNSUPPORTED] * 2
    assert [error.param for error in world.of(ErrorRaised)] == ["session.tools", "response.tools"]
    assert world.core.config.instructions == "" and not world.of(ResponseCreated)
    world.send(UpdateSession(patch=SessionPatch(tools=())))
    assert world.of(SessionUpdated)[1:]


@pytest.mark.parametrize(
    ("patch", "param"),
    [
        (SessionPatch(tools=(CLOCK, CLOCK)), "session.tools[1].name"),
        (SessionPatch(tool_choice=NamedTool("other")), "session.tool_choice"),
        (SessionPatch(tools=(), tool_choice="required"), "session.tool_choice"),
    ],
)
def test_tools_that_contradict_each_other_are_refused(patch: SessionPatch, param: str) -> None:
    world = world_of()
    world.send(UpdateSession(patch=patch))
    assert (world.last(ErrorRaised).code, world.last(ErrorRaised).param) == (ErrorCode.INVALID_SESSION_CONFIG, param)
    assert world.core.config == CONFIG


def test_field_F53_a_conversation_with_calls_is_brought_along() -> None:
    world = world_of()
    call = ToolCall(name="weather", arguments="{}", call_id="call_old")
    for item in (
        InputItem(role="user", texts=("How is it in Rome?",), item_id="u"),
        InputItem(role="assistant", call=call, item_id="c"),
        InputItem(role="tool", output=CallOutput("call_old", "sunny"), item_id="o"),
        InputItem(role="assistant", texts=("It is sunny.",), item_id="a"),
        InputItem(role="user", texts=("And now?",), item_id="u2"),
    ):
        world.send(CreateItem(item=item))
    assert not world.of(ErrorRaised)
    world.send(CreateResponse())
    assert prompt(world) == [
        ("user", "How is it in Rome?"),
        ("assistant", "weather"),
        ("tool", "sunny"),
        ("assistant", "It is sunny."),
        ("user", "And now?"),
    ]
    world.reply("Still sunny.", 300, transcript=None)
    world.advance(1.0)
    world.send(TruncateItem(item_id="a", audio_end_ms=100))
    assert codes(world) == [ErrorCode.ITEM_NOT_TRUNCATABLE] and not world.of(ItemTruncated)
    world.send(CreateItem(item=InputItem(role="tool", output=CallOutput("call_old", "rainy"))))
    world.send(CreateItem(item=InputItem(role="assistant", call=call)))
    assert codes(world)[1:] == [ErrorCode.TOOL_RESULT_DUPLICATE, ErrorCode.ITEM_EXISTS]


def test_a_result_without_its_call_is_not_read() -> None:
    world = world_of()
    (call,) = ask(world)
    event = world.last(FunctionCalled)
    result(world, call)
    world.send(DeleteItem(item_id=event.item.item_id))
    world.send(CreateResponse())
    assert [role for role, _ in prompt(world)] == ["user"]
    world.send(RetrieveItem(item_id=world.last(ItemAdded).item.item_id))
    assert world.last(ItemRetrieved).item == world.last(ItemAdded).item


def test_a_result_is_put_where_the_client_wants_it_and_read_behind_its_call() -> None:
    world = world_of()
    (call,) = ask(world)
    item = InputItem(role="tool", output=CallOutput(call, "sunny"), item_id="o")
    world.send(CreateItem(item=item, previous_item_id="root"))
    assert world.state.history.items[0].item_id == "o"
    world.send(CreateResponse())
    assert prompt(world) == [("user", "How is it in Rome?"), ("assistant", "weather"), ("tool", "sunny")]


def test_a_refused_item_leaves_the_call_open() -> None:
    world = world_of()
    (call,) = ask(world)
    item = InputItem(role="tool", output=CallOutput(call, "sunny"))
    world.send(CreateItem(item=item, previous_item_id="unknown"))
    assert codes(world) == [ErrorCode.ITEM_NOT_FOUND]
    result(world, call)
    assert codes(world) == [ErrorCode.ITEM_NOT_FOUND] and len(world.of(ItemAdded)) == 1


def test_the_budget_of_the_prompt_takes_a_call_with_its_result_or_not_at_all() -> None:
    world = world_of(max_history_chars=40)
    (call,) = ask(world, FunctionCall(name="clock", arguments="1234567890"))
    result(world, call, "a" * 31)
    world.send(CreateResponse())
    assert world.submits[-1].history == ()
    entry = HistoryEntry(item_id="i", role="tool", text="t", call_id="c")
    assert entry.message.call_id == "c"


def test_tokens_are_those_that_stages_counted() -> None:
    world = world_of()
    ask(
        world,
        TokensUsed(input_tokens=10, output_tokens=2),
        TokensUsed(input_tokens=5, output_tokens=1, cached_tokens=4),
    )
    usage = world.last(ResponseDone).usage
    assert (usage.input_tokens, usage.output_tokens, usage.cached_tokens) == (15, 3, 4)
    world.send(CreateResponse())
    world.speak(TurnEnded(), finished=True)
    assert world.last(ResponseDone).usage.input_tokens is None
