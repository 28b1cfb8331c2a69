"""Storms: random items against one state machine, from a seed. Used by the property tests and by the digest check.

``python -m tests.unit.core.storm SEED COUNT`` prints one digest over COUNT storms.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Callable

import msgspec

from duologue.config.session import (
    SemanticVad,
    ServerVad,
    SessionConfig,
    SessionPatch,
    TurnDetectionPatch,
)
from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex import commands as c
from duologue.engine.duplex.core.effects import ClassifyTurn, Detect
from duologue.engine.duplex.core.items import (
    Attached,
    CleanupEnded,
    CloseRequested,
    CommandRefused,
    Detached,
    DetectorFailed,
    Item,
    ModelSpoke,
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
from duologue.engine.duplex.events import FunctionCalled, ResponseCreated, ResponseDone, SessionClosed, SessionExpired
from duologue.engine.duplex.plugin import ModelCapabilities
from duologue.engine.duplex.results import (
    ContextUsed,
    FunctionCall,
    Listened,
    ModelFailed,
    ModelResult,
    Speech,
    TokensUsed,
    TurnEnded,
    UserTranscript,
)
from duologue.errors import ErrorCode
from duologue.outputs import AudioMark, ToolCall, ToolDefinition
from duologue.sim.sample import Left
from tests.unit.core import harness
from tests.unit.core.harness import CASCADE, NATIVE, PLAIN, World, audio, speech

CONFIGS = (
    SessionConfig(turn_detection=ServerVad()),
    SessionConfig(turn_detection=SemanticVad()),
    SessionConfig(turn_detection=ServerVad(interrupt_response=False, idle_timeout_ms=2000)),
    SessionConfig(turn_detection=ServerVad(create_response=False)),
    SessionConfig(playback_commit_policy="ack_only"),
    SessionConfig(output_modality="text"),
    SessionConfig(auto_response=True),
    SessionConfig(turn_detection=ServerVad(), auto_response=True, playback_commit_policy="commit_all_on_done"),
    SessionConfig(turn_detection=ServerVad(), overlap_policy="listen_only"),
)
CLOCK = (ToolDefinition(name="clock"),)
TOOLED = msgspec.structs.replace(CASCADE, calls_functions=True)
BY_CLIENT = ModelCapabilities(family="resident", unit_ms=80, chunk_period_ms=80, input_rate_hz=16_000)
SPEECH_ONLY = msgspec.structs.replace(PLAIN, supports_text_turns=False)
MODELS = (
    TOOLED,
    TOOLED,
    PLAIN,
    NATIVE,
    NATIVE,
    SPEECH_ONLY,
    BY_CLIENT,
    msgspec.structs.replace(CASCADE, supports_text_turns=False, input_rate_hz=24_000),
    msgspec.structs.replace(CASCADE, supports_barge_in=False),
    msgspec.structs.replace(NATIVE, unit_ms=0, supports_client_commit=True),
    msgspec.structs.replace(NATIVE, calls_functions=True),
    msgspec.structs.replace(BY_CLIENT, calls_functions=True),
)
LIMITED = (
    msgspec.structs.replace(NATIVE, compacts=True, context_units=16),
    msgspec.structs.replace(NATIVE, compacts=True),
    msgspec.structs.replace(BY_CLIENT, compacts=True, context_units=24),
    msgspec.structs.replace(BY_CLIENT, context_units=40),
    msgspec.structs.replace(NATIVE, unit_ms=0, compacts=True, context_units=60),
)
"""Models whose context fills."""
TINY = DuplexSessionRuntimeConfig(
    max_pending_input_bytes_per_session=40_000,
    max_pending_turns_per_session=2,
    max_pending_output_bytes_per_session=20_000,
    max_pending_output_events_per_session=24,
    max_items_per_session=6,
    max_history_chars=200,
    max_backlog_ms=2_000,
    max_turn_ms=3_000,
    max_tool_calls_per_session=2,
    tool_result_timeout_s=0.5,
)
RUNTIMES = (
    DuplexSessionRuntimeConfig(),
    TINY,
    DuplexSessionRuntimeConfig(send_ahead_ms=None),
)


class Storm:
    """One random life of one session."""

    def __init__(self, seed: int, models: tuple[ModelCapabilities, ...] = MODELS) -> None:
        self.rng = random.Random(seed)
        rng = self.rng
        config, model = rng.choice(CONFIGS), rng.choice(models)
        tools = CLOCK if model.calls_functions else ()
        self.world = World(
            config=msgspec.structs.replace(config, tools=tools, parallel_tool_calls=rng.random() < 0.7),
            capabilities=model,
            runtime=rng.choice(RUNTIMES),
            auto=rng.random() < 0.5,
            takes=rng.random() < 0.7,
            complete=rng.random(),
            seed=f"s{seed}",
        )
        self.actions: tuple[Callable[[], None], ...] = (
            self.say,
            self.say,
            self.say,
            self.answer,
            self.answer,
            self.model,
            self.model,
            self.model,
            self.wait,
            self.command,
            self.command,
            self.take,
            self.noise,
            self.attachment,
        )

    def run(self, steps: int = 80) -> str:
        """``steps`` random items, then the close; returns the digest of all effects."""
        for _ in range(steps):
            self.rng.choice(self.actions)()
        self.finish()
        digest = hashlib.sha256()
        for effect in self.world.effects:
            digest.update(type(effect).__name__.encode() + msgspec.json.encode(effect))
        return digest.hexdigest()

    # -- actions ------------------------------------------------------------------------------------------------------

    def say(self) -> None:
        rng = self.rng
        script = "".join(
            rng.choice(("S" * rng.randint(1, 12), "." * rng.randint(1, 18))) for _ in range(rng.randint(1, 4))
        )
        pcm = audio(script)
        cut = rng.randrange(0, len(pcm), 2)
        for piece in (pcm[:cut], pcm[cut:]):
            self.world.now += len(piece) / 32_000 * rng.random()
            other_rate = self.world.capabilities.input_rate_hz != 16_000
            self.world.append(
                bytes(len(piece) * 3 // 4 * 2) if other_rate else piece,
                detector_pcm=piece if other_rate else None,
                event_id=rng.choice((None, "e")),
                overlap_hint=rng.choice((None,) * 12 + ("barge_in", "drop", "listen", "ack")),
                force_barge_in=rng.random() < 0.03,
            )

    def answer(self) -> None:
        pending = self.world.pending
        if not pending:
            return
        index = self.rng.randrange(len(pending))
        effect = pending[index]
        del pending[index]
        roll = self.rng.random()
        if roll < 0.1 and isinstance(effect, Detect | ClassifyTurn):
            kind = "speech" if isinstance(effect, Detect) else "turn_end"
            self.world.apply(DetectorFailed(number=effect.number, kind=kind, message="broken"))  # type: ignore[arg-type]
        else:
            self.world.answer(effect, ok=roll > 0.15)

    def model(self) -> None:
        rng, world = self.rng, self.world
        if not world.submits:
            return
        submit = world.submits[-1] if rng.random() < 0.8 else rng.choice(world.submits)
        results: list[ModelResult] = [self.result() for _ in range(rng.randint(0, 3))]
        if world.capabilities.calls_functions and rng.random() < 0.4:
            results.insert(0, FunctionCall(name="clock"))
        if world.capabilities.compacts or world.capabilities.context_units:
            results.insert(rng.randint(0, len(results)), self.context_used())
        world.apply(
            ModelSpoke(
                request_id=submit.request_id, fence=submit.fence, results=tuple(results), finished=rng.random() < 0.2
            )
        )

    def result(self) -> ModelResult:
        rng = self.rng
        match rng.randrange(11):
            case 0:
                return UserTranscript(text=rng.choice(("", "mm-hm", "tell me a story")), final=rng.random() < 0.5)
            case 1:
                return TurnEnded(model_turn_id=rng.choice((None, 1, 5)))
            case 2:
                return Listened(end_response=rng.random() < 0.5)
            case 3 if rng.random() < 0.2:
                return ModelFailed(message="no")
            case 4:
                return Speech(text="only text. ")
            case 9:
                return FunctionCall(name=rng.choice(("clock", "clock", "unknown")))
            case 10:
                return TokensUsed(input_tokens=5, output_tokens=2)
            case 5:
                return Speech(
                    text="marked text",
                    audio=b"\1\0" * 4_800,
                    rate_hz=24_000,
                    marks=(AudioMark(chars=6, end_ms=90), AudioMark(chars=3, end_ms=500)),
                )
            case _:
                return speech("Some words to say. ", rng.choice((1, 40, 300, 5_000)))

    def context_used(self) -> ContextUsed:
        rng, world = self.rng, self.world
        last = world.submits[-1].request_id
        heard = sum(submit.request_id == last for submit in world.submits) - rng.randint(0, 1)
        units = world.capabilities.context_units or 16
        used = rng.choice((heard, min(heard, units), min(heard + units // 2, units - 1)))
        return ContextUsed(used=used, limit=units, heard=rng.choice((heard, heard, 0)))

    def wait(self) -> None:
        self.world.advance(self.rng.choice((0.01, 0.1, 0.3, 1.0, 5.0)))

    def take(self) -> None:
        world = self.world
        world.apply(OutputTaken(number=self.rng.randint(0, world.state.outbox.numbers + 2)))

    def command(self) -> None:
        rng, world = self.rng, self.world
        items = [item.item_id for item in world.state.history.items] + ["item_unknown"]
        responses = [e.response_id for e in world.of(ResponseCreated)] + ["resp-unknown"]
        item_id, response_id, ms = rng.choice(items), rng.choice(responses), rng.randint(-50, 6_000)
        asked = [event.item.parts[0].call_id for event in world.of(FunctionCalled)] + ["call_unknown", "mine"]
        pending = [record.call_id for record in world.state.tools.pending()]
        output = c.CallOutput(rng.choice(pending or asked), "noon")
        if pending and rng.random() < 0.3:
            world.send(c.CreateItem(item=c.InputItem(role="tool", output=output)))
        command = rng.choice(
            (
                c.CreateItem(
                    item=c.InputItem(role="tool", output=output), previous_item_id=rng.choice((None, item_id))
                ),
                c.CreateItem(item=c.InputItem(role="tool", output=output)),
                c.CreateItem(item=c.InputItem(role="assistant", call=ToolCall(name="clock", call_id="mine"))),
                c.CommitAudio(create_response=rng.choice((None, True, False))),
                c.ClearAudio(),
                c.ClearOutput(response_id=rng.choice((None, response_id))),
                c.CreateResponse(),
                c.CreateResponse(
                    options=c.ResponseOptions(
                        modality=rng.choice((None, "text", "text")),
                        out_of_band=rng.random() < 0.5,
                        input=rng.choice((None, None, (c.ItemReference(item_id),))),
                    )
                ),
                c.CancelResponse(response_id=rng.choice((None, response_id))),
                c.CreateItem(
                    item=c.InputItem(item_id=rng.choice((None, "mine")), role="user", texts=("hello",)),
                    previous_item_id=rng.choice((None, "root", item_id)),
                ),
                c.DeleteItem(item_id=item_id),
                c.RetrieveItem(item_id=item_id),
                c.TruncateItem(item_id=item_id, audio_end_ms=ms, content_index=rng.choice((0, 0, 0, 1))),
                c.AckPlayback(
                    played_ms=ms, response_id=rng.choice((None, response_id)), item_id=rng.choice((None, item_id))
                ),
                c.Heartbeat(),
                c.BargeIn(),
                c.CancelInput(),
                c.SignalTurn(name=rng.choice(("barge_in", "cancel", "close", "timeout", "hello"))),
                c.AppendText(text="x"),
                c.UpdateSession(patch=self.patch()),
            )
        )
        world.send(command)

    def patch(self) -> SessionPatch:
        rng = self.rng
        return rng.choice(
            (
                SessionPatch(),
                SessionPatch(instructions="be brief"),
                SessionPatch(turn_detection=None),
                SessionPatch(turn_detection=TurnDetectionPatch(type="semantic_vad", eagerness="high")),
                SessionPatch(turn_detection=TurnDetectionPatch(type="server_vad", threshold=0.6)),
                SessionPatch(turn_detection=TurnDetectionPatch(threshold=7.0)),
                SessionPatch(voice="other"),
                SessionPatch(model="other"),
            )
        )

    def noise(self) -> None:
        """Items that belong to nothing."""
        rng, world = self.rng, self.world
        item: Item = rng.choice(
            (
                SpeechScored(number=rng.randint(0, 9), probabilities=(0.9,) * rng.randint(0, 9)),
                TurnClassified(number=rng.randint(0, 9), probability=rng.choice((0.5, float("nan")))),
                TimerFired(),
                Touched(),
                ReplicaLost(message="gone", pinned=rng.random() < 0.5),
                Replaced(),
                CommandRefused(code=ErrorCode.BAD_AUDIO, message="bad"),
                StageFailed(
                    request_id=rng.choice([*world.core.live_request_ids(), "unknown"]),
                    code=ErrorCode.RUNTIME_STREAM_FAILED,
                    message="lost",
                    session_ends=rng.random() < 0.05,
                ),
            )
        )
        world.apply(item)

    def attachment(self) -> None:
        rng = self.rng
        generation = self.world.core.generation
        self.world.apply(
            rng.choice(
                (
                    Attached(),
                    Detached(expected_generation=rng.choice((None, generation, generation + 1))),
                    ResumeRequested(
                        control_id=f"c{rng.randint(0, 3)}", expected_generation=generation - rng.randint(0, 1)
                    ),
                )
            )
        )

    # -- the end ------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Close, answer everything, and see that nothing is left."""
        world = self.world
        world.apply(CloseRequested(kind=self.rng.choice(("closed", "expired")), reason="over"))
        assert len(world.cleanups) == 1
        while world.pending:
            self.answer()
        claimed = self.rng.random() < 0.2
        world.apply(TerminalClaimed() if claimed else CleanupEnded(released=True))
        world.apply(CleanupEnded(released=True))
        world.apply(OutputTaken(number=1_000_000))
        world.advance(100.0)
        assert world.core.phase == "closed"
        left = {name: size for name, size in world.core.tables().items() if size}
        assert not left, left
        terminals = [e for e in world.events if isinstance(e, SessionClosed | SessionExpired)]
        assert len(terminals) == (0 if claimed else 1)
        created = [e.response_id for e in world.of(ResponseCreated)]
        assert sorted(created) == sorted(e.response_id for e in world.of(ResponseDone))
        world.seen.samples.append(Left("after the end", left))
        assert world.judge() == []
        harness.WORLDS.remove(world)  # it was judged, and there are many


def digest(seed: int, count: int) -> str:
    """One digest over ``count`` storms."""
    total = hashlib.sha256()
    for offset in range(count):
        total.update(Storm(seed + offset).run().encode())
    return total.hexdigest()


if __name__ == "__main__":
    print(digest(int(sys.argv[1]), int(sys.argv[2])))
