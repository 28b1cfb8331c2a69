"""Which part of a text goes with which part of its audio, when the synthesiser does not say.

Rules kept here: the parts, joined, are exactly the text; a part ends at a word; the text never lags behind the audio at the
usual pace of speech, so that what is counted as heard errs by about a word.
"""

from __future__ import annotations

import re
from typing import Final

CHARS_PER_S: Final = 15.0
"""Characters of a second of speech at normal speed, spaces included."""

_WORD = re.compile(r"\s*\S+\s*")


class SpokenShare:
    """One text on its way into audio."""

    __slots__ = ("_chars_per_byte", "_due", "_given", "_text")

    def __init__(self, text: str, rate_hz: int, speed: float) -> None:
        """Audio is PCM16 at ``rate_hz``; ``speed`` 1.0 is normal."""
        self._text = text
        self._given = 0
        self._due = 0.0
        self._chars_per_byte = CHARS_PER_S * max(speed, 0.1) / (2 * rate_hz)

    def next(self, audio: bytes) -> str:
        """The words that ``audio`` is likely to begin."""
        start = self._given
        self._due += len(audio) * self._chars_per_byte
        while self._given < self._due and (word := _WORD.match(self._text, self._given)) is not None:
            self._given = word.end()
        return self._text[start : self._given]

    def rest(self) -> str:
        """What has not been given out yet."""
        start, self._given = self._given, len(self._text)
        return self._text[start:]
