"""Speech during an answer: held undecided, then the user takes the turn, or goes on listening.

Rules kept here: while nothing is decided the pacer holds and the client hears nothing of it; the decision is reported, and
only barging in announces the speech; what the client says about an append outranks the detector.
"""

from __future__ import annotations

from duologue.engine.duplex.core import cancel, pacing, turns
from duologue.engine.duplex.core.endpoint import FRAME_MS
from duologue.engine.duplex.core.items import AudioAppended
from duologue.engine.duplex.core.overlap import Overlap, Verdict, decide_overlap, loud_enough
from duologue.engine.duplex.core.state import SessionState, UserTurn
from duologue.engine.duplex.events import OverlapDecided
from duologue.errors import ErrorCode

_BARGE_HINTS = frozenset({"barge_in", "interrupt", "cancel"})
_DROP_HINTS = frozenset({"drop", "ignore", "silence"})
_UNHEARD_HINTS = frozenset({"continue", "continue_output", "ack"})  # the answer goes on, and nothing is kept


ECHO_TAIL_S = 0.5
"""So long after its end an answer may still come back through the microphone: out of buffers, or from the room."""


def may_be_echo(s: SessionState) -> bool:
    """Whether the assistant is speaking, or has been so lately that the microphone may still hear it."""
    ends_at = s.playback.ends_at()
    return s.answering or (ends_at is not None and s.now < ends_at + ECHO_TAIL_S)


def may_be_speech(s: SessionState, position: int) -> bool:
    """Whether what the detector took for an onset at ``position`` is loud enough to be somebody who talks to the assistant.

    If not (a distant voice, the assistant's own from the loudspeaker) the detector listens on as if it had not been.
    """
    endpointer = s.detection.endpointer
    if endpointer is None or s.config.overlap_silence_rms <= 0.0 or s.detection.claimed(endpointer.position - 1):
        return True
    heard = s.audio.copy(position, s.frame_position(endpointer.position))
    if not heard or loud_enough(heard, s.config, s.audio.samples(FRAME_MS)):
        return True
    endpointer.reset_speech()
    return False


def _speech_ms(s: SessionState, turn: UserTurn) -> int:
    """How long the user has spoken, without the silence at the end."""
    endpointer = s.detection.endpointer
    end, silence_ms = turn.end, turn.silence_ms
    if end is None:
        end = s.audio.end if endpointer is None else s.frame_position(endpointer.position)
        silence_ms = 0 if endpointer is None else endpointer.silence * FRAME_MS
    return max(0, s.audio.ms(end - turn.onset) - silence_ms)


def evaluate(s: SessionState, *, waited: bool = False, ended: bool = False, kept: bool = False) -> None:
    """Decide on speech during an answer, if enough is known. ``kept``: it is a turn of its own in any case."""
    overlap, turn = s.overlap, s.turn
    if overlap is None or turn is None or (s.commit_ready and not kept):
        return  # what the client commits is a turn of its own
    if not s.answering:
        # The answer ended by itself: this is an ordinary turn now.
        release_hold(s)
        turns.announce(s, turn)
        return
    verdict = decide_overlap(
        s.config,
        partial=turn.partial,
        speech_ms=_speech_ms(s, turn),
        ended=ended,
        waited=waited or s.now >= overlap.decide_at,
        can_interrupt=s.capabilities.supports_barge_in,
    )
    if kept and verdict.action == "drop":
        verdict = Verdict("listen", verdict.reason)
    _apply_verdict(s, overlap, turn, verdict)


def _apply_verdict(s: SessionState, overlap: Overlap, turn: UserTurn, verdict: Verdict) -> None:
    match verdict.action:
        case "pending":
            if verdict.reason == "acknowledgement" and not overlap.pending_reported:
                overlap.pending_reported = True
                _report(s, overlap, turn, verdict)
        case "barge_in":
            barge_in(s, overlap, turn, verdict)
        case "listen":
            release_hold(s)
            _report(s, overlap, turn, verdict)
        case "drop":
            release_hold(s)
            _report(s, overlap, turn, verdict)
            turns.drop_turn(s, turn)


def _report(s: SessionState, overlap: Overlap, turn: UserTurn, verdict: Verdict) -> None:
    s.emit(
        OverlapDecided(
            action=verdict.action,
            reason=verdict.reason,
            audio_start_ms=s.audio.ms(turn.onset),
            response_id=overlap.response_id or None,
        )
    )


def release_hold(s: SessionState) -> None:
    """Nothing is undecided (any more): what waited for the decision may leave."""
    s.overlap = None
    s.outbox.held = False
    pacing.release(s)


def barge_in(s: SessionState, overlap: Overlap, turn: UserTurn, verdict: Verdict) -> None:
    """The user takes the turn."""
    _report(s, overlap, turn, verdict)
    _take_turn(s, overlap.onset_at)


def _take_turn(s: SessionState, onset_at: float) -> None:
    s.overlap = None
    s.outbox.held = False
    if s.turn is not None:
        turns.announce(s, s.turn)
    cancel.cancel(s, cancel.SPEECH, onset_at=onset_at)


def settle_at_end(s: SessionState, turn: UserTurn, *, kept: bool = False) -> bool:
    """The speech is over and still undecided: decide now. False if the turn was dropped."""
    evaluate(s, ended=True, waited=True, kept=kept)
    if s.turn is not turn:
        return False
    if s.overlap is not None:
        release_hold(s)
    return True


def _claimed_silence(s: SessionState, item: AudioAppended) -> bool:
    """Nobody speaks, says the client: without a detector that tells what need not be kept while the answer goes on."""
    if s.detection.endpointer is not None or s.auto_responds or not s.answering:
        return False
    target = s.response or s.last_response
    response_id = target.response_id if target is not None else None
    s.emit(OverlapDecided(action="drop", reason="silence_or_noise", response_id=response_id))
    return True


def apply_hints(s: SessionState, item: AudioAppended) -> bool:
    """Hints of the duplex dialect on an append; false if its audio is to be dropped. They settle what is undecided."""
    hint = item.overlap_hint
    if hint is None and item.force_listen:
        hint = "listen"
    if hint is None and not item.force_barge_in:
        return item.is_speech is not False or not _claimed_silence(s, item)
    wants_barge_in = item.force_barge_in or hint in _BARGE_HINTS
    if wants_barge_in and not s.capabilities.supports_barge_in:
        s.error(ErrorCode.BARGE_IN_UNSUPPORTED, "This model cannot be interrupted.", event_id=item.event_id)
        return True
    if not s.answering:
        return True
    target = s.response or s.last_response
    response_id = target.response_id if target is not None else None
    if wants_barge_in:
        s.emit(OverlapDecided(action="barge_in", reason="client_overlap_action", response_id=response_id))
        _take_turn(s, s.overlap.onset_at if s.overlap is not None else s.now)
        return True
    dropped = hint in _DROP_HINTS
    s.emit(
        OverlapDecided(action="drop" if dropped else "listen", reason="client_overlap_action", response_id=response_id)
    )
    kept = not dropped and hint not in _UNHEARD_HINTS
    if s.overlap is not None:
        turn = s.turn
        release_hold(s)
        if turn is not None and not kept:
            turns.drop_turn(s, turn)
    return kept
