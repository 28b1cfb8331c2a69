"""Recordings for tests: WAV files of any rate as PCM16 at the rate a model wants, and word error rate."""

from __future__ import annotations

import re
import wave
from pathlib import Path

import numpy as np
import soxr


def read_pcm16(path: Path, rate_hz: int) -> bytes:
    """A mono 16-bit WAV file as little-endian PCM16 at `rate_hz`."""
    with wave.open(str(path)) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32)
        own_rate_hz = file.getframerate()
    if own_rate_hz != rate_hz:
        samples = soxr.resample(samples, own_rate_hz, rate_hz)
    return np.clip(np.rint(samples), -32768, 32767).astype("<i2").tobytes()


def words(text: str) -> list[str]:
    return re.sub(r"[^a-z0-9' ]", " ", text.lower()).split()


def word_error_rate(expected: str, heard: str) -> float:
    """Edits over the number of expected words."""
    reference, hypothesis = words(expected), words(heard)
    row = list(range(len(hypothesis) + 1))
    for position, word in enumerate(reference, 1):
        diagonal, row[0] = row[0], position
        for column, other in enumerate(hypothesis, 1):
            substituted = diagonal + (word != other)
            diagonal = row[column]
            row[column] = min(row[column] + 1, row[column - 1] + 1, substituted)
    return row[-1] / len(reference)
