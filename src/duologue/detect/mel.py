"""Log-mel features as Whisper models expect them, on numpy alone.

80 Slaney mel bands over 0 to 8 kHz, windows of 400 samples every 160 (25 ms every 10 ms), periodic Hann, signal
mirrored at both ends, magnitude floor 1e-10, dynamic range limited to 8 decades below the loudest bin, then
scaled to about [-1, 1].
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

RATE_HZ = 16_000
WINDOW_SAMPLES = 400
HOP_SAMPLES = 160
BANDS = 80

_BINS = WINDOW_SAMPLES // 2 + 1
_FLOOR = np.float32(1e-10)
_RANGE_DECADES = np.float32(8.0)

# Slaney's scale: linear up to 1 kHz (3 mels per 200 Hz), then a factor of 6.4 every 27 mels.
_BREAK_HZ = 1000.0
_BREAK_MEL = 15.0
_LOG_STEP = np.log(6.4) / 27.0


def hz_to_mel(hz: float) -> float:
    """Slaney mel of a frequency in Hz (>= 0)."""
    if hz < _BREAK_HZ:
        return hz * _BREAK_MEL / _BREAK_HZ
    return _BREAK_MEL + float(np.log(hz / _BREAK_HZ) / _LOG_STEP)


def mel_to_hz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    """Inverse of hz_to_mel, elementwise."""
    return np.where(
        mel < _BREAK_MEL,
        mel * _BREAK_HZ / _BREAK_MEL,
        _BREAK_HZ * np.exp((mel - _BREAK_MEL) * _LOG_STEP),
    )


@functools.cache
def filter_bank() -> NDArray[np.float32]:
    """Triangular filters of equal area, float32 [80, 201]: power spectrum to mel bands."""
    edges = mel_to_hz(np.linspace(0.0, hz_to_mel(RATE_HZ / 2), BANDS + 2))
    low, centre, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    bins = np.linspace(0.0, RATE_HZ / 2, _BINS)[None, :]
    rising = (bins - low) / (centre - low)
    falling = (high - bins) / (high - centre)
    triangles = np.clip(np.minimum(rising, falling), 0.0, None)
    return (triangles * (2.0 / (high - low))).astype(np.float32)


@functools.cache
def _window() -> NDArray[np.float32]:
    return np.hanning(WINDOW_SAMPLES + 1)[:-1].astype(np.float32)


def log_mel(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """Features of float32 samples at 16 kHz: float32 [80, len(samples) // 160].

    Needs more than 200 samples (the signal is mirrored by half a window); raises ValueError below that.
    """
    half = WINDOW_SAMPLES // 2
    if samples.ndim != 1 or len(samples) <= half:
        raise ValueError(f"log-mel features need one channel of more than {half} samples, not {samples.shape}")
    mirrored = np.pad(samples, half, mode="reflect")
    count = len(samples) // HOP_SAMPLES
    frames = np.lib.stride_tricks.sliding_window_view(mirrored, WINDOW_SAMPLES)[::HOP_SAMPLES][:count]
    spectrum = np.fft.rfft(frames * _window(), axis=1)
    power = np.square(spectrum.real) + np.square(spectrum.imag)
    bands = np.maximum(filter_bank() @ power.T.astype(np.float32, copy=False), _FLOOR)
    decades = np.log10(bands)
    limited = np.maximum(decades, decades.max() - _RANGE_DECADES)
    features: NDArray[np.float32] = (limited + np.float32(4.0)) / np.float32(4.0)
    return features.astype(np.float32, copy=False)
