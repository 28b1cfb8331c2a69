"""Named situations that a session can be in, and every item that can arrive: what the pair tests multiply."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import structs

from duologue.config.session import ServerVad, SessionConfig, SessionPatch, TurnDetectionPatch
from duologue.engine.duplex import commands as c
from duologue.engine.duplex.core.effects import ClassifyTurn, Detect, JudgeConfig, SubmitAppend
from duologue.engine.duplex.core.items import (
    AppendAccepted,
    AppendFailed,
    Attached,
    AudioAppended,
    CleanupEnded,
    CloseRequested,
    CommandReceived,
    CommandRefused,
    ConfigJudged,
    Detached,
    DetectorFailed,
    Item,
    ModelSpoke,
    Opened,
    OutputTaken,
    Replaced,
    ReplicaLost,
    ResumeRequested,
    SpeechScored,
    StageFailed,
    TerminalClaimed,
    TimerFired,
    Touched,
    TurnClassified,
)
from duologue.engine.duplex.events import ResponseCreated
from duologue.engine.duplex.plugin import ModelCapabilities
from duologue.engine.duplex.results import FunctionCall, Listened, ModelFailed, ModelResult, TurnEnded, UserTranscript
from duologue.errors import ErrorCode
from duologue.outputs import ToolCall, ToolDefinition
from tests.unit.core.harness import CASCADE, MANUAL, NATIVE, RATE, SEMANTIC, VAD, World, audio, speech

BY_CLIENT = ModelCapabilities(family="resident", unit_ms=80, chunk_period_ms=80, input_rate_hz=RATE)
STORY = "One two three four five six seven eight nine ten."


def _pending(config: SessionConfig, capabilities: ModelCapabilities = CASCADE) -> World:
    return World(config, capabilities=capabilities, auto=False)


def _spoken(config: SessionConfig = VAD, **fields: object) -> World:
    """A turn was detected and committed; everything is answered but the model."""
    world = World(config, **fields)  # type: ignore[arg-type]
    world.say("." * 10 + "S" * 20 + "." * 16)
    return world


def new() -> World:
    return World(VAD, opened=False)


def idle() -> World:
    return World(VAD)


def idle_by_hand() -> World:
    world = World(MANUAL)
    world.append(audio("S" * 10))
    return world


def detecting() -> World:
    world = _pending(VAD)
    world.append(audio("S" * 20))
    return world


TOOLED = structs.replace(CASCADE, calls_functions=True)


def calling() -> World:
    """The model asked for a function, and goes on talking."""
    world = World(structs.replace(MANUAL, tools=(ToolDefinition(name="clock"),)), capabilities=TOOLED)
    world.append(audio("S" * 10))
    world.send(c.CommitAudio(create_response=True))
    world.speak(speech("Let me see.", 3_000), FunctionCall(name="clock"))
    return world


def beside() -> World:
    """A response outside the conversation is being submitted, and one in it waits behind it."""
    world = _pending(MANUAL)
    world.send(c.CreateResponse(options=c.ResponseOptions(out_of_band=True, modality="text")))
    world.append(audio("S" * 10))
    world.send(c.CommitAudio(create_response=True))
    return world


def speaking() -> World:
    world = World(VAD)
    world.say("." * 10 + "S" * 30)
    return world


def provisional() -> World:
    world = World(SEMANTIC, complete=0.1)
    world.say("." * 10 + "S" * 20 + "." * 8)
    world.speak(UserTranscript(text="i would like", final=True), speech("What?", 300))
    return world


def judging() -> World:
    world = _pending(SEMANTIC)
    for char in "S" * 20 + "." * 8:
        world.say(char)
        world.answer_all(Detect, SubmitAppend)
    return world


def commit_waiting() -> World:
    world = _pending(VAD)
    world.append(audio("S" * 20))
    world.send(c.CommitAudio(create_response=True))
    return world


def transcribing() -> World:
    world = World(MANUAL)
    world.append(audio("S" * 20))
    world.send(c.CommitAudio())
    return world


def created() -> World:
    return _spoken()


def created_in_flight() -> World:
    world = _pending(MANUAL)
    world.append(audio("S" * 20))
    world.send(c.CommitAudio(create_response=True))
    return world


def generating() -> World:
    world = _spoken()
    world.reply(STORY, 3_000, end=False)
    world.advance(0.5)
    return world


def draining() -> World:
    world = _spoken()
    world.reply(STORY, 3_000)
    world.advance(0.5)
    return world


def unread() -> World:
    world = _spoken(takes=False)
    world.reply(STORY, 3_000)
    world.advance(0.5)
    return world


def wanted() -> World:
    world = World(MANUAL)
    for _ in range(3):
        world.append(audio("S" * 20))
        world.send(c.CommitAudio(create_response=True))
    world.reply(STORY, 3_000)
    return world


def undecided() -> World:
    world = generating()
    world.say("S" * 5)
    return world


def acknowledging() -> World:
    world = draining()
    world.say("S" * 9)
    world.speak(UserTranscript(text="mm-hm", final=False))
    return world


def listening_over() -> World:
    world = _spoken(SessionConfig(turn_detection=ServerVad(), overlap_policy="listen_only"))
    world.reply(STORY, 3_000, end=False)
    world.say("S" * 20)
    return world


def playing() -> World:
    world = _spoken()
    world.reply(STORY, 1_000)
    world.advance(0.7)
    return world


def done() -> World:
    world = _spoken()
    world.reply(STORY, 500)
    world.advance(2.0)
    return world


def text() -> World:
    world = _spoken(structs.replace(VAD, output_modality="text"))
    world.reply(STORY, 0, end=False)
    return world


def detached() -> World:
    world = generating()
    world.apply(Detached())
    return world


def updating() -> World:
    world = _pending(VAD)
    for voice in ("a", "b"):
        world.send(c.UpdateSession(patch=SessionPatch(voice=voice)))
    return world


def detector_lost() -> World:
    world = _pending(VAD)
    world.append(audio("S" * 20))
    detect = world.take(Detect)
    world.apply(DetectorFailed(number=detect.number, kind="speech", message="broken"))  # type: ignore[attr-defined]
    return world


def resident_idle() -> World:
    world = World(VAD, capabilities=NATIVE)
    world.say("." * 20)
    return world


def resident_speaking() -> World:
    world = resident_idle()
    world.speak(speech(STORY, 3_000))
    world.advance(0.3)
    return world


def resident_undecided() -> World:
    world = resident_speaking()
    world.say("S" * 5)
    return world


def resident_in_flight() -> World:
    world = _pending(MANUAL, NATIVE)
    world.append(audio("S" * 20))
    return world


def resident_by_client() -> World:
    world = World(MANUAL, capabilities=BY_CLIENT)
    world.append(audio("S" * 20))
    world.send(c.CommitAudio(create_response=True))
    world.append(audio("S" * 20))
    return world


def closing() -> World:
    world = generating()
    world.send(c.CloseSession())
    return world


def cleaning() -> World:
    world = created_in_flight()
    world.close()
    return world


def closed() -> World:
    world = cleaning()
    world.apply(CleanupEnded(released=True))
    return world


SITUATIONS: dict[str, Callable[[], World]] = {
    make.__name__: make
    for make in (
        *(new, idle, idle_by_hand, detecting, speaking, provisional, judging, commit_waiting, transcribing, created),
        *(created_in_flight, generating, draining, unread, wanted, undecided, acknowledging, listening_over, playing),
        *(done, text, detached, updating, detector_lost, resident_idle, resident_speaking, resident_undecided),
        *(resident_in_flight, resident_by_client, calling, beside, closing, cleaning, closed),
    )
}


# -- every item ----------------------------------------------------------------------------------------------------------


def commands(world: World) -> Iterator[c.DuplexCommand]:
    """Every command, each in the forms that matter here, with event ids of their own."""
    history = world.state.history.items
    item_ids = [history[0].item_id, history[-1].item_id, "item_unknown"] if history else ["item_unknown"]
    known = world.of(ResponseCreated)
    response_ids = [known[0].response_id, "resp-unknown"] if known else ["resp-unknown"]
    mine = c.InputItem(item_id="mine", role="user", texts=("hello",))
    yield c.AppendAudio(audio=b"\0\0", event_id="e")
    for create in (None, True, False):
        yield c.CommitAudio(create_response=create, event_id="e")
    for response_id in (None, *response_ids):
        yield c.CancelResponse(response_id=response_id, event_id="e")
        yield c.ClearOutput(response_id=response_id, event_id="e")
        yield c.AckPlayback(played_ms=200, response_id=response_id, event_id="e")
    for options in (
        c.ResponseOptions(),
        c.ResponseOptions(modality="text"),
        c.ResponseOptions(out_of_band=True),
        c.ResponseOptions(out_of_band=True, modality="text"),
        c.ResponseOptions(input=(c.InputItem(role="user", texts=("hello",)),)),
        c.ResponseOptions(input=(c.ItemReference("item_unknown"),)),
    ):
        yield c.CreateResponse(options=options, event_id="e")
    pending = [record.call_id for record in world.state.tools.pending()]
    for call_id in (*pending, "call_unknown"):
        output = c.InputItem(role="tool", output=c.CallOutput(call_id, "noon"))
        yield c.CreateItem(item=output, event_id="e")
    yield c.CreateItem(item=c.InputItem(role="assistant", call=ToolCall(name="clock", call_id="c")), event_id="e")
    for item_id in item_ids:
        yield c.DeleteItem(item_id=item_id, event_id="e")
        yield c.RetrieveItem(item_id=item_id, event_id="e")
        yield c.TruncateItem(item_id=item_id, audio_end_ms=300, event_id="e")
        yield c.AckPlayback(played_ms=200, item_id=item_id, truncate=True, event_id="e")
        yield c.CreateItem(item=mine, previous_item_id=item_id, event_id="e")
    for previous in (None, "root"):
        yield c.CreateItem(item=mine, previous_item_id=previous, event_id="e")
    for patch in (
        SessionPatch(),
        SessionPatch(voice="other"),
        SessionPatch(turn_detection=None),
        SessionPatch(turn_detection=TurnDetectionPatch(type="server_vad")),
        SessionPatch(turn_detection=TurnDetectionPatch(type="semantic_vad")),
        SessionPatch(model="other"),
    ):
        yield c.UpdateSession(patch=patch, event_id="e")
    for name in ("barge_in", "cancel", "input.cancel", "close", "anything"):
        yield c.SignalTurn(name=name, event_id="e")
    yield from (c.ClearAudio(event_id="e"), c.BargeIn(event_id="e"), c.CancelInput(event_id="e"))
    yield from (c.Heartbeat(event_id="e"), c.AppendText(text="x", event_id="e"), c.CloseSession(event_id="e"))


def appends() -> Iterator[Item]:
    """Audio, long and short, with and without hints."""
    for hint in (None, "barge_in", "interrupt", "listen", "continue", "ack", "drop", "silence"):
        yield AudioAppended(pcm=audio("S" * 5), event_id="e", overlap_hint=hint)  # type: ignore[arg-type]
    yield AudioAppended(pcm=audio("." * 20))
    yield AudioAppended(pcm=b"")
    yield AudioAppended(pcm=audio("S" * 200))
    yield AudioAppended(pcm=audio("S"), force_barge_in=True)


def answers(world: World) -> Iterator[Item]:
    """Answers to effects: those that are awaited, and ones that nobody awaits."""
    numbers = {effect.number for effect in world.pending} | {0, 10_000}  # type: ignore[attr-defined]
    for number in sorted(numbers):
        yield SpeechScored(number=number, probabilities=(0.9,) * 20)
        yield SpeechScored(number=number, probabilities=())
        yield TurnClassified(number=number, probability=0.9)
        yield TurnClassified(number=number, probability=float("nan"))
        yield DetectorFailed(number=number, kind="speech", message="broken")
        yield DetectorFailed(number=number, kind="turn_end", message="broken")
        yield AppendAccepted(number=number, submitted_at=world.now)
        yield AppendFailed(number=number, code=ErrorCode.RUNTIME_APPEND_FAILED, message="no")
        yield ConfigJudged(number=number)
        yield ConfigJudged(number=number, code=ErrorCode.INVALID_SESSION_CONFIG, message="no")
        yield OutputTaken(number=number)


def results(world: World) -> Iterator[Item]:
    """Everything that a model can say, for the newest request, the oldest, and one that never was."""
    said: tuple[tuple[ModelResult, ...], ...] = (
        (),
        (UserTranscript(text="mm-hm", final=False),),
        (UserTranscript(text="what time is it", final=True),),
        (speech("More.", 200),),
        (speech("A great deal more.", 15_000),),
        (speech("", 0),),
        (Listened(),),
        (Listened(end_response=True),),
        (TurnEnded(),),
        (TurnEnded(model_turn_id=99),),
        (ModelFailed(message="no"),),
        (speech("a", 40), TurnEnded(), speech("b", 40), TurnEnded()),
    )
    fence = world.core.fence
    live = world.core.live_request_ids()
    for request_id in dict.fromkeys([*live[:1], *live[-1:], "unknown"]):
        for some in said:
            for finished in (False, True):
                yield ModelSpoke(request_id=request_id, fence=fence, results=some, finished=finished)
        for ends in (False, True):
            yield StageFailed(
                request_id=request_id, code=ErrorCode.RUNTIME_STREAM_FAILED, message="lost", session_ends=ends
            )
    yield StageFailed(request_id=None, code=ErrorCode.RUNTIME_STREAM_FAILED, message="lost")
    for pinned in (False, True):
        yield ReplicaLost(message="gone", pinned=pinned)
    yield Replaced()


def life(world: World) -> Iterator[Item]:
    """What happens to the session as a whole."""
    generation = world.core.generation
    yield from (Opened(), TimerFired(), Touched(), Attached(), TerminalClaimed(), Detached())
    yield from (Detached(expected_generation=generation), Detached(expected_generation=generation + 5))
    yield ResumeRequested(control_id="r", expected_generation=generation)
    yield ResumeRequested(control_id="r", expected_generation=generation + 5)
    yield CommandRefused(code=ErrorCode.BAD_AUDIO, message="bad", event_id="e")
    for kind in ("closed", "expired"):
        yield CloseRequested(kind=kind, reason="why")  # type: ignore[arg-type]
    yield CloseRequested(kind="closed", reason="why", fault=ErrorCode.REPLICA_UNAVAILABLE, message="gone")
    yield from (CleanupEnded(released=True), CleanupEnded(released=False))


def every_item(world: World) -> list[Item]:
    """Everything that could arrive now. Deterministic for one situation."""
    return [
        *(CommandReceived(command=command) for command in commands(world)),
        *appends(),
        *answers(world),
        *results(world),
        *life(world),
    ]


__all__ = ["SITUATIONS", "ClassifyTurn", "JudgeConfig", "every_item"]
