"""A resident model's context fills: it is rolled over between turns, or the session ends in time and says why.

Rules kept here: a roll-over opens another request with what the plugin keeps, under the same epoch, so no input is lost and
nothing that plays is touched; it waits for a moment in which nobody speaks for as long as there is room for that; an answer
that would reach the limit is asked to end, then ended; a model that cannot be rolled over loses its session before the limit,
never at it.
"""

from __future__ import annotations

from duologue.engine.duplex.core import answers, hearing, lifecycle, resident, submission
from duologue.engine.duplex.core.requests import StageRequestRecord
from duologue.engine.duplex.core.state import SessionState
from duologue.engine.duplex.results import ContextUsed
from duologue.errors import ErrorCode

ROLL_OVER_AT = 0.75
"""From here on the next pause is used."""

URGENT_AT = 0.9
"""From here on a pause is not waited for; an answer is asked to end."""

LAST_AT = 0.96
"""From here on an answer is ended as it is; a session that cannot be rolled over ends."""


def used(s: SessionState, record: StageRequestRecord, result: ContextUsed) -> None:
    """The model's context holds ``used`` of ``limit``: act on it if it is time."""
    share = result.used / result.limit if result.limit > 0 else 0.0
    if record.purpose != "resident" or share < ROLL_OVER_AT:
        return
    answering = s.response is not None and s.response.generating
    if answering and share >= URGENT_AT:
        s.resident.force_listen = True
    if not s.capabilities.compacts:
        if share >= (LAST_AT if s.response is not None else URGENT_AT):
            message = f"The model's context is full ({result.used} of {result.limit}); open another session."
            lifecycle.fault(s, ErrorCode.CONTEXT_FULL, message, kind="expired", reason="context_full")
        return
    if answering and share >= LAST_AT and s.response is not None:
        answers.generated(s, s.response)
        s.fences.complete_turn(s.fences.turn_id)
        answering = False
    if not answering and (s.turn is None or share >= URGENT_AT):
        _roll_over(s, record)


def _roll_over(s: SessionState, record: StageRequestRecord) -> None:
    s.acted["context"] += 1
    resident.give_back(s, s.tail.unsettled())
    hearing.abandon(s, record.request_id)
    s.silence.stop()
    s.resident.rebuild = s.resident.compact = True
    resident.feed_again(s)
    submission.pump(s)
