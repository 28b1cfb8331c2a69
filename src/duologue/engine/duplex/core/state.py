"""All of a session's state in one place, and the few operations that every part of the core needs.

Rules kept here: state is touched by functions of this package only, inside one ``step``; effects are appended in the order
in which the shell must carry them out.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Literal

from duologue.allowance import Allowance
from duologue.config.session import SessionConfig
from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.commands import CommitAudio, CreateItem, ResponseOptions, UpdateSession
from duologue.engine.duplex.core.audio import AudioLedger
from duologue.engine.duplex.core.calls import ToolLedger
from duologue.engine.duplex.core.delays import AnswerClock
from duologue.engine.duplex.core.effects import Effect, Emit
from duologue.engine.duplex.core.endpoint import FRAME_SAMPLES, Endpointer
from duologue.engine.duplex.core.fences import Fences
from duologue.engine.duplex.core.history import History
from duologue.engine.duplex.core.lease import Lease
from duologue.engine.duplex.core.outbox import Outbox
from duologue.engine.duplex.core.overlap import Overlap
from duologue.engine.duplex.core.playback import PlaybackClock
from duologue.engine.duplex.core.requests import RequestTable
from duologue.engine.duplex.core.responses import Aside, Response
from duologue.engine.duplex.core.sequel import Sequel
from duologue.engine.duplex.core.silence import SilenceClock
from duologue.engine.duplex.core.tables import TURN, advance
from duologue.engine.duplex.core.tail import AppendTail
from duologue.engine.duplex.events import (
    ErrorRaised,
    FunctionCalled,
    InputCommitted,
    InputTranscribed,
    ItemAdded,
    ItemRetrieved,
    ResponseAudio,
    ResponseDone,
    ResponseListen,
    ResponseText,
    SessionClosed,
    SessionCreated,
    SessionEvent,
    SessionExpired,
    SessionUpdated,
    part_text,
)
from duologue.engine.duplex.plugin import ModelCapabilities
from duologue.errors import ErrorCode
from duologue.ids import IdSource

DETECTOR_RATE_HZ = 16_000
FRAME_BYTES = FRAME_SAMPLES * 2
_EVENT_BYTES = 400  # what a frame around a payload takes, roughly: the bound need not be exact
_RESERVE_EVENTS = 8
_RESERVE_BYTES = 64 * 1024


def payload_size(event: SessionEvent) -> int:
    """What an event takes beside its frame, roughly, in bytes: audio travels as base64, text as it is.

    What ends things counts as its frame alone, so that it fits into the reserve whatever it says.
    """
    match event:
        case ResponseAudio():
            return len(event.audio) * 4 // 3 + len(event.text)
        case ResponseText() | InputTranscribed():
            return len(event.text)
        case ItemAdded() | ItemRetrieved() | InputCommitted():
            return sum(len(part_text(part)) for part in event.item.parts)
        case FunctionCalled():
            return 4 * sum(len(part_text(part)) for part in event.item.parts)  # delta, done, and twice the item
        case SessionCreated() | SessionUpdated():
            return len(event.config.instructions) + sum(len(tool.parameters) for tool in event.config.tools)
        case _:
            return 0


@dataclass(slots=True)
class UserTurn:
    """Speech of the user that is not committed yet. Positions in samples at the model's rate.

    ``request_id`` is the stage request that already hears it, if any, and ``sent_to`` how far.
    """

    item_id: str
    start: int
    onset: int
    onset_at: float
    state: str = "speaking"
    announced: bool = False
    end: int | None = None
    silence_ms: int = 0  # silence at the end of what `end` encloses
    request_id: str | None = None
    sent_to: int = 0
    quiet_at: float | None = None  # when the last of its speech arrived, if it pauses or has paused
    judged_at: float | None = None
    paused_at: int | None = None  # a pause began there that the model was not told of yet
    partial: str | None = None

    def advance(self, event: str) -> None:
        self.state = advance(TURN, self.state, event)

    def unbind(self) -> None:
        """No request hears it any more: the next one begins with its first sample."""
        self.request_id, self.sent_to = None, self.start

    def heard_all(self, silence: int) -> bool:
        """Whether its request has all of its speech, if it ends with ``silence`` samples of none."""
        return self.request_id is not None and self.end is not None and self.sent_to >= self.end - silence


@dataclass(slots=True)
class CommittedTurn:
    """A user turn that became an item; its audio is kept until a stage has taken and transcribed it."""

    item_id: str
    audio: bytes
    request_id: str | None = None
    sent_bytes: int = 0
    quiet: bool = False  # what was not sent yet holds no speech
    clock: AnswerClock | None = None
    transcribing: str | None = None

    def unbind(self) -> None:
        """No request is to answer it any more: the next one gets all of its audio."""
        self.request_id, self.sent_bytes, self.quiet = None, 0, False


@dataclass(slots=True)
class WantedAnswer:
    """An answer that waits for the response in progress. ``event_id``: what the client calls its wish, if it is still to
    be answered."""

    item_id: str | None
    options: ResponseOptions
    event_id: str | None = None


@dataclass(slots=True)
class CommitWait:
    """An explicit commit of everything before ``end`` (samples) that waits for verdicts up to ``position`` (frames).

    ``ready``: the verdicts are there, and it waits for the stage to take what it was sent of that audio.
    """

    position: int
    end: int
    event_id: str | None
    create_response: bool
    ready: bool = False


@dataclass(slots=True)
class Claim:
    """The client says of the frames from ``start`` to before ``end`` whether they are speech."""

    start: int
    end: int
    speech: bool


@dataclass(slots=True)
class Judgement:
    """A verdict on a pause, asked for when it began (at frame ``began``) and used once the pause counts."""

    number: int
    began: int
    probability: float | None = None  # None: not answered yet
    at: float = 0.0


@dataclass(slots=True)
class Detection:
    """The session's side of speech detection: what is buffered, in flight, and not yet consumed.

    ``claims``: what the client says of frames that are not consumed yet, in order; it outranks the detector.
    """

    endpointer: Endpointer | None = None
    buffer: bytearray = field(default_factory=bytearray)
    recent: bytearray = field(default_factory=bytearray)
    scores: deque[float] = field(default_factory=deque)
    claims: deque[Claim] = field(default_factory=deque)
    numbers: int = 0
    in_flight: int | None = None
    in_flight_frames: int = 0
    classify: int | None = None
    classify_silence_ms: int = 0
    ahead: Judgement | None = None
    reset: bool = True

    @property
    def received_frames(self) -> int:
        """Frames received since the session began, verdict or not."""
        position = self.endpointer.position if self.endpointer is not None else 0
        return position + len(self.scores) + self.in_flight_frames + len(self.buffer) // FRAME_BYTES

    def claim(self, start: int, speech: bool) -> None:
        """Frames from ``start`` to the last that was received are speech, or are not, by the client's word."""
        end, claims = self.received_frames, self.claims
        if claims and claims[-1].end == start and claims[-1].speech is speech:
            claims[-1].end = end
        elif end > start:
            claims.append(Claim(start, end, speech))

    def claimed(self, frame: int) -> bool | None:
        """What the client said of ``frame``; to be asked in order, each frame once or never."""
        claims = self.claims
        while claims and claims[0].end <= frame:
            claims.popleft()
        return claims[0].speech if claims and claims[0].start <= frame else None


@dataclass(slots=True)
class ResidentInput:
    """Input of a resident model. ``buffer`` does not fill a unit yet; positions in samples: what is before ``fed_to`` was
    handed to the model or lies in the buffer, what is before ``committed_to`` is in an item or was cleared. ``waiting``:
    units of turns that the client ended (each with its item) and that no stage took, for the next piece that is fed.
    ``told``: so many functions' results (the last at ``told_at``) reached it that no answer was asked for; ``reply``: what
    it says then."""

    buffer: bytearray = field(default_factory=bytearray)
    waiting: deque[tuple[str | None, bytes]] = field(default_factory=deque)
    told: int = 0
    told_at: float = 0.0
    reply: Response | None = None
    fed_to: int = 0
    committed_to: int = 0
    force_listen: bool = False  # the client wants the model to listen to what fills the next unit
    rebuild: bool = False  # the next request takes the place of one that is gone
    share: float | None = None  # so full was the context of that one
    clock_stood: bool = False  # a frame-locked model was going to hear more when it was lost, input or silence
    compact: bool = False  # and shall begin with less than that one held


@dataclass(slots=True)
class SessionState:
    """See the modules of each ledger for its rules."""

    session_id: str
    config: SessionConfig
    runtime: DuplexSessionRuntimeConfig
    capabilities: ModelCapabilities
    ids: IdSource
    fences: Fences
    audio: AudioLedger
    history: History
    lease: Lease
    tools: ToolLedger
    silence: SilenceClock
    sequel: Sequel
    allowance: Allowance
    now: float
    phase: str = "new"
    config_generation: int = 0
    detection: Detection = field(default_factory=Detection)
    tail: AppendTail = field(default_factory=AppendTail)
    requests: RequestTable = field(default_factory=RequestTable)
    outbox: Outbox = field(default_factory=Outbox)
    playback: PlaybackClock = field(default_factory=PlaybackClock)
    resident: ResidentInput = field(default_factory=ResidentInput)
    turn: UserTurn | None = None
    overlap: Overlap | None = None
    commit_wait: CommitWait | None = None
    asides: dict[str, Aside] = field(default_factory=dict)
    committed: dict[str, CommittedTurn] = field(default_factory=dict)
    wanted: deque[WantedAnswer] = field(default_factory=deque)
    response: Response | None = None
    last_response: Response | None = None
    arrivals: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=64))
    append_ms: deque[float] = field(default_factory=lambda: deque(maxlen=16))
    longest_append_ms: float = 0.0  # of those
    last_append_at: float | None = None
    judging: int | None = None
    judged_config: SessionConfig | None = None
    judge_numbers: int = 0
    judge_event_id: str | None = None
    behind: deque[CommitAudio | CreateItem | UpdateSession] = field(default_factory=deque)  # see ``barrier.py``
    spoke: bool = False
    listening: ResponseListen | None = None  # the last event, if it said that the model listens
    overflowed: bool = False
    cramped: bool = False  # the next piece of a resident model's input fits into no room that it will make by itself
    input_refused: bool = False
    pace_at: float | None = None
    beside_at: float | None = None  # the same for what is said outside the conversation
    transcript_wait: float | None = None
    tell_by: float | None = None  # until then input waits for what a resident model tells of its context
    rebuild_by: float | None = None  # until then a new placement is waited for
    lost_message: str = ""
    lost_for_good: bool = False  # without a new placement the session cannot go on
    placements: int = 0
    remade: int = 0  # answers made again since one was completed
    idle_at: float | None = None
    close_kind: Literal["closed", "expired"] = "closed"
    close_reason: str = ""
    close_fault: ErrorCode | None = None
    cleanup_started: bool = False
    terminal_sent: bool = False
    cleanup_released: bool | None = None
    effects: list[Effect] = field(default_factory=list)
    acted: Counter[str] = field(default_factory=Counter)  # how often each limit acted

    resident_family: bool = field(init=False)
    auto_responds: bool = field(init=False)  # the model decides by itself when to speak
    unit_bytes: int = field(init=False)  # of a resident model's input; 0: it takes any piece

    def __post_init__(self) -> None:
        capabilities = self.capabilities
        self.resident_family = capabilities.family == "resident"
        self.unit_bytes = self.audio.samples(capabilities.unit_ms) * 2
        self.configure(self.config)

    def configure(self, config: SessionConfig) -> None:
        """``config`` is in force from here on, with all that is read from it at every append."""
        self.config = config
        self.auto_responds = self.resident_family and (
            config.auto_response or not self.capabilities.supports_client_commit
        )

    # -- small views ------------------------------------------------------------------------------------------------

    @property
    def commit_ready(self) -> bool:
        """Whether a commit waits for the stage alone: what was said after it is not looked at until then."""
        return self.commit_wait is not None and self.commit_wait.ready

    @property
    def held_input_bytes(self) -> int:
        """Input audio that waits, each sample once, wherever it waits and however often it is kept."""
        audio, tail = self.audio, self.tail
        held = (audio.end - audio.floor) * 2
        if self.committed:
            held += sum(len(turn.audio) for turn in self.committed.values())
        if tail.queue or tail.in_flight is not None or self.resident.buffer or self.resident.waiting:
            return self._held_on_its_way(held)
        return held

    def _held_on_its_way(self, held: int) -> int:
        """The same with what is on its way to a stage; ``held`` bytes are kept beside that, also for another try."""
        if self.resident_family:
            # What was fed ends at `fed_to`, and so does what is kept of it: the longer of the two holds the other.
            kept = max(0, self.resident.fed_to - self.audio.floor) * 2
            waiting = len(self.resident.buffer) + sum(len(piece) for _, piece in self.resident.waiting)
            return held + max(0, self.tail.held_bytes + waiting - kept)
        if self.capabilities.transcribes_input:
            return held  # each piece is of a turn that is kept
        # Of a turn that goes with the ones before it, to a model that has not heard them, the latter are kept no more.
        for append in self.tail.unsettled():
            own = self.committed.get(append.item_id) if append.item_id is not None else None
            if own is not None:
                held += max(0, len(append.audio) - len(own.audio))
        return held

    @property
    def answering(self) -> bool:
        """Whether an answer is being generated, waits to be sent, or still plays."""
        return self.response is not None or self.playback.playing(self.now)

    def frame_position(self, frame: int) -> int:
        """Samples at the model's rate at the beginning of detector frame ``frame``."""
        return min(self.audio.end, frame * FRAME_SAMPLES * self.audio.rate_hz // DETECTOR_RATE_HZ)

    # -- effects ----------------------------------------------------------------------------------------------------

    def do(self, effect: Effect) -> None:
        self.effects.append(effect)

    def has_room(self, payload_bytes: int) -> bool:
        """Whether one more event of that size fits into what may wait for the socket; alone any event does.

        Once something did not fit, nothing does: the session ends, and what is smaller must not leave in its place.
        """
        if self.overflowed:
            return False
        outbox, runtime = self.outbox, self.runtime
        size = _EVENT_BYTES + payload_bytes
        return not outbox.released or (
            len(outbox.released) < runtime.max_pending_output_events_per_session
            and outbox.released_bytes + size <= runtime.max_pending_output_bytes_per_session
        )

    def emit(
        self, event: SessionEvent, *, audio_ms: float = 0.0, response_id: str | None = None, beside_ms: float = 0.0
    ) -> bool:
        """Let ``event`` leave, within the bounds on what was not yet taken; false if it could not."""
        if self.terminal_sent:
            return False
        outbox = self.outbox
        payload_bytes = payload_size(event)
        size = _EVENT_BYTES + payload_bytes
        if not self.has_room(payload_bytes):
            self.overflowed = True
            if not self._may_use_reserve(event, size):
                return False
        number = outbox.release(size, audio_ms, response_id, beside_ms)
        self.listening = None
        self.effects.append(Emit(number=number, event=event))
        return True

    def note_append(self, samples: int) -> None:
        """So much input arrived at once, now."""
        audio = self.audio
        duration_ms = samples * 1000.0 / audio.rate_hz
        self.append_ms.append(duration_ms)
        self.longest_append_ms = duration_ms if duration_ms >= self.longest_append_ms else max(self.append_ms)
        self.last_append_at = self.now
        self.arrivals.append((audio.end, self.now))

    def say_that_the_model_listens(self, reason: str, response_id: str | None) -> None:
        """Once: with every unit that it listens to, it would be a flood that tells nothing."""
        said = ResponseListen(reason=reason, response_id=response_id)
        if said != self.listening and self.emit(said):
            self.listening = said

    def _may_use_reserve(self, event: SessionEvent, size: int) -> bool:
        """Beyond the bound only what ends things may leave: it must reach a client that comes back to read."""
        if isinstance(event, SessionClosed | SessionExpired):
            return True
        outbox, runtime = self.outbox, self.runtime
        return (
            isinstance(event, ErrorRaised | ResponseDone)
            and len(outbox.released) < runtime.max_pending_output_events_per_session + _RESERVE_EVENTS
            and outbox.released_bytes + size <= runtime.max_pending_output_bytes_per_session + _RESERVE_BYTES
        )

    def error(
        self,
        code: ErrorCode,
        message: str,
        *,
        event_id: str | None = None,
        param: str | None = None,
        response_id: str | None = None,
    ) -> None:
        """Tell the client what was wrong; nothing else changes."""
        self.emit(ErrorRaised(code=code, message=message, event_id=event_id, param=param, response_id=response_id))
