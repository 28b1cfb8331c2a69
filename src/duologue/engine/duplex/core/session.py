"""The session state machine: :meth:`DuplexEngineSession.step` takes what happened and returns what to do.

Rules kept here: no I/O, no clock, no randomness, no plugin; one dispatch over the items, exhaustive; invariants are checked
after every step; the same items at the same times give the same effects, byte for byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from duologue.allowance import Allowance
from duologue.config.session import SessionConfig
from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.commands import (
    AckPlayback,
    AppendAudio,
    AppendText,
    BargeIn,
    CancelInput,
    CancelResponse,
    ClearAudio,
    ClearOutput,
    CloseSession,
    CommitAudio,
    CreateItem,
    CreateResponse,
    DeleteItem,
    DuplexCommand,
    Heartbeat,
    ResponseOptions,
    RetrieveItem,
    SignalTurn,
    TruncateItem,
    UpdateSession,
)
from duologue.engine.duplex.contracts import DuplexFence, DuplexModelSessionState
from duologue.engine.duplex.core import (
    acknowledgement,
    answers,
    aside,
    barrier,
    cancel,
    check,
    compaction,
    conversation,
    intake,
    lifecycle,
    rebuild,
    resident,
    settlement,
    submission,
    turns,
)
from duologue.engine.duplex.core.audio import AudioLedger
from duologue.engine.duplex.core.calls import ToolLedger
from duologue.engine.duplex.core.effects import Effect
from duologue.engine.duplex.core.fences import Fences
from duologue.engine.duplex.core.history import History
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
from duologue.engine.duplex.core.lease import Lease
from duologue.engine.duplex.core.pacing import taken
from duologue.engine.duplex.core.sequel import Sequel
from duologue.engine.duplex.core.silence import SilenceClock
from duologue.engine.duplex.core.state import SessionState
from duologue.engine.duplex.events import HeartbeatAcknowledged
from duologue.engine.duplex.plugin import ModelCapabilities
from duologue.errors import ClientFault, ErrorCode
from duologue.ids import IdSource


class DuplexFenceMismatchError(RuntimeError):
    """A stage request belongs to an epoch that has ended."""


class DuplexEngineSession:
    """One session's state, reached only through :meth:`step` and read-only views.

    ``seed`` makes its ids; ``now`` is the time of opening, in seconds on the clock of every later ``now``. Times must not
    run backwards; one that does counts as the last one. ``model_state`` is the plugin's and never looked into.
    """

    __slots__ = ("_state", "model_state")

    def __init__(
        self,
        *,
        session_id: str,
        config: SessionConfig,
        runtime_config: DuplexSessionRuntimeConfig,
        capabilities: ModelCapabilities,
        seed: str,
        model_state: DuplexModelSessionState,
        now: float,
    ) -> None:
        self.model_state = model_state
        self._state = SessionState(
            session_id=session_id,
            config=config,
            runtime=runtime_config,
            capabilities=capabilities,
            ids=IdSource(seed),
            fences=Fences(session_id),
            audio=AudioLedger(capabilities.input_rate_hz),
            history=History(runtime_config.max_items_per_session, runtime_config.max_history_chars),
            lease=Lease(now),
            tools=ToolLedger(runtime_config.max_tool_calls_per_session),
            silence=SilenceClock(capabilities.chunk_period_ms / 1000.0),
            sequel=Sequel(capabilities.output_rate_hz),
            allowance=Allowance(runtime_config.turns_per_minute, runtime_config.turn_burst),
            now=now,
        )

    # -- the step ---------------------------------------------------------------------------------------------------

    def step(self, item: Item, now: float) -> list[Effect]:
        """Take one item; returns the effects to carry out, in order.

        Bad input yields an error event, never an exception. Raises ``InvariantViolation`` if the machine contradicts
        itself: the session must then be ended.
        """
        s = self._state
        if now > s.now:
            s.now = now
        self._dispatch(s, item)
        if s.behind or s.commit_wait is not None:
            barrier.release(s)
        if s.cramped:
            compaction.make_room(s)
        if s.overflowed and s.phase == "open":
            s.acted["output"] += 1
            lifecycle.fault(
                s,
                ErrorCode.OUTPUT_BACKPRESSURE,
                f"{len(s.outbox.released)} events ({s.outbox.released_bytes} bytes) wait to be read, which is the limit.",
            )
        check.after_step(s)
        effects, s.effects = s.effects, []
        return effects

    def _dispatch(self, s: SessionState, item: Item) -> None:
        match item:
            case AudioAppended():
                intake.append_audio(s, item)
            case AppendAccepted():
                settlement.accepted(s, item)
            case SpeechScored():
                intake.scores_arrived(s, item)
            case ModelSpoke():
                answers.model_spoke(s, item)
            case OutputTaken():
                taken(s, item.number)
            case TimerFired():
                self._timers(s)
            case CommandReceived():
                self._command(s, item.command)
            case CommandRefused():
                s.error(item.code, item.message, event_id=item.event_id, param=item.param)
            case TurnClassified():
                intake.classified(s, item)
            case DetectorFailed():
                intake.detector_failed(s, item)
            case AppendFailed():
                settlement.failed(s, item)
            case StageFailed():
                settlement.stage_failed(s, item)
            case ReplicaLost():
                rebuild.lost(s, item)
            case Replaced():
                rebuild.replaced(s)
            case ConfigJudged():
                lifecycle.config_judged(s, item)
            case Opened():
                lifecycle.opened(s)
            case Attached():
                lifecycle.attached(s)
            case Detached():
                lifecycle.detached(s, item.expected_generation)
            case ResumeRequested():
                lifecycle.resume_requested(s, item)
            case Touched():
                _note_sign(s, item.command)
            case CloseRequested():
                lifecycle.close_requested(s, item)
            case CleanupEnded():
                lifecycle.cleanup_ended(s, item.released)
            case TerminalClaimed():
                lifecycle.terminal_claimed(s)
            case _:
                assert_never(item)

    def _command(self, s: SessionState, command: DuplexCommand) -> None:
        if s.phase != "open":
            s.error(
                ErrorCode.SESSION_CLOSED,
                "The session is closing; the command was not accepted.",
                event_id=command.event_id,
            )
            return
        _note_sign(s, command)
        if isinstance(command, CommitAudio | CreateResponse) and not turns.allowed(s, command.event_id):
            return
        match command:
            case AppendAudio():
                s.error(ErrorCode.BAD_EVENT, "Audio must be decoded before it is applied.", event_id=command.event_id)
            case CommitAudio() | UpdateSession():
                barrier.receive(s, command)
            case ClearAudio():
                cancel.clear_requested(s)
            case ClearOutput():
                conversation.clear_output(s, command)
            case CreateResponse():
                conversation.create_response(s, command)
            case CancelResponse():
                conversation.cancel_response(s, command)
            case CreateItem() if command.item.output is not None:
                barrier.receive(s, command)
            case CreateItem():
                conversation.create_item(s, command)
            case DeleteItem():
                conversation.delete_item(s, command)
            case RetrieveItem():
                conversation.retrieve_item(s, command)
            case TruncateItem():
                conversation.truncate_item(s, command)
            case AckPlayback():
                acknowledgement.ack_playback(s, command)
            case Heartbeat():
                s.emit(HeartbeatAcknowledged())
            case BargeIn():
                lifecycle.barge_in(s, command.event_id)
            case CancelInput():
                cancel.cancel_input(s)
            case CloseSession():
                lifecycle.request_close(s, "closed", command.reason)
            case SignalTurn():
                lifecycle.signal(s, command)
            case AppendText():
                s.error(
                    ErrorCode.NATIVE_TEXT_APPEND_UNSUPPORTED,
                    "Text cannot be streamed into this session; create a conversation item instead.",
                    event_id=command.event_id,
                )
            case _:
                assert_never(command)

    def _timers(self, s: SessionState) -> None:
        lifecycle.timers(s)
        if s.phase != "open":
            return
        if s.silence.due_at is not None and s.now >= s.silence.due_at:
            resident.continuation_due(s)
        if s.transcript_wait is not None and s.now >= s.transcript_wait:
            submission.pump(s)
        if s.tell_by is not None and s.now >= s.tell_by:
            compaction.untold(s)
        if s.idle_at is not None and s.now >= s.idle_at:
            lifecycle.idle_timed_out(s)
        if s.rebuild_by is not None and s.now >= s.rebuild_by:
            lifecycle.rebuild_timed_out(s)

    def next_deadline(self) -> float | None:
        """When ``TimerFired`` is wanted, if nothing happens before; ``None``: not at all."""
        s = self._state
        if s.phase != "open":
            return None
        first = s.pace_at
        for at in (s.silence.due_at, s.idle_at, s.rebuild_by, s.beside_at, s.tell_by):
            if at is not None and (first is None or at < first):
                first = at
        # Each of these costs a call, and is for a case that is seldom there.
        if s.turn is not None:
            first = _earlier(first, intake.starvation_at(s))
        if s.overlap is not None and s.overlap.decide_at > s.now:
            first = _earlier(first, s.overlap.decide_at)
        if s.transcript_wait is not None and not s.tail.blocked:
            first = _earlier(first, s.transcript_wait)
        if s.tools.records:
            first = _earlier(first, s.tools.deadline())
        return first

    # -- synchronous operations and views ---------------------------------------------------------------------------

    def bind_stage_request(self, stage_id: int, request_id: str, *, fence: DuplexFence) -> None:
        """Stage ``stage_id`` took ``request_id`` under ``fence``. Raises :class:`DuplexFenceMismatchError` if it is stale."""
        record = self._state.requests.get(request_id)
        if aside.working(self._state, request_id) is not None:
            return
        if record is None or fence.epoch != self._state.fences.epoch or fence.session_id != self.session_id:
            raise DuplexFenceMismatchError(
                f"stage {stage_id} bound a request of epoch {fence.epoch}; the session is at {self._state.fences.epoch}"
            )
        record.stages.add(stage_id)

    def settings_of(self, options: ResponseOptions) -> SessionConfig | None:
        """The settings of a response with ``options``, for the plugin to judge; ``None`` if there is nothing to be judged:
        they are the session's, or are refused in any case.
        """
        s = self._state
        if s.phase != "open":
            return None
        try:
            config = conversation.settings(s, options)
        except ClientFault:
            return None
        return config if config != s.config else None

    def lease_expiry(self, now: float) -> str | None:
        """Why the lease is over at ``now``, or ``None``."""
        s = self._state
        return s.lease.expiry(
            now,
            idle_ttl_s=s.runtime.idle_ttl_s,
            grace_s=s.runtime.disconnect_grace_s,
            # A response that says nothing any more is no sign of life: a stage that hangs must not keep a slot for ever.
            # Nor is input that a resident model has no room for, since only what that says makes any.
            busy=s.tail.in_flight is not None
            or bool(s.tail.queue and not s.resident_family)
            or bool(s.outbox.queue)
            or s.playback.playing(now)
            or aside.speaking(s),
        )

    def response_id_for_request(self, request_id: str) -> str | None:
        """The response that a live request works for."""
        beside = aside.working(self._state, request_id)
        if beside is not None:
            return beside.response.response_id
        record = self._state.requests.get(request_id)
        return record.response_id if record is not None else None

    def live_request_ids(self) -> tuple[str, ...]:
        """Ids of the stage requests that are alive."""
        beside = (key for key, entry in self._state.asides.items() if not entry.ended)
        return (*self._state.requests.records, *beside)

    def tables(self) -> Mapping[str, int]:
        """Sizes of everything that must be empty when the session is at rest."""
        s = self._state
        return {
            "requests": len(s.requests),
            "append_queue": len(s.tail.queue) + (s.tail.in_flight is not None),
            "orphans": len(s.tail.orphans),
            "outbox": len(s.outbox.queue),
            "untaken": len(s.outbox.released),
            "wanted": len(s.wanted),
            "response": int(s.response is not None),
            "asides": len(s.asides) + (s.tail.beside is not None),
            "turn": int(s.turn is not None),
        }

    def held(self) -> Mapping[str, int]:
        """How much of what is bounded it holds now."""
        s = self._state
        own_ms = s.outbox.backlog_ms + s.sequel.audio_ms
        return {
            "input_bytes": s.held_input_bytes,
            "turns": len(s.wanted),
            "untaken_events": len(s.outbox.released),
            "untaken_bytes": s.outbox.released_bytes,
            "backlog_ms": round(max([own_ms, *(entry.line.backlog_ms for entry in s.asides.values())])),
            "items": len(s.history),
            "commands": len(s.behind),
        }

    def acted(self) -> Mapping[str, int]:
        """How often each limit has acted since the session began."""
        s = self._state
        return {**s.acted, "items": s.history.evicted, "history_chars": s.history.left_out}

    @property
    def session_id(self) -> str:
        return self._state.session_id

    @property
    def config(self) -> SessionConfig:
        return self._state.config

    @property
    def config_generation(self) -> int:
        return self._state.config_generation

    @property
    def epoch(self) -> int:
        return self._state.fences.epoch

    @property
    def turn_id(self) -> int:
        return self._state.fences.turn_id

    @property
    def fence(self) -> DuplexFence:
        return self._state.fences.current

    @property
    def generation(self) -> int:
        """Lease generation."""
        return self._state.lease.generation

    @property
    def attached(self) -> bool:
        return self._state.lease.attached

    @property
    def phase(self) -> str:
        """``new``, ``open``, ``closing`` or ``closed``."""
        return self._state.phase

    @property
    def awaits_placement(self) -> bool:
        """Whether a replica was lost and no other found yet."""
        return self._state.phase == "open" and self._state.rebuild_by is not None

    @property
    def holding(self) -> bool:
        """Whether a command waits for the input before it: nothing that was sent after it may be applied until then."""
        s = self._state
        return bool(s.behind) or s.commit_wait is not None or s.judging is not None

    @property
    def refuses_input(self) -> bool:
        """Whether the last append was refused, for want of room."""
        return self._state.input_refused

    @property
    def active_response_id(self) -> str | None:
        response = self._state.response
        return response.response_id if response is not None else None


def _note_sign(s: SessionState, command: DuplexCommand | None) -> None:
    """What a client sends by itself, whether anybody is there or not, is no sign that somebody is."""
    match command:
        case AckPlayback():
            s.lease.worked(s.now)
        case CreateItem() if command.item.output is not None:
            s.lease.answered(s.now)
        case CreateResponse():
            s.lease.asked(s.now)
        case _:
            s.lease.touch(s.now)


def _earlier(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
