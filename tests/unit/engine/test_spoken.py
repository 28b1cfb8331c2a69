"""Text that is shared out over audio whose words nobody has timed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from duologue.engine.stages.spoken import CHARS_PER_S, SpokenShare

RATE_HZ = 24_000


def audio(seconds: float) -> bytes:
    return bytes(2 * round(RATE_HZ * seconds))


@given(st.text("ab \n", max_size=40), st.lists(st.floats(0, 2), max_size=8), st.floats(0.25, 4))
def test_the_parts_are_exactly_the_text_and_end_at_words(text: str, seconds: list[float], speed: float) -> None:
    share = SpokenShare(text, RATE_HZ, speed)
    parts = [share.next(audio(length)) for length in seconds]
    whole = "".join(parts)
    assert whole + share.rest() == text
    assert not whole or whole[-1].isspace() or len(whole) == len(text)


def test_the_first_sound_comes_with_the_first_word_and_the_rest_keeps_pace() -> None:
    text = "word " * 30
    share = SpokenShare(text, RATE_HZ, 1.0)
    assert share.next(audio(0.06)) == "word "
    said = 5
    for second in range(1, 6):
        said += len(share.next(audio(1.0)))
        assert CHARS_PER_S * second <= said <= CHARS_PER_S * second + 6


def test_twice_the_speed_takes_twice_the_text() -> None:
    text = "a " * 200
    slow, fast = SpokenShare(text, RATE_HZ, 1.0), SpokenShare(text, RATE_HZ, 2.0)
    assert len(fast.next(audio(4.0))) == 2 * len(slow.next(audio(4.0)))
