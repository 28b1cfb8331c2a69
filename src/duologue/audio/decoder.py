"""Bytes from a client to PCM16 at the rates that the engine works at.

Rules
- The result depends on the byte stream alone: a sample may be cut anywhere by a chunk border.
- Nothing that is not a number reaches a filter, a detector or a model: non-finite samples become silence and
  are counted, samples beyond full scale are clamped.
- PCM16 at the wanted rate is handed through untouched, without numpy.
"""

from typing import Final

import numpy as np

from .format import AudioFormat, check_rate
from .g711 import expand
from .resample import Resampler

DETECTOR_RATE_HZ: Final = 16_000


class _Reader:
    """Cuts a byte stream into whole samples and turns them into PCM16 at the stream's own rate."""

    __slots__ = ("carry", "dropped_bytes", "encoding", "input_samples", "non_finite_samples", "width")

    def __init__(self, audio_format: AudioFormat) -> None:
        self.encoding = audio_format.encoding
        self.width = audio_format.bytes_per_sample
        self.reset()

    def reset(self) -> None:
        self.carry = b""
        self.input_samples = 0
        self.non_finite_samples = 0
        self.dropped_bytes = 0

    def read(self, chunk: bytes) -> bytes:
        if self.carry:
            chunk = self.carry + chunk
            self.carry = b""
        extra = len(chunk) % self.width
        if extra:
            self.carry = chunk[-extra:]
            chunk = chunk[:-extra]
        self.input_samples += len(chunk) // self.width
        match self.encoding:
            case "pcm16":
                return chunk
            case "float32":
                return self._from_float(chunk)
            case "pcmu" | "pcma":
                return expand(self.encoding, chunk).astype("<i2", copy=False).tobytes()

    def _from_float(self, chunk: bytes) -> bytes:
        values = np.frombuffer(chunk, "<f4")
        finite = np.isfinite(values)
        if not finite.all():
            self.non_finite_samples += len(values) - int(np.count_nonzero(finite))
            values = np.where(finite, values, np.float32(0.0))
        scaled = np.clip(values, -1.0, 1.0) * np.float32(32_768.0)
        np.rint(scaled, out=scaled)
        np.minimum(scaled, np.float32(32_767.0), out=scaled)
        pcm16: bytes = scaled.astype("<i2").tobytes()
        return pcm16

    def end(self, keep_partial: bool) -> None:
        if not keep_partial:
            self.dropped_bytes += len(self.carry)
            self.carry = b""


class DualDecoder:
    """A client's stream at two rates at once: the model's, and the detector's copy. It is decoded once.

    Equal rates cost nothing: both results are then the same object. Positions are counted in samples from the
    start or the last `reset`.
    """

    __slots__ = ("_detector", "_model", "_reader", "detector_rate_hz", "format", "model_rate_hz")

    def __init__(self, audio_format: AudioFormat, model_rate_hz: int, detector_rate_hz: int = DETECTOR_RATE_HZ) -> None:
        """Rates in 8000..48000 Hz; raises AudioFormatError otherwise."""
        self.format = audio_format
        self.model_rate_hz = check_rate(model_rate_hz, "model_rate_hz")
        self.detector_rate_hz = check_rate(detector_rate_hz, "detector_rate_hz")
        self._reader = _Reader(audio_format)
        self._model = _resampler(audio_format.rate_hz, model_rate_hz)
        same = detector_rate_hz == model_rate_hz
        self._detector = self._model if same else _resampler(audio_format.rate_hz, detector_rate_hz)

    def decode(self, chunk: bytes) -> tuple[bytes, bytes]:
        """Take any number of bytes; return (PCM16 at the model's rate, PCM16 at the detector's rate)."""
        pcm16 = self._reader.read(chunk)
        model = pcm16 if self._model is None else self._model.feed(pcm16)
        if self._detector is self._model:
            return model, model
        return model, pcm16 if self._detector is None else self._detector.feed(pcm16)

    def flush(self, *, keep_partial: bool = False) -> tuple[bytes, bytes]:
        """Return what the filters hold back and start a new stream (see AudioDecoder.flush)."""
        self._reader.end(keep_partial)
        model = b"" if self._model is None else self._model.flush()
        if self._detector is self._model:
            return model, model
        return model, b"" if self._detector is None else self._detector.flush()

    def reset(self) -> None:
        """Forget everything: partial samples, filter memory, counts."""
        self._reader.reset()
        for resampler in (self._model, self._detector):
            if resampler is not None:
                resampler.reset()

    @property
    def input_samples(self) -> int:
        """Whole samples taken, at the client's rate."""
        return self._reader.input_samples

    @property
    def model_samples(self) -> int:
        """Samples returned at the model's rate."""
        return self._reader.input_samples if self._model is None else self._model.output_samples

    @property
    def detector_samples(self) -> int:
        """Samples returned at the detector's rate."""
        return self._reader.input_samples if self._detector is None else self._detector.output_samples

    @property
    def non_finite_samples(self) -> int:
        """NaN and infinite samples that were replaced by silence."""
        return self._reader.non_finite_samples

    @property
    def dropped_bytes(self) -> int:
        """Bytes of incomplete samples that a flush threw away."""
        return self._reader.dropped_bytes

    @property
    def delay_ms(self) -> float:
        """The most audio that either filter holds back while the stream runs; positions are not shifted by it."""
        return max(0.0 if part is None else part.delay_ms for part in (self._model, self._detector))


class AudioDecoder:
    """A client's stream as PCM16 (little-endian, mono) at one rate."""

    __slots__ = ("_reader", "_resampler", "_untouched", "format", "output_rate_hz")

    def __init__(self, audio_format: AudioFormat, output_rate_hz: int) -> None:
        """Rate in 8000..48000 Hz; raises AudioFormatError otherwise."""
        self.format = audio_format
        self.output_rate_hz = check_rate(output_rate_hz, "output_rate_hz")
        self._reader = _Reader(audio_format)
        self._resampler = _resampler(audio_format.rate_hz, output_rate_hz)
        self._untouched = audio_format.encoding == "pcm16" and self._resampler is None

    def decode(self, chunk: bytes) -> bytes:
        """Take any number of bytes and return the samples that can be computed now (possibly none)."""
        reader = self._reader
        if self._untouched and not reader.carry and not len(chunk) & 1:
            reader.input_samples += len(chunk) >> 1
            return chunk
        pcm16 = reader.read(chunk)
        return pcm16 if self._resampler is None else self._resampler.feed(pcm16)

    def flush(self, *, keep_partial: bool = False) -> bytes:
        """Return what the filter holds back and start a new stream; counts run on.

        The bytes of an incomplete last sample are dropped and counted, so that one lost byte spoils one
        stream and not all that follow; with `keep_partial` they begin the next stream.
        """
        self._reader.end(keep_partial)
        return b"" if self._resampler is None else self._resampler.flush()

    def reset(self) -> None:
        """Forget everything: partial samples, filter memory, counts."""
        self._reader.reset()
        if self._resampler is not None:
            self._resampler.reset()

    @property
    def input_samples(self) -> int:
        """Whole samples taken, at the client's rate."""
        return self._reader.input_samples

    @property
    def output_samples(self) -> int:
        """Samples returned, at the output rate."""
        return self._reader.input_samples if self._resampler is None else self._resampler.output_samples

    @property
    def non_finite_samples(self) -> int:
        """NaN and infinite samples that were replaced by silence."""
        return self._reader.non_finite_samples

    @property
    def dropped_bytes(self) -> int:
        """Bytes of incomplete samples that a flush threw away."""
        return self._reader.dropped_bytes

    @property
    def delay_ms(self) -> float:
        """The most audio that is held back while the stream runs; positions are not shifted by it."""
        return 0.0 if self._resampler is None else self._resampler.delay_ms

    def output_at(self, input_sample: int) -> int:
        """The output position of an input position."""
        return input_sample if self._resampler is None else self._resampler.output_at(input_sample)

    def input_at(self, output_sample: int) -> int:
        """The input position of an output position."""
        return output_sample if self._resampler is None else self._resampler.input_at(output_sample)


def _resampler(input_rate_hz: int, output_rate_hz: int) -> Resampler | None:
    return None if input_rate_hz == output_rate_hz else Resampler(input_rate_hz, output_rate_hz)
