"""How full a resident model's context is, as far as is known, and whether more fits behind what is on its way.

Rules kept here: input goes ahead of what the model tells only up to where the context would be rolled over; from there on
piece by piece, while one fits; of a context that the model has not spoken of half counts as full.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

ROLL_OVER_AT = 0.75
"""From here on the next pause is used."""

UNTOLD = 0.5
"""So full counts a context of which the model has not spoken yet."""


@dataclass(slots=True)
class ContextGauge:
    """The last ``share`` that was told (``None``: nothing yet), and the units of each piece that is ``waiting`` to be in the
    context, in order; ``heard`` pieces are."""

    share: float | None = None
    waiting: deque[int] = field(default_factory=deque)
    heard: int = 0

    def hear(self, pieces: int) -> None:
        """What was told covers the first ``pieces``; 0: all of them, for all that anybody says."""
        while self.waiting and (not pieces or self.heard < pieces):
            self.waiting.popleft()
            self.heard += 1

    def admits(self, cost: int, units: int) -> bool:
        """Whether a context of ``units`` has room for a piece of ``cost`` units behind what is on its way."""
        share = UNTOLD if self.share is None else self.share
        most = ROLL_OVER_AT if self.waiting else 1.0
        return share + (sum(self.waiting) + cost) / units <= most
