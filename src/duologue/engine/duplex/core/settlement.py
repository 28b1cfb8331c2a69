"""Settlement: what it means that a stage took a piece of input, refused it, or gave up on a request.

Rules kept here: sequence numbers are committed on acceptance, so they have no gaps; whatever a voided submission started
at a stage is aborted when its acceptance arrives; what a stage refuses takes everything behind it along, commands too.
"""

from __future__ import annotations

from duologue.engine.duplex.core import answers, aside, barrier, lifecycle, resident, submission
from duologue.engine.duplex.core.effects import AbortRequests
from duologue.engine.duplex.core.items import AppendAccepted, AppendFailed, StageFailed
from duologue.engine.duplex.core.state import SessionState
from duologue.engine.duplex.core.tail import PendingAppend


def accepted(s: SessionState, item: AppendAccepted) -> None:
    """The stage has it."""
    tail = s.tail
    if tail.beside is not None and (beside := tail.settle_beside(item.number)) is not None:
        aside.settled(s, beside, None)
        submission.pump(s)
        return
    append = tail.settle(item.number, accepted=True)
    if append is None:
        _undo_orphan(s, item.number, accepted=True)
        return
    record = s.requests.records.get(append.request_id)
    if record is None:
        _after_the_end(s, append, accepted=True)
        return
    if not record.submitted:
        s.resident.rebuild = s.resident.compact = False
        record.submitted = True
    s.fences.commit(append.fence)
    s.lease.worked(s.now)
    if s.resident_family:
        if append.result is None:  # which is no time that passes
            s.silence.accepted(item.submitted_at, silence=append.keeps_clock)
        if s.capabilities.frame_locked:
            resident.keep_clock(s, silence=append.keeps_clock)
    append.audio = b""
    submission.pump(s)


def _undo_orphan(s: SessionState, number: int, *, accepted: bool) -> None:
    append = s.tail.orphan(number, accepted=accepted)
    if append is not None and accepted:
        # The stage and the plugin have counted it: within the epoch no number comes twice.
        s.fences.commit(append.fence)
    if append is not None and append.request_id not in s.requests.records:
        # The abort may have overtaken the submission: say it again now that the stage certainly knows the request.
        s.do(AbortRequests(request_ids=(append.request_id,)))
    submission.pump(s)


def _after_the_end(s: SessionState, append: PendingAppend, *, accepted: bool) -> None:
    """The answer to a piece of a resident model's request that ended by itself while it was in flight."""
    if accepted:
        s.fences.commit(append.fence)
    # As with an orphan: the stage may have begun the request again.
    s.do(AbortRequests(request_ids=(append.request_id,)))
    resident.too_late(s, append, accepted=accepted)
    append.audio = b""
    submission.pump(s)


def failed(s: SessionState, item: AppendFailed) -> None:
    """The stage did not take it: nothing behind it is submitted either, and the audio is kept for another try."""
    beside = s.tail.settle_beside(item.number)
    if beside is not None:
        aside.settled(s, beside, (item.code, item.message))
        submission.pump(s)
        return
    append = s.tail.settle(item.number, accepted=False)
    if append is None:
        _undo_orphan(s, item.number, accepted=False)
        return
    if append.request_id not in s.requests.records:
        _after_the_end(s, append, accepted=False)
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
    submission.pump(s)


def stage_failed(s: SessionState, item: StageFailed) -> None:
    """A stage failed: the response it worked for fails; for a resident model, or a lost worker, the session ends."""
    if s.phase != "open":
        return
    beside = aside.working(s, item.request_id) if item.request_id is not None else None
    if beside is not None and not item.session_ends:
        aside.fail(s, beside, item.code, item.message)
        return
    if item.request_id is not None and s.requests.get(item.request_id) is None and not item.session_ends:
        return
    if s.resident_family or item.session_ends:
        # Its request stays in the table: other stages may be at work on it, and the clean-up has to name it to them.
        lifecycle.fault(s, item.code, item.message, kind="expired", reason="request_cleanup")
        return
    record = s.requests.remove(item.request_id) if item.request_id is not None else None
    if record is None:
        return
    refused = any(append.request_id == record.request_id for append in s.tail.unsettled())
    s.tail.void(record.request_id)
    s.do(AbortRequests(request_ids=(record.request_id,)))
    answers.request_lost(s, record, item.code, item.message)
    if refused:
        barrier.tail_failed(s)
