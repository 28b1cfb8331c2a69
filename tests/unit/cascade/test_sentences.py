"""The sentence splitter: exact offsets, early pieces, and no cut inside what belongs together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.models.cascade.sentences import Piece, SentenceSplitter

_TEXT = st.text(alphabet="ab DrSmith.,;!?\"')3\n\u2026\u3002\u300d-", max_size=120)


def _split(text: str, step: int = 1, longest: int = 200, clause: int = 40) -> list[Piece]:
    splitter = SentenceSplitter(longest_chars=longest, first_clause_chars=clause)
    pieces = [p for start in range(0, len(text), step) for p in splitter.push(text[start : start + step])]
    return pieces + splitter.finish()


def _texts(text: str, **options: int) -> list[str]:
    return [piece.text.strip() for piece in _split(text, **options)]


@given(_TEXT, st.integers(1, 40), st.integers(5, 30))
def test_pieces_are_the_input_cut_up_and_do_not_depend_on_the_deltas(text: str, step: int, longest: int) -> None:
    pieces = _split(text, step, longest, clause=5)
    assert "".join(piece.text for piece in pieces) == text
    position = 0
    for piece in pieces:
        assert (piece.start, piece.end) == (position, position + len(piece.text))
        assert 0 < len(piece.text) <= longest
        position = piece.end
    assert pieces == _split(text, 1, longest, clause=5)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello there. How are you? Fine!", ["Hello there.", "How are you?", "Fine!"]),
        ("I saw Dr. Smith. He waved.", ["I saw Dr. Smith.", "He waved."]),
        ("Pi is 3.14 or so. Yes.", ["Pi is 3.14 or so.", "Yes."]),
        ("J. K. Rowling wrote it. So?", ["J. K. Rowling wrote it.", "So?"]),
        ("Fruit, e.g. apples. Good.", ["Fruit, e.g. apples.", "Good."]),
        ("1. First. 2. Second.", ["1. First.", "2. Second."]),
        ("It was 1999. Then it ended.", ["It was 1999.", "Then it ended."]),
        ("So am I. You too.", ["So am I.", "You too."]),
        ("I said no. Then I left.", ["I said no.", "Then I left."]),
        ("It is no. 5 here.", ["It is no. 5 here."]),
        ("At 5 p.m. we eat. Come.", ["At 5 p.m. we eat.", "Come."]),
        ("Made in the U.S. It works.", ["Made in the U.S.", "It works."]),
        ('He said "yes." Then he left.', ['He said "yes."', "Then he left."]),
        ("Wait... what? No.", ["Wait...", "what?", "No."]),
        ("one\ntwo\n\nthree", ["one", "two", "three"]),
        ("... Well.", ["... Well."]),
    ],
)
def test_sentences(text: str, expected: list[str]) -> None:
    assert _texts(text) == expected


def test_a_sentence_is_given_out_as_soon_as_the_next_one_begins() -> None:
    splitter = SentenceSplitter()
    assert splitter.push("It is Paris.") == []
    assert splitter.push(" ") == []
    assert splitter.push("It") == [Piece("It is Paris. ", 0, 13)]


def test_only_the_first_piece_may_end_at_a_clause() -> None:
    text = "Once upon a time in a small village, there lived a dog. In a very long second sentence here, it barked."
    assert _texts(text, clause=30) == [
        "Once upon a time in a small village,",
        "there lived a dog.",
        "In a very long second sentence here, it barked.",
    ]
    assert _texts(text, clause=50)[0] == "Once upon a time in a small village, there lived a dog."


def test_text_without_punctuation_is_cut_between_words() -> None:
    pieces = _split("word " * 100, longest=48)
    assert all(piece.text.endswith("word ") for piece in pieces)
    assert max(len(piece.text) for piece in pieces) <= 48
    assert len(_split("word " * 12, longest=48)) == 2


def test_the_opening_is_cut_small_and_the_rest_is_not() -> None:
    splitter = SentenceSplitter(first_clause_chars=12, opening_chars=(20, 40))
    text = "This is a sentence without a mark in it that goes on and on and on for quite a while until it ends. " * 2
    pieces = [piece.text for piece in (*splitter.push(text), *splitter.finish())]
    assert "".join(pieces) == text
    assert len(pieces[0]) <= 20 and 20 < len(pieces[1]) <= 40 and len(pieces[2]) > 40


def test_a_long_sentence_is_cut_at_its_last_clause() -> None:
    assert _texts("a bcd efg, hij klm nop, qrs tuv wxy", longest=28, clause=28)[0] == "a bcd efg, hij klm nop,"


def test_a_word_that_never_ends_is_cut_anyway() -> None:
    assert [len(piece.text) for piece in _split("x" * 50, longest=20, clause=20)] == [20, 20, 10]


def test_bounds_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="first_clause_chars"):
        SentenceSplitter(longest_chars=10, first_clause_chars=11)
