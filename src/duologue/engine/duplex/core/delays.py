"""How long an answer takes, part by part.

Rule kept here: these are measures; nothing that happens depends on them.
"""

from __future__ import annotations

from dataclasses import dataclass

from duologue.engine.duplex.events import AnswerDelays


@dataclass(slots=True)
class AnswerClock:
    """When each part of the answer to a spoken turn was there (s, the runtime's clock); ``None``: not yet, or not needed."""

    quiet_at: float
    judged_at: float | None
    ended_at: float
    understood_at: float | None = None
    answered_at: float | None = None
    sent_at: float | None = None

    def delays(self) -> AnswerDelays | None:
        """Everything from ``quiet_at``; ``None`` if nothing of the answer was sent."""
        if self.sent_at is None:
            return None
        return AnswerDelays(
            judged_ms=self._since(self.judged_at),
            ended_ms=self._since(self.ended_at) or 0,
            understood_ms=self._since(self.understood_at),
            answered_ms=self._since(self.answered_at),
            sent_ms=self._since(self.sent_at) or 0,
        )

    def _since(self, at: float | None) -> int | None:
        return None if at is None else max(0, round((at - self.quiet_at) * 1000))
