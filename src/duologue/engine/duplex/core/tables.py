"""Transition tables: which state may follow which, as data. The diagrams under docs/state-machines are drawn from these.

Rule kept here: a state changes only through :func:`advance`, so a transition that no table allows is a broken invariant.
"""

from __future__ import annotations

from collections.abc import Mapping

from duologue.engine.duplex.core.invariants import InvariantViolation

Table = Mapping[tuple[str, str], str]

SESSION: Table = {
    ("new", "opened"): "open",
    ("open", "close_begun"): "closing",
    ("new", "close_begun"): "closing",
    ("closing", "terminal_sent"): "closed",
    ("closing", "terminal_claimed"): "closed",
}

TURN: Table = {
    ("speaking", "candidate"): "provisional",
    ("provisional", "resumed"): "speaking",
    ("speaking", "committed"): "committed",
    ("provisional", "committed"): "committed",
    ("speaking", "dropped"): "dropped",
    ("provisional", "dropped"): "dropped",
}

RESPONSE: Table = {
    ("created", "content"): "speaking",
    ("created", "generated"): "draining",
    ("speaking", "content"): "speaking",
    ("speaking", "generated"): "draining",
    ("draining", "drained"): "completed",
    ("created", "cancelled"): "cancelled",
    ("speaking", "cancelled"): "cancelled",
    ("draining", "cancelled"): "cancelled",
    ("created", "failed"): "failed",
    ("speaking", "failed"): "failed",
    ("draining", "failed"): "failed",
}

APPEND: Table = {
    ("queued", "submitted"): "in_flight",
    ("in_flight", "accepted"): "accepted",
    ("in_flight", "rejected"): "failed",
    ("queued", "voided"): "void",
    ("in_flight", "voided"): "orphan",
    ("orphan", "accepted"): "void",
    ("orphan", "rejected"): "void",
}

TOOL_CALL: Table = {
    ("pending", "answered"): "answered",
    ("pending", "timed_out"): "timed_out",
    ("pending", "cancelled"): "cancelled",
}

LEASE: Table = {
    ("attached", "detached"): "grace",
    ("grace", "resumed"): "attached",
    ("attached", "resumed"): "attached",
    ("grace", "attached"): "attached",
    ("attached", "attached"): "attached",
    ("attached", "ended"): "terminal",
    ("grace", "ended"): "terminal",
}

TABLES: Mapping[str, Table] = {
    "session": SESSION,
    "turn": TURN,
    "response": RESPONSE,
    "append": APPEND,
    "tool_call": TOOL_CALL,
    "lease": LEASE,
}


def advance(table: Table, state: str, event: str) -> str:
    """The state that follows ``state`` on ``event``; :class:`InvariantViolation` if the table has no such row."""
    following = table.get((state, event))
    if following is None:
        raise InvariantViolation(f"no transition from {state!r} on {event!r}")
    return following
