"""Submissions: from the tail to the stage, one at a time.

Rules kept here: the conversation comes before what is asked for beside it; an answer waits (as state, bounded) for the
transcripts of earlier turns that its prompt needs; a resident model is given no more than its context holds, and nothing
while too much of what it said waits to be sent.
"""

from __future__ import annotations

from duologue.engine.duplex.core.effects import SubmitAppend
from duologue.engine.duplex.core.requests import StageRequestRecord
from duologue.engine.duplex.core.state import SessionState
from duologue.engine.duplex.core.tail import PendingAppend
from duologue.engine.duplex.plugin import HistoryEntry

TRANSCRIPT_WAIT_S = 2.0

TELL_S = 10.0
"""So long input waits for the model to tell of its context, if that is all it waits for."""


def enqueue(s: SessionState, append: PendingAppend) -> None:
    """Add to the tail and submit it if its turn has come."""
    s.tail.enqueue(append)
    pump(s)


def offer(s: SessionState, append: PendingAppend) -> None:
    """Add a piece that ends nothing to the tail; with nothing before it, and nothing to wait for, it is submitted at once."""
    tail = s.tail
    record = s.requests.records[append.request_id]
    waits = tail.queue or tail.in_flight is not None or tail.orphans or tail.beside is not None
    waits = waits or s.phase != "open" or s.rebuild_by is not None
    if waits or (s.resident_family and not has_room(s, record, append)):
        enqueue(s, append)
        return
    tail.begin(append)
    s.effects.append(_submission(s, append, record))


def pump(s: SessionState) -> None:
    """Submit the head of the tail if nothing is in flight and nothing must be waited for."""
    tail = s.tail
    if not tail.queue:
        s.transcript_wait = s.tell_by = None
        if not s.asides:
            return
    if tail.blocked or s.phase != "open" or s.rebuild_by is not None:
        return
    if not tail.queue:
        beside = _beside(s)
        if beside is not None:
            s.do(beside)
        return
    head = tail.queue[0]
    record = s.requests.records.get(head.request_id)
    if record is None:
        # Its request ended meanwhile (aborted or failed); nothing refers to this piece any more.
        tail.void(head.request_id)
        pump(s)
        return
    if not _ready(s, record, head):
        return
    append = tail.next()
    if append is not None:
        s.effects.append(_submission(s, append, record))


def _ready(s: SessionState, record: StageRequestRecord, head: PendingAppend) -> bool:
    """Whether nothing must be waited for; notes if nothing that is under way would make the room that ``head`` lacks."""
    if not s.resident_family:
        return not (head.final and head.respond and _must_wait(s, head))
    ready = has_room(s, record, head)
    waits = not ready and not record.paused
    s.cramped = waits and not record.context.waiting
    if not waits or s.cramped:
        s.tell_by = None
    elif s.tell_by is None:
        s.tell_by = s.now + TELL_S
    return ready


def has_room(s: SessionState, record: StageRequestRecord, append: PendingAppend) -> bool:
    """Whether a resident model may be given ``append`` now."""
    units = s.capabilities.context_units
    return not record.paused and (not units or record.context.admits(units_of(s, append), units))


def units_of(s: SessionState, append: PendingAppend) -> int:
    """How many units of the model's context a piece takes; what has no audio counts as one."""
    unit_bytes = s.audio.samples(s.capabilities.unit_ms or s.capabilities.chunk_period_ms) * 2
    return max(1, -(-len(append.audio) // unit_bytes))


def _must_wait(s: SessionState, head: PendingAppend) -> bool:
    """Whether an earlier turn's transcript is under way that this prompt needs."""
    missing = any(
        turn.transcribing is not None and turn.transcribing in s.requests.records and turn.item_id != head.item_id
        for turn in s.committed.values()
    )
    if not missing:
        s.transcript_wait = None
        return False
    if s.transcript_wait is None:
        s.transcript_wait = s.now + TRANSCRIPT_WAIT_S
    if s.now >= s.transcript_wait:
        s.acted["transcript_wait"] += 1
        s.transcript_wait = None
        return False
    return True


def _submission(s: SessionState, append: PendingAppend, record: StageRequestRecord) -> SubmitAppend:
    response = s.response
    config = s.config
    instructions = config.instructions
    history: tuple[HistoryEntry, ...] | None = None
    first = not record.submitted
    if response is not None:
        works_for = append.response_id if s.resident_family else record.response_id
        if works_for == response.response_id:
            config = response.config
            wished = response.options.instructions
            instructions = config.instructions if wished is None else wished
            history = response.options.context
    if history is None:
        told = first or not s.resident_family
        history = s.history.prompt(before=append.item_id, of=append.items) if told else ()
    if s.capabilities.context_units:
        record.context.waiting.append(units_of(s, append))
    fences = s.fences
    same_turn = append.fence.turn_id == fences.turn_id
    # By position, since the interpreter takes a call with many names through a dictionary, at twenty times the price.
    return SubmitAppend(
        append.number,
        append.request_id,
        append.fence,
        fences.seq + 1,
        fences.turn_seq + 1 if same_turn else 1,
        append.audio,
        first,
        append.final,
        append.respond,
        append.silence,
        append.force_listen,
        history,
        config,
        s.config_generation,
        instructions,
        rebuild=first and s.resident.rebuild,
        compact=first and s.resident.compact,
        pause=append.pause,
        quiet=append.quiet,
        result=append.result,
    )


def _beside(s: SessionState) -> SubmitAppend | None:
    """The next response outside the conversation that waits to be submitted; it is in flight from here on."""
    waiting = next((aside for aside in s.asides.values() if not aside.submitted), None)
    if waiting is None:
        return None
    waiting.submitted = True
    number = s.tail.begin_beside(waiting.request_id)
    config = waiting.response.config
    wished = waiting.response.options.instructions
    return SubmitAppend(
        number,
        waiting.request_id,
        waiting.fence,
        seq=0,
        turn_seq=0,
        audio=b"",
        first=True,
        final=True,
        respond=True,
        silence=False,
        force_listen=False,
        history=waiting.history,
        config=config,
        config_generation=s.config_generation,
        instructions=config.instructions if wished is None else wished,
        out_of_band=True,
    )
