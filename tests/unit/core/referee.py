"""A referee: watches every step of a session from outside and holds it against a reference of its own.

Rules kept here: what is expected follows from the items and effects alone (what a client sent, what stages were told and
said), with the ledgers looked at only for their bounds; nothing of a request that ended has a consequence; every piece that
was submitted stands in what was accepted, in that order; every sound and word that left was said by a model, in that order
and once; every command has one answer. What can be judged at the end is judged by the simulator's own checkers.
"""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import cast

from duologue.config.session import SessionConfig
from duologue.engine.duplex import commands as c
from duologue.engine.duplex.core.barrier import MAX_WAITING_COMMANDS
from duologue.engine.duplex.core.effects import (
    AbortRequests,
    AnswerControl,
    CleanupSession,
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
    CommandReceived,
    ConfigJudged,
    Item,
    ModelSpoke,
    ResumeRequested,
)
from duologue.engine.duplex.core.state import SessionState
from duologue.engine.duplex.events import (
    AudioPart,
    CallOutputPart,
    ErrorRaised,
    InputCleared,
    InputCommitted,
    ItemAdded,
    ItemView,
    ResponseAudio,
    ResponseDone,
    ResponseText,
    SessionClosed,
    SessionCreated,
    SessionEvent,
    SessionExpired,
    SessionUpdated,
)
from duologue.engine.duplex.results import Speech
from duologue.outputs import StagePrompt
from duologue.sim.checkers.evidence import SessionEvidence, SiteEvidence, Violation
from duologue.sim.checkers.feed import pieces
from duologue.sim.checkers.order import at_the_engine
from duologue.sim.checkers.tools import ledger
from duologue.sim.observation import Fed, Planned, Told
from duologue.sim.plan import Deployment
from tests.unit.core.harness import World

SESSION = "duplex-0"
_ENDS_INPUT = (c.BargeIn, c.CancelInput, c.ClearAudio, c.SignalTurn)
_ANSWERS: dict[type, type[SessionEvent]] = {c.CommitAudio: InputCommitted, c.UpdateSession: SessionUpdated}
_AT_THE_END = (AbortRequests, AnswerControl, CleanupSession, InvalidateOutput)


class Said:
    """What one request's model said, and how much of it was passed on."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.audio = bytearray()
        self.text = ""
        self.audio_at = 0
        self.text_at = 0


class Referee:
    """Judges one world. Raises ``AssertionError`` in the step that does wrong."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.accepted = bytearray()  # every byte of input that was taken
        self.alive: dict[str, SubmitAppend] = {}
        self.started: set[str] = set()  # requests of which a stage took a piece
        self.gone: set[str] = set()
        self.waiting: SubmitAppend | None = None
        self.sequence: Counter[int] = Counter()
        self.said: dict[str, Said] = {}
        self.source: dict[str, str] = {}  # by response, the request whose words it passes on
        self.withdrawn: set[str] = set()
        self.emitted = 0
        self.refused: Counter[str] = Counter()
        self.kinds: dict[str, type[SessionEvent]] = {}  # what answers a command that may wait
        self.uncommitted = 0
        self.config: SessionConfig = world.config
        self.by_hand = True  # nothing but the client ended a turn so far
        self.judged: dict[int, SessionConfig] = {}
        self.resumed_by: str | None = None
        self.told: list[Told] = []
        self.planned: list[Planned] = []
        self.fed: list[Fed] = []
        self.once: Counter[str] = Counter()

    @property
    def state(self) -> SessionState:
        return self.world.state

    # -- before -------------------------------------------------------------------------------------------------------

    def before(self, item: Item) -> None:
        """Remember what the step is measured by."""
        s = self.state
        self.phase, self.generation, self.epoch, self.turn_id = (
            s.phase,
            s.lease.generation,
            s.fences.epoch,
            s.fences.turn_id,
        )
        self.received = s.audio.received_bytes
        self.held = self._held()
        self.order = [entry.item_id for entry in s.history.items]
        if isinstance(item, ModelSpoke) and item.request_id in self.alive:
            said = self.said.setdefault(item.request_id, Said(item.fence.epoch))
            for result in item.results:
                if isinstance(result, Speech):
                    said.audio += result.audio
                    said.text += result.text
        if isinstance(item, AppendAccepted | AppendFailed):
            self._settled(item)

    def _settled(self, item: AppendAccepted | AppendFailed) -> None:
        waiting = self.waiting
        if waiting is None or waiting.number != item.number:
            return
        self.waiting = None
        if isinstance(item, AppendAccepted):
            self.started.add(waiting.request_id)
            self.sequence[waiting.fence.epoch] += not waiting.out_of_band
            if waiting.request_id not in self.gone:
                self._took(waiting)

    def _took(self, submit: SubmitAppend) -> None:
        at = self.world.now
        self.planned.append(
            Planned(
                *(at, SESSION, submit.request_id, submit.fence, submit.seq, submit.turn_seq),
                *(submit.audio, submit.final, submit.silence, True, submit.instructions, submit.compact),
            )
        )
        self.fed.append(Fed(at, 0, submit.request_id, "", StagePrompt(audio=submit.audio, final=submit.final)))

    # -- after --------------------------------------------------------------------------------------------------------

    def after(self, item: Item, effects: list[Effect]) -> None:
        """Everything that one step must keep."""
        if isinstance(item, ModelSpoke) and item.request_id not in self.alive:
            assert effects == [], f"a request that ended has consequences: {effects}"
        if self.phase in ("closing", "closed"):
            self._nothing_new(effects)
        events: list[SessionEvent] = []
        for effect in effects:
            match effect:
                case Emit():
                    events.append(effect.event)
                    self._emitted(effect)
                case SubmitAppend():
                    self._submitted(effect)
                case AbortRequests() | ReleaseRequests() | CleanupSession():
                    self._ended(effect.request_ids)
                case InvalidateOutput():
                    self.withdrawn.add(effect.response_id)
                case JudgeConfig():
                    self.judged[effect.number] = effect.config
                case _:
                    pass
            if isinstance(effect, CleanupSession | EndSession):
                self.once[type(effect).__name__] += 1
                assert max(self.once.values()) == 1, f"{self.once}"
        self._fence()
        self._input(item, events)
        self._settings(item, events)
        self._lease(item, effects)
        self._commands(item, events)
        self._bounds()

    def _nothing_new(self, effects: list[Effect]) -> None:
        ends = (ErrorRaised, SessionClosed, SessionExpired)
        for effect in effects:
            late = isinstance(effect, Emit) and not isinstance(effect.event, ends)
            assert not late and isinstance(effect, (Emit, *_AT_THE_END)), f"after the close began: {effect}"

    def _emitted(self, effect: Emit) -> None:
        self.emitted += 1
        assert effect.number == self.emitted, "events are numbered without gaps"
        event = effect.event
        self.told.append(Told(self.world.now, effect.number, event))
        match event:
            case ResponseAudio():
                self._passed_on(event.response_id, event.epoch, event.audio, event.text)
            case ResponseText():
                self._passed_on(event.response_id, event.epoch, b"", event.text)
            case ErrorRaised(event_id=str(event_id)):
                self.refused[event_id] += 1
                assert self.refused[event_id] == 1, f"{event_id} was refused twice"
            case _:
                pass

    def _passed_on(self, response_id: str, epoch: int, audio: bytes, text: str) -> None:
        """What leaves is what the model said next, and nothing of it twice."""
        assert response_id not in self.withdrawn, f"{response_id} says more after it was withdrawn"
        request_id = self.source.get(response_id)
        if request_id is None:
            found = [key for key, said in self.said.items() if self._has(said, epoch, audio, text)]
            assert len(found) == 1, f"{response_id} of epoch {epoch} says {text!r}, {len(audio)} bytes: said by {found}"
            request_id = self.source[response_id] = found[0]
            said = self.said[request_id]
            # An answer begins where it likes: what was said before it was for nobody.
            said.audio_at = said.audio.find(audio, said.audio_at) if audio else said.audio_at
            said.text_at = said.text.find(text, said.text_at) if text else said.text_at
        said = self.said[request_id]
        assert said.audio[said.audio_at : said.audio_at + len(audio)] == audio, f"{response_id}: not what was said next"
        assert said.text.startswith(text, said.text_at), f"{response_id}: {text!r} is not what was said next"
        said.audio_at += len(audio)
        said.text_at += len(text)

    def _has(self, said: Said, epoch: int, audio: bytes, text: str) -> bool:
        return (
            said.epoch == epoch
            and said.audio.find(audio, said.audio_at) >= 0
            and said.text.find(text, said.text_at) >= 0
        )

    def _submitted(self, submit: SubmitAppend) -> None:
        assert self.waiting is None, "two submissions are on their way"
        assert submit.request_id not in self.gone, f"{submit.request_id} ended and is fed"
        assert submit.first == (submit.request_id not in self.started), f"{submit.request_id}: {submit.first=}"
        expected = 0 if submit.out_of_band else self.sequence[submit.fence.epoch] + 1
        assert submit.seq == expected, f"submission {submit.seq} of epoch {submit.fence.epoch}, not {expected}"
        self.waiting = submit
        self.alive[submit.request_id] = submit
        tail = self.state.tail
        assert not (submit.silence and any(entry.audio for entry in tail.queue)), "silence overtakes input"

    def _ended(self, request_ids: tuple[str, ...]) -> None:
        self.gone.update(request_ids)
        for request_id in request_ids:
            self.alive.pop(request_id, None)

    def _fence(self) -> None:
        """The epoch and the turn never go back, and an epoch takes everything with it that was begun in it."""
        fences = self.state.fences
        assert (fences.epoch, fences.turn_id) >= (self.epoch, self.turn_id)
        for request_id, submit in self.alive.items():
            stale = submit.fence.epoch < fences.epoch and not submit.out_of_band
            assert not stale, f"{request_id} lives on after its epoch"
        kept = [entry.item_id for entry in self.state.history.items]
        assert [key for key in self.order if key in kept] == [key for key in kept if key in self.order], (
            "items reordered"
        )

    # -- input --------------------------------------------------------------------------------------------------------

    def _input(self, item: Item, events: list[SessionEvent]) -> None:
        """An append is accepted whole or not at all; by hand, a commit takes exactly what was accepted since the last."""
        taken = self.state.audio.received_bytes - self.received
        if isinstance(item, AudioAppended):
            assert taken in (0, len(item.pcm))
            self.accepted += item.pcm[:taken]
            self.uncommitted += taken
        else:
            assert taken == 0
        self.by_hand &= self.world.config.turn_detection is None and self.config.turn_detection is None
        for event in events:
            match event:
                case InputCommitted(item=ItemView(parts=(AudioPart(duration_ms=duration_ms), *_))):
                    assert not self.by_hand or duration_ms == self.uncommitted // 32, f"{duration_ms} ms were committed"
                    self.uncommitted = 0
                case InputCleared():
                    self.uncommitted = 0
                case _:
                    pass
        if isinstance(item, CommandReceived) and isinstance(item.command, _ENDS_INPUT):
            self.uncommitted = self.state.audio.buffered_bytes

    def _held(self) -> set[str]:
        """The commands that wait for the input before them, or for a verdict."""
        s = self.state
        waits = [command.event_id for command in s.behind]
        waits += [s.commit_wait.event_id if s.commit_wait is not None else None, s.judge_event_id]
        return {event_id for event_id in waits if event_id is not None}

    def _commands(self, item: Item, events: list[SessionEvent]) -> None:
        """What waits is carried out, refused or taken back; never forgotten."""
        command = item.command if isinstance(item, CommandReceived) else None
        if command is not None and command.event_id is not None:
            self.kinds[command.event_id] = _ANSWERS.get(type(command), ItemAdded)
        if self.state.phase != "open" or isinstance(command, _ENDS_INPUT):
            return
        settled = self.held - self._held() - {event.event_id for event in events if isinstance(event, ErrorRaised)}
        asked = Counter(self.kinds[event_id] for event_id in settled)
        told = Counter(type(event) for event in events)
        assert all(told[kind] >= count for kind, count in asked.items()), f"of {settled}, some were forgotten: {events}"

    # -- settings, lease, bounds --------------------------------------------------------------------------------------

    def _settings(self, item: Item, events: list[SessionEvent]) -> None:
        """A change of settings is adopted whole once it is judged well, and shown; else nothing changes."""
        if isinstance(item, ConfigJudged) and self.phase == "open":
            judged = self.judged.pop(item.number, None)
            shown = [event for event in events if isinstance(event, SessionUpdated)]
            if judged is not None and item.code is None:
                self.config = judged
                assert [event.config for event in shown] == [judged]
            else:
                assert not shown
        assert self.world.core.config == self.config, "the settings in force are not those that were adopted"

    def _lease(self, item: Item, effects: list[Effect]) -> None:
        """The generation: compare and swap, once for one request; the close moves it once more."""
        answers = [effect for effect in effects if isinstance(effect, AnswerControl)]
        assert len(answers) == isinstance(item, ResumeRequested)
        expected = self.generation + (self.phase in ("new", "open") and self.state.phase in ("closing", "closed"))
        if isinstance(item, ResumeRequested):
            again = item.control_id == self.resumed_by
            wins = self.phase == "open" and (again or item.expected_generation == self.generation)
            assert (answers[0].code is None) == wins, f"{item} at generation {self.generation}: {answers[0]}"
            if wins and not again:
                expected, self.resumed_by = self.generation + 1, item.control_id
        assert self.world.core.generation == expected

    def _bounds(self) -> None:
        s, runtime = self.state, self.world.runtime
        limits = {
            # The last unit of a turn is filled up, and a unit of silence may be on its way.
            "input": (s.held_input_bytes, runtime.max_pending_input_bytes_per_session + 2 * 2560),
            "wanted": (len(s.wanted), runtime.max_pending_turns_per_session),
            "asides": (len(s.asides), runtime.max_pending_turns_per_session),
            "events": (len(s.outbox.released), runtime.max_pending_output_events_per_session + 9),
            "items": (len(s.history), runtime.max_items_per_session),
            "calls": (len(s.tools), runtime.max_tool_calls_per_session),
            "commands": (len(s.behind), MAX_WAITING_COMMANDS),
            "orphans": (len(s.tail.orphans), 1),
        }
        beyond = {name: held for name, (held, limit) in limits.items() if held > limit}
        assert not beyond, f"beyond their bounds: {beyond}"

    # -- the end ------------------------------------------------------------------------------------------------------

    def verdict(self, *, claimed: bool) -> list[Violation]:
        """What the simulator's checkers find in the whole life; the session is over."""
        left = {key for key in self.alive if key not in self.gone}
        assert not left, f"never stopped nor released: {left}"
        family = "resident" if self.world.capabilities.family == "resident" else "ephemeral"
        seen = SimpleNamespace(input=self.fed, planned=self.planned, told={SESSION: self.told})
        site = SimpleNamespace(plan=Deployment(family=family), seen=seen, crashed=claimed)
        told = [entry for entry in self.told if not _seeded(entry.event)]
        while told and not isinstance(told[0].event, SessionCreated):
            del told[0]  # what came too early was refused
        session = SessionEvidence(SESSION, cast(SiteEvidence, site), told, None, None)
        found = [*(at_the_engine(session) if told else ()), *pieces(session, bytes(self.accepted), SESSION)]
        return [*found, *ledger(session)]

    def statuses(self) -> Counter[str]:
        """How the responses ended."""
        return Counter(entry.event.status for entry in self.told if isinstance(entry.event, ResponseDone))


def _seeded(event: SessionEvent) -> bool:
    """Whether a client brought along the result of a call of its own."""
    return isinstance(event, ItemAdded) and any(
        isinstance(part, CallOutputPart) and part.call_id.startswith("own") for part in event.item.parts
    )
