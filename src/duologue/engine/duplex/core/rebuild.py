"""A replica of the session is gone: the session is placed anew and goes on.

Rules kept here: the epoch moves at once, so that nothing of the lost placement has a consequence any more; an answer that
was being made fails, and is asked for again only if nothing of it was heard, so that nothing is said twice; one that was made
to its end plays on, as do those that wait behind it; input that no stage had answered goes to the new placement; until there
is one nothing is submitted, and that lasts no longer than ``rebuild_timeout_s``.
"""

from __future__ import annotations

from duologue.engine.duplex.core import answers, aside, cancel, pacing, resident, submission
from duologue.engine.duplex.core.items import ReplicaLost
from duologue.engine.duplex.core.responses import Response
from duologue.engine.duplex.core.state import SessionState, WantedAnswer
from duologue.engine.duplex.events import SessionRecovered
from duologue.errors import ErrorCode

MOST_ATTEMPTS = 3
"""So often in a row an answer is made again: what kills each worker that tries must not go on for ever."""


def lost(s: SessionState, item: ReplicaLost) -> None:
    """Leave the old placement behind. What waits, waits for :func:`replaced`."""
    if s.phase != "open":
        return
    response = s.response if s.response is not None and s.response.generating else None
    again = None if response is None else _asked_again(s, response)
    if response is not None:
        pacing.withdraw(s, response)
        response.advance("failed")
    wait_until = s.now + s.runtime.rebuild_timeout_s
    s.rebuild_by = wait_until if s.rebuild_by is None else min(s.rebuild_by, wait_until)
    s.lost_message = item.message
    s.lost_for_good |= item.pinned or s.resident_family
    s.resident.share = resident.filled(s)
    rebuild, compact = resident.owed(s)
    s.resident.clock_stood |= s.capabilities.frame_locked and s.silence.owner is not None
    unmade = cancel.leave_placement(s)
    aside.lost(s, item.message)
    s.resident.rebuild, s.resident.compact = rebuild, compact
    if response is None and s.response is not None:
        s.response.epoch = s.fences.epoch  # what is left of it leaves in the new epoch
    if response is not None:
        if again is None:
            s.error(ErrorCode.REPLICA_UNAVAILABLE, item.message, response_id=response.response_id)
        answers.finish(s, response, "failed", error=ErrorCode.REPLICA_UNAVAILABLE, message=item.message)
        if again is not None:
            s.wanted.appendleft(again)
    if unmade:
        s.error(ErrorCode.REPLICA_UNAVAILABLE, item.message)
    cancel.restart_transcripts(s)
    answers.promote(s)


def _asked_again(s: SessionState, response: Response) -> WantedAnswer | None:
    """The wish for the same answer, if the client knows nothing of it yet."""
    written = response.modality == "text" and response.spoken.length > 0
    if s.resident_family or written or response.calls or response.item.base_ms is not None:
        return None
    if s.remade >= MOST_ATTEMPTS:
        return None
    s.remade += 1
    record = s.requests.get(response.request_id) if response.request_id is not None else None
    item_id = record.item_id if record is not None else None
    asked = s.history.get(item_id) if item_id is not None else None
    if asked is not None:
        asked.answered = False
    return WantedAnswer(item_id, response.options)


def replaced(s: SessionState) -> None:
    """There is a new placement: go on."""
    if s.phase != "open" or s.rebuild_by is None:
        return
    s.rebuild_by = None
    s.lost_for_good = False
    s.placements += 1
    s.emit(SessionRecovered(epoch=s.fences.epoch, placement=s.placements))
    cancel.resume_input(s)
    submission.pump(s)
    if s.resident.clock_stood:
        resident.start_clock(s)


def timed_out(s: SessionState) -> bool:
    """No placement was found in time. True if the session lives on: its next request may find a replica, or fails."""
    s.rebuild_by = None
    if s.lost_for_good:
        return False
    submission.pump(s)
    return True
