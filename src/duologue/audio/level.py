"""Loudness of PCM16."""

from typing import Final

import numpy as np

SILENCE_DBFS: Final = -120.0


def rms_dbfs(pcm16: bytes) -> float:
    """Root mean square level of PCM16 (little-endian mono), in dB relative to full scale.

    A full-scale sine is -3.0, a full-scale square wave 0.0; digital silence and no samples are -120.0
    (a number, so that it can be averaged and written as JSON). An incomplete last sample is ignored.
    """
    samples = np.frombuffer(pcm16[: len(pcm16) & ~1], "<i2").astype(np.float64)
    if not len(samples):
        return SILENCE_DBFS
    power = float(np.dot(samples, samples)) / len(samples) / 32_768.0**2
    return max(SILENCE_DBFS, 10.0 * float(np.log10(power))) if power > 0.0 else SILENCE_DBFS
