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


def _upper_bytes(limit: int) -> bytes:
    """The upper bytes of all samples that are not above ``limit`` in magnitude."""
    return bytes(upper for upper in range(256) if -limit <= (upper ^ 0x80) * 256 - 0x8000 + 128 <= limit)


# Of both the upper byte of a sample tells (but for one value), so that bytes can be counted in place of samples.
LOUD: Final = 0x0C00 - 1  # above it in magnitude a sample is speech
ACK: Final = 0x3300 - 1  # above it, speech that only acknowledges

_SOFT: Final = _upper_bytes(LOUD)
_IS_LOUD: Final = bytes(upper not in _SOFT for upper in range(256))  # a table for ``bytes.translate``
_PLAIN: Final = _upper_bytes(ACK)

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
    loud = pcm[1::16].translate(_IS_LOUD)  # of every eighth sample, 64 of each frame
    return [loud.count(1, start, start + 64) > 12 for start in range(0, len(pcm) // 1024 * 64, 64)]


def spoken(pcm: bytes) -> tuple[int, bool]:
    """(samples of speech, whether it only acknowledges) in an utterance."""
    speech = pcm[1::2].translate(None, _SOFT)
    return len(speech), len(speech.translate(None, _PLAIN)) * 5 > len(speech)
