"""Cancel, barge-in, clear and close: one routine with a scope value.

Rules kept here: the epoch moves first, and everything started under the old one is void from that instant; what had left
and was not taken is withdrawn; history is cut to what was heard; a response that is stopped gets its terminal here.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from duologue.engine.duplex.commands import CommitAudio
from duologue.engine.duplex.core import answers, frames, hearing, pacing, resident, submission, tools, turns
from duologue.engine.duplex.core.effects import AbortRequests
from duologue.engine.duplex.core.state import SessionState
from duologue.engine.duplex.events import CancelReason, InputCleared, OutputCleared, StopMeasured


@dataclass(slots=True, frozen=True)
class Scope:
    """``playing``: also stops finished audio that still plays. ``input``: also forgets what was not committed.

    ``wanted``: answers that wait are dropped, since what comes next covers them.
    """

    name: str
    reason: CancelReason
    playing: bool = False
    input: bool = False
    wanted: bool = False


RESPONSE = Scope("response", "client_cancelled")
OUTPUT = Scope("output", "client_cancelled", playing=True)
INPUT = Scope("input", "client_cancelled", input=True)
BARGE_IN = Scope("barge_in", "client_cancelled", playing=True, input=True, wanted=True)
SPEECH = Scope("speech", "turn_detected", playing=True, wanted=True)
CLOSE = Scope("close", "client_cancelled", playing=True, input=True, wanted=True)


def cancel(s: SessionState, scope: Scope, *, onset_at: float | None = None) -> bool:
    """Stop what ``scope`` covers; false if there was nothing to stop. Never waits for anything."""
    if scope.wanted:
        s.wanted.clear()
    response = s.response
    last = s.last_response
    playing = scope.playing and s.playback.playing(s.now)
    if playing:
        pacing.withdraw_finished(s)
    if response is not None:
        pacing.withdraw(s, response)
        response.advance("cancelled")
        advance_epoch(s)
        answers.finish(s, response, "cancelled", reason=scope.reason)
        stopped = response
    elif playing and last is not None:
        advance_epoch(s)
        stopped = last
    else:
        # What only transcribes committed turns is not the scope's: stopped, it would be submitted again at once, and a
        # client that loops would have the stages begin it again and again.
        works = any(record.purpose != "transcribe" for record in s.requests.records.values())
        if scope.input and (works or (s.resident_family and not s.tail.idle)):  # a piece may outlive its request
            advance_epoch(s)
        if scope.input:
            clear_input(s)
            restart_transcripts(s)
        return False
    _measure(s, stopped.response_id, onset_at)
    if scope.playing and stopped.item.has_audio and s.phase == "open":
        s.emit(OutputCleared(response_id=stopped.response_id))
    if scope.playing:
        s.playback.flush(s.now)
    if scope.input:
        clear_input(s)
    _settle(s)
    restart_transcripts(s)
    resident.feed_again(s)
    answers.promote(s)
    return True


def _settle(s: SessionState) -> None:
    """What was said over the answer is an ordinary turn: nothing is left that it could interrupt."""
    undecided = s.overlap is not None
    s.overlap = None
    s.outbox.held = False
    if undecided and s.turn is not None:
        turns.announce(s, s.turn)


def _measure(s: SessionState, response_id: str, onset_at: float | None) -> None:
    last = s.playback.last_taken_at
    s.emit(
        StopMeasured(
            response_id=response_id,
            onset_to_last_audio_s=None if last is None or onset_at is None else max(0.0, last - onset_at),
            decision_to_last_audio_s=None if last is None else max(0.0, last - s.now),
        )
    )


def advance_epoch(s: SessionState) -> None:
    """The atomic point: nothing that was started before may have a consequence after it."""
    resident.rewind(s)
    s.sequel.clear()
    _leave_epoch(s)


def leave_placement(s: SessionState) -> bool:
    """The same for stages that are gone. What a resident model has heard it is told again by its plugin, not by us.

    Returns whether an answer that waits behind another was lost in the making.
    """
    if s.resident_family:  # the audio of other turns is kept with them
        resident.give_back(s, s.tail.unsettled())
    unmade = s.sequel.keep_whole()
    _leave_epoch(s)
    return unmade


def resume_input(s: SessionState) -> None:
    """What was kept for the new epoch goes to its requests."""
    resident.feed_again(s)


def _leave_epoch(s: SessionState) -> None:
    s.resident.rebuild = s.resident.compact = False
    ids = s.requests.clear()
    s.tail.void()
    s.fences.advance_epoch()
    tools.cancel_pending(s)
    s.silence.stop()
    s.transcript_wait = None
    turn = s.turn
    if turn is not None:
        turn.unbind()
        turn.partial = None
    for committed in s.committed.values():
        committed.unbind()
        committed.transcribing = None
    if ids:
        s.do(AbortRequests(request_ids=ids))


def restart_transcripts(s: SessionState) -> None:
    """Turns whose words were not known yet when their request was stopped must not be missing from the conversation."""
    if s.phase != "open" or s.resident_family:
        return
    waiting = {wanted.item_id for wanted in s.wanted}
    for item_id, committed in s.committed.items():
        item = s.history.get(item_id)
        known = item is None or item.transcript is not None or not committed.audio
        if not known and item_id not in waiting and committed.transcribing not in s.requests.records:
            hearing.transcribe_only(s, committed)
    hearing.forget_settled(s)


def clear_input(s: SessionState) -> None:
    """Forget what was not committed. Does not touch the epoch."""
    if s.turn is not None:
        turns.let_go(s, s.turn)
    if s.overlap is not None:
        s.overlap = None
        s.outbox.held = False
    s.commit_wait = None
    if s.behind:  # the commits of what is forgotten
        s.behind = deque(command for command in s.behind if not isinstance(command, CommitAudio))
    frames.void(s)
    s.audio.discard_to(s.audio.end)
    s.resident.buffer.clear()
    resident.forget_input(s)
    s.resident.fed_to = s.resident.committed_to = s.audio.end
    s.input_refused = False


def cancel_input(s: SessionState) -> None:
    """``input.cancel``: always answered by exactly one cleared event."""
    cancel(s, INPUT)
    s.emit(InputCleared())


def clear_requested(s: SessionState) -> None:
    """``input_audio_buffer.clear``."""
    clear_input(s)
    s.emit(InputCleared())
    pacing.release(s)
    submission.pump(s)
