"""PCM16 from a model to the bytes that a client asked for.

Rules: the result depends on the byte stream alone, however it is cut; PCM16 at the client's rate is handed
through untouched.
"""

import numpy as np

from .format import AudioFormat, check_rate
from .g711 import compress
from .resample import Resampler


class AudioEncoder:
    """A model's PCM16 (little-endian, mono) as a client's format, as a stream."""

    __slots__ = ("_carry", "_resampler", "_samples", "format", "input_rate_hz")

    def __init__(self, audio_format: AudioFormat, input_rate_hz: int) -> None:
        """Rate in 8000..48000 Hz; raises AudioFormatError otherwise."""
        self.format = audio_format
        self.input_rate_hz = check_rate(input_rate_hz, "input_rate_hz")
        same = input_rate_hz == audio_format.rate_hz
        self._resampler = None if same else Resampler(input_rate_hz, audio_format.rate_hz)
        self._carry = b""
        self._samples = 0

    def encode(self, pcm16: bytes) -> bytes:
        """Take any number of bytes and return the client's bytes that can be computed now (possibly none)."""
        if self._carry:
            pcm16 = self._carry + pcm16
            self._carry = b""
        if len(pcm16) & 1:
            self._carry = pcm16[-1:]
            pcm16 = pcm16[:-1]
        self._samples += len(pcm16) >> 1
        return self._write(pcm16 if self._resampler is None else self._resampler.feed(pcm16))

    def flush(self) -> bytes:
        """Return what the filter holds back and start a new stream; an incomplete last sample is dropped."""
        self._carry = b""
        return b"" if self._resampler is None else self._write(self._resampler.flush())

    def reset(self) -> None:
        """Forget everything: a partial sample, filter memory, counts."""
        self._carry = b""
        self._samples = 0
        if self._resampler is not None:
            self._resampler.reset()

    @property
    def input_samples(self) -> int:
        """Whole samples taken, at the model's rate."""
        return self._samples

    @property
    def output_samples(self) -> int:
        """Samples returned, at the client's rate."""
        return self._samples if self._resampler is None else self._resampler.output_samples

    @property
    def delay_ms(self) -> float:
        """The most audio that is held back while the stream runs; positions are not shifted by it."""
        return 0.0 if self._resampler is None else self._resampler.delay_ms

    def _write(self, pcm16: bytes) -> bytes:
        match self.format.encoding:
            case "pcm16":
                return pcm16
            case "float32":
                samples = np.frombuffer(pcm16, "<i2")
                return (samples * np.float32(1.0 / 32_768.0)).astype("<f4", copy=False).tobytes()
            case "pcmu" | "pcma":
                native = np.frombuffer(pcm16, "<i2").astype(np.int16, copy=False)
                return compress(self.format.encoding, native).tobytes()
