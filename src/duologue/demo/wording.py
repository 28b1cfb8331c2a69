"""How far what was heard is from what was said: words as people count them, and the word error rate.

Rules kept here: case, punctuation and the way a number is written are no errors; what is left is compared word by
word; the rate is errors per expected word, so it may exceed 1.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_WORD = re.compile(r"[a-z]+(?:'[a-z]+)*|\d+")
_ORDINAL = re.compile(r"\b(\d+)(?:st|nd|rd|th)\b")
_GROUPED = re.compile(r"(?<=\d),(?=\d{3}\b)")
# fmt: off
_SMALL = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)
# fmt: on
_TENS = ("zero", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_SPELLING = {"ok": "okay", "mr": "mister", "mrs": "missus", "dr": "doctor", "percent": "percent"}


def words_of(text: str) -> list[str]:
    """The words of `text` in one spelling: lower case, no punctuation, numbers below a million in words."""
    plain = text.lower().replace("\u2019", "'").replace("%", " percent ").replace("&", " and ")
    plain = _ORDINAL.sub(r"\1", _GROUPED.sub("", plain))
    words: list[str] = []
    for found in _WORD.findall(plain):
        if found.isdigit():
            words.extend(number_words(int(found)))
        else:
            words.append(_SPELLING.get(found, found))
    return words


def number_words(value: int) -> list[str]:
    """`value` as it is read out, without "and"; from a million on digit by digit."""
    if value < 20:
        return [_SMALL[value]]
    if value < 100:
        return [_TENS[value // 10], *([_SMALL[value % 10]] if value % 10 else [])]
    for size, name in ((1000, "thousand"), (100, "hundred")):
        if size <= value < size * 1000:
            rest = number_words(value % size) if value % size else []
            return [*number_words(value // size), name, *rest]
    return [_SMALL[int(digit)] for digit in str(value)]


def edit_distance(expected: Sequence[str], heard: Sequence[str]) -> int:
    """The fewest words to insert, delete or replace to turn one into the other."""
    row = list(range(len(heard) + 1))
    for count, word in enumerate(expected, start=1):
        diagonal, row[0] = row[0], count
        for column, other in enumerate(heard, start=1):
            cheapest = min(row[column] + 1, row[column - 1] + 1, diagonal + (word != other))
            diagonal, row[column] = row[column], cheapest
    return row[-1]


def word_error_rate(expected: str, heard: str) -> float:
    """Errors per expected word, 0.0 for a perfect match. Nothing expected: 0.0 if nothing was heard, else 1.0."""
    wanted, got = words_of(expected), words_of(heard)
    if not wanted:
        return 1.0 if got else 0.0
    return edit_distance(wanted, got) / len(wanted)
