"""Open, reconfigure, lease, fail, close: the life of a session as a whole.

Rules kept here: from the instant a close begins nothing is accepted; every open response gets its terminal before the
session's own; the session's terminal is sent once, last, when its stage requests are cleaned up or the time for that is over.
"""

from __future__ import annotations

from duologue.config.session import SessionConfig, merge
from duologue.engine.duplex.commands import ResponseOptions, SignalTurn, UpdateSession
from duologue.engine.duplex.core import (
    answers,
    aside,
    cancel,
    frames,
    hearing,
    intake,
    interruption,
    pacing,
    rebuild,
    tools,
    turns,
)
from duologue.engine.duplex.core.effects import (
    AnswerControl,
    ApplyConfig,
    CleanupSession,
    EndSession,
    JudgeConfig,
)
from duologue.engine.duplex.core.endpoint import FRAME_SAMPLES, Endpointer
from duologue.engine.duplex.core.history import Item
from duologue.engine.duplex.core.items import CloseRequested, ConfigJudged, ResumeRequested
from duologue.engine.duplex.core.state import DETECTOR_RATE_HZ, SessionState
from duologue.engine.duplex.core.tables import SESSION, advance
from duologue.engine.duplex.events import (
    InputTimedOut,
    SessionClosed,
    SessionCreated,
    SessionExpired,
    SessionUpdated,
    TurnSignalled,
)
from duologue.errors import ClientFault, ErrorCode


def opened(s: SessionState) -> None:
    """The session begins. Once: again, it changes nothing."""
    if s.phase != "new":
        return
    s.phase = advance(SESSION, s.phase, "opened")
    apply_detection(s, s.config)
    s.emit(SessionCreated(config=s.config))
    s.emit(SessionUpdated(config=s.config))


def apply_detection(s: SessionState, config: SessionConfig) -> None:
    """Make the endpointer follow ``config``; the clock runs on, a turn in progress keeps its audio."""
    detection = s.detection
    if config.turn_detection is None:
        if detection.endpointer is not None:
            frames.void(s)
            detection.endpointer = None
            detection.buffer.clear()
            detection.recent.clear()
            detection.claims.clear()
            turns.detection_ended(s)
        return
    endpointer = detection.endpointer
    if endpointer is None:
        detection.endpointer = Endpointer(config.turn_detection)
        heard = s.audio.end * DETECTOR_RATE_HZ // s.audio.rate_hz
        detection.endpointer.position = heard // FRAME_SAMPLES
        detection.buffer[:] = bytes(heard % FRAME_SAMPLES * 2)  # frames lie where they would lie had it always been on
        detection.reset = True
        return
    same_kind = type(endpointer.detection) is type(config.turn_detection)
    endpointer.detection = config.turn_detection
    if not same_kind and detection.classify is not None:
        detection.classify = None  # the question was asked under other rules
        intake.drain(s)


# -- session.update ------------------------------------------------------------------------------------------------------


def judge_update(s: SessionState, command: UpdateSession) -> None:
    """All of the patch, or nothing; one after the other, so that each is judged over what the one before it left."""
    try:
        config = merge(s.config, command.patch)
        _check_frozen(s, config)
    except ClientFault as fault:
        s.error(fault.code, fault.message, event_id=command.event_id, param=fault.param)
        return
    s.judge_numbers += 1
    s.judging = s.judge_numbers
    s.judged_config = config
    s.judge_event_id = command.event_id
    s.do(JudgeConfig(number=s.judging, config=config, patch=command.patch))


def _check_frozen(s: SessionState, config: SessionConfig) -> None:
    current = s.config
    s.capabilities.check(config, "session")
    if config.model != current.model:
        raise ClientFault(
            ErrorCode.MODEL_UPDATE_UNSUPPORTED,
            f"This session runs {current.model!r}; open another session for {config.model!r}.",
            param="session.model",
        )
    if s.spoke and s.capabilities.fixed_voice_after_audio and config.voice != current.voice:
        raise ClientFault(
            ErrorCode.VOICE_UPDATE_UNSUPPORTED,
            f"The assistant has spoken with voice {current.voice or 'default'!r}; the voice cannot change any more.",
            param="session.audio.output.voice",
        )


def config_judged(s: SessionState, item: ConfigJudged) -> None:
    """Adopt the judged configuration, or report why not."""
    config = s.judged_config
    if item.number != s.judging or config is None:
        return
    event_id, s.judge_event_id = s.judge_event_id, None
    s.judging = s.judged_config = None
    if item.code is not None:
        s.error(item.code, item.message, event_id=event_id, param=item.param)
    else:
        _adopt(s, config)


def _adopt(s: SessionState, config: SessionConfig) -> None:
    if config != s.config:
        detection_changed = config.turn_detection != s.config.turn_detection
        idle_changed = pacing.idle_timeout_ms(config) != pacing.idle_timeout_ms(s.config)
        s.configure(config)
        s.config_generation += 1
        if detection_changed:
            apply_detection(s, config)
        if idle_changed:
            pacing.arm_idle(s)  # the time runs from here, or no longer
        s.do(ApplyConfig(config=config, generation=s.config_generation))
        hearing.begin_provisional_again(s)
    s.emit(SessionUpdated(config=config))


def signal(s: SessionState, command: SignalTurn) -> None:
    """Turn signals of the duplex dialect. ``close`` and ``timeout`` end nothing: there are commands for that."""
    match command.name:
        case "barge_in" | "interrupt":
            barge_in(s, command.event_id)
        case "cancel" | "response.cancel":
            cancel.cancel(s, cancel.RESPONSE)
        case "input.cancel":
            cancel.cancel(s, cancel.INPUT)
    s.emit(TurnSignalled(name=command.name))


def barge_in(s: SessionState, event_id: str | None) -> None:
    """The client says that the user interrupts."""
    if not s.capabilities.supports_barge_in:
        s.error(ErrorCode.BARGE_IN_UNSUPPORTED, "This model cannot be interrupted.", event_id=event_id)
        return
    cancel.cancel(s, cancel.BARGE_IN, onset_at=s.now)


# -- lease ---------------------------------------------------------------------------------------------------------------


def attached(s: SessionState) -> None:
    """A connection takes the output (again)."""
    s.lease.attach(s.now)
    s.playback.resume(s.now)
    pacing.release(s)


def detached(s: SessionState, expected: int | None) -> None:
    """The owner is gone: the grace period starts, the playback clock stands still."""
    if s.lease.detach(s.now, expected):
        s.playback.stop(s.now)


def resume_requested(s: SessionState, item: ResumeRequested) -> None:
    """Compare-and-swap on the generation."""
    if s.phase != "open":
        code, message = ErrorCode.SESSION_CLOSED, "The session is closing."
    elif s.lease.resume(s.now, item.control_id, item.expected_generation):
        s.do(AnswerControl(control_id=item.control_id, generation=s.lease.generation))
        s.playback.resume(s.now)
        pacing.release(s)
        return
    else:
        code = ErrorCode.SESSION_RESUME_CONFLICT
        message = (
            f"The session is at generation {s.lease.generation}, not {item.expected_generation}: another connection "
            "resumed it first."
        )
    s.do(AnswerControl(control_id=item.control_id, generation=s.lease.generation, code=code, message=message))


# -- end -----------------------------------------------------------------------------------------------------------------


def begin_close(s: SessionState) -> None:
    """From here on nothing is accepted; what is open is ended."""
    if s.phase not in ("new", "open"):
        return
    s.phase = advance(SESSION, s.phase, "close_begun")
    unanswered = _dismiss(s)  # before anything else forgets it
    s.sequel.clear()
    aside.end_all(s)
    response = s.response
    if response is not None:
        if s.close_fault is not None:
            pacing.withdraw(s, response)
            response.advance("failed")
            answers.finish(s, response, "failed", error=s.close_fault, message="The session ended.")
        else:
            cancel.cancel(s, cancel.CLOSE)
    cancel.clear_input(s)
    tools.cancel_pending(s)
    s.tail.void()
    s.committed.clear()
    s.resident.waiting.clear()
    s.lease.end()
    s.idle_at = None
    for event_id in unanswered:  # behind the terminals of responses, which must leave whatever else does
        s.error(ErrorCode.SESSION_CLOSED, "The session ended before the command was due.", event_id=event_id)


def _dismiss(s: SessionState) -> tuple[str, ...]:
    """Commands that wait for the response in progress, or for the input before them, will not be carried out.

    Returns what the client calls them, in order; those without a name expect no answer.
    """
    names = [wanted.event_id for wanted in s.wanted]
    if s.judging is not None:
        names.append(s.judge_event_id)
    if s.commit_wait is not None:
        names.append(s.commit_wait.event_id)
    names.extend(command.event_id for command in s.behind)
    s.judging = s.judged_config = s.judge_event_id = s.commit_wait = None
    s.wanted.clear()
    s.behind.clear()
    return tuple(event_id for event_id in names if event_id is not None)


def request_close(s: SessionState, kind: str, reason: str, fault: ErrorCode | None = None) -> None:
    """Begin to close and ask the manager, who owns the slot, for the rest."""
    if s.phase not in ("new", "open"):
        return
    s.close_kind = "expired" if kind == "expired" else "closed"
    s.close_reason = reason
    s.close_fault = fault
    begin_close(s)
    s.do(EndSession(kind=s.close_kind, reason=reason, fault=fault))


def fault(s: SessionState, code: ErrorCode, message: str, *, kind: str = "closed", reason: str | None = None) -> None:
    """The one failure path: error, then failed response, then the session's terminal."""
    if s.phase not in ("new", "open"):
        return
    response = s.response
    s.error(code, message, response_id=response.response_id if response is not None else None)
    request_close(s, kind, reason or code.value, code)


def close_requested(s: SessionState, item: CloseRequested) -> None:
    """The manager closes the session: stop everything and have the stages cleaned up."""
    if s.phase in ("new", "open"):
        s.close_kind, s.close_reason, s.close_fault = item.kind, item.reason, item.fault
        if item.fault is not None:
            s.error(item.fault, item.message or "The session ended because of a fault.")
        begin_close(s)
    if not s.cleanup_started:  # also if the terminal was claimed before: what the stages hold is cleaned in any case
        s.cleanup_started = True
        beside = () if s.tail.beside is None else (s.tail.beside[1],)
        orphans = (append.request_id for append in s.tail.orphans.values())
        ids = tuple(dict.fromkeys([*s.requests.clear(), *orphans, *beside]))
        s.tail.void()
        s.do(CleanupSession(request_ids=ids))


def cleanup_ended(s: SessionState, released: bool) -> None:
    """The stages are clean, or the time for that is over: the terminal goes out, once."""
    if s.phase != "closing":
        return
    s.cleanup_released = released
    if s.close_kind == "expired":
        s.emit(SessionExpired(reason=s.close_reason, slot_released=released))
    else:
        s.emit(SessionClosed(reason=s.close_reason, slot_released=released, fault=s.close_fault))
    s.phase = advance(SESSION, s.phase, "terminal_sent")
    s.terminal_sent = True


def terminal_claimed(s: SessionState) -> None:
    """Somebody else sends the terminal."""
    if s.phase == "closing":
        s.phase = advance(SESSION, s.phase, "terminal_claimed")
        s.terminal_sent = True


def rebuild_timed_out(s: SessionState) -> None:
    """A resident model cannot do without the placement it waited for."""
    message = s.lost_message
    if not rebuild.timed_out(s):
        fault(s, ErrorCode.REPLICA_UNAVAILABLE, message, reason="replica_unavailable")


def idle_timed_out(s: SessionState) -> None:
    """Nobody spoke after the last answer: commit the silence and have it answered."""
    s.idle_at = None
    if not s.lease.attached or s.playback.playing(s.now):
        pacing.arm_idle(s)  # the answer is still being listened to, or nobody is there to be asked
        return
    busy = s.turn is not None or s.response is not None or s.commit_wait is not None
    if busy or not s.capabilities.supports_text_turns:
        return
    item = Item(item_id=f"item_{s.ids.next_hex()}", role="user")
    s.history.append(item)
    s.lease.unasked = True
    at = s.audio.ms(s.audio.end)
    s.emit(InputTimedOut(item_id=item.item_id, audio_start_ms=s.audio.ms(s.audio.floor), audio_end_ms=at))
    answers.want(s, None, ResponseOptions())


def timers(s: SessionState) -> None:
    """Whatever is due."""
    now = s.now
    if s.phase != "open":
        return
    if s.pace_at is not None and now >= s.pace_at:
        pacing.release(s)
    if s.beside_at is not None and now >= s.beside_at:
        aside.release(s)
    overlap = s.overlap
    if overlap is not None and now >= overlap.decide_at:
        interruption.evaluate(s)
    starvation_at = intake.starvation_at(s)
    if starvation_at is not None and now >= starvation_at:
        turns.starve(s)
    tools.expire(s)
