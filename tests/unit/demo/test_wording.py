"""Word error rate, and what does not count as an error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.demo.wording import edit_distance, number_words, word_error_rate, words_of


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("It's twenty one, OK?", "it's 21 okay"),
        ("The 3rd of 1,200 people", "the three of one thousand two hundred people"),
        ("It\u2019s 50%", "it's fifty percent"),
        ("Dr. Who", "doctor who"),
        ("105", "one hundred five"),
    ],
)
def test_spelling_is_no_error(one: str, other: str) -> None:
    assert words_of(one) == words_of(other)


def test_long_numbers_are_read_digit_by_digit() -> None:
    assert number_words(1_000_002) == ["one", "zero", "zero", "zero", "zero", "zero", "two"]


@pytest.mark.parametrize(
    ("expected", "heard", "rate"),
    [
        ("a b c d", "a b c d", 0.0),
        ("a b c d", "a x c d", 0.25),
        ("a b c d", "a b d", 0.25),
        ("a b c d", "a b c c d", 0.25),
        ("a b", "", 1.0),
        ("", "", 0.0),
        ("", "noise", 1.0),
        ("a", "b c d", 3.0),
    ],
)
def test_the_rate_counts_errors_per_expected_word(expected: str, heard: str, rate: float) -> None:
    assert word_error_rate(expected, heard) == pytest.approx(rate)


_lists = st.lists(st.sampled_from("abc"), max_size=8)


@given(_lists, _lists, _lists)
def test_edit_distance_is_a_distance(one: list[str], two: list[str], three: list[str]) -> None:
    assert edit_distance(one, two) == edit_distance(two, one)
    assert (edit_distance(one, two) == 0) == (one == two)
    assert edit_distance(one, three) <= edit_distance(one, two) + edit_distance(two, three)
