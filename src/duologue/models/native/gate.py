"""When the native model listens and when it speaks: three leaky counters that it carries from frame to frame.

Random weights would decide at random, so this part of the network is wired by hand. Rules kept here: after at least
200 ms of sound and 400 ms of quiet it wants to speak, for longer the longer it was spoken to; while it speaks, sound from
the user takes the wish away within half a second. One frame is one step; nothing depends on any clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from duologue.models.native.weights import Floats

Decision = Literal["listen", "speak", "end"]

_LOUD_DB: Final = -42.0
_ENOUGH_HEARD: Final = 2.5
_ENOUGH_QUIET: Final = 5.0
_MOST: Final = 50.0
_SHORTEST_ANSWER: Final = 12.0
_SHARE_OF_SOUND: Final = 9.0


@dataclass(slots=True)
class Gate:
    """``heard``: frames of sound not answered yet; ``quiet``: frames since the last; ``wish``: frames it wants to speak."""

    heard: float = 0.0
    quiet: float = 0.0
    wish: float = 0.0

    def step(self, frame: Floats, *, listen: bool = False) -> Decision:
        """What to do in this frame (samples within ±1). ``listen``: the client wants it to be quiet."""
        level_db = 10.0 * np.log10(float(np.dot(frame, frame)) / max(1, len(frame)) + 1e-12)
        sound = float(1.0 / (1.0 + np.exp(np.clip(_LOUD_DB - level_db, -30.0, 30.0))))
        self.heard = min(self.heard + sound, _MOST)
        self.quiet = (self.quiet + 1.0) * (1.0 - sound)
        if self.wish > 0.0:
            self.wish = 0.0 if listen else max(0.0, self.wish - 1.0 - _SHARE_OF_SOUND * sound)
            return "speak" if self.wish > 0.0 else "end"
        if listen or self.heard < _ENOUGH_HEARD or self.quiet < _ENOUGH_QUIET:
            return "listen"
        self.wish = min(_SHORTEST_ANSWER + self.heard, _MOST)
        self.heard = 0.0
        return "speak"
