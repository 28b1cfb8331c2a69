"""What must hold after every step. A violation ends this session and only this one."""

from __future__ import annotations


class InvariantViolation(RuntimeError):
    """The state machine contradicts itself: a fault of ours, never of a client."""


def require(condition: bool, message: str) -> None:
    """Raise :class:`InvariantViolation` with ``message`` unless ``condition``."""
    if not condition:
        raise InvariantViolation(message)
