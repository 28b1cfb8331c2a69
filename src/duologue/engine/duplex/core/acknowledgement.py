"""Acknowledgements of playback: what the client says that it has played.

Rules kept here: one corrects the estimate, and history with it; one that comes too late, or is of a response outside the
conversation, changes nothing and says so; only what can name nothing of this session is an error.
"""

from __future__ import annotations

from duologue.engine.duplex.commands import AckPlayback
from duologue.engine.duplex.core import pacing
from duologue.engine.duplex.core.history import Item
from duologue.engine.duplex.core.state import SessionState
from duologue.engine.duplex.events import PlaybackAcknowledged
from duologue.errors import ErrorCode


def ack_playback(s: SessionState, command: AckPlayback) -> None:
    """``playback.ack``: corrects the estimate; too late, it changes nothing and says so."""
    if _mismatched(s, command):
        s.error(
            ErrorCode.PLAYBACK_ITEM_MISMATCH,
            f"Item {command.item_id!r} does not belong to response {command.response_id!r}; name one of the two alone.",
            event_id=command.event_id,
            param="item_id",
        )
        return
    response = s.response or s.last_response
    if command.response_id is not None and (response is None or response.response_id != command.response_id):
        last = s.last_response
        response = last if last is not None and last.response_id == command.response_id else None
    if response is None:
        _late_ack(s, command)
        return
    item = response.item
    if command.item_id is not None and command.item_id != item.item_id:
        _late_ack(s, command)
        return
    played_ms = min(max(0.0, float(command.played_ms)), item.sent_ms)
    superseded = not response.open and _answered_since(s, item)
    note = "cleared" if item.sealed else "superseded" if superseded else None
    if note is None:
        item.acked_ms = max(item.acked_ms, played_ms)
        if item.soft_cut_ms is not None:
            item.soft_cut_ms = max(item.soft_cut_ms, item.acked_ms)
        if item.base_ms is not None and response.state != "cancelled":
            s.playback.set(item.base_ms + item.acked_ms, s.now)
        if command.truncate:
            item.hard_cut_ms = played_ms if item.hard_cut_ms is None else min(item.hard_cut_ms, played_ms)
    s.emit(
        PlaybackAcknowledged(
            response_id=response.response_id,
            item_id=item.item_id,
            played_ms=int(played_ms),
            history_committed=note is None and s.history.get(item.item_id) is item,
            note=note,
        )
    )
    pacing.playback_moved(s)


def _mismatched(s: SessionState, command: AckPlayback) -> bool:
    """Whether it names a response and the item of another one, or of none."""
    if command.item_id is None or command.response_id is None:
        return False
    item = s.history.get(command.item_id)
    return item is not None and item.response_id != command.response_id


def _answered_since(s: SessionState, item: Item) -> bool:
    """Whether the user's next turn was committed after ``item``: its text is fixed then."""
    for later in reversed(s.history.items):  # acknowledgements are frequent, and what they name is among the last
        if later is item:
            return False
        if later.role == "user":
            return True
    return True


def _late_ack(s: SessionState, command: AckPlayback) -> None:
    item = s.history.get(command.item_id) if command.item_id is not None else None
    known = command.item_id is None or (item is not None and item.spoken is not None) or _beside(s, command.item_id)
    if not known or (command.response_id is None and command.item_id is None):
        s.error(
            ErrorCode.PLAYBACK_ITEM_NOT_FOUND,
            "Nothing was said yet that could be acknowledged."
            if command.item_id is None
            else f"There is no item {command.item_id!r} to acknowledge; name one that response.created announced."
            if item is None
            else f"Item {command.item_id!r} is nothing that the assistant says; name one that response.created announced.",
            event_id=command.event_id,
            param="item_id",
        )
        return
    if command.response_id is not None and not _may_have_been(s, command.response_id):
        s.error(
            ErrorCode.PLAYBACK_ITEM_NOT_FOUND,
            f"There is no response {command.response_id!r} to acknowledge; name one that response.created announced.",
            event_id=command.event_id,
            param="response_id",
        )
        return
    s.emit(
        PlaybackAcknowledged(
            response_id=command.response_id or "",
            item_id=command.item_id or "",
            played_ms=max(0, command.played_ms),
            history_committed=False,
            note="superseded",
        )
    )


def _beside(s: SessionState, item_id: str) -> bool:
    """Whether it is what a response outside the conversation says: that has a clock of its own, which nobody corrects."""
    return any(open_aside.response.item.item_id == item_id for open_aside in s.asides.values())


def _may_have_been(s: SessionState, response_id: str) -> bool:
    """Whether this session may have made such a response: old ones are forgotten, but each carries where it was made."""
    epoch, _, suffix = response_id.removeprefix(f"resp-{s.session_id}-").partition("-")
    made_here = response_id.startswith(f"resp-{s.session_id}-") and len(suffix) == 8
    return made_here and epoch.isascii() and epoch.isdigit() and len(epoch) < 16 and int(epoch) <= s.fences.epoch
