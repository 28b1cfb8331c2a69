"""Where speech is quiet: is there anything to recognise, and where may a long recording be cut.

Pure arithmetic over float32 samples at 16 kHz.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

RATE_HZ = 16_000
SEGMENT_MAX_S = 20.0
SEGMENT_MIN_S = 6.0

_BLOCK_SAMPLES = 320  # 20 ms
_SMOOTHING_BLOCKS = 15  # 300 ms: a pause between words is longer than a stop consonant
# About -60 dBFS in the loudest 20 ms: below the noise of an open microphone, far below any voice.
_AUDIBLE_RMS = 0.001

Samples = NDArray[np.float32]


def samples_from_pcm16(pcm16: bytes) -> Samples:
    """Little-endian PCM16 to float32 in [-1, 1); an odd last byte is ignored."""
    whole = len(pcm16) - len(pcm16) % 2
    return np.frombuffer(pcm16, "<i2", whole // 2).astype(np.float32) / np.float32(32768)


def block_levels(samples: Samples) -> Samples:
    """RMS of each whole 20 ms block, float32 [len(samples) // 320]."""
    count = len(samples) // _BLOCK_SAMPLES
    blocks = samples[: count * _BLOCK_SAMPLES].reshape(count, _BLOCK_SAMPLES)
    levels: Samples = np.sqrt(np.mean(np.square(blocks), axis=1))
    return levels


def is_audible(samples: Samples) -> bool:
    """Whether any 20 ms of this is louder than -60 dBFS."""
    levels = block_levels(samples)
    return len(levels) > 0 and float(levels.max()) > _AUDIBLE_RMS


def segments(samples: Samples, *, min_s: float = SEGMENT_MIN_S, max_s: float = SEGMENT_MAX_S) -> list[tuple[int, int]]:
    """Cut a recording into pieces of at most `max_s`, at its quietest places.

    Returns (start, end) sample positions that cover the whole without gap or overlap; a recording of at most `max_s`
    is one piece. Each piece but the last is at least `min_s` long. Raises ValueError unless 0 < min_s < max_s.
    """
    if not 0 < min_s < max_s:
        raise ValueError(f"segments need 0 < min_s < max_s, not {min_s} and {max_s}")
    longest, shortest = int(max_s * RATE_HZ), int(min_s * RATE_HZ)
    kernel = np.full(_SMOOTHING_BLOCKS, 1 / _SMOOTHING_BLOCKS, np.float32)
    levels = block_levels(samples)
    smooth = np.convolve(levels, kernel, mode="same") if len(levels) >= _SMOOTHING_BLOCKS else levels
    pieces: list[tuple[int, int]] = []
    start = 0
    while len(samples) - start > longest:
        # Look only as far as leaves a last piece that is not a scrap of a word.
        latest = min(start + longest, len(samples) - shortest // 2)
        first, last = (start + shortest) // _BLOCK_SAMPLES, latest // _BLOCK_SAMPLES
        window = smooth[first:last]
        quietest = first + int(np.argmin(window)) if len(window) else last
        cut = quietest * _BLOCK_SAMPLES + _BLOCK_SAMPLES // 2
        pieces.append((start, cut))
        start = cut
    pieces.append((start, len(samples)))
    return pieces
