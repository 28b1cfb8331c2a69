"""How often something may happen: a bucket of tokens, told the time and never asking for it.

Rules kept here: what is refused costs nothing; the state is one number, so it is bounded and the same for the same times.
"""

from __future__ import annotations

_ROUNDING_S = 1e-9


class Allowance:
    """``burst`` at once, and one more every ``60 / per_minute`` seconds; ``per_minute`` ``None``: no limit.

    Times are in seconds on any one clock that does not run backwards.
    """

    __slots__ = ("_full_at", "_room_s", "_step_s")

    def __init__(self, per_minute: float | None, burst: int) -> None:
        """Starts full. Raises ``ValueError`` unless both are above 0."""
        if burst < 1 or (per_minute is not None and not per_minute > 0):
            raise ValueError(f"burst and per_minute must be greater than 0, got {burst} and {per_minute!r}")
        self._step_s = 0.0 if per_minute is None else 60.0 / per_minute
        self._room_s = self._step_s * burst
        self._full_at = float("-inf")

    def wait_s(self, now: float) -> float:
        """How long until :meth:`take` would succeed; 0 if it would at ``now``."""
        wait_s = max(self._full_at, now) + self._step_s - self._room_s - now
        return wait_s if wait_s > _ROUNDING_S else 0.0

    def take(self, now: float) -> bool:
        """Use one at ``now``; false, and nothing used, when none is left."""
        if self.wait_s(now):
            return False
        self._full_at = max(self._full_at, now) + self._step_s
        return True
