"""Input audio on its way in: bounds, detection, and the order in which verdicts are applied.

Rules kept here: an append is accepted whole or not at all; verdicts are applied in order, one request in flight; a commit
waits for verdicts up to its position, a cancel never waits; which events arise depends on the samples alone, not on how
they were cut into appends.
"""

from __future__ import annotations

from duologue.config.session import SemanticVad
from duologue.engine.duplex.core import hearing, interruption, resident, turns
from duologue.engine.duplex.core.effects import Detect
from duologue.engine.duplex.core.endpoint import Edge, EdgeKind
from duologue.engine.duplex.core.frames import RECENT_BYTES
from duologue.engine.duplex.core.items import AudioAppended, DetectorFailed, SpeechScored, TurnClassified
from duologue.engine.duplex.core.state import DETECTOR_RATE_HZ, FRAME_BYTES, SessionState
from duologue.errors import ErrorCode

_MAX_FRAMES = 64  # at most 2 s of audio in one detection request: a huge append must not starve other sessions
_IDLE_KEEP_MS = 400  # beside the prefix: an onset may still be under confirmation in what arrived last
_STARVATION_FACTOR = 2.0
_SLOW_ONSET_FRAMES = 64  # how far back a hesitant onset may reach: 2 s
_REST_FRAMES = 250  # after 8 s without speech the detector's memory holds nothing worth keeping


def append_audio(s: SessionState, item: AudioAppended) -> None:
    """Accept one append, or refuse it whole."""
    if s.phase != "open":
        s.error(ErrorCode.SESSION_CLOSED, "The session is closing; the audio was not accepted.", event_id=item.event_id)
        return
    s.lease.touch(s.now)
    limit = s.runtime.max_pending_input_bytes_per_session
    held = s.held_input_bytes
    pcm = item.pcm
    wanted = len(pcm) + item.following_bytes
    if held + wanted > limit:
        hearing.reclaim(s, held + wanted - limit)
        held = s.held_input_bytes
    if held + wanted > limit:
        _refuse(s, item, held, limit)
        return
    s.input_refused = False
    detector_pcm = pcm if item.detector_pcm is None else item.detector_pcm
    hinted = item.overlap_hint is not None or item.force_listen or item.force_barge_in or item.is_speech is False
    if hinted and not interruption.apply_hints(s, item):
        if s.detection.endpointer is None and not s.auto_responds:
            return
        # Time passed all the same: silence takes its place, or every later position would be early by its length.
        pcm, detector_pcm = bytes(len(pcm)), bytes(len(detector_pcm))
    s.audio.append(pcm)
    s.note_append(len(pcm) // 2)
    if s.detection.endpointer is not None:
        received = s.detection.received_frames
        _buffer_for_detection(s, detector_pcm)
        if item.is_speech is not None:
            s.detection.claim(received, item.is_speech)
        request_detection(s)
    if s.auto_responds:
        s.resident.force_listen |= item.force_listen
        resident.feed(s)


def _refuse(s: SessionState, item: AudioAppended, held: int, limit: int) -> None:
    # Once per episode: a client that floods is not flooded back. With an event id it waits for an answer, so it gets one.
    if s.input_refused and item.event_id is None:
        return
    s.input_refused = True
    s.acted["input"] += 1
    wanted = len(item.pcm) + item.following_bytes
    s.error(
        ErrorCode.INPUT_BACKPRESSURE,
        f"The input buffer holds {held} bytes and may hold {limit}; this append of {wanted} bytes was not "
        "accepted. Commit or clear the buffer, then send it again.",
        event_id=item.event_id,
    )


def _buffer_for_detection(s: SessionState, pcm: bytes) -> None:
    detection = s.detection
    detection.buffer += pcm
    if s.audio.rate_hz != DETECTOR_RATE_HZ and isinstance(s.config.turn_detection, SemanticVad):
        detection.recent += pcm
        excess = len(detection.recent) - 2 * RECENT_BYTES
        if excess > 0:
            del detection.recent[: len(detection.recent) - RECENT_BYTES]


def request_detection(s: SessionState) -> None:
    """Ask for verdicts on what is buffered, unless a request is in flight."""
    detection = s.detection
    if detection.in_flight is not None or detection.endpointer is None or detection.classify is not None:
        return
    frames = min(len(detection.buffer) // FRAME_BYTES, _MAX_FRAMES)
    if frames == 0:
        return
    endpointer = detection.endpointer
    if not endpointer.speaking and endpointer.idle >= _REST_FRAMES:
        # A recurrent detector drifts over a long stream; in long silence it may start afresh unnoticed.
        detection.reset = True
        endpointer.idle = 0
    pcm = bytes(detection.buffer[: frames * FRAME_BYTES])
    del detection.buffer[: frames * FRAME_BYTES]
    detection.numbers += 1
    detection.in_flight = detection.numbers
    detection.in_flight_frames = frames
    s.do(Detect(number=detection.numbers, pcm=pcm, reset=detection.reset))
    detection.reset = False


def scores_arrived(s: SessionState, item: SpeechScored) -> None:
    """Verdicts on the request in flight; a verdict on a voided one is dropped."""
    detection = s.detection
    if item.number != detection.in_flight:
        return
    detection.in_flight = None
    # A short or long answer must not shift the clock: missing frames count as silence.
    scores = item.probabilities[: detection.in_flight_frames]
    detection.scores.extend(scores)
    detection.scores.extend([0.0] * (detection.in_flight_frames - len(scores)))
    detection.in_flight_frames = 0
    drain(s)


def detector_failed(s: SessionState, item: DetectorFailed) -> None:
    """The detector is gone: say so once, go on without it. Input is kept for an explicit commit."""
    detection = s.detection
    if item.kind == "turn_end":
        if detection.ahead is not None and item.number == detection.ahead.number:
            detection.ahead = None  # it is asked again when the pause counts
        if item.number == detection.classify:
            detection.classify = None
            s.error(
                ErrorCode.SEMANTIC_VAD_UNAVAILABLE,
                "The turn-end classifier failed; turns now end by silence alone.",
            )
            drain(s)
        return
    if item.number != detection.in_flight:
        return
    detection.in_flight = None
    detection.in_flight_frames = 0
    detection.endpointer = None
    detection.buffer.clear()
    detection.scores.clear()
    detection.claims.clear()
    detection.classify = detection.ahead = None
    s.error(
        ErrorCode.SERVER_VAD_UNAVAILABLE,
        "Speech detection failed and is off for this session; commit turns explicitly, or send session.update.",
    )
    turns.detection_ended(s)


def classified(s: SessionState, item: TurnClassified) -> None:
    """The verdict on the pause in question."""
    detection = s.detection
    if detection.ahead is not None and item.number == detection.ahead.number:
        detection.ahead.probability, detection.ahead.at = item.probability, s.now
        return
    if item.number != detection.classify:
        return
    detection.classify = None
    turns.judged(s, item.probability, s.now)
    drain(s)


def drain(s: SessionState) -> None:
    """Consume verdicts in order, as far as nothing has to be waited for."""
    detection = s.detection
    _consume(s)
    turns.after_frames(s)
    while detection.scores and detection.endpointer is not None and detection.classify is None and not s.commit_ready:
        # A limit has ended the turn meanwhile, and nobody asks any more what its pause was.
        _consume(s)
        turns.after_frames(s)
    _trim(s)
    request_detection(s)


def _consume(s: SessionState) -> None:
    detection = s.detection
    while True:
        endpointer, wait = detection.endpointer, s.commit_wait
        if endpointer is None or detection.classify is not None or not detection.scores:
            break
        if wait is not None:
            if wait.ready:
                break
            if endpointer.position >= wait.position:
                turns.resolve_commit_wait(s)
                continue
        score = detection.scores.popleft()
        if detection.claims:
            claimed = detection.claimed(endpointer.position)
            score = score if claimed is None else float(claimed)
        edge = endpointer.feed(score)
        if edge is not None:
            _dispatch(s, edge)


def _dispatch(s: SessionState, edge: Edge) -> None:
    match edge.kind:
        case EdgeKind.ONSET:
            turns.onset(s, edge)
        case EdgeKind.PAUSE:
            turns.pause(s, edge)
        case EdgeKind.CANDIDATE:
            turns.candidate(s, edge)
        case EdgeKind.RESUMED:
            turns.resumed(s)
        case EdgeKind.STOP:
            turns.stop(s, edge)


def _trim(s: SessionState) -> None:
    """While nobody speaks, keep only what an onset may still reach back to."""
    detection = s.config.turn_detection
    endpointer = s.detection.endpointer
    if s.turn is not None or endpointer is None or detection is None or s.commit_wait is not None:
        return
    reach = endpointer.position
    if endpointer.run:
        reach = max(endpointer.run_start, reach - _SLOW_ONSET_FRAMES)
    keep = s.audio.samples(detection.prefix_padding_ms + detection.min_speech_ms + _IDLE_KEEP_MS)
    unwanted = s.frame_position(reach) - keep
    if unwanted - s.audio.floor < s.audio.rate_hz // 4:
        return  # by the quarter of a second: cutting every append would cost more than it frees
    if s.auto_responds:
        s.audio.consume_to(unwanted)  # the model has heard it
    else:
        s.audio.discard_to(unwanted)


def starvation_at(s: SessionState) -> float | None:
    """When a turn whose input stopped must be ended; ``None`` while nobody speaks."""
    if s.turn is None or s.last_append_at is None or s.detection.endpointer is None or s.commit_ready:
        return None
    return s.last_append_at + max(s.runtime.starvation_ms, _STARVATION_FACTOR * s.longest_append_ms) / 1000.0
