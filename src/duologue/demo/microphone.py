"""A microphone that never stops: quiet room, and utterances when somebody speaks.

Rules kept here: everything is counted in samples of one stream, so where an utterance lies in the stream is known
exactly, before any detector has an opinion; the same utterances give the same bytes; nothing waits and no clock is
read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle

import msgspec
import numpy as np
from numpy.typing import NDArray

_WINDOW_MS = 10
_ROOM_SEED = 7
_ROOM_LEVEL = 6.0  # standard deviation on the scale of 16 bits: about -75 dBFS


class Utterance(msgspec.Struct, frozen=True, kw_only=True):
    """Speech with its wording: PCM16 mono, and the samples between which somebody really speaks."""

    text: str
    pcm16: bytes
    rate_hz: int
    first_speech_sample: int
    last_speech_sample: int

    @property
    def samples(self) -> int:
        return len(self.pcm16) // 2


class Spoken(msgspec.Struct, frozen=True, kw_only=True):
    """Where an utterance lies in the microphone's stream, in samples from its beginning."""

    utterance: Utterance
    start_sample: int

    @property
    def onset_sample(self) -> int:
        """First sample of speech."""
        return self.start_sample + self.utterance.first_speech_sample

    @property
    def end_sample(self) -> int:
        """Last sample of speech."""
        return self.start_sample + self.utterance.last_speech_sample


def annotate(text: str, pcm16: bytes, rate_hz: int, *, threshold: float = 0.01) -> Utterance:
    """An utterance whose speech lies between the first and the last 10 ms louder than `threshold` of the loudest.

    Raises ValueError if there is no sound in it.
    """
    samples = np.frombuffer(pcm16[: len(pcm16) & ~1], "<i2").astype(np.float64)
    window = rate_hz * _WINDOW_MS // 1000
    whole = len(samples) // window * window
    levels = np.sqrt((samples[:whole].reshape(-1, window) ** 2).mean(axis=1))
    loud = np.nonzero(levels > threshold * levels.max(initial=0.0))[0]
    if len(loud) == 0:
        raise ValueError(f"there is no sound in the utterance {text!r}")
    return Utterance(
        text=text,
        pcm16=pcm16[: len(pcm16) & ~1],
        rate_hz=rate_hz,
        first_speech_sample=int(loud[0]) * window,
        last_speech_sample=(int(loud[-1]) + 1) * window - 1,
    )


class Microphone:
    """The user's side of a conversation as one endless stream of PCM16 at `rate_hz`, taken chunk by chunk.

    `chunks_ms` are the lengths of successive chunks, repeated for ever: real clients do not all send 20 ms.
    """

    def __init__(self, rate_hz: int, *, chunks_ms: Sequence[int] = (20, 40, 20, 60, 20, 100)) -> None:
        self.rate_hz = rate_hz
        self._lengths: Iterator[int] = cycle([rate_hz * chunk_ms // 1000 for chunk_ms in chunks_ms])
        self._room = np.random.default_rng(_ROOM_SEED)
        self._waiting: list[Spoken] = []
        self._speech_end = 0
        self._track: list[bytes] = []
        self.position = 0

    @property
    def position_s(self) -> float:
        """Seconds of stream taken so far."""
        return self.position / self.rate_hz

    @property
    def speaking(self) -> bool:
        """An utterance is not yet taken to its end."""
        return self._speech_end > self.position

    def say(self, utterance: Utterance) -> Spoken:
        """Speak from the next chunk on, or after what is being said. Raises ValueError if the rates differ."""
        if utterance.rate_hz != self.rate_hz:
            raise ValueError(f"the utterance has {utterance.rate_hz} Hz, the microphone {self.rate_hz} Hz")
        spoken = Spoken(utterance=utterance, start_sample=max(self.position, self._speech_end))
        self._speech_end = spoken.start_sample + utterance.samples
        self._waiting.append(spoken)
        return spoken

    def take(self) -> bytes:
        """The next chunk of the stream."""
        length = next(self._lengths)
        chunk = np.rint(self._room.normal(0.0, _ROOM_LEVEL, length)).astype("<i2")
        for spoken in self._waiting:
            _overlay(chunk, self.position, spoken)
        self.position += length
        self._waiting = [each for each in self._waiting if each.start_sample + each.utterance.samples > self.position]
        audio = chunk.tobytes()
        self._track.append(audio)
        return audio

    def track(self) -> bytes:
        """Everything taken so far."""
        return b"".join(self._track)


def _overlay(chunk: NDArray[np.int16], position: int, spoken: Spoken) -> None:
    """Put the part of `spoken` that falls into this chunk over the room's noise."""
    begin = max(position, spoken.start_sample)
    end = min(position + len(chunk), spoken.start_sample + spoken.utterance.samples)
    if begin < end:
        speech = np.frombuffer(spoken.utterance.pcm16, "<i2")
        chunk[begin - position : end - position] = speech[begin - spoken.start_sample : end - spoken.start_sample]
