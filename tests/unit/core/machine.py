"""Rule machines: Hypothesis plays shell, stages and client against one session, and a referee watches every step.

Rules kept here: there is a rule for every kind of item and of command, legal or not at that instant; what is drawn is plain
choices, so that a failing life shrinks to the few items that matter; every byte of input and output is one of a kind, so that
it can be found again.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import ClassVar, Literal

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, precondition, rule

from duologue.config.session import SemanticVad, ServerVad, SessionConfig, SessionPatch, TurnDetectionPatch
from duologue.config.stage_config import DuplexSessionRuntimeConfig
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
from duologue.engine.duplex.events import FunctionCalled, ResponseCreated, SessionClosed, SessionExpired
from duologue.engine.duplex.plugin import ModelCapabilities
from duologue.engine.duplex.results import (
    ContextUsed,
    CutShort,
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
from duologue.outputs import ToolCall, ToolDefinition
from duologue.sim.toolbox import TIMEOUT_S
from tests.unit.core.harness import CASCADE, NATIVE, PLAIN, RATE, World, scores
from tests.unit.core.referee import Referee
from tests.unit.core.replies import check_reply, finish

CLOCK = (ToolDefinition(name="clock"),)
CONFIGS = (
    SessionConfig(),
    SessionConfig(turn_detection=ServerVad()),
    SessionConfig(turn_detection=SemanticVad()),
    SessionConfig(turn_detection=ServerVad(interrupt_response=False, idle_timeout_ms=2000)),
    SessionConfig(turn_detection=ServerVad(create_response=False)),
    SessionConfig(playback_commit_policy="ack_only"),
    SessionConfig(output_modality="text"),
)
EPHEMERAL = (
    msgspec.structs.replace(CASCADE, calls_functions=True),
    PLAIN,
    msgspec.structs.replace(PLAIN, supports_text_turns=False),
    msgspec.structs.replace(CASCADE, supports_barge_in=False, takes_images=True),
)
RESIDENT = (
    msgspec.structs.replace(NATIVE, calls_functions=True, compacts=True),
    msgspec.structs.replace(NATIVE, frame_locked=True),
    msgspec.structs.replace(NATIVE, supports_client_commit=True),
    ModelCapabilities(family="resident", unit_ms=80, chunk_period_ms=80, input_rate_hz=RATE),
)
RUNTIMES = (
    DuplexSessionRuntimeConfig(tool_result_timeout_s=TIMEOUT_S),
    DuplexSessionRuntimeConfig(
        tool_result_timeout_s=TIMEOUT_S,
        max_pending_input_bytes_per_session=60_000,
        max_pending_turns_per_session=2,
        max_pending_output_bytes_per_session=60_000,
        max_pending_output_events_per_session=24,
        max_items_per_session=6,
        max_history_chars=200,
        max_backlog_ms=2_000,
        max_turn_ms=3_000,
        max_tool_calls_per_session=2,
        turn_burst=8,
    ),
)
PATCHES = (
    SessionPatch(),
    SessionPatch(instructions="be brief"),
    SessionPatch(turn_detection=None),
    SessionPatch(turn_detection=TurnDetectionPatch(type="server_vad", threshold=0.6)),
    SessionPatch(turn_detection=TurnDetectionPatch(type="semantic_vad", eagerness="high")),
    SessionPatch(voice="other", instructions="must not be adopted in part"),
    SessionPatch(model="other"),
)
PIECES = ("S" * 4, "S" * 12, "." * 8, "." * 25, "SS..SS", "S" * 9 + "." * 18)
DROPPED: tuple[c.OverlapHint, ...] = ("drop", "ignore", "silence", "continue", "continue_output", "ack")
KEPT: tuple[c.OverlapHint | None, ...] = (None, None, None, None, "barge_in", "interrupt", "cancel", "listen")
ANSWERS = (SubmitAppend, Detect, ClassifyTurn, JudgeConfig)

index = st.integers(0, 40)
number = st.integers(0, 60)
some = st.booleans()


class Life(RuleBasedStateMachine):
    """One session's life. ``models``: whose; ``seen``: the kinds of items and commands of all lives so far."""

    models: ClassVar[tuple[ModelCapabilities, ...]] = EPHEMERAL
    seen: ClassVar[Counter[type]] = Counter()
    written = Bundle("written")

    @initialize(
        model=index,
        config=index,
        runtime=index,
        takes=some,
        complete=st.sampled_from((0.1, 0.9)),
        prompt=st.sampled_from((True, True, False)),
        lead=st.sampled_from(("late", "open", "asked", "asked", "answering", "answering", "answering")),
    )
    def begin(
        self, model: int, config: int, runtime: int, takes: bool, complete: float, prompt: bool, lead: str
    ) -> None:
        """``prompt``: effects are answered at once and well; ``lead``: how far the conversation has come."""
        chosen = self.models[model % len(self.models)]
        settings = CONFIGS[config % len(CONFIGS)]
        self.world = World(
            config=msgspec.structs.replace(settings, tools=CLOCK if chosen.calls_functions else ()),
            capabilities=chosen,
            runtime=RUNTIMES[runtime % len(RUNTIMES)],
            auto=False,
            takes=takes,
            complete=complete,
            opened=False,
        )
        self.referee = Referee(self.world)
        self.world.watcher = self.referee
        self.pieces = self.steps = 0
        self.prompt = prompt
        if lead != "late":
            self.take(Opened())
        if lead in ("asked", "answering"):
            self.asks_aloud(True)
        if lead == "answering":
            self.answers_all()
            self.speaks(0, [9, 9], 301, False)

    # -- what the rules share -------------------------------------------------------------------------------------------

    def take(self, item: Item) -> None:
        """One item. The shell keeps audio back while a command before it waits."""
        if isinstance(item, AudioAppended) and self.world.core.holding:
            return
        self.steps += 1
        Life.seen[type(item)] += 1
        self.world.apply(item)
        while self.prompt and self.world.pending:
            self._answer(self.world.pending.popleft(), True)

    def send(self, command: c.DuplexCommand) -> None:
        """One command, with an id of its own, and what must answer it."""
        command = msgspec.structs.replace(command, event_id=f"e{self.steps}")
        Life.seen[type(command)] += 1
        before, phase = len(self.world.events), self.world.core.phase
        self.take(CommandReceived(command=command))
        check_reply(self.world, command, before, phase)

    def noise(self, size: int) -> bytes:
        """``size`` bytes that occur once."""
        self.pieces += 1
        return random.Random(self.pieces).randbytes(size)

    def sound(self, script: str) -> bytes:
        """As the harness makes it, but no two pieces alike."""
        count = 512
        low = self.noise(count * len(script))
        pcm = bytearray(2 * len(low))
        pcm[0::2] = low
        pcm[1::2] = b"".join((b"\x40" if char == "S" else b"\0") * count for char in script)
        return bytes(pcm)

    @property
    def history(self) -> list[str]:
        return [*(item.item_id for item in self.world.state.history.items), "item_unknown"]

    @property
    def responses(self) -> list[str]:
        return [*[event.response_id for event in self.world.of(ResponseCreated)][-3:], "resp-unknown"]

    # -- the client -----------------------------------------------------------------------------------------------------

    @rule(
        piece=st.sampled_from(PIECES),
        cut=number,
        hint=st.sampled_from(KEPT),
        speech=st.sampled_from((None, None, True)),
    )
    def says(self, piece: str, cut: int, hint: c.OverlapHint | None, speech: bool | None) -> None:
        pcm = self.sound(piece)
        self.world.now += 0.032 * len(piece)
        self.take(AudioAppended(pcm=pcm[: len(pcm) - 2 * cut], overlap_hint=hint, is_speech=speech))

    @rule(frames=st.integers(0, 8), hint=st.sampled_from(DROPPED), claims=some, listen=some, barge=some)
    def says_nothing(self, frames: int, hint: c.OverlapHint, claims: bool, listen: bool, barge: bool) -> None:
        """What may be dropped is of zeros, as what takes its place."""
        pcm = bytes(1024 * frames)
        if claims:
            self.take(AudioAppended(pcm=pcm, is_speech=False, force_listen=listen))
        else:
            self.take(AudioAppended(pcm=pcm, overlap_hint=hint, force_barge_in=barge and frames == 3))

    @rule(commits=some)
    def asks_aloud(self, commits: bool) -> None:
        """A whole turn, in the way that this session ends turns."""
        for piece in ("." * 3, "S" * 10, "S" * 10, "." * 20, "." * 20):
            self.says(piece, 0, None, None)
        if commits:
            self.commits(True)

    @rule(create=st.sampled_from((None, True, True, False)))
    def commits(self, create: bool | None) -> None:
        self.send(c.CommitAudio(create_response=create))

    @rule(text=some, beside=some, given=st.sampled_from((None, None, None, "item", "unknown")))
    def asks(self, text: bool, beside: bool, given: str | None) -> None:
        references = {"item": self.history[0], "unknown": "item_unknown"}
        options = c.ResponseOptions(
            modality="text" if text else None,
            out_of_band=beside,
            input=None if given is None else (c.ItemReference(references[given]),),
        )
        self.send(c.CreateResponse(options=options))

    @rule(target=written, user=some, after=index, again=some)
    def writes(self, user: bool, after: int, again: bool) -> str:
        places = [None, "root", *self.history]
        item_id = "mine" if again else f"mine{self.steps}"
        item = c.InputItem(item_id=item_id, role="user" if user else "system", texts=("hello",))
        self.send(c.CreateItem(item=item, previous_item_id=places[after % len(places)]))
        return item_id

    @rule(which=index, unknown=st.sampled_from((False, False, False, True)))
    def answers_a_call(self, which: int, unknown: bool) -> None:
        asked = [event.item.parts[0].call_id for event in self.world.of(FunctionCalled)]
        call_id = "call_unknown" if unknown or not asked else asked[which % len(asked)]
        self.send(c.CreateItem(item=c.InputItem(role="tool", output=c.CallOutput(call_id, "noon"))))

    @rule(result=some)
    def brings_a_call(self, result: bool) -> None:
        if result:
            self.send(c.CreateItem(item=c.InputItem(role="tool", output=c.CallOutput("own", "noon"))))
        else:
            self.send(c.CreateItem(item=c.InputItem(role="assistant", call=ToolCall(name="clock", call_id="own"))))

    @rule(item_id=written, remove=some)
    def comes_back_to(self, item_id: str, remove: bool) -> None:
        """To what it wrote itself, which may be forgotten by now."""
        self.send(c.DeleteItem(item_id=item_id) if remove else c.RetrieveItem(item_id=item_id))

    @rule(which=index, what=index, ms=st.integers(-50, 6_000), truncate=some)
    def points_at(self, which: int, what: int, ms: int, truncate: bool) -> None:
        item_id = self.history[which % len(self.history)]
        response_id = self.responses[which % len(self.responses)]
        commands: tuple[c.DuplexCommand, ...] = (
            c.TruncateItem(item_id=item_id, audio_end_ms=ms, content_index=which % 2),
            c.AckPlayback(played_ms=ms, item_id=item_id, truncate=truncate),
            c.AckPlayback(played_ms=ms, response_id=response_id),
            c.AckPlayback(played_ms=ms, response_id=response_id, item_id=item_id),
            c.DeleteItem(item_id=item_id),
            c.RetrieveItem(item_id=item_id),
            c.CancelResponse(response_id=response_id),
            c.ClearOutput(response_id=response_id),
        )
        self.send(commands[what % len(commands)])

    @rule(what=index)
    def commands(self, what: int) -> None:
        plain: tuple[c.DuplexCommand, ...] = (
            *(c.ClearAudio(), c.ClearOutput(), c.CancelResponse(), c.Heartbeat(), c.BargeIn(), c.CancelInput()),
            *(c.AppendText(text="x"), c.AppendAudio(audio=b"\0\0"), c.SignalTurn(name="hello")),
            *(c.SignalTurn(name=name) for name in ("barge_in", "cancel", "input.cancel", "close")),
        )
        self.send(plain[what % len(plain)])

    @rule(patch=st.sampled_from(PATCHES))
    def reconfigures(self, patch: SessionPatch) -> None:
        self.send(c.UpdateSession(patch=patch))

    # -- the shell ------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.world.pending)
    @rule(which=index, well=st.sampled_from((True, True, True, False)))
    def answers_one(self, which: int, well: bool) -> None:
        pending = self.world.pending
        effect = pending[which % len(pending)]
        pending.remove(effect)
        self._answer(effect, well)

    @precondition(lambda self: self.world.pending)
    @rule()
    def answers_all(self) -> None:
        while self.world.pending:
            self._answer(self.world.pending.popleft(), True)

    def _answer(self, effect: object, well: bool) -> None:
        match effect:
            case SubmitAppend() if well:
                self.take(AppendAccepted(number=effect.number, submitted_at=self.world.now))
            case SubmitAppend():
                self.take(AppendFailed(number=effect.number, code=ErrorCode.RUNTIME_APPEND_FAILED, message="no"))
            case JudgeConfig():
                code = None if well else ErrorCode.INVALID_SESSION_CONFIG
                self.take(ConfigJudged(number=effect.number, code=code, message="no"))
            case Detect() if well:
                self.take(SpeechScored(number=effect.number, probabilities=scores(effect.pcm)))
            case ClassifyTurn() if well:
                self.take(TurnClassified(number=effect.number, probability=self.world.complete))
            case Detect() | ClassifyTurn():
                kind: Literal["speech", "turn_end"] = "speech" if isinstance(effect, Detect) else "turn_end"
                self.take(DetectorFailed(number=effect.number, kind=kind, message="broken"))
            case _:
                raise AssertionError(f"nobody answers {effect}")

    @rule(what=index, wrong=number)
    def answers_what_nobody_asked(self, what: int, wrong: int) -> None:
        asked = {(type(effect), effect.number) for effect in self.world.pending if isinstance(effect, ANSWERS)}
        stray: tuple[tuple[type, Item], ...] = (
            (SubmitAppend, AppendAccepted(number=wrong, submitted_at=self.world.now)),
            (SubmitAppend, AppendFailed(number=wrong, code=ErrorCode.RUNTIME_APPEND_FAILED, message="no")),
            (JudgeConfig, ConfigJudged(number=wrong)),
            (Detect, SpeechScored(number=wrong, probabilities=(0.9,) * 9)),
            (ClassifyTurn, TurnClassified(number=wrong, probability=float("nan"))),
            (Detect, DetectorFailed(number=wrong, kind="speech", message="broken")),
        )
        kind, item = stray[what % len(stray)]
        if (kind, wrong) not in asked:
            self.take(item)

    @rule(back=st.integers(-2, 5))
    def takes_output(self, back: int) -> None:
        self.take(OutputTaken(number=max(0, self.referee.emitted - back)))

    @rule(seconds=st.sampled_from((0.01, 0.1, 0.3, 1.0, 5.0)))
    def waits(self, seconds: float) -> None:
        self.world.advance(seconds)

    @rule(what=index, behind=st.integers(0, 1))
    def connects(self, what: int, behind: int) -> None:
        generation = self.world.core.generation
        items: tuple[Item, ...] = (
            *(Attached(), Detached(), Detached(expected_generation=generation + behind), Touched(), TimerFired()),
            CommandRefused(code=ErrorCode.BAD_AUDIO, message="bad"),
        )
        self.take(items[what % len(items)])

    @rule(behind=st.integers(0, 1), control=st.integers(0, 2))
    def resumes(self, behind: int, control: int) -> None:
        generation = self.world.core.generation - behind
        self.take(ResumeRequested(control_id=f"r{control}", expected_generation=generation))

    # -- the model ------------------------------------------------------------------------------------------------------

    def _result(self, kind: int, ms: int) -> ModelResult:
        self.pieces += 1
        text = f"w{self.pieces}. "
        match kind % 13:
            case 0 | 1:
                return UserTranscript(text=("mm-hm", "tell me a story")[ms % 2], final=kind % 13 == 1)
            case 2:
                return TurnEnded(model_turn_id=(None, None, 1, 5)[ms % 4])
            case 3:
                return Listened(end_response=ms % 2 == 0)
            case 4:
                return FunctionCall(name=("clock", "clock", "unknown")[ms % 3])
            case 5:
                return TokensUsed(input_tokens=5, output_tokens=2)
            case 6:
                return CutShort(reason="max_output_tokens")
            case 7:
                return ContextUsed(used=(10, 80, 92, 97)[ms % 4], limit=100)
            case 8:
                return Speech(text=text)
            case _:
                return Speech(text=text, audio=self.noise(48 * ms), rate_hz=24_000)

    @precondition(lambda self: self.world.submits)
    @rule()
    def finishes(self) -> None:
        """The newest answer, in order."""
        self.speaks(0, [1, 9, 2], 300, True)

    @precondition(lambda self: self.world.submits)
    @rule(
        back=st.sampled_from((0, 0, 0, 0, 0, 1, 9)),
        kinds=st.lists(st.integers(0, 12), max_size=3),
        ms=st.sampled_from((1, 40, 300, 301, 302, 5_000)),
        over=st.sampled_from((False, False, False, True)),
    )
    def speaks(self, back: int, kinds: list[int], ms: int, over: bool) -> None:
        if not self.world.submits:
            return
        submit = self.world.submits[-1 - back % len(self.world.submits)]
        results = tuple(self._result(kind, ms) for kind in kinds)
        self.take(ModelSpoke(request_id=submit.request_id, fence=submit.fence, results=results, finished=over))

    @precondition(lambda self: self.world.submits)
    @rule(back=st.integers(0, 5), how=index)
    def fails(self, back: int, how: int) -> None:
        submit = self.world.submits[-1 - back % len(self.world.submits)]
        if how % 2:
            self.take(ModelSpoke(
                request_id=submit.request_id, fence=submit.fence, results=(ModelFailed(message="no"),), finished=False
            ))  # fmt: skip
        else:
            request_id = (submit.request_id, submit.request_id, "unknown", None)[how // 2 % 4]
            code = ErrorCode.RUNTIME_STREAM_FAILED
            self.take(StageFailed(request_id=request_id, code=code, message="lost", session_ends=how == 40))

    @rule(back=some, pinned=some)
    def loses_a_replica(self, back: bool, pinned: bool) -> None:
        self.take(Replaced() if back else ReplicaLost(message="gone", pinned=pinned))

    # -- the end --------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.steps > 25)
    @rule(what=st.integers(0, 6))
    def ends(self, what: int) -> None:
        match what:
            case 0:
                self.send(c.CloseSession())
            case 1:
                self.take(TerminalClaimed())
            case 2:
                self.take(CleanupEnded(released=False))
            case 3:
                self.take(
                    CloseRequested(kind="expired", reason="why", fault=ErrorCode.REPLICA_UNAVAILABLE, message="gone")
                )
            case _:
                self.take(Opened())

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        claimed = world.core.phase == "closed" and not world.of(SessionClosed) + world.of(SessionExpired)
        finish(world)
        found = self.referee.verdict(claimed=claimed)
        assert not found, found


class ResidentLife(Life):
    """The same life with a model that keeps its place."""

    models = RESIDENT


def seen() -> Counter[type]:
    """How often each kind of item and command came up in all lives."""
    return Life.seen
