"""Every limit of a session's core one below, at, and one above; and that it is counted when it acts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec import structs

from duologue.config.session import ServerVad, SessionConfig, SessionPatch
from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.commands import (
    CommitAudio,
    CreateItem,
    CreateResponse,
    DeleteItem,
    InputItem,
    UpdateSession,
)
from duologue.engine.duplex.core.barrier import MAX_WAITING_COMMANDS
from duologue.engine.duplex.core.effects import JudgeConfig
from duologue.engine.duplex.core.history import HELD_PROMPTS
from duologue.engine.duplex.core.items import OutputTaken
from duologue.engine.duplex.core.submission import TRANSCRIPT_WAIT_S
from duologue.engine.duplex.core.tools import MAX_ARGUMENT_CHARS
from duologue.engine.duplex.events import (
    ErrorRaised,
    FunctionCalled,
    InputCommitted,
    ItemAdded,
    ResponseCreated,
    ResponseDone,
    ResponseListen,
    SpeechStopped,
)
from duologue.engine.duplex.plugin import ModelCapabilities
from duologue.engine.duplex.results import FunctionCall, Speech
from duologue.errors import ErrorCode
from duologue.outputs import ToolDefinition
from tests.unit.core.harness import CASCADE, MANUAL, NATIVE, PLAIN, VAD, World, audio, speech

AROUND = pytest.mark.parametrize("extra", [-1, 0, 1])


def limited(config: SessionConfig = MANUAL, *, capabilities: object = CASCADE, **limits: object) -> World:
    runtime = DuplexSessionRuntimeConfig(**limits)  # type: ignore[arg-type]
    return World(config, capabilities=capabilities, runtime=runtime)  # type: ignore[arg-type]


def refusals(world: World) -> list[ErrorCode]:
    return [event.code for event in world.of(ErrorRaised)]


@AROUND
def test_input_bytes(extra: int) -> None:
    world = limited(max_pending_input_bytes_per_session=20_000)
    world.append(bytes(15_000))
    world.append(bytes(5_000 + 2 * extra))
    assert refusals(world) == [ErrorCode.INPUT_BACKPRESSURE] * (extra > 0)
    assert world.core.held()["input_bytes"] == (20_000 + 2 * extra if extra <= 0 else 15_000)
    assert world.core.acted().get("input", 0) == (extra > 0)


def _on_its_way_in_a_turn(world: World) -> None:
    world.append(bytes(12_000))
    world.send(CommitAudio(create_response=True))


def _on_its_way_together(world: World) -> None:
    for _ in range(2):
        world.append(bytes(6_000))
        world.send(CommitAudio(create_response=False))
    world.send(CreateResponse())


def _on_its_way_in_units(world: World) -> None:
    for size in (2_560, 2_560, 2_000, 4_880):
        world.append(bytes(size))


BY_CLIENT = structs.replace(NATIVE, supports_client_commit=True)


@AROUND
@pytest.mark.parametrize(
    ("config", "capabilities", "begin"),
    [
        pytest.param(MANUAL, CASCADE, _on_its_way_in_a_turn, id="transcribes"),
        pytest.param(MANUAL, PLAIN, _on_its_way_in_a_turn, id="plain"),
        pytest.param(MANUAL, structs.replace(PLAIN, supports_text_turns=False), _on_its_way_together, id="together"),
        pytest.param(MANUAL, NATIVE, _on_its_way_in_units, id="units"),
        pytest.param(VAD, NATIVE, _on_its_way_in_units, id="units-detected"),
        pytest.param(MANUAL, BY_CLIENT, _on_its_way_in_units, id="units-kept"),
        pytest.param(MANUAL, BY_CLIENT, _on_its_way_in_a_turn, id="units-of-a-turn"),
    ],
)
def test_input_bytes_on_their_way(
    extra: int, config: SessionConfig, capabilities: ModelCapabilities, begin: Callable[[World], None]
) -> None:
    """What a stage has not taken yet counts once, whatever it is kept for beside that."""
    runtime = DuplexSessionRuntimeConfig(max_pending_input_bytes_per_session=20_000)
    world = World(config, capabilities=capabilities, runtime=runtime, auto=False)
    begin(world)
    filled = world.core.held()["input_bytes"]
    assert 12_000 <= filled <= 12_000 + 2_560, "but for the silence that fills the last unit of a turn"
    world.append(bytes(20_000 - filled + 2 * extra))
    assert refusals(world) == [ErrorCode.INPUT_BACKPRESSURE] * (extra > 0)
    assert world.core.held()["input_bytes"] == (20_000 + 2 * extra if extra <= 0 else filled)


@AROUND
def test_input_reclaimed(extra: int) -> None:
    """The audio of turns that nobody asked an answer for makes room, oldest first."""
    world = limited(capabilities=PLAIN, max_pending_input_bytes_per_session=20_000)
    for _ in range(2):
        world.append(bytes(6_000))
        world.send(CommitAudio(create_response=False))
    world.append(bytes(8_000 + 2 * extra))
    assert refusals(world) == []
    assert len(world.state.committed) == (1 if extra > 0 else 2)
    assert world.core.acted().get("input_reclaimed", 0) == (extra > 0)


@AROUND
def test_turns(extra: int) -> None:
    world = limited(max_pending_turns_per_session=3)
    world.append(audio("S" * 20))
    world.send(CommitAudio(create_response=True))
    for number in range(3 + extra):
        world.append(audio("S" * 20))
        world.send(CommitAudio(create_response=True, event_id=f"e{number}"))
    assert [(e.code, e.event_id) for e in world.of(ErrorRaised)] == [
        (ErrorCode.INPUT_BACKPRESSURE, f"e{number}") for number in range(3, 3 + extra)
    ]
    assert len(world.of(InputCommitted)) == 1 + min(3, 3 + extra) and world.core.held()["turns"] == min(3, 3 + extra)
    assert world.core.acted().get("turns", 0) == (extra > 0)


@AROUND
def test_output_bytes(extra: int) -> None:
    """Counted are the text of an event and 400 bytes for its frame."""
    runtime = DuplexSessionRuntimeConfig(max_pending_output_bytes_per_session=10_000)
    world = World(MANUAL, runtime=runtime, takes=False)
    world.apply(OutputTaken(number=10_000))
    for size in (4_600, 4_600 + extra):
        world.send(CreateItem(item=InputItem(role="user", texts=("x" * size,))))
    assert (world.core.phase == "open") == (extra <= 0)
    if extra <= 0:
        assert world.core.held()["untaken_bytes"] == 10_000 + extra and world.core.held()["untaken_events"] == 2
    assert world.core.acted().get("output", 0) == (extra > 0)


@AROUND
def test_backlog(extra: int) -> None:
    world = limited(max_backlog_ms=2_000)
    world.append(audio("S" * 20))
    world.send(CommitAudio(create_response=True))
    world.speak(speech("Words.", 2_400 + extra))
    assert world.core.held()["backlog_ms"] == 2_000 + extra
    assert world.core.acted().get("backlog", 0) == (extra >= 0)


@AROUND
def test_items(extra: int) -> None:
    world = limited(max_items_per_session=5)
    for number in range(5 + extra):
        world.send(CreateItem(item=InputItem(role="user", item_id=f"i{number}", texts=("hello",))))
    assert len(world.of(ItemAdded)) == 5 + extra
    assert [item.item_id for item in world.state.history.items] == [f"i{n}" for n in range(5 + extra)][-5:]
    assert world.core.acted()["items"] == max(0, extra) and world.core.held()["items"] == min(5, 5 + extra)


@AROUND
def test_history_chars(extra: int) -> None:
    world = limited(max_history_chars=1_000)
    for size in (400, 600 + extra):
        world.send(CreateItem(item=InputItem(role="user", texts=("x" * size,))))
    world.send(CreateResponse())
    assert [len(entry.text) for entry in world.submits[-1].history] == [400, 600 + extra][extra > 0 :]
    assert world.core.acted()["history_chars"] == (extra > 0)


@AROUND
def test_held_prompts(extra: int) -> None:
    """What a client writes is forgotten when it would fill so many prompts, the oldest first, deleted items not counted."""
    world = limited(max_history_chars=100, max_items_per_session=1_000)
    world.send(CreateItem(item=InputItem(role="user", item_id="gone", texts=("x" * 90,))))
    world.send(DeleteItem(item_id="gone"))
    for number in range(HELD_PROMPTS):
        size = 100 + (extra if number == HELD_PROMPTS - 1 and extra < 0 else 0)
        world.send(CreateItem(item=InputItem(role="user", item_id=f"i{number}", texts=("x" * (size - 40), "y" * 40))))
    if extra > 0:
        world.send(CreateItem(item=InputItem(role="user", item_id="more", texts=("x",))))
    held = [item.item_id for item in world.state.history.items]
    assert held == [f"i{n}" for n in range(extra > 0, HELD_PROMPTS)] + ["more"] * (extra > 0)
    assert world.state.history.written_chars == sum(item.written_chars for item in world.state.history.items)
    assert world.core.acted()["items"] == (extra > 0)


@pytest.mark.parametrize("place", ["root", None])
def test_the_item_just_added_is_never_forgotten_for_its_length(place: str | None) -> None:
    world = limited(max_history_chars=100)
    for number in range(HELD_PROMPTS + 3):
        given = InputItem(role="user", item_id=f"i{number}", texts=("x" * 100,))
        world.send(CreateItem(item=given, previous_item_id=place))
        assert world.state.history.get(f"i{number}") is not None
    assert len(world.state.history) == HELD_PROMPTS


@AROUND
def test_item_chars(extra: int) -> None:
    world = limited(max_history_chars=1_000)
    world.send(CreateItem(item=InputItem(role="user", texts=("x" * 600, "y" * (400 + extra)))))
    assert refusals(world) == [ErrorCode.INVALID_ITEM] * (extra > 0)


@AROUND
def test_turn_length(extra: int) -> None:
    """In frames of 32 ms, from the turn's first sample, its prefix included."""
    detection = ServerVad(prefix_padding_ms=0)
    world = limited(SessionConfig(turn_detection=detection), max_turn_ms=1_600)
    world.say("S" * (50 + extra))
    assert len(world.of(SpeechStopped)) == len(world.of(InputCommitted)) == (extra >= 0)
    assert world.core.acted().get("turn_length", 0) == (extra >= 0)


@AROUND
def test_starvation(extra: int) -> None:
    world = limited(VAD, starvation_ms=1_500)
    world.say("S" * 20)
    world.advance(1.5 + extra / 1_000)
    assert len(world.of(SpeechStopped)) == (extra >= 0)
    assert world.core.acted().get("starvation", 0) == (extra >= 0)


@AROUND
def test_waiting_commands(extra: int) -> None:
    """One is being judged, the others wait."""
    world = World(MANUAL, auto=False)
    for number in range(1 + MAX_WAITING_COMMANDS + extra):
        world.send(UpdateSession(patch=SessionPatch(instructions=f"Number {number}.")))
    assert refusals(world) == [ErrorCode.INPUT_BACKPRESSURE] * (extra > 0)
    assert world.core.held()["commands"] == min(MAX_WAITING_COMMANDS, MAX_WAITING_COMMANDS + extra)
    assert world.core.acted().get("commands", 0) == (extra > 0)
    world.answer_all(JudgeConfig)
    assert world.core.config.instructions == f"Number {MAX_WAITING_COMMANDS + min(extra, 0)}."


@AROUND
def test_transcript_wait(extra: int) -> None:
    world = World(MANUAL)
    for respond in (False, True):
        world.append(audio("S" * 20))
        world.send(CommitAudio(create_response=respond))
    assert world.of(ResponseCreated) and len(world.submits) == 1
    world.advance(TRANSCRIPT_WAIT_S + extra / 1_000)
    assert len(world.submits) == 1 + (extra >= 0)
    assert world.core.acted().get("transcript_wait", 0) == (extra >= 0)


@AROUND
def test_silence_units(extra: int) -> None:
    """The last unit asks the model to listen; with none left, the answer ends."""
    world = World(MANUAL, capabilities=NATIVE)
    world.append(audio("S" * 5))
    request_id = next(iter(world.core.live_request_ids()))
    for _ in range(NATIVE.max_silence_units + extra):
        world.speak(Speech(text="word ", audio=b"\1\0" * 1_920, rate_hz=24_000), request_id=request_id)
        world.advance(0.08)
    silent = [submit for submit in world.submits if submit.silence]
    assert len(silent) == NATIVE.max_silence_units + min(extra, 0)
    assert [submit.force_listen for submit in silent] == [False] * (NATIVE.max_silence_units - 1) + [True] * (
        extra >= 0
    )
    ended = [event for event in world.of(ResponseListen) if event.reason == "continuation_limit"]
    assert bool(ended) == bool(world.of(ResponseDone)) == (world.core.acted().get("silence_units", 0) == 1)
    assert bool(ended) == (extra > 0)


@AROUND
def test_commit_length(extra: int) -> None:
    world = World(MANUAL)
    world.append(bytes(2 * (1_600 + 16 * extra)))  # by the millisecond
    world.send(CommitAudio())
    assert refusals(world) == [ErrorCode.INPUT_AUDIO_BUFFER_EMPTY] * (extra < 0)


@AROUND
def test_argument_chars(extra: int) -> None:
    tool = ToolDefinition(name="f", description="", parameters="{}")
    world = World(SessionConfig(tools=(tool,)), capabilities=structs.replace(CASCADE, calls_functions=True))
    world.append(audio("S" * 20))
    world.send(CommitAudio(create_response=True))
    world.speak(FunctionCall(name="f", arguments="1" * (MAX_ARGUMENT_CHARS + extra)))
    assert refusals(world) == [ErrorCode.INVALID_FUNCTION_CALL] * (extra > 0)
    assert len(world.of(FunctionCalled)) == (extra <= 0)


@pytest.mark.parametrize("called", [False, True])
def test_an_item_that_makes_room_takes_its_audio_along(called: bool) -> None:
    """What nobody can answer any more is not kept, whatever put its item out of the conversation."""
    tool = ToolDefinition(name="f", description="", parameters="{}")
    config, model = (
        SessionConfig(tools=(tool,)),
        structs.replace(CASCADE, calls_functions=True, transcribes_input=False),
    )
    world = World(config, capabilities=model, runtime=DuplexSessionRuntimeConfig(max_items_per_session=2))
    world.append(audio("S" * 20))
    world.send(CommitAudio(create_response=called))
    if called:
        world.append(audio("S" * 20))
        world.send(CommitAudio())
        world.speak(FunctionCall(name="f"), FunctionCall(name="f"), FunctionCall(name="f"))
    else:
        for text in ("one", "two"):
            assert world.state.committed
            world.send(CreateItem(item=InputItem(role="user", texts=(text,))))
    assert not world.of(ErrorRaised)
    assert len(world.state.committed) == called  # the turn that is being answered has a use for it
