"""How much of a spoken text was heard: monotone, bounded, whole at full playback (invariant 18)."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.engine.duplex.core.heard import MAX_MARKS, SpokenText

RATE = 24_000

pieces = st.lists(
    st.tuples(
        st.text("ab \U0001f600", max_size=20),
        st.integers(0, 2_000),
        st.lists(st.tuples(st.integers(-5, 40), st.integers(-100, 3_000)), max_size=4),
    ),
    max_size=8,
)


def build(parts: list[tuple[str, int, list[tuple[int, int]]]]) -> SpokenText:
    spoken = SpokenText()
    for text, ms, marks in parts:
        spoken.extend(text, ms * RATE // 1000, RATE, tuple(marks))
    return spoken


@given(pieces, st.lists(st.integers(-1_000, 20_000), min_size=2, max_size=20))
def test_monotone_and_bounded_for_any_marks(
    parts: list[tuple[str, int, list[tuple[int, int]]]], times: list[int]
) -> None:
    spoken = build(parts)
    counts = [spoken.heard_chars(time) for time in sorted(times)]
    assert counts == sorted(counts)
    assert all(0 <= count <= spoken.length for count in counts)
    for time in times:
        assert spoken.text.startswith(spoken.heard(time))


@given(pieces)
def test_nothing_at_the_start_and_everything_at_the_end(parts: list[tuple[str, int, list[tuple[int, int]]]]) -> None:
    spoken = build(parts)
    assert spoken.heard(0) == spoken.heard(-5) == "" or spoken.text == ""
    if spoken.audio_ms:
        assert spoken.heard(spoken.audio_ms) == spoken.heard(spoken.audio_ms + 1) == spoken.text
    assert spoken.text == "".join(text for text, _, _ in parts)


@given(pieces, st.integers(0, 5_000))
def test_a_longer_answer_does_not_change_what_was_heard_of_a_past_moment(
    parts: list[tuple[str, int, list[tuple[int, int]]]], time: int
) -> None:
    """A cut made while the answer is still being generated stays what it was."""
    before = build(parts)
    after = build(parts)
    after.extend(" and more", RATE, RATE, ())
    if before.audio_ms and time < before.audio_ms:
        assert after.heard_chars(time) == before.heard_chars(time)


@pytest.mark.parametrize(("time", "count"), [(0, 0), (1, 0), (100, 1), (250, 2), (500, 5), (999, 9), (1_000, 10)])
def test_without_marks_it_is_spread_evenly(time: int, count: int) -> None:
    assert build([("0123456789", 1_000, [])]).heard_chars(time) == count


def test_marks_bend_the_line() -> None:
    spoken = build([("0123456789", 1_000, [(8, 200)])])
    assert [spoken.heard_chars(time) for time in (100, 200, 600, 1_000)] == [4, 8, 9, 10]


def test_marks_out_of_order_and_out_of_range_are_clamped() -> None:
    spoken = build([("0123456789", 1_000, [(8, 500), (3, 200), (99, 99_999)])])
    assert list(spoken.chars) == sorted(spoken.chars) and list(spoken.times_ms) == sorted(spoken.times_ms)
    assert spoken.heard_chars(500) == 8 and spoken.times_ms[-1] == 1_000


def test_marks_are_relative_to_their_piece() -> None:
    spoken = build([("aaaa", 400, [(4, 100)]), ("bbbb", 400, [(4, 100)])])
    assert [spoken.heard_chars(time) for time in (100, 300, 400, 500, 700)] == [4, 4, 4, 8, 8]


def test_text_that_comes_before_its_audio_is_heard_with_it() -> None:
    spoken = build([("Hello ", 0, []), ("there.", 1_000, [])])
    assert spoken.heard_chars(0) == 0 and spoken.heard_chars(500) == 6 and spoken.heard(1_000) == "Hello there."


def test_text_without_audio_was_never_heard() -> None:
    spoken = build([("Hello there.", 0, [])])
    assert spoken.heard(0) == spoken.heard(10_000) == ""


def test_a_partial_text_has_no_trailing_space() -> None:
    assert build([("one two", 700, [])]).heard(400) == "one"


# -- how much is kept ----------------------------------------------------------------------------------------------------


def kept(spoken: SpokenText) -> int:
    assert len(spoken.chars) == len(spoken.times_ms)
    return len(spoken.chars)


def plainly(parts: list[tuple[str, int, list[tuple[int, int]]]], played_ms: int) -> int:
    """The arithmetic over every mark there was, as a list."""
    length = total = 0
    marks = [(0, 0)]
    for text, ms, told in parts:
        end = total + ms
        for chars, at_ms in [*told, *([(len(text), ms)] if ms else [])]:
            point = min(length + max(0, chars), length + len(text)), min(total + max(0, at_ms), end)
            marks.append((max(point[0], marks[-1][0]), max(point[1], marks[-1][1])))
        length, total = length + len(text), end
    if 0 < total <= played_ms:
        return length
    if played_ms <= 0:
        return 0
    for before, after in pairwise(marks):
        if before[1] < played_ms <= after[1]:
            return before[0] + (after[0] - before[0]) * (played_ms - before[1]) // (after[1] - before[1])
    return 0


@given(pieces, st.integers(-10, 6_000))
def test_what_is_left_out_makes_no_difference(parts: list[tuple[str, int, list[tuple[int, int]]]], time: int) -> None:
    assert build(parts).heard_chars(time) == plainly(parts, time)


def test_an_answer_of_an_hour_keeps_as_much_as_one_of_five_minutes() -> None:
    """A resident model says a word in each unit of 80 ms, evenly or not, and an hour of it is one response."""
    even, uneven = SpokenText(), SpokenText()
    sizes = []
    for unit in range(45_000):
        even.extend("word ", RATE * 80 // 1000, RATE, ())
        uneven.extend("a" * (unit * 7919 % 5 + 1), RATE * 80 // 1000, RATE, ((1, 40),))
        if unit in (3_749, 44_999):
            sizes.append((kept(even), kept(uneven)))
    assert all(few <= 2 and many <= MAX_MARKS for few, many in sizes)
    ideal = uneven.length // 2
    assert abs(uneven.heard_chars(uneven.audio_ms // 2) - ideal) < uneven.length // 500


@pytest.mark.parametrize("marks", [MAX_MARKS - 1, MAX_MARKS, MAX_MARKS + 1])
def test_so_many_marks_are_kept_and_then_every_other_one(marks: int) -> None:
    spoken = SpokenText()
    for number in range(marks):
        spoken.extend("ab" if number % 2 else "a", RATE // 100, RATE, ())
    assert kept(spoken) == (marks if marks <= MAX_MARKS else MAX_MARKS // 2 + 1)
    assert spoken.heard_chars(spoken.audio_ms - 1) in (spoken.length - 1, spoken.length - 2)
    assert spoken.heard_chars(spoken.audio_ms) == spoken.length
