"""Log-mel features against properties that follow from their definition."""

from __future__ import annotations

import numpy as np
import pytest

from duologue.detect.mel import BANDS, filter_bank, hz_to_mel, log_mel, mel_to_hz
from duologue.detect.turn_end import WINDOW_SAMPLES, normalised_window


def _tone(hz: float, seconds: float = 1.0) -> np.ndarray:
    return np.sin(2 * np.pi * hz * np.arange(int(16_000 * seconds)) / 16_000).astype(np.float32)


def test_the_scale_and_its_inverse_agree_on_both_sides_of_the_break() -> None:
    for hz in (0.0, 200.0, 999.0, 1000.0, 3000.0, 8000.0):
        assert mel_to_hz(np.array([hz_to_mel(hz)]))[0] == pytest.approx(hz)
    assert hz_to_mel(1000.0) == pytest.approx(15.0)
    assert hz_to_mel(6400.0) == pytest.approx(42.0)


def test_every_filter_has_the_same_area_and_rises_once() -> None:
    bank = filter_bank()
    assert bank.shape == (BANDS, 201)
    assert float(bank.min()) == 0.0
    # Wide filters cover many bins, so their sum comes close to the area of the triangle they sample.
    areas = bank[48:].sum(axis=1) * 40.0
    assert np.allclose(areas, 1.0, atol=0.02)


@pytest.mark.parametrize("hz", [300.0, 1000.0, 2500.0, 6000.0])
def test_a_tone_is_loudest_in_the_band_around_its_pitch(hz: float) -> None:
    edges = mel_to_hz(np.linspace(0.0, hz_to_mel(8000.0), BANDS + 2))
    band = int(np.argmax(log_mel(_tone(hz))[:, 50]))
    assert edges[band] <= hz <= edges[band + 2]


def test_there_is_one_column_per_ten_milliseconds_and_the_range_is_eight_decades() -> None:
    features = log_mel(_tone(440.0))
    assert features.shape == (BANDS, 100)
    assert features.dtype == np.float32
    assert float(features.max() - features.min()) <= 2.0 + 1e-6


def test_too_little_audio_is_refused() -> None:
    with pytest.raises(ValueError, match="200"):
        log_mel(np.zeros(200, np.float32))


def test_the_window_is_the_last_eight_seconds_after_silence() -> None:
    short = np.full(16_000, 8192, "<i2")
    window = normalised_window(short.tobytes() + b"\x01")
    assert window.shape == (WINDOW_SAMPLES,)
    assert len(np.unique(window[:-16_000])) == 1
    assert len(np.unique(window[-16_000:])) == 1
    assert window[-1] > window[0]
    assert float(window.mean()) == pytest.approx(0.0, abs=1e-4)
    assert float(window.var()) == pytest.approx(1.0, abs=1e-3)
    noise = np.random.default_rng(1).integers(-3000, 3000, WINDOW_SAMPLES + 777).astype("<i2")
    assert np.array_equal(normalised_window(noise.tobytes()), normalised_window(noise[777:].tobytes()))


@pytest.mark.parametrize("pcm", [b"", b"\x01", b"\x00" * 64_000])
def test_silence_stays_finite(pcm: bytes) -> None:
    assert np.array_equal(normalised_window(pcm), np.zeros(WINDOW_SAMPLES, np.float32))
    assert np.all(np.isfinite(log_mel(normalised_window(pcm))))
