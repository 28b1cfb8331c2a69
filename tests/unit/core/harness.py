"""A hand-driven world around one state machine: it answers effects as told, keeps a log, and checks what must always hold.

Speech is written as text: ``say("S" * 10 + "." * 16)`` is ten loud frames of 32 ms and sixteen quiet ones.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from duologue.config.session import SemanticVad, ServerVad, SessionConfig
from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.commands import AppendAudio, CommitAudio
from duologue.engine.duplex.core import check
from duologue.engine.duplex.core.effects import (
    AbortRequests,
    AnswerControl,
    ClassifyTurn,
    CleanupSession,
    Detect,
    Effect,
    Emit,
    EndSession,
    InvalidateOutput,
    JudgeConfig,
    ReleaseRequests,
    SubmitAppend,
)
from duologue.engine.duplex.core.items import (
    AppendAccepted,
    AppendFailed,
    AudioAppended,
    CloseRequested,
    CommandReceived,
    ConfigJudged,
    Item,
    ModelSpoke,
    Opened,
    OutputTaken,
    SpeechScored,
    TimerFired,
    TurnClassified,
)
from duologue.engine.duplex.core.session import DuplexEngineSession
from duologue.engine.duplex.core.state import SessionState
from duologue.engine.duplex.events import (
    ResponseAudio,
    ResponseCreated,
    ResponseDone,
    ResponseText,
    SessionClosed,
    SessionEvent,
    SessionExpired,
    SpeechStarted,
    SpeechStopped,
)
from duologue.engine.duplex.plugin import DuplexModelSessionState, ModelCapabilities
from duologue.engine.duplex.results import ModelResult, Speech, TurnEnded, UserTranscript
from duologue.errors import ErrorCode
from duologue.outputs import RequestOutput
from duologue.sim.checkers import Violation, engine_evidence, judge
from duologue.sim.observation import Made, Observations, Planned
from duologue.sim.trace import Trace

NAME = "duplex-0"
RATE = 16_000
LOUD = b"\x00\x40" * 512
QUIET = b"\x01\x00" * 512

CASCADE = ModelCapabilities(
    family="ephemeral",
    supports_text_turns=True,
    streams_input=True,
    transcribes_input=True,
    input_rate_hz=RATE,
    output_rate_hz=24_000,
)
PLAIN = ModelCapabilities(family="ephemeral", input_rate_hz=RATE, supports_text_turns=True)
NATIVE = ModelCapabilities(
    family="resident",
    supports_client_commit=False,
    unit_ms=80,
    chunk_period_ms=80,
    input_rate_hz=RATE,
    max_silence_units=4,
)

VAD = SessionConfig(turn_detection=ServerVad())
SEMANTIC = SessionConfig(turn_detection=SemanticVad())
MANUAL = SessionConfig()


def audio(script: str) -> bytes:
    """PCM16 at 16 kHz: one 32 ms frame per character, loud for ``S``, quiet for anything else."""
    return b"".join(LOUD if char == "S" else QUIET for char in script)


def scores(pcm: bytes) -> tuple[float, ...]:
    """What a perfect detector says of :func:`audio`."""
    frames = [pcm[start : start + 1024] for start in range(0, len(pcm), 1024)]
    return tuple(0.9 if frame[1] & 0x40 or frame[511] & 0x40 else 0.01 for frame in frames)


WORLDS: list[World] = []
"""Every world of the test that runs, for the checkers that are shared with the simulator (see ``conftest.py``)."""


class Watcher(Protocol):
    """Sees every step of a world from outside."""

    def before(self, item: Item) -> None: ...

    def after(self, item: Item, effects: list[Effect]) -> None: ...


@dataclass(repr=False)
class World:
    """``auto`` answers detection, submission and configuration at once; ``takes`` lets the socket take output at once."""

    config: SessionConfig = VAD
    capabilities: ModelCapabilities = CASCADE
    runtime: DuplexSessionRuntimeConfig = field(default_factory=DuplexSessionRuntimeConfig)
    auto: bool = True
    takes: bool = True
    complete: float = 0.9
    seed: str = "seed"
    opened: bool = True
    checked: bool = True  # the costly invariants after every step too
    now: float = 100.0
    events: list[SessionEvent] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    submits: list[SubmitAppend] = field(default_factory=list)
    asked: dict[int, SubmitAppend] = field(default_factory=dict)
    aborted: list[str] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    controls: list[AnswerControl] = field(default_factory=list)
    pending: deque[Effect] = field(default_factory=deque)
    invalidated: list[str] = field(default_factory=list)
    ended: list[EndSession] = field(default_factory=list)
    cleanups: list[CleanupSession] = field(default_factory=list)
    inbox: deque[Item] = field(default_factory=deque)
    verdicts: deque[float] = field(default_factory=deque)
    busy: bool = False
    speaking: str | None = None
    watcher: Watcher | None = None

    def __post_init__(self) -> None:
        self.core = DuplexEngineSession(
            session_id=NAME,
            config=self.config,
            runtime_config=self.runtime,
            capabilities=self.capabilities,
            seed=self.seed,
            model_state=DuplexModelSessionState(),
            now=self.now,
        )
        self.seen = Observations(Trace(lambda: self.now), prefix="s")
        WORLDS.append(self)
        if self.opened:
            self.apply(Opened())

    @property
    def state(self) -> SessionState:
        return self.core._state

    # -- driving ------------------------------------------------------------------------------------------------------

    def apply(self, item: Item) -> list[Effect]:
        """One step and everything that answers itself."""
        self.inbox.append(item)
        first: list[Effect] | None = None
        if self.busy:
            return []  # as the runner: what an effect causes waits until the effects before it are carried out
        self.busy = True
        try:
            while self.inbox:
                arrived = self.inbox.popleft()
                if self.watcher is not None:
                    self.watcher.before(arrived)
                self._observe(arrived)
                effects = self.core.step(arrived, self.now)
                if self.watcher is not None:
                    self.watcher.after(arrived, effects)
                first = effects if first is None else first
                if self.checked:
                    check.deep(self.state)
                for effect in effects:
                    self._carry_out(effect)
        finally:
            self.busy = False
        return first or []

    def _observe(self, item: Item) -> None:
        match item:
            case CommandReceived():
                self.seen.commands.setdefault(NAME, []).append((self.now, item.command))
            case AudioAppended():
                command = AppendAudio(audio=item.pcm, event_id=item.event_id)
                self.seen.commands.setdefault(NAME, []).append((self.now, command))
            case ModelSpoke():
                for result in item.results:
                    if isinstance(result, Speech):
                        self._made(item.request_id, result)
            case AppendAccepted():
                if (submit := self.asked.pop(item.number, None)) is not None:
                    self._taken(submit)
            case _:
                pass

    def _taken(self, submit: SubmitAppend) -> None:
        taken = (submit.request_id, submit.fence, submit.seq, submit.turn_seq, submit.audio, submit.final)
        made = (submit.silence, True, submit.instructions, submit.compact)
        self.seen.planned.append(Planned(self.now, NAME, *taken, *made))

    def _made(self, request_id: str, speech: Speech) -> None:
        output = RequestOutput(
            request_id=request_id, text=speech.text, audio=speech.audio, audio_rate_hz=speech.rate_hz
        )
        for stage in (0,) if self.capabilities.family == "resident" else (1, 2):
            self.seen.output.append(Made(self.now, stage, request_id, output))

    def judge(self) -> list[Violation]:
        """What the checkers that are shared with the simulator find wrong with all that was seen."""
        if self.watcher is not None or (not self.opened and self.names()[:1] != ["SessionCreated"]):
            return []  # it has a judge of its own, or it never became a session
        whole = any(isinstance(event, SessionClosed | SessionExpired) for event in self.events)
        return judge(
            engine_evidence(self.seen, self.runtime, self.capabilities, whole=whole),
            stages=False,  # replies are made up here: none is any request's own
        )

    def _carry_out(self, effect: Effect) -> None:
        self.effects.append(effect)
        match effect:
            case Emit():
                self._check_order(effect.event)
                self.events.append(effect.event)
                self.seen.event(NAME, effect.number, effect.event)
                if self.takes:
                    self.apply(OutputTaken(number=effect.number))
            case SubmitAppend():
                self.submits.append(effect)
                self.asked[effect.number] = effect
                self._answer_or_keep(effect)
            case Detect() | ClassifyTurn() | JudgeConfig():
                self._answer_or_keep(effect)
            case _:
                self._note(effect)

    def _note(self, effect: Effect) -> None:
        match effect:
            case AbortRequests():
                self.aborted.extend(effect.request_ids)
            case ReleaseRequests():
                self.released.extend(effect.request_ids)
            case InvalidateOutput():
                self.invalidated.append(effect.response_id)
            case AnswerControl():
                self.controls.append(effect)
            case EndSession():
                self.ended.append(effect)
            case CleanupSession():
                self.cleanups.append(effect)
            case _:
                pass

    def _answer_or_keep(self, effect: Effect) -> None:
        if self.auto:
            self.answer(effect)
        else:
            self.pending.append(effect)

    def answer(self, effect: Effect, *, ok: bool = True) -> None:
        """The shell's answer to ``effect``."""
        match effect:
            case Detect():
                judged = tuple(self.verdicts.popleft() if self.verdicts else score for score in scores(effect.pcm))
                self.apply(SpeechScored(number=effect.number, probabilities=judged))
            case ClassifyTurn():
                self.apply(TurnClassified(number=effect.number, probability=self.complete))
            case JudgeConfig():
                self.apply(ConfigJudged(number=effect.number))
            case SubmitAppend() if ok:
                self.apply(AppendAccepted(number=effect.number, submitted_at=self.now))
            case SubmitAppend():
                self.apply(AppendFailed(number=effect.number, code=ErrorCode.RUNTIME_APPEND_FAILED, message="no"))

    def _check_order(self, event: SessionEvent) -> None:
        """What holds on every trace: one created, one done, nothing after it, the terminal last."""
        done = {e.response_id for e in self.events if isinstance(e, ResponseDone)}
        created = {e.response_id for e in self.events if isinstance(e, ResponseCreated)}
        assert not any(isinstance(e, SessionClosed | SessionExpired) for e in self.events), "after the terminal"
        match event:
            case SpeechStarted():
                assert self.speaking is None, "speech started twice"
                self.speaking = event.item_id
            case SpeechStopped():
                assert self.speaking == event.item_id, "speech stopped that did not start"
                self.speaking = None
            case ResponseCreated():
                assert event.response_id not in created
            case ResponseAudio() | ResponseText() | ResponseDone():
                assert event.response_id in created and event.response_id not in done
            case SessionClosed() | SessionExpired():
                assert created == done, "a response was left open"

    def send(self, command: object) -> None:
        self.apply(CommandReceived(command=command))  # type: ignore[arg-type]

    def say(self, script: str, *, frames: int = 1) -> None:
        """Append speech in real time, ``frames`` frames an append."""
        for start in range(0, len(script), frames):
            piece = script[start : start + frames]
            self.advance(0.032 * len(piece))
            self.apply(AudioAppended(pcm=audio(piece)))

    def hear(self, *probabilities: float) -> None:
        """Append one quiet frame for each of these verdicts of the detector, in real time."""
        for probability in probabilities:
            self.verdicts.append(probability)
            self.say(".")

    def answer_all(self, *kinds: type[Effect]) -> None:
        """Answer what is pending (of these kinds, or everything), and what comes of it, oldest first."""
        while True:
            effect = next((effect for effect in self.pending if not kinds or isinstance(effect, kinds)), None)
            if effect is None:
                return
            self.pending.remove(effect)
            self.answer(effect)

    def take(self, kind: type[Effect]) -> Effect:
        """The oldest pending effect of this kind, no longer pending."""
        effect = next(effect for effect in self.pending if isinstance(effect, kind))
        self.pending.remove(effect)
        return effect

    def append(self, pcm: bytes, **fields: object) -> None:
        self.apply(AudioAppended(pcm=pcm, **fields))  # type: ignore[arg-type]

    def advance(self, seconds: float) -> None:
        """Let time pass, firing the timer whenever it is due."""
        until = self.now + seconds
        for _ in range(10_000):
            deadline = self.core.next_deadline()
            if deadline is None or deadline > until:
                break
            self.now = max(self.now, deadline)
            self.apply(TimerFired())
        else:
            raise AssertionError("the timer never comes to rest")
        self.now = until

    # -- the model ----------------------------------------------------------------------------------------------------

    def speak(self, *results: ModelResult, finished: bool = False, request_id: str | None = None) -> None:
        """Results of the last submitted request."""
        submit = self.submits[-1]
        self.apply(
            ModelSpoke(
                request_id=request_id or submit.request_id, fence=submit.fence, results=results, finished=finished
            )
        )

    def reply(
        self, text: str = "Hello there.", ms: int = 1000, *, transcript: str | None = "hi", end: bool = True
    ) -> None:
        """A whole answer of the model."""
        if transcript is not None:
            self.speak(UserTranscript(text=transcript, final=True))
        self.speak(speech(text, ms))
        if end:
            self.speak(TurnEnded(), finished=True)

    def send_turn(self, text: str = "Hello there.", ms: int = 1000, *, end: bool = True) -> None:
        """Commit the audio that is buffered and answer it."""
        self.send(CommitAudio(create_response=True))
        self.reply(text, ms, end=end)

    def close(self) -> None:
        self.apply(CloseRequested(kind="closed", reason="test"))

    # -- looking ------------------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        return [type(event).__name__ for event in self.events]

    def of(self, kind: type) -> list:  # type: ignore[type-arg]
        return [event for event in self.events if isinstance(event, kind)]

    def last(self, kind: type):  # type: ignore[no-untyped-def]
        return self.of(kind)[-1]


def speech(text: str, ms: int, rate_hz: int = 24_000) -> Speech:
    """``ms`` of audio that speaks ``text``."""
    return Speech(text=text, audio=b"\x01\x00" * (rate_hz * ms // 1000), rate_hz=rate_hz)
