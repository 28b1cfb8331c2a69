"""A second voice out of the first, for conversations with oneself: slower tape, faster speech.

Resampling shifts pitch and formants together by one factor, which makes another person of the same speaker; the
synthesiser speaks faster (or slower) by the same factor, so that the tempo stays.
"""

from __future__ import annotations

import importlib
from typing import Any

import msgspec
import numpy as np

from duologue.models.cascade.synthesiser import RATE_HZ, SPEED_RANGE, Speech, Synthesiser

PITCH_RANGE = (0.6, 1.5)


class Voice(msgspec.Struct, frozen=True):
    """`pitch` times the synthesiser's own (below 1 is deeper), at `tempo` times its pace."""

    pitch: float = 1.0
    tempo: float = 1.0

    def __post_init__(self) -> None:
        low, high = PITCH_RANGE
        if not low <= self.pitch <= high:
            raise ValueError(f"pitch {self.pitch} is outside {low} to {high}")
        slowest, fastest = SPEED_RANGE
        if not slowest <= self.speed <= fastest:
            raise ValueError(
                f"pitch {self.pitch} at tempo {self.tempo} needs speed {self.speed:.2f}, outside {slowest} to {fastest}"
            )

    @property
    def speed(self) -> float:
        """What the synthesiser must be asked for so that the tempo is right after the shift."""
        return self.tempo / self.pitch


ASSISTANT = Voice()
USER = Voice(pitch=0.8)


def speak(synthesiser: Synthesiser, text: str, voice: Voice, *, rate_hz: int = RATE_HZ, seed: int = 0) -> bytes:
    """`text` in `voice`: PCM16 (little-endian, mono) at `rate_hz`."""
    speech = synthesiser.synthesize(text, seed=seed, speed=voice.speed)
    return shifted(speech, voice.pitch, rate_hz)


def shifted(speech: Speech, pitch: float, rate_hz: int) -> bytes:
    """`speech` as if recorded at `pitch` times its rate, at `rate_hz`."""
    samples = np.frombuffer(speech.pcm16, "<i2").astype(np.float32)
    if len(samples) == 0:
        return b""
    resampler: Any = importlib.import_module("soxr")
    moved = resampler.resample(samples, RATE_HZ * pitch, rate_hz, "HQ")
    pcm: bytes = np.rint(np.clip(moved, -32768, 32767)).astype("<i2").tobytes()
    return pcm
