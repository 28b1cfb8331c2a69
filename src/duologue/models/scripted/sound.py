"""Audio that carries a number: an utterance's loudness level says which sentence it stands for.

Rules kept here: the same arguments give the same bytes; a level survives resampling and 16-bit rounding, because levels lie
a quarter apart and are read from the loudest frame.
"""

from __future__ import annotations

import functools
import math
from array import array
from operator import mul

LEVELS = 12
QUIET_RMS = 400.0
FRAME_MS = 20

_LOWEST_RMS = 1_500.0
_STEP = 1.25
_TONE_HZ = 200


@functools.lru_cache(maxsize=64)
def tone(duration_ms: int, *, rate_hz: int, level: int = 4) -> bytes:
    """A sine of ``level`` (0 to ``LEVELS`` - 1), PCM16 mono at ``rate_hz``."""
    if not 0 <= level < LEVELS:
        raise ValueError(f"level must be between 0 and {LEVELS - 1}, got {level}")
    amplitude = _LOWEST_RMS * _STEP**level * math.sqrt(2.0)
    count = rate_hz * duration_ms // 1000
    turn = 2.0 * math.pi * _TONE_HZ / rate_hz
    return array("h", [round(amplitude * math.sin(turn * index)) for index in range(count)]).tobytes()


def silence(duration_ms: int, *, rate_hz: int) -> bytes:
    """Digital silence, PCM16 mono."""
    return bytes(rate_hz * duration_ms // 1000 * 2)


def rms(pcm: bytes) -> float:
    """Root mean square of PCM16, in sample units; 0 for no audio."""
    samples = array("h", pcm[: len(pcm) & ~1])
    if not samples:
        return 0.0
    # Every fifth sample is enough for a tone, and this runs for every frame of a simulation.
    part = samples[::5]
    return math.sqrt(sum(map(mul, part, part)) / len(part))


def heard(pcm: bytes, rate_hz: int) -> tuple[int, int] | None:
    """(level, audible milliseconds) of an utterance, or ``None`` if there is nothing but silence in it."""
    size = rate_hz * FRAME_MS // 1000 * 2
    loud = [value for start in range(0, len(pcm), size) if (value := rms(pcm[start : start + size])) > QUIET_RMS]
    if not loud:
        return None
    level = round(math.log(max(loud) / _LOWEST_RMS, _STEP))
    return min(max(level, 0), LEVELS - 1), len(loud) * FRAME_MS
