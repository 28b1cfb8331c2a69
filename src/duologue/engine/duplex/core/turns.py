"""The user's turns: onset, candidate pause, provisional end, commit, and speech during an answer.

Rules kept here: a provisional turn sends nothing and is dropped when speech resumes; a commit consumes exactly the audio
of its turn; speech during an answer is announced only together with the decision to barge in.
"""

from __future__ import annotations

from duologue.config.session import SemanticVad
from duologue.engine.duplex.commands import ResponseOptions
from duologue.engine.duplex.core import answers, frames, hearing, interruption, pacing, resident, submission
from duologue.engine.duplex.core.delays import AnswerClock
from duologue.engine.duplex.core.effects import ClassifyTurn
from duologue.engine.duplex.core.endpoint import FRAME_MS, Edge
from duologue.engine.duplex.core.history import Item
from duologue.engine.duplex.core.overlap import Overlap
from duologue.engine.duplex.core.state import (
    DETECTOR_RATE_HZ,
    CommittedTurn,
    CommitWait,
    Judgement,
    SessionState,
    UserTurn,
)
from duologue.engine.duplex.events import InputCommitted, SpeechStarted, SpeechStopped
from duologue.errors import ErrorCode

MIN_COMMIT_MS = 100


# -- edges of the detector ----------------------------------------------------------------------------------------------


def onset(s: SessionState, edge: Edge) -> None:
    """Speech is confirmed; it began at ``edge.at``."""
    detection = s.config.turn_detection
    if detection is None:
        return
    position = max(s.audio.floor, s.frame_position(edge.at))
    if interruption.may_be_echo(s) and not interruption.may_be_speech(s, position):
        return
    start = max(s.audio.floor, position - s.audio.samples(detection.prefix_padding_ms))
    turn = UserTurn(
        item_id=f"item_{s.ids.next_hex()}",
        start=start,
        onset=position,
        onset_at=_arrival(s, position),
        sent_to=start,
    )
    s.turn = turn
    s.idle_at = None
    if not s.answering:
        announce(s, turn)
        return
    target = s.response or s.last_response
    s.overlap = Overlap(
        response_id=target.response_id if target is not None else "",
        onset=position,
        onset_at=turn.onset_at,
        confirmed_at=s.now,
        decide_at=s.now + s.config.overlap_decide_ms / 1000.0,
    )
    s.outbox.held = True
    unheard = s.response is not None and s.response.item.base_ms is None and not s.playback.playing(s.now)
    interruption.evaluate(s, waited=unheard)


def _arrival(s: SessionState, position: int) -> float:
    for end, at in s.arrivals:
        if end > position:
            return at
    return s.now


def announce(s: SessionState, turn: UserTurn) -> None:
    """Tell the client that the user speaks; once per turn, backdated to its onset."""
    if not turn.announced:
        turn.announced = True
        s.emit(SpeechStarted(item_id=turn.item_id, audio_start_ms=s.audio.ms(turn.start)))


def pause(s: SessionState, edge: Edge) -> None:
    """Speech breaks off: have the pause judged before it counts; the model will hear all of it (:func:`after_frames`).

    Most pauses that begin go on, and what takes a tenth of a second to find out is known when they are long enough. The
    judge is given the silence that is still to come, since it was taught with it and doubts a sentence without.
    """
    turn = s.turn
    if turn is None:
        return
    turn.paused_at = s.frame_position(_began(edge))
    turn.quiet_at = _arrival(s, turn.paused_at - 1)
    detection = s.detection
    settings = s.config.turn_detection
    waits = detection.ahead is not None and detection.ahead.probability is None
    if waits or not isinstance(settings, SemanticVad):
        return  # one question at a time: a judge that is slower than the pauses come is not pressed further
    number = _ask(s, turn, s.frame_position(edge.at), silence_ms=settings.candidate_ms - edge.silence_ms)
    detection.ahead = Judgement(number, _began(edge))


def _began(edge: Edge) -> int:
    """The first frame of the pause."""
    return edge.at - edge.silence_ms // FRAME_MS


def _ask(s: SessionState, turn: UserTurn, position: int, *, silence_ms: int = 0) -> int:
    """Have the turn up to ``position`` judged, and ``silence_ms`` after it; returns the number of the question."""
    detection = s.detection
    detection.numbers += 1
    silence = bytes(silence_ms * DETECTOR_RATE_HZ // 1000 * 2)
    s.do(ClassifyTurn(number=detection.numbers, pcm=frames.recent_audio(s, position, turn.start) + silence))
    return detection.numbers


def candidate(s: SessionState, edge: Edge) -> None:
    """A pause that may be the end: begin the answer on the quiet, and act on the verdict once it is there."""
    turn = s.turn
    if turn is None:
        return
    if turn.state == "speaking":
        turn.advance("candidate")
        turn.end = s.frame_position(edge.at)
        turn.silence_ms = edge.silence_ms
        if s.overlap is None:
            hearing.begin_provisional(s, turn)
    detection = s.detection
    detection.classify_silence_ms = edge.silence_ms
    ahead = detection.ahead
    if ahead is None or ahead.began != _began(edge):
        detection.classify = _ask(s, turn, s.frame_position(edge.at))
        return
    detection.ahead = None
    if ahead.probability is None:
        detection.classify = ahead.number
    else:
        judged(s, ahead.probability, ahead.at)


def judged(s: SessionState, probability: float, at: float) -> None:
    """The verdict on the candidate, which came ``at`` that time, counts now."""
    endpointer = s.detection.endpointer
    turn = s.turn
    if (
        turn is not None
        and endpointer is not None
        # NaN compares false, so a broken verdict waits for the silence time-out.
        and probability >= endpointer.completion(s.detection.classify_silence_ms)
    ):
        endpointer.reset_speech()
        turn.judged_at = at
        end_turn(s, turn)


def resumed(s: SessionState) -> None:
    """The user goes on: what was begun for the pause is void, and nobody has heard of it."""
    turn = s.turn
    if turn is None:
        return
    if turn.state == "provisional":
        turn.advance("resumed")
    turn.end, turn.silence_ms = None, 0
    hearing.drop_turn_request(s, turn)


def stop(s: SessionState, edge: Edge) -> None:
    """Silence was long enough."""
    turn = s.turn
    if turn is None:
        return
    if turn.end is None:
        turn.end = s.frame_position(edge.at)
        turn.silence_ms = edge.silence_ms
    end_turn(s, turn)


def end_turn(s: SessionState, turn: UserTurn) -> None:
    """The detector ends the user's turn at ``turn.end`` (now, if it is not set)."""
    detection = s.config.turn_detection
    create_response = detection is None or detection.create_response
    if turn.end is None:
        turn.end = s.audio.end
    if s.overlap is not None and not interruption.settle_at_end(s, turn):
        return
    if s.resident_family and s.auto_responds:
        # The model hears everything and decides by itself: the detector only reports.
        turn.advance("committed")
        s.turn = None
        if turn.announced:
            s.emit(SpeechStopped(item_id=turn.item_id, audio_end_ms=s.audio.ms(turn.end)))
        return
    if create_response and answers.full(s):
        drop_turn(s, turn)
        s.error(
            ErrorCode.INPUT_BACKPRESSURE,
            f"{answers.waiting(s)} turns wait for an answer, which is the limit; this turn was not accepted.",
        )
        return
    commit_turn(s, turn, create_response=create_response)


def allowed(s: SessionState, event_id: str | None) -> bool:
    """Whether the client may ask for one more turn or response now; if not, it is told when.

    Asking costs the stages work even if it is taken back at once, which nothing else bounds: a cancel ends what waits.
    Turns that detection ends are not counted: what is heard in audio must not depend on when it arrives.
    """
    if s.allowance.take(s.now):
        return True
    s.error(
        ErrorCode.RATE_LIMITED,
        f"More than {s.runtime.turn_burst} turns and responses at once, and {s.runtime.turns_per_minute} a minute on "
        f"the whole, are not accepted; the next one is in {s.allowance.wait_s(s.now):.1f} s.",
        event_id=event_id,
    )
    return False


def let_go(s: SessionState, turn: UserTurn) -> None:
    """The turn will not become an item; its audio stays where it is. Speech that was announced is over."""
    hearing.drop_turn_request(s, turn)
    turn.advance("dropped")
    s.turn = None
    if turn.announced and s.phase == "open":
        at = turn.end if turn.end is not None else s.audio.end
        s.emit(SpeechStopped(item_id=turn.item_id, audio_end_ms=s.audio.ms(at)))
    pacing.arm_idle(s)


def detection_ended(s: SessionState) -> None:
    """There is no detector any more: what depended on its verdicts is settled with what is known."""
    resolve_commit_wait(s)
    if s.turn is not None:
        let_go(s, s.turn)
    if s.overlap is not None:
        interruption.release_hold(s)


def drop_turn(s: SessionState, turn: UserTurn) -> None:
    """Forget the turn with its audio, but for the silence after it: the next turn's prefix may reach into that."""
    let_go(s, turn)
    s.audio.discard_to(s.audio.end if turn.end is None else turn.end - s.audio.samples(turn.silence_ms))


def commit_turn(s: SessionState, turn: UserTurn, *, create_response: bool) -> None:
    """Make the turn an item and have it answered, or at least transcribed."""
    end = turn.end if turn.end is not None else s.audio.end
    turn.advance("committed")
    s.turn = None
    if turn.announced:
        s.emit(SpeechStopped(item_id=turn.item_id, audio_end_ms=s.audio.ms(end)))
    commit_audio(
        s,
        item_id=turn.item_id,
        start=turn.start,
        end=end,
        create_response=create_response,
        request_id=turn.request_id,
        sent_to=turn.sent_to,
        quiet=turn.heard_all(s.audio.samples(turn.silence_ms)),
        clock=AnswerClock(
            quiet_at=s.now if turn.quiet_at is None else turn.quiet_at, judged_at=turn.judged_at, ended_at=s.now
        ),
    )


def commit_audio(
    s: SessionState,
    *,
    item_id: str,
    start: int,
    end: int,
    create_response: bool,
    request_id: str | None = None,
    sent_to: int = 0,
    quiet: bool = False,
    clock: AnswerClock | None = None,
) -> None:
    """Consume ``[start, end)`` as one user item."""
    audio = s.audio.copy(start, end)
    s.audio.discard_to(start)
    s.audio.consume_to(end)
    s.resident.committed_to = end
    item = Item(item_id=item_id, role="user", has_audio=True, audio_ms=(end - start) * 1000 // s.audio.rate_hz)
    item.answered = False
    previous = s.history.append(item)
    committed = CommittedTurn(
        item_id=item_id,
        audio=audio,
        request_id=request_id,
        sent_bytes=(sent_to - start) * 2 if request_id else 0,
        quiet=quiet,
        clock=clock,
    )
    s.committed[item_id] = committed
    hearing.forget_settled(s)  # those whose items are not in the conversation any more
    deferred = create_response and s.response is not None
    s.emit(InputCommitted(item=item.view(), previous_item_id=previous, deferred=deferred))
    if s.resident_family:
        resident.commit(s, committed, create_response=create_response)
    elif create_response:
        answers.want(s, item_id, ResponseOptions())
    else:
        hearing.transcribe_only(s, committed)


# -- after a batch of frames, and timers ---------------------------------------------------------------------------------


def after_frames(s: SessionState) -> None:
    """What depends on how far detection has come."""
    if s.commit_ready:
        return
    turn = s.turn
    endpointer = s.detection.endpointer
    if turn is not None and endpointer is not None:
        position = s.frame_position(endpointer.position)
        if position - turn.start >= s.audio.samples(s.runtime.max_turn_ms):
            s.acted["turn_length"] += 1
            turn.end = position if turn.end is None else turn.end
            endpointer.reset_speech()
            s.detection.classify = None
            end_turn(s, turn)
        else:
            if s.overlap is not None:
                interruption.evaluate(s)
            elif not turn.announced and not s.answering:
                announce(s, turn)  # it was listened to under an answer that is over now
            if s.turn is turn:
                paused_at, turn.paused_at = turn.paused_at, None
                if paused_at is not None and endpointer.silence:  # else it was over before anybody could prepare for it
                    hearing.hear_pause(s, turn, paused_at, position)
                hearing.stream_turn(s, turn, position)
    if s.commit_wait is not None and (endpointer is None or endpointer.position >= s.commit_wait.position):
        resolve_commit_wait(s)


def starve(s: SessionState) -> None:
    """Input stopped in mid-speech: end the turn with what there is."""
    turn = s.turn
    if turn is None:
        return
    s.acted["starvation"] += 1
    frames.void(s)
    if s.commit_wait is not None:
        resolve_commit_wait(s)
        return
    turn.end = turn.end if turn.end is not None else s.audio.end
    end_turn(s, turn)


# -- explicit commit -----------------------------------------------------------------------------------------------------


def commit_requested(s: SessionState, event_id: str | None, create_response: bool) -> None:
    """The client ends the turn: at once, or when detection has caught up with the audio sent so far."""
    if not s.capabilities.supports_client_commit:
        s.error(ErrorCode.UNSUPPORTED, "This model ends turns by itself; it takes no commit.", event_id=event_id)
        return
    if create_response and answers.full(s):
        s.error(
            ErrorCode.INPUT_BACKPRESSURE,
            f"{answers.waiting(s)} turns wait for an answer, which is the limit; commit again once one is answered.",
            event_id=event_id,
        )
        return
    endpointer = s.detection.endpointer
    position = s.detection.received_frames
    s.commit_wait = CommitWait(position, s.audio.end, event_id, create_response)
    if endpointer is None or (endpointer.position >= position and s.detection.classify is None):
        resolve_commit_wait(s)


def resolve_commit_wait(s: SessionState) -> None:
    """The commit need not wait for verdicts any more: carry it out, once the stage has what it was sent of the turn."""
    if s.commit_wait is None:
        return
    s.commit_wait.ready = True
    s.detection.classify = s.detection.ahead = None
    if s.tail.idle:
        carry_out_commit(s)


def carry_out_commit(s: SessionState) -> None:
    """Carry out the commit that waited."""
    wait, s.commit_wait = s.commit_wait, None
    if wait is None:
        return
    turn = s.turn
    endpointer = s.detection.endpointer
    if endpointer is not None:
        endpointer.reset_speech()
        s.detection.reset = True
    if turn is not None:
        if turn.state == "provisional":
            hearing.drop_turn_request(s, turn)
        turn.silence_ms, turn.quiet_at = 0, None
        turn.end = wait.end  # the client's word: everything up to here, and nothing that came after
        if s.overlap is not None:
            interruption.settle_at_end(s, turn, kept=True)
        commit_turn(s, turn, create_response=wait.create_response)
        return
    start = s.resident.committed_to if s.auto_responds else s.audio.floor
    end = max(start, wait.end)
    if endpointer is not None:
        s.error(
            ErrorCode.INPUT_AUDIO_BUFFER_EMPTY,
            "No speech was detected since the last turn, so there is nothing to commit.",
            event_id=wait.event_id,
        )
        return
    if s.audio.ms(end - start) < MIN_COMMIT_MS:
        s.error(
            ErrorCode.INPUT_AUDIO_BUFFER_EMPTY,
            f"The buffer holds {s.audio.ms(end - start)} ms of audio; a commit needs at least {MIN_COMMIT_MS} ms.",
            event_id=wait.event_id,
        )
        return
    commit_audio(
        s,
        item_id=f"item_{s.ids.next_hex()}",
        start=start,
        end=end,
        create_response=wait.create_response,
    )
    submission.pump(s)
