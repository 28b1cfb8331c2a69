"""A resident model's context fills: it is rolled over between turns, or the session ends in time and says why.

Rules kept here: a roll-over opens another request with what the plugin keeps, under the same epoch, so no input is lost and
nothing that plays is touched; it waits for a moment in which nobody speaks for as long as there is room for that, and until
the model has heard all that it was given, if it tells; an answer that would reach the limit is asked to end, then ended; a
model that cannot be rolled over loses its session before the limit, never at it; input waits for what the model tells of its
context no longer than ``TELL_S``. What may be submitted meanwhile, see ``gauge.py``.
"""

from __future__ import annotations

from duologue.engine.duplex.core import answers, hearing, lifecycle, resident, submission
from duologue.engine.duplex.core.gauge import ROLL_OVER_AT
from duologue.engine.duplex.core.requests import StageRequestRecord
from duologue.engine.duplex.core.state import SessionState
from duologue.engine.duplex.results import ContextUsed
from duologue.errors import ErrorCode

URGENT_AT = 0.9
"""From here on a pause is not waited for; an answer is asked to end."""

LAST_AT = 0.96
"""From here on an answer is ended as it is; a session that cannot be rolled over ends."""

LATE_S = 1.0
"""A timer that is so late says that this process stood still, and nothing of the model."""


def used(s: SessionState, record: StageRequestRecord, result: ContextUsed) -> None:
    """The model's context holds ``used`` of ``limit``: act on it if it is time."""
    if record.purpose != "resident":
        return
    share = result.used / result.limit if result.limit > 0 else 0.0
    record.context.share = share
    record.context.hear(result.heard)
    s.tell_by = None
    if share >= ROLL_OVER_AT:
        _act(s, record, share, f"{result.used} of {result.limit}")
    if s.capabilities.context_units:
        submission.pump(s)  # something may have waited for this


def _act(s: SessionState, record: StageRequestRecord, share: float, how_full: str) -> None:
    if _answering(s) and share >= URGENT_AT:
        s.resident.force_listen = True
    if not s.capabilities.compacts:
        if share >= (LAST_AT if s.response is not None else URGENT_AT):
            _end(s, how_full)
        return
    if share >= LAST_AT:
        _end_answer(s)
    undisturbed = not _answering(s) and (s.turn is None or share >= URGENT_AT)
    if undisturbed and not _on_its_way(s, record):
        _roll_over(s, record)


def make_room(s: SessionState) -> None:
    """The next piece of input does not fit, and nothing is on its way of which the model has yet to tell."""
    s.cramped = False
    if s.phase != "open" or not s.tail.queue:
        return
    head = s.tail.queue[0]
    record = s.requests.get(head.request_id)
    if record is None or submission.has_room(s, record, head):
        submission.pump(s)
        return
    if s.capabilities.compacts and record.context.share is not None:
        _end_answer(s)
        _roll_over(s, record)
        if not s.cramped:
            return
        s.cramped = False
    _end(s, f"{submission.units_of(s, head)} more units do not fit into {s.capabilities.context_units}")


def untold(s: SessionState) -> None:
    """Input waits for room until the model has told of what it was given, and it has told nothing for long.

    Something of that may be lost, or the model hangs. How full its context is, nobody knows: it begins another.
    """
    due, s.tell_by = s.tell_by, None
    head = s.tail.queue[0] if s.tail.queue else None
    record = s.requests.get(head.request_id) if head is not None else None
    waits = head is not None and record is not None and not submission.has_room(s, record, head)
    if record is None or not waits or not record.context.waiting or due is None or s.now > due + LATE_S:
        submission.pump(s)  # it is waited for anew, if it is waited for
        return
    if s.capabilities.compacts and record.context.share is not None:
        _end_answer(s)
        _roll_over(s, record)
    else:
        _end(s, f"nothing was told of the last {sum(record.context.waiting)} units for {submission.TELL_S:g} s")


def _answering(s: SessionState) -> bool:
    """Whether an answer is being made, the one that is being sent or one that waits behind it."""
    made = s.response is not None and s.response.generating and not _unasked(s)
    return made or s.sequel.unfinished


def _on_its_way(s: SessionState, record: StageRequestRecord) -> bool:
    """Whether the model has yet to hear something that it was given, as far as it tells."""
    return s.capabilities.context_units > 0 and (bool(record.context.waiting) or s.tail.blocked)


def _end(s: SessionState, how_full: str) -> None:
    message = f"The model's context is full ({how_full}); open another session."
    lifecycle.fault(s, ErrorCode.CONTEXT_FULL, message, kind="expired", reason="context_full")


def _end_answer(s: SessionState) -> None:
    response = s.response
    if response is not None and response.generating and not _unasked(s):
        answers.generated(s, response)
        s.fences.complete_turn(s.fences.turn_id)
    s.sequel.end()


def _unasked(s: SessionState) -> bool:
    """Whether what asks the model for the answer in progress is still on this side."""
    if not s.capabilities.context_units or s.response is None or s.response.state != "created":
        return False
    return any(append.final for append in s.tail.queue)


def _roll_over(s: SessionState, record: StageRequestRecord) -> None:
    s.acted["context"] += 1
    if s.capabilities.context_units:
        resident.hand_over(s, record)
    else:
        resident.give_back(s, s.tail.unsettled())
    hearing.abandon(s, record.request_id)
    s.silence.stop()
    s.resident.rebuild = s.resident.compact = True
    resident.feed_again(s)
    submission.pump(s)
