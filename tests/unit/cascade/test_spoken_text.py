"""What is read aloud, where it came from, and the second voice."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.models.cascade.durations import OUTPUT_NAME, with_durations
from duologue.models.cascade.spoken_text import SpokenText, spoken_text
from duologue.models.cascade.synthesiser import RATE_HZ, Mark, Speech, Word, grouped, ordered_marks
from duologue.models.cascade.voice import USER, Voice, shifted


@given(st.text(max_size=120))
def test_every_character_knows_where_it_came_from(original: str) -> None:
    spoken = spoken_text(original)
    assert len(spoken.origins) == len(spoken.text) + 1
    assert list(spoken.origins) == sorted(spoken.origins)
    assert spoken.origins[-1] == len(original)
    for char, origin in zip(spoken.text, spoken.origins, strict=False):
        assert char in (original[origin], " ")


@given(st.text(alphabet="abc 12/.", max_size=30), st.text(alphabet="abc 12/.", max_size=30))
def test_origins_survive_any_rewriting(original: str, rewritten: str) -> None:
    spoken = spoken_text(original).rewritten(rewritten)
    assert spoken.text == rewritten
    assert list(spoken.origins) == sorted(spoken.origins)
    assert all(0 <= origin <= len(original) for origin in spoken.origins)
    assert spoken.origins[-1] == len(original)


def test_a_replaced_part_ends_where_the_original_part_ended() -> None:
    spoken = spoken_text("on 10/12 we met").rewritten("on October twelfth we met")
    assert spoken.origins[len("on October twelfth")] == len("on 10/12")
    assert spoken.origins[len("on ")] == len("on 10/12")


def test_markup_and_pictures_are_not_read() -> None:
    assert spoken_text("**Hi** 😀 `x`\x00").text.split() == ["Hi", "x"]
    assert spoken_text("naïve, 5%").text == "naïve, 5%"


def test_endless_numbers_and_words_are_broken_up() -> None:
    assert spoken_text("7" * 13).text == " ".join("7" * 13)
    assert spoken_text("7" * 12).text == "7" * 12
    assert spoken_text("x" * 90).text.split() == ["x" * 40, "x" * 40, "x" * 10]


def test_origins_must_match_the_text() -> None:
    with pytest.raises(ValueError, match="3 origins"):
        SpokenText("ab", [0])


def test_the_added_output_is_one_more_field_of_the_graph() -> None:
    added = with_durations(b"model")[len(b"model") :]
    assert added[0] == 7 << 3 | 2
    assert added[1] == len(added) - 2
    assert added[2] == 12 << 3 | 2
    assert OUTPUT_NAME.encode() in added


@given(st.lists(st.integers(0, 30), max_size=20))
def test_words_are_grouped_in_order_within_the_limit(sizes: list[int]) -> None:
    words = [Word("p" * size, index) for index, size in enumerate(sizes)]
    groups = list(grouped(words, 20))
    assert [word for group in groups for word in group] == words
    assert all(sum(len(word.phonemes) for word in group) <= 20 or len(group) == 1 for group in groups)


_MARKS = st.lists(st.builds(Mark, st.integers(0, 50), st.integers(0, 900)), max_size=12)


@given(_MARKS, st.one_of(st.none(), st.integers(1, 60)))
def test_marks_rise_and_the_last_covers_everything(marks: list[Mark], whole: int | None) -> None:
    ordered = ordered_marks(marks, whole, 900)
    chars = [mark.chars for mark in ordered]
    assert chars == sorted(set(chars))
    assert [mark.end_ms for mark in ordered] == sorted(mark.end_ms for mark in ordered)
    if whole is not None:
        assert ordered[-1] == Mark(whole, 900)


def _tone(hz: float) -> Speech:
    wave = np.sin(2 * np.pi * hz * np.arange(RATE_HZ) / RATE_HZ) * 10_000
    return Speech(np.rint(wave).astype("<i2").tobytes(), ())


@pytest.mark.parametrize(("pitch", "rate_hz"), [(0.8, 24_000), (0.8, 16_000), (1.25, 8_000)])
def test_a_shifted_tone_has_the_new_pitch_and_length(pitch: float, rate_hz: int) -> None:
    samples = np.frombuffer(shifted(_tone(500.0), pitch, rate_hz), "<i2").astype(np.float64)
    assert len(samples) == pytest.approx(rate_hz / pitch, abs=2)
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    assert np.argmax(spectrum) * rate_hz / len(samples) == pytest.approx(500.0 * pitch, abs=2)


def test_shifting_nothing_gives_nothing() -> None:
    assert shifted(Speech(b"", ()), 0.8, 16_000) == b""


def test_a_voice_keeps_its_tempo() -> None:
    assert USER.pitch < 1
    assert USER.speed * USER.pitch == pytest.approx(USER.tempo)
    assert Speech(b"\x00" * 48_000, ()).duration_ms == 1000


@pytest.mark.parametrize(("pitch", "tempo"), [(0.1, 1.0), (3.0, 1.0), (0.6, 1.9)])
def test_a_voice_that_nobody_could_follow_is_refused(pitch: float, tempo: float) -> None:
    with pytest.raises(ValueError, match="outside"):
        Voice(pitch=pitch, tempo=tempo)
