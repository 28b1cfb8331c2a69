"""Pacing: audio leaves when it is about to be played, and not earlier.

Rules kept here: at most ``send_ahead_ms`` of unplayed audio is out; errors, tool calls, transcripts and terminals of
sessions never wait; a backlog beyond the high-water mark pauses the stages that feed it.
"""

from __future__ import annotations

from duologue.config.session import ServerVad, SessionConfig
from duologue.engine.duplex.core import answers, aside, submission
from duologue.engine.duplex.core.effects import InvalidateOutput, SetPaused
from duologue.engine.duplex.core.history import Item
from duologue.engine.duplex.core.outbox import AudioEntry, DoneEntry
from duologue.engine.duplex.core.playback import PlaybackClock
from duologue.engine.duplex.core.requests import StageRequestRecord
from duologue.engine.duplex.core.responses import Aside, Response
from duologue.engine.duplex.core.state import SessionState
from duologue.engine.duplex.events import ResponseAudio


def release(s: SessionState) -> None:
    """Let everything leave whose time has come; remembers when the next piece is due."""
    s.pace_at = None
    outbox = s.outbox
    while outbox.queue and not outbox.held and s.lease.attached:
        entry = outbox.queue[0]
        response = s.response
        if response is None or entry.response_id != response.response_id:
            outbox.queue.popleft()  # cannot happen; a stray entry must not block the line
            continue
        if isinstance(entry, DoneEntry):
            outbox.queue.popleft()
            response.advance("drained")
            answers.finish(s, response, *response.drained)
            arm_idle(s)
            answers.promote(s)
        elif not _release_audio(s, response, entry):
            break
    mind_backlog(s)
    if s.asides:
        aside.release(s)


def due(s: SessionState, clock: PlaybackClock, slice_ms: float) -> tuple[bool, float | None]:
    """Whether ``slice_ms`` more may leave on the line of ``clock``; else when, ``None`` if only the socket can tell."""
    send_ahead_ms = s.runtime.send_ahead_ms
    ahead_ms = clock.released_ms - clock.position(s.now)
    if send_ahead_ms is not None and ahead_ms > 0 and ahead_ms + slice_ms > send_ahead_ms + 0.01:
        # None while the clock waits for the socket: taking what is out moves it, and comes back here.
        return False, clock.reaches_at(clock.released_ms + slice_ms - send_ahead_ms)
    return True, None


def _release_audio(s: SessionState, response: Response, entry: AudioEntry) -> bool:
    """Let one slice leave; false if it is not due yet."""
    playback, outbox = s.playback, s.outbox
    slice_ms = min(entry.rest_ms, float(s.runtime.audio_delta_ms))
    now, s.pace_at = due(s, playback, slice_ms)
    if not now:
        return False
    if not s.has_room(outbox.slice_bytes(entry, s.runtime.audio_delta_ms) * 4 // 3 + len(entry.words)):
        return False  # the socket is the pace: taking what is out comes back here
    audio, duration_ms, text = outbox.slice(entry, s.runtime.audio_delta_ms)
    item = response.item
    if item.base_ms is None:
        item.base_ms = playback.released_ms
        if response.clock is not None:
            response.clock.sent_at = s.now
    event = sound(response, playback, entry.rate_hz, audio, duration_ms, text)
    s.emit(event, audio_ms=duration_ms, response_id=response.response_id)
    return True


def sound(
    response: Response, clock: PlaybackClock, rate_hz: int, audio: bytes, duration_ms: float, text: str
) -> ResponseAudio:
    """The slice of ``response`` that leaves now on the line of ``clock``."""
    item = response.item
    start_ms = item.sent_ms
    item.sent_ms += duration_ms
    clock.released_ms += duration_ms
    return ResponseAudio(
        response_id=response.response_id,
        item_id=item.item_id,
        epoch=response.epoch,
        audio=audio,
        rate_hz=rate_hz,
        start_ms=int(start_ms),
        duration_ms=round(duration_ms),
        text=text,
    )


def mind_backlog(s: SessionState) -> None:
    """Pause the stages of whatever is too far ahead, and let them go on when it is not."""
    response = s.response
    speaking = response.request_id if response is not None else None
    resumed = False
    for record in s.requests.records.values():
        backlog_ms = s.outbox.backlog_ms if record.request_id == speaking else record.held_ms
        if record.purpose == "resident":
            backlog_ms = s.outbox.backlog_ms + s.sequel.audio_ms  # whichever of its requests made it
        resumed |= mind(s, record, backlog_ms)
    if resumed and s.resident_family:
        submission.pump(s)  # it is not fed while it is paused


def mind(s: SessionState, record: StageRequestRecord | Aside, backlog_ms: float) -> bool:
    """Pause one request, or let it go on, by how much of what it made waits; true if it goes on."""
    high = s.runtime.max_backlog_ms
    if not record.paused and backlog_ms >= high:
        record.paused = True
        s.acted["backlog"] += 1
        s.do(SetPaused(request_id=record.request_id, paused=True))
    elif record.paused and backlog_ms < high / 2:
        record.paused = False
        s.do(SetPaused(request_id=record.request_id, paused=False))
        return True
    return False


def taken(s: SessionState, number: int) -> None:
    """The socket has everything up to ``number``."""
    if s.asides:
        aside.taken(s, number)
    audio_ms = s.outbox.take(number)
    if audio_ms > 0.0:
        s.playback.taken(audio_ms, s.now)
        release(s)
    elif s.outbox.queue and s.pace_at is None:
        release(s)
    elif s.asides:
        aside.release(s)


def withdraw(s: SessionState, response: Response) -> None:
    """Nothing more of ``response`` may be sent; what of it was not heard is not part of the conversation."""
    position_ms = s.playback.position(s.now)
    s.outbox.remove(response.response_id)
    invalidate(s, response.response_id, response.item)
    s.pace_at = None
    response.item.cut_to(position_ms)


def invalidate(s: SessionState, response_id: str, item: Item | None) -> None:
    """Take back what no socket has taken."""
    untaken_ms = s.outbox.withdraw(response_id)
    if untaken_ms is not None:
        s.playback.released_ms -= untaken_ms
        if item is not None:
            item.sent_ms -= untaken_ms
        s.do(InvalidateOutput(response_id=response_id))


def withdraw_finished(s: SessionState) -> None:
    """Stop finished responses, however many, that the listener has not heard to their end."""
    position_ms = s.playback.position(s.now)
    current = s.response.item if s.response is not None else None
    ended = s.history.played_after(position_ms)
    items = {item.response_id: item for item in ended if item is not current}
    waiting = {entry.response_id for entry in s.outbox.released if entry.audio_ms > 0.0}
    for response_id in sorted(rid for rid in waiting if rid is not None):
        if current is None or response_id != current.response_id:
            invalidate(s, response_id, items.get(response_id))
    for item in items.values():
        item.cut_to(position_ms)


def idle_timeout_ms(config: SessionConfig) -> int | None:
    """How long the user may say nothing after an answer; ``None``: for ever."""
    detection = config.turn_detection
    return detection.idle_timeout_ms if isinstance(detection, ServerVad) else None


def arm_idle(s: SessionState) -> None:
    """After an answer the user has ``idle_timeout_ms`` once it has been played."""
    timeout_ms = idle_timeout_ms(s.config)
    busy = s.turn is not None or s.response is not None or s.last_response is None
    if timeout_ms is None or busy or s.phase != "open":
        s.idle_at = None
        return
    ends_at = s.playback.ends_at()
    s.idle_at = max(s.now, ends_at if ends_at is not None else s.now) + timeout_ms / 1000.0


def playback_moved(s: SessionState) -> None:
    """What depends on the listener's position is due at another time now."""
    release(s)
    if s.idle_at is not None:
        arm_idle(s)
