"""Cuts streamed text into pieces that can be spoken, as early as that is sensible.

Rules kept here:

* the pieces, joined, are exactly the text that came in; offsets count characters of that text;
* a piece ends after a sentence, at a line break, or, where a sentence is long, after a clause or a word, so that no
  piece exceeds `longest` characters;
* the first piece may end at a clause already, since silence before the first word is what a listener notices;
* "Dr. Smith", "3.5", "J. K. Rowling", "e.g. this" and "1. First" are not the end of a sentence;
* how the text was cut into deltas never changes the pieces.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

LONGEST_CHARS = 200
FIRST_CLAUSE_CHARS = 40

# Marks outside ASCII are written as escapes, since several look like others: curly quotes (2018 to 201d), dashes
# (2013, 2014), the ellipsis (2026), and full-width marks and corner brackets (ff01, ff1f, 3002, 300d, 300f).
_CLOSING = r"\"'\u201d\u2019)\]"
_WIDE_END = r"\u3002\uff01\uff1f"
_WIDE_CLOSING = r"\u300d\u300f\u201d"
# A sentence end, closing quotes or brackets, the space after it, and a look at what follows: without the next
# character nobody can tell "Dr. Smith" from "the end. It".
_END = re.compile(
    rf"[.!?\u2026]+[{_CLOSING}]*\s+(?=\S)"
    rf"|[{_WIDE_END}]+[{_WIDE_CLOSING}]*(?=[^{_WIDE_END}{_WIDE_CLOSING}])"
    r"|\n+(?=[^\n])"
)
_CLAUSE = re.compile(r"[,;:\u2013\u2014]\s+(?=\S)")
_SPACE = re.compile(r"\s+(?=\S)")
_SPEAKABLE = re.compile(r"\w")
_LAST_WORD = re.compile(r"[\"'\u201c\u2018(\[]*([\w.&]+)\.$")
# fmt: off
_ABBREVIATIONS = frozenset({
    "al", "approx", "apr", "aug", "capt", "co", "col", "corp", "dec", "dept", "dr", "e.g", "est", "etc", "feb", "fig",
    "fri", "ft", "gen", "gov", "hon", "i.e", "inc", "jan", "jr", "jul", "jun", "lt", "ltd", "mr", "mrs", "ms", "mt",
    "nov", "oct", "ph.d", "pres", "prof", "rep", "rev", "sen", "sep", "sept", "sgt", "sr", "st", "thu", "tue", "u.k",
    "u.s", "vs", "wed",
})
# fmt: on
# These end a sentence as often as not: they do so unless a small letter follows.
_OFTEN_LAST = frozenset({"etc", "inc", "ltd", "co", "corp", "a.m", "p.m", "u.s", "u.k", "ph.d", "jr", "sr", "al"})
# These are abbreviations only before a number: "no. 5", but "I said no. Then".
_BEFORE_NUMBER = frozenset({"no", "vol", "fig", "approx", "mar", "may", "sun", "sat", "mon", "est"})


class Piece(msgspec.Struct, frozen=True):
    """Text from character `start` up to `end` of everything pushed so far, with its outer space."""

    text: str
    start: int
    end: int


class SentenceSplitter:
    """Feed it deltas, get pieces. Not reusable after `finish`."""

    def __init__(
        self,
        *,
        longest_chars: int = LONGEST_CHARS,
        first_clause_chars: int = FIRST_CLAUSE_CHARS,
        opening_chars: Sequence[int] = (),
    ) -> None:
        """`longest_chars` bounds every piece, `opening_chars` the first ones more tightly, in order; the first may end at a
        clause from `first_clause_chars` on.

        Raises ValueError unless 0 < first_clause_chars <= longest_chars.
        """
        if not 0 < first_clause_chars <= longest_chars:
            raise ValueError(f"need 0 < first_clause_chars <= longest_chars, not {first_clause_chars}, {longest_chars}")
        self._longest = longest_chars
        # Somebody waits for the first piece, and while it is played the second has to be ready.
        self._opening = tuple(opening_chars)
        self._taken = 0
        self._first_clause = first_clause_chars
        self._held = ""
        self._start = 0

    def push(self, delta: str) -> list[Piece]:
        """Pieces that `delta` completed, in order; often none."""
        self._held += delta
        return list(self._complete())

    def finish(self) -> list[Piece]:
        """What is left, at most one piece unless it is longer than allowed."""
        pieces = list(self._complete())
        if self._held:
            pieces.append(self._take(len(self._held)))
        return pieces

    @property
    def _limit(self) -> int:
        return self._opening[self._taken] if self._taken < len(self._opening) else self._longest

    def _complete(self) -> Iterator[Piece]:
        while (cut := self._cut()) > 0:
            yield self._take(cut)

    def _take(self, length: int) -> Piece:
        piece = Piece(self._held[:length], self._start, self._start + length)
        self._held = self._held[length:]
        self._start = piece.end
        self._taken += 1
        return piece

    def _cut(self) -> int:
        """Length of the next piece, 0 if it is not complete yet."""
        window = self._held[: self._limit + 1]
        ends = (match.end() for match in _END.finditer(window) if self._is_end(window, match))
        cuts = [next(ends, 0)]
        if self._start == 0:
            clauses = (match.end() for match in _CLAUSE.finditer(window))
            cuts.append(next((end for end in clauses if self._first_clause <= end <= self._limit), 0))
        # The earlier of the two, because that is the one that a slower stream would have shown first.
        earliest = min((cut for cut in cuts if cut), default=0)
        if earliest == 0 and len(self._held) > self._limit:
            return self._forced_cut(window)
        return earliest

    def _is_end(self, window: str, match: re.Match[str]) -> bool:
        fits = match.end() <= self._limit and _SPEAKABLE.search(window, 0, match.end()) is not None
        return fits and _ends_sentence(window, match)

    def _forced_cut(self, window: str) -> int:
        """Where to cut a sentence that is too long: its last clause in the second half, last word, or anywhere."""
        clauses = [m.end() for m in _CLAUSE.finditer(window) if self._limit // 2 < m.end() <= self._limit]
        if clauses:
            return clauses[-1]
        words = [m.end() for m in _SPACE.finditer(window) if m.end() <= self._limit]
        return words[-1] if words else self._limit


def _ends_sentence(text: str, match: re.Match[str]) -> bool:
    mark = match.group().rstrip()
    if not mark.startswith(".") or mark.startswith(".."):
        return True  # a line break, a mark that is no full stop, or an ellipsis
    word_match = _LAST_WORD.search(text[: match.start() + 1])
    if word_match is None:
        return True
    word = word_match.group(1)
    following = text[match.end()] if match.end() < len(text) else ""
    lowered = word.lower()
    if len(word) == 1 and word.isupper() and word != "I":
        return False  # an initial
    if word.isdigit():
        return not _is_list_number(text, word_match.start(1))
    if lowered in _BEFORE_NUMBER:
        return not following.isdigit()
    if lowered in _OFTEN_LAST:
        return not following.islower()
    return lowered not in _ABBREVIATIONS


def _is_list_number(text: str, start: int) -> bool:
    """Whether the number at `start` opens its line or sentence, as in "1. First"."""
    return text[:start].strip() == "" or text[:start].endswith("\n")
