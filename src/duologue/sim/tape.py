"""Audio in which every sample says where it belongs: what speakers say and what models answer, cut from long tapes.

Rules kept here: integers only, so that every machine has the same samples; any dozen samples of a tape occur once, so that
a piece of audio can be found again; loud, quiet and acknowledging speech differ by far more than any resampler blurs.
"""

from __future__ import annotations

import functools
import random
from typing import Final

import numpy as np
import numpy.typing as npt

LENGTH: Final = 1 << 20  # samples: 65 s at 16 kHz
LOUD: Final = 3_000  # above it in magnitude a sample is speech
ACK: Final = 13_000  # above it, speech that only acknowledges

Samples = npt.NDArray[np.int16]


@functools.cache
def _noise(name: str) -> npt.NDArray[np.int32]:
    raw = random.Random(f"tape:{name}").randbytes(LENGTH * 2)
    noise: npt.NDArray[np.int32] = np.frombuffer(raw, dtype="<u2").astype(np.int32)
    return noise


def _signed(noise: npt.NDArray[np.int32], base: int) -> npt.NDArray[np.int32]:
    signed: npt.NDArray[np.int32] = np.where(noise & 0x8000, 1, -1) * ((noise & 0x7FF) + base)
    return signed


@functools.cache
def _tape(name: str) -> bytes:
    noise = _noise(name)
    match name:
        case "plain":
            samples = _signed(noise, 6_000)
        case "ack":
            samples = _signed(noise, 16_000)
        case "quiet":
            samples = (noise & 0xFF) - 128
        case _:
            samples = noise - 0x8000
    tape: Samples = samples.astype("<i2")
    return tape.tobytes() * 2  # twice, so that a cut never has to wrap


def cut(name: str, position: int, count: int) -> bytes:
    """``count`` samples (at most ``LENGTH``) of a tape from ``position`` on, PCM16; positions wrap."""
    start = position % LENGTH
    return _tape(name)[start * 2 : (start + count) * 2]


def loud_share(pcm: bytes) -> list[bool]:
    """For each whole frame of 512 samples: whether it is speech."""
    frames = len(pcm) // 1024
    # Every eighth sample, as one byte each: counting in these is quicker than any sum over a small array.
    loud = (np.abs(np.frombuffer(pcm, dtype="<i2")[: frames * 512 : 8]) > LOUD).tobytes()
    return [loud.count(1, start, start + 64) > 12 for start in range(0, frames * 64, 64)]


def spoken(pcm: bytes) -> tuple[int, bool]:
    """(samples of speech, whether it only acknowledges) in an utterance."""
    samples = np.abs(np.frombuffer(pcm[: len(pcm) & ~1], dtype="<i2").astype(np.int32))
    loud = int(np.count_nonzero(samples > LOUD))
    return loud, loud > 0 and int(np.count_nonzero(samples > ACK)) * 5 > loud
