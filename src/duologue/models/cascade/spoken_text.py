"""Text as it may be read aloud, with a way back to the text it came from.

Rules kept here: markup, pictures and control characters are not read; runs of digits or letters that no reader can
say in one breath are broken up; every character of the result knows which character of the original it stands for,
and those positions never decrease. Pure.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Sequence

_LONGEST_DIGITS = 12
_LONGEST_WORD = 40
_RUN = re.compile(rf"\d{{{_LONGEST_DIGITS + 1},}}|[^\W\d_]{{{_LONGEST_WORD + 1},}}")
_MARKUP = frozenset("*_`#~|\\^[]{}<>")
_UNSPOKEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "So", "Sk"})


class SpokenText:
    """`text` to read, and for each of its positions (its end included) the position in the original."""

    __slots__ = ("origins", "text")

    def __init__(self, text: str, origins: Sequence[int]) -> None:
        if len(origins) != len(text) + 1:
            raise ValueError(f"{len(text)} characters need {len(text) + 1} origins, not {len(origins)}")
        self.text = text
        self.origins = origins

    def rewritten(self, text: str) -> SpokenText:
        """The same reading after something rewrote it ("10/12" to "October twelfth") in an unknown way.

        Characters that stayed keep their origin; of a part that was replaced, each gets the origin of its end.
        """
        if text == self.text:
            return self
        origins = [0] * (len(text) + 1)
        matcher = difflib.SequenceMatcher(None, self.text, text, autojunk=False)
        for tag, start, end, new_start, new_end in matcher.get_opcodes():
            for position in range(new_start, new_end):
                same = start + position - new_start
                origins[position] = self.origins[same if tag == "equal" else end]
        origins[len(text)] = self.origins[-1]
        return SpokenText(text, origins)


def spoken_text(original: str) -> SpokenText:
    """`original` without what is not read aloud, its long runs broken up by spaces."""
    cleaned = "".join(" " if _is_unspoken(char) else char for char in original)
    characters: list[str] = []
    origins: list[int] = []
    breaks = _run_breaks(cleaned)
    for position, char in enumerate(cleaned):
        if position in breaks:
            characters.append(" ")
            origins.append(position)
        characters.append(char)
        origins.append(position)
    return SpokenText("".join(characters), [*origins, len(original)])


def _is_unspoken(char: str) -> bool:
    if char in "\n\t":
        return False
    return char in _MARKUP or unicodedata.category(char) in _UNSPOKEN_CATEGORIES


def _run_breaks(text: str) -> set[int]:
    """Positions before which a space belongs: between all digits of a long number, every 40 letters of a long word."""
    breaks: set[int] = set()
    for match in _RUN.finditer(text):
        step = 1 if match.group()[0].isdigit() else _LONGEST_WORD
        breaks.update(range(match.start() + step, match.end(), step))
    return breaks
