"""What the model hears of the user's turns: stage requests and the audio that goes to them.

Rules kept here: a request id is used once, ever; the audio of a turn reaches its request once and in order; a request that
is given up is aborted at the stage and nothing queued for it is submitted.
"""

from __future__ import annotations

from duologue.engine.duplex.core import submission
from duologue.engine.duplex.core.effects import AbortRequests
from duologue.engine.duplex.core.requests import Purpose, StageRequestRecord
from duologue.engine.duplex.core.state import CommittedTurn, SessionState, UserTurn
from duologue.engine.duplex.core.tail import PendingAppend
from duologue.ids import stage_request_id

_OVERLAP_INTERVAL_MS = 160  # during an answer a partial transcript decides whether to stop: it is wanted soon


def open_request(s: SessionState, purpose: Purpose, item_id: str | None) -> StageRequestRecord:
    """A new stage request under the current fence. An id is never used twice: the turn moves on instead."""
    if purpose == "resident" and s.fences.resident_epoch != s.fences.epoch:
        s.fences.resident_epoch = s.fences.epoch
        role = "stage0"
    else:
        if s.fences.spent == s.fences.current.position:
            s.fences.complete_turn(s.fences.turn_id)
        s.fences.spent = s.fences.current.position
        role = f"stage0-turn{s.fences.turn_id}"
    record = StageRequestRecord(
        request_id=stage_request_id(s.session_id, s.fences.epoch, role),
        fence=s.fences.current,
        purpose=purpose,
        item_id=item_id,
    )
    return s.requests.add(record)


def queue(
    s: SessionState,
    record: StageRequestRecord,
    audio: bytes,
    *,
    final: bool,
    respond: bool,
    item_id: str | None,
    pause: bool = False,
    quiet: bool = False,
) -> None:
    s.tail.enqueue(
        PendingAppend(
            request_id=record.request_id,
            fence=record.fence,
            audio=audio,
            final=final,
            respond=respond,
            item_id=item_id,
            pause=pause,
            quiet=quiet,
            items=tuple(s.history.items) if final and respond else None,
        )
    )


def stream_turn(s: SessionState, turn: UserTurn, position: int) -> None:
    """Let the model hear the turn while it is spoken, up to ``position``."""
    capabilities = s.capabilities
    if not capabilities.streams_input or s.resident_family or turn.state != "speaking":
        return
    if s.response is not None and s.overlap is None:
        return  # this turn waits for the answer in progress; it is submitted then
    interval_ms = capabilities.stream_interval_ms if s.overlap is None else _OVERLAP_INTERVAL_MS
    if position - max(turn.sent_to, turn.onset) >= s.audio.samples(interval_ms):
        _send(s, turn, position)


def hear_pause(s: SessionState, turn: UserTurn, speech_end: int, position: int) -> None:
    """Let the model hear the turn up to ``position``, a little after ``speech_end``: it may be all there will be."""
    if not s.capabilities.streams_input or s.resident_family or turn.state != "speaking":
        return
    if s.response is None and s.overlap is None and position > turn.sent_to:
        _send(s, turn, position, pause=True, quiet=turn.request_id is not None and turn.sent_to >= speech_end)


def _send(s: SessionState, turn: UserTurn, position: int, *, pause: bool = False, quiet: bool = False) -> None:
    record = s.requests.get(turn.request_id) if turn.request_id is not None else None
    if record is None:
        record = open_request(s, "turn", turn.item_id)
        turn.request_id, turn.sent_to = record.request_id, turn.start
    audio = s.audio.copy(turn.sent_to, position)
    turn.sent_to = position
    queue(s, record, audio, final=False, respond=True, item_id=turn.item_id, pause=pause, quiet=quiet)
    submission.pump(s)


def begin_provisional(s: SessionState, turn: UserTurn) -> None:
    """Start the answer to a turn that may be over: nothing of it is sent until it is."""
    detection = s.config.turn_detection
    if s.resident_family or s.response is not None or detection is None or not detection.create_response:
        return
    if s.wanted or turn.end is None:
        return
    record = s.requests.get(turn.request_id) if turn.request_id is not None else None
    if record is None:
        record = open_request(s, "turn", turn.item_id)
        turn.request_id, turn.sent_to = record.request_id, turn.start
    record.held = []
    quiet = turn.heard_all(s.audio.samples(turn.silence_ms))
    audio = s.audio.copy(turn.sent_to, max(turn.end, turn.sent_to))
    turn.sent_to = max(turn.end, turn.sent_to)
    queue(s, record, audio, final=True, respond=True, item_id=turn.item_id, quiet=quiet)
    submission.pump(s)


def begin_provisional_again(s: SessionState) -> None:
    """What the answer that is being prepared was begun with has changed."""
    turn = s.turn
    record = s.requests.get(turn.request_id) if turn is not None and turn.request_id is not None else None
    if turn is not None and record is not None and record.held is not None:
        drop_turn_request(s, turn)
        begin_provisional(s, turn)


def drop_turn_request(s: SessionState, turn: UserTurn) -> None:
    """What the model heard of an uncommitted turn is void; the turn itself goes on."""
    request_id = turn.request_id
    turn.unbind()
    turn.partial = None
    if request_id is not None:
        abandon(s, request_id)


def abandon(s: SessionState, request_id: str) -> None:
    """Stop one request and forget it."""
    s.tail.void(request_id)
    if s.requests.remove(request_id) is not None:
        s.do(AbortRequests(request_ids=(request_id,)))


def transcribe_only(s: SessionState, committed: CommittedTurn) -> None:
    """No answer is wanted: get the words, so that a later prompt holds them."""
    if committed.request_id is not None:
        abandon(s, committed.request_id)
        committed.unbind()
    if not s.capabilities.transcribes_input or s.resident_family:
        return
    record = open_request(s, "transcribe", committed.item_id)
    committed.transcribing = record.request_id
    queue(s, record, committed.audio, final=True, respond=False, item_id=committed.item_id)
    submission.pump(s)


def settled(s: SessionState, committed: CommittedTurn) -> bool:
    """Whether nobody will need the turn's audio again: it is answered (or gone), and no request works on it."""
    item = s.history.get(committed.item_id)
    if item is not None and not item.answered:
        return False
    if any(wanted.item_id == committed.item_id for wanted in s.wanted):
        return False
    records = s.requests.records
    return committed.request_id not in records and committed.transcribing not in records


def forget_settled(s: SessionState) -> None:
    """Let go of the audio of turns that are settled."""
    for item_id in [item_id for item_id, committed in s.committed.items() if settled(s, committed)]:
        del s.committed[item_id]


def reclaim(s: SessionState, audio_bytes: int) -> None:
    """Make room: forget, oldest first, the audio of turns that nobody has asked an answer for.

    A client that only ever commits would otherwise be deaf for good once its turns fill the input buffer.
    """
    waiting = {wanted.item_id for wanted in s.wanted}
    for item_id, committed in list(s.committed.items()):
        if audio_bytes <= 0:
            return
        busy = committed.request_id in s.requests.records or committed.transcribing in s.requests.records
        if busy or item_id in waiting or not committed.audio:
            continue
        audio_bytes -= len(committed.audio)
        del s.committed[item_id]
        s.acted["input_reclaimed"] += 1
        item = s.history.get(item_id)
        if item is not None:
            item.answered = True
    waits = s.resident.waiting
    while waits and audio_bytes > 0:
        audio_bytes -= len(waits.popleft()[1])
        s.acted["input_reclaimed"] += 1


def unheard_audio(s: SessionState, committed: CommittedTurn) -> bytes:
    """The turn's audio, after that of earlier turns that would otherwise be heard by nobody."""
    if s.capabilities.transcribes_input:
        return committed.audio
    parts = []
    for earlier in s.committed.values():  # in the order in which they were said; the turn's own item may be gone
        if earlier is committed:
            break
        item = s.history.get(earlier.item_id)
        if item is not None and not item.answered and item.transcript is None:
            parts.append(earlier.audio)
    return b"".join([*parts, committed.audio])
