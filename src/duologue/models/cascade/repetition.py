"""Loops in generated tokens: a small model that lost its thread says the same thing for ever."""

from __future__ import annotations

from collections.abc import Sequence

_LONGEST_UNIT = 16
_LEAST_REPEATS = 4
_LEAST_SPAN = 12


def loop_start(tokens: Sequence[int]) -> int | None:
    """Where to cut if the end of `tokens` is a loop, else None.

    A loop is a unit of 1 to 16 tokens that occurs at least four times in a row and fills at least twelve tokens, so
    that a person who says "no, no, no, no" is not cut short. The position returned keeps the first occurrence.
    """
    for unit in range(1, min(_LONGEST_UNIT, len(tokens) // _LEAST_REPEATS) + 1):
        repeats = 1
        last = tokens[-unit:]
        while len(tokens) >= (repeats + 1) * unit and tokens[-(repeats + 1) * unit : -repeats * unit] == last:
            repeats += 1
        if repeats >= _LEAST_REPEATS and repeats * unit >= _LEAST_SPAN:
            return len(tokens) - (repeats - 1) * unit
    return None
