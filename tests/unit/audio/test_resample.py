"""Rate conversion: independent of chunking, exact in length and position, clean in spectrum."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from duologue.audio import AudioFormatError, Resampler

RATES = [8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000, 12_345]
PAIRS = [(a, b) for a in RATES for b in (8_000, 16_000, 24_000, 48_000) if a != b]


def noise(count: int, seed: int = 0, amplitude: float = 9_000) -> bytes:
    samples = np.random.default_rng(seed).normal(size=count) * amplitude
    return samples.clip(-32_768, 32_767).astype("<i2").tobytes()


def one_shot(pair: tuple[int, int], pcm16: bytes) -> bytes:
    resampler = Resampler(*pair)
    return resampler.feed(pcm16) + resampler.flush()


def tone(rate_hz: int, frequency_hz: float, seconds: float = 0.5, amplitude: float = 16_000) -> bytes:
    phase = 2 * np.pi * frequency_hz * np.arange(int(rate_hz * seconds)) / rate_hz
    return np.rint(amplitude * np.sin(phase)).astype("<i2").tobytes()


def level_db(pcm16: bytes) -> float:
    middle: NDArray[np.float64] = np.frombuffer(pcm16, "<i2").astype(np.float64)
    middle = middle[len(middle) // 4 : -len(middle) // 4]
    return float(10 * np.log10((middle @ middle) / len(middle) / (16_000**2 / 2) + 1e-12))


@given(
    pair=st.sampled_from(PAIRS),
    count=st.integers(0, 3_000),
    cuts=st.lists(st.integers(0, 3_000), max_size=12),
    seed=st.integers(0, 9),
)
def test_any_chunking_gives_the_same_samples(pair: tuple[int, int], count: int, cuts: list[int], seed: int) -> None:
    pcm16 = noise(count, seed)
    edges = [0, *sorted(min(cut, count) for cut in cuts), count]
    resampler = Resampler(*pair)
    parts = [resampler.feed(pcm16[2 * a : 2 * b]) for a, b in pairwise(edges)]
    assert b"".join(parts) + resampler.flush() == one_shot(pair, pcm16)


@pytest.mark.parametrize("size", [1, 7, 10, 33, 240, 1_920])
def test_field_F34_ten_seconds_in_small_pieces(size: int) -> None:
    """Field case: appends of 10, 7, 33 and 1 samples against one append."""
    pcm16 = noise(24_000 * (1 if size < 7 else 10))
    resampler = Resampler(24_000, 16_000)
    parts = [resampler.feed(pcm16[at : at + 2 * size]) for at in range(0, len(pcm16), 2 * size)]
    assert b"".join(parts) + resampler.flush() == one_shot((24_000, 16_000), pcm16)


@pytest.mark.parametrize("pair", PAIRS)
def test_length_is_exact_and_little_is_held_back(pair: tuple[int, int]) -> None:
    resampler = Resampler(*pair)
    chunk = noise(pair[0] // 100)
    worst_s = 0.0
    for _ in range(60):
        resampler.feed(chunk)
        worst_s = max(worst_s, resampler.input_samples / pair[0] - resampler.output_samples / pair[1])
    assert worst_s * 1e3 <= resampler.delay_ms + 0.1
    resampler.flush()
    assert resampler.output_samples == -(-resampler.input_samples * pair[1] // pair[0])


def test_common_rates_hold_back_less_than_three_milliseconds() -> None:
    for pair in PAIRS:
        if 12_345 not in pair:
            assert Resampler(*pair).delay_ms < 3.0
    assert Resampler(24_000, 16_000).delay_ms < 1.5


@pytest.mark.parametrize("pair", PAIRS)
def test_speech_band_passes_flat(pair: tuple[int, int]) -> None:
    edge = min(pair) / 2
    for share in (0.05, 0.3, 0.6, 0.85):
        assert abs(level_db(one_shot(pair, tone(pair[0], share * edge)))) < 0.15


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair[0] > 1.3 * pair[1]])
def test_what_the_new_rate_cannot_hold_is_removed(pair: tuple[int, int]) -> None:
    for share in (1.12, 1.25):
        assert level_db(one_shot(pair, tone(pair[0], share * pair[1] / 2))) < -60


@pytest.mark.parametrize("pair", PAIRS)
def test_positions_are_not_shifted(pair: tuple[int, int]) -> None:
    """A click stays where it was: onset times need no correction."""
    samples = np.zeros(pair[0] // 2, "<i2")
    click = pair[0] // 4
    samples[click] = 20_000
    resampler = Resampler(*pair)
    out = np.frombuffer(resampler.feed(samples.tobytes()) + resampler.flush(), "<i2")
    peak = int(np.argmax(np.abs(out.astype(int))))
    assert abs(peak / pair[1] - click / pair[0]) <= 0.51 / min(pair)
    assert abs(resampler.output_at(click) - peak) <= 1 + pair[1] // pair[0]


@pytest.mark.parametrize("pair", PAIRS)
def test_full_scale_neither_wraps_nor_drifts(pair: tuple[int, int]) -> None:
    for value in (32_767, -32_768, 1_000, 0):
        out = np.frombuffer(one_shot(pair, np.full(8_000, value, "<i2").tobytes()), "<i2")
        settled = out[len(out) // 4 : -len(out) // 4].astype(int)
        assert abs(settled - value).max() <= 1


@pytest.mark.parametrize("pair", PAIRS)
def test_overshoot_of_a_loud_step_saturates(pair: tuple[int, int]) -> None:
    """The filter overshoots a full-scale step by a tenth: that must stay at full scale, not wrap around."""
    step = np.repeat(np.array([-32_768, 32_767], "<i2"), 4_000)
    loud = np.frombuffer(one_shot(pair, step.tobytes()), "<i2").astype(int)
    edge = 4_000 * pair[1] // pair[0]
    near = 3 * max(1, pair[1] // pair[0])
    assert loud.max() == 32_767
    assert loud.min() == -32_768
    assert (loud[len(loud) // 4 : edge - near] < -20_000).all()
    assert (loud[edge + near : -len(loud) // 4] > 20_000).all()


def test_flush_starts_afresh_and_counts_run_on() -> None:
    pcm16 = noise(1_001)
    resampler = Resampler(24_000, 16_000)
    first = resampler.feed(pcm16) + resampler.flush()
    second = resampler.feed(pcm16) + resampler.flush()
    assert first == second
    assert resampler.flush() == b""
    assert resampler.input_samples == 2_002
    assert resampler.output_samples == 2 * 668
    assert resampler.output_at(2_002) == 668 + 668
    assert resampler.input_at(resampler.output_at(2_002 + 24)) == 2_002 + 24


@pytest.mark.parametrize("rate_hz", [24_000, 12_345])
def test_reset_forgets_the_past(rate_hz: int) -> None:
    resampler = Resampler(rate_hz, 16_000)
    resampler.feed(noise(777, seed=3))
    resampler.reset()
    assert (resampler.input_samples, resampler.output_samples) == (0, 0)
    pcm16 = noise(500)
    assert resampler.feed(pcm16) + resampler.flush() == one_shot((rate_hz, 16_000), pcm16)


def test_misuse_is_refused() -> None:
    with pytest.raises(AudioFormatError, match=r"output_rate_hz 96000"):
        Resampler(16_000, 96_000)
    with pytest.raises(ValueError, match="buffer size"):
        Resampler(16_000, 24_000).feed(b"abc")
