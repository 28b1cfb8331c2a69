"""Submissions: from the tail to the stage, one at a time, and what acceptance and failure mean.

Rules kept here: sequence numbers are committed on acceptance, so they have no gaps; whatever a voided submission started
at a stage is aborted when its acceptance arrives; an answer waits (as state, bounded) for the transcripts of earlier turns
that its prompt needs.
"""

from __future__ import annotations

from duologue.engine.duplex.core import answers, aside, barrier, resident
from duologue.engine.duplex.core.effects import AbortRequests, SubmitAppend
from duologue.engine.duplex.core.items import AppendAccepted, AppendFailed
from duologue.engine.duplex.core.requests import StageRequestRecord
from duologue.engine.duplex.core.state import SessionState
from duologue.engine.duplex.core.tail import PendingAppend
from duologue.engine.duplex.plugin import HistoryEntry

TRANSCRIPT_WAIT_S = 2.0


def enqueue(s: SessionState, append: PendingAppend) -> None:
    """Add to the tail and submit it if its turn has come."""
    s.tail.enqueue(append)
    pump(s)


def pump(s: SessionState) -> None:
    """Submit the head of the tail if nothing is in flight and nothing must be waited for."""
    tail = s.tail
    if not tail.queue:
        s.transcript_wait = None
    if tail.blocked or s.phase != "open" or s.rebuild_by is not None:
        return
    if not tail.queue:
        beside = aside.next_submission(s)
        if beside is not None:
            s.do(beside)
        return
    head = tail.queue[0]
    record = s.requests.get(head.request_id)
    if record is None:
        # Its request ended meanwhile (aborted or failed); nothing refers to this piece any more.
        tail.void(head.request_id)
        pump(s)
        return
    if head.final and head.respond and _must_wait(s, head):
        return
    append = tail.next()
    if append is not None:
        s.do(_submission(s, append, record))


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
    history: tuple[HistoryEntry, ...] = ()
    works_for = append.response_id if s.resident_family else record.response_id
    mine = response is not None and works_for == response.response_id
    if response is not None and mine:
        config = response.config
        wished = response.options.instructions
        instructions = config.instructions if wished is None else wished
    if response is not None and mine and response.options.context is not None:
        history = response.options.context
    elif not s.resident_family or not record.submitted:
        history = s.history.prompt(before=append.item_id, of=append.items)
    same_turn = append.fence.turn_id == s.fences.turn_id
    return SubmitAppend(
        number=append.number,
        request_id=append.request_id,
        fence=append.fence,
        seq=s.fences.seq + 1,
        turn_seq=s.fences.turn_seq + 1 if same_turn else 1,
        audio=append.audio,
        first=not record.submitted,
        final=append.final,
        respond=append.respond,
        silence=append.silence,
        pause=append.pause,
        quiet=append.quiet,
        result=append.result,
        force_listen=append.force_listen,
        history=history,
        config=config,
        config_generation=s.config_generation,
        instructions=instructions,
        rebuild=s.resident.rebuild and not record.submitted,
        compact=s.resident.compact and not record.submitted,
    )


def accepted(s: SessionState, item: AppendAccepted) -> None:
    """The stage has it."""
    beside = s.tail.settle_beside(item.number)
    if beside is not None:
        aside.settled(s, beside, None)
        pump(s)
        return
    append = s.tail.settle(item.number, accepted=True)
    if append is None:
        _undo_orphan(s, item.number, accepted=True)
        return
    record = s.requests.get(append.request_id)
    if record is not None:
        if not record.submitted:
            s.resident.rebuild = s.resident.compact = False
        record.submitted = True
    s.fences.commit(append.fence)
    s.lease.worked(s.now)
    if s.resident_family:
        if append.result is None:  # which is no time that passes
            s.silence.accepted(item.submitted_at, silence=append.silence)
        resident.keep_clock(s, silence=append.silence)
    append.audio = b""
    pump(s)


def _undo_orphan(s: SessionState, number: int, *, accepted: bool) -> None:
    append = s.tail.orphan(number, accepted=accepted)
    if append is not None and accepted:
        s.fences.commit(
            append.fence
        )  # the stage and the plugin have counted it: within the epoch no number comes twice
    if append is not None and append.request_id not in s.requests.records:
        # The abort may have overtaken the submission: say it again now that the stage certainly knows the request.
        s.do(AbortRequests(request_ids=(append.request_id,)))
    pump(s)


def failed(s: SessionState, item: AppendFailed) -> None:
    """The stage did not take it: nothing behind it is submitted either, and the audio is kept for another try."""
    beside = s.tail.settle_beside(item.number)
    if beside is not None:
        aside.settled(s, beside, (item.code, item.message))
        pump(s)
        return
    append = s.tail.settle(item.number, accepted=False)
    if append is None:
        _undo_orphan(s, item.number, accepted=False)
        return
    behind = [append, *s.tail.queue]
    s.tail.void()
    if s.resident_family:
        resident.give_back(s, behind)
    requests = list(dict.fromkeys(entry.request_id for entry in behind))
    known = tuple(request_id for request_id in requests if s.requests.get(request_id) is not None)
    if known:
        s.do(AbortRequests(request_ids=known))
    for request_id in known:
        record = s.requests.remove(request_id)
        if record is not None:
            answers.request_lost(s, record, item.code, item.message)
    barrier.tail_failed(s)
    pump(s)
