"""Streaming sample-rate conversion of mono PCM16.

Rules
- The output depends on the sample stream alone: any chunking gives the same samples, bit for bit. The filter
  has whole-number weights and runs in float64, where every product and sum of them is exact, so neither the
  order of additions nor the machine changes a sample.
- Output sample n stands at input time n * in / out: positions convert by the rate ratio, with no offset.
- What is held back is half the filter: about 1.4 ms between rates from 16 kHz up, 2.9 ms from or to 8 kHz.

Why not soxr throughout: at "HQ" it works in blocks and holds back up to 37 ms for 24 to 16 kHz and up to
115 ms for 8 to 16 kHz, "LQ" up to 20 and 61 ms and it starts to fall off at 70 % of the band, "QQ" does not
suppress aliases at all (2 dB). It serves only the odd ratios whose weights would not fit in a small table.
Those hold back up to 120 ms. It is fed float32, since its int16 mode adds dither that depends on the chunking.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import gcd, pi
from typing import Final, Protocol

import numpy as np
import soxr  # type: ignore[import-untyped]
from numpy.typing import NDArray

from .format import check_rate

Samples = NDArray[np.int16]
Weights = NDArray[np.float64]

_STOPBAND_DB: Final = 70.0
_TRANSITION: Final = 0.2  # width of the transition, as a share of the narrower band, centred on its edge
_WEIGHT_BITS: Final = 20  # 16-bit samples times 20-bit weights: sums stay far below the 53 exact bits
_ROW_SAMPLES: Final = 48  # outputs are computed in rows of about this many; measured best near 48
_SEGMENT_SAMPLES: Final = 96
_LARGEST_RATIO_TERM: Final = 1_024
_SERIAL_GEMM: Final = 250_000  # above this many products the linear algebra library wakes its threads
_SOXR_DELAY_MS: Final = 120.0
_LOWEST: Final = np.array(-32_768.0)
_HIGHEST: Final = np.array(32_767.0)
_EMPTY: Final = np.empty(0, np.int16)


class _Engine(Protocol):
    """One stream through one filter, in int16 arrays."""

    delay_ms: float

    def feed(self, samples: Samples) -> Samples: ...
    def finish(self, missing: int) -> Samples: ...
    def restart(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Segment:
    first_output: int
    end_output: int
    first_input: int
    weights: Weights  # [inputs of the window, outputs of the segment]


@dataclass(frozen=True, slots=True)
class _Bank:
    """A polyphase filter as matrices: a row of `row_inputs` samples becomes `row_outputs` samples."""

    up: int
    down: int
    half_width: int  # input samples on each side
    row_inputs: int
    row_outputs: int
    segments: tuple[_Segment, ...]


def _kernel(distance: Weights, half_width: int, cutoff: float) -> Weights:
    beta = 0.1102 * (_STOPBAND_DB - 8.7)
    inside = np.sqrt(np.maximum(0.0, 1.0 - (distance / half_width) ** 2))
    window = np.where(np.abs(distance) <= half_width, np.i0(beta * inside), 0.0)
    weights: Weights = np.sinc(cutoff * distance) * window
    weights /= weights.sum(axis=0, keepdims=True)  # each phase passes a constant unchanged
    return np.rint(np.ldexp(weights, _WEIGHT_BITS)) * 2.0**-_WEIGHT_BITS


@lru_cache(maxsize=64)
def _bank(input_rate_hz: int, output_rate_hz: int) -> _Bank | None:
    """The filter for a pair of rates, or None if its table would be too large."""
    common = gcd(input_rate_hz, output_rate_hz)
    up, down = output_rate_hz // common, input_rate_hz // common
    if max(up, down) > _LARGEST_RATIO_TERM:
        return None
    cutoff = min(1.0, output_rate_hz / input_rate_hz)  # of the input's band
    half_width = int(np.ceil((_STOPBAND_DB - 8.0) / (2.285 * 2.0 * pi * _TRANSITION * cutoff)))
    periods = max(1, round(_ROW_SAMPLES / max(up, down)))
    row_inputs, row_outputs = down * periods, up * periods
    count = max(1, round(max(row_inputs, row_outputs) / _SEGMENT_SAMPLES))
    edges = [row_outputs * index // count for index in range(count + 1)]
    segments = []
    for first, end in pairwise(edges):
        origin = first * down // up
        width = (end - 1) * down // up - origin + 2 * half_width + 1
        at_input = np.arange(origin, origin + width)[:, None] - half_width
        at_output = np.arange(first, end)[None, :] * down / up
        weights = _kernel(at_output - at_input, half_width, cutoff)
        segments.append(_Segment(first, end, origin, weights))
    return _Bank(up, down, half_width, row_inputs, row_outputs, tuple(segments))


def _to_int16(values: NDArray[np.float64] | NDArray[np.float32]) -> Samples:
    np.rint(values, out=values)
    np.minimum(values, _HIGHEST, out=values)
    np.maximum(values, _LOWEST, out=values)
    return values.astype(np.int16)


class _Polyphase:
    """The exact filter. `_held` begins half a filter before the first input of the row in progress."""

    __slots__ = ("_bank", "_emitted", "_held", "delay_ms")

    def __init__(self, bank: _Bank, input_rate_hz: int) -> None:
        self._bank = bank
        self.delay_ms = 1e3 * bank.half_width / input_rate_hz
        self.restart()

    def restart(self) -> None:
        self._held: NDArray[np.float64] = np.zeros(self._bank.half_width)
        self._emitted = 0  # outputs of the row in progress that were already returned

    def feed(self, samples: NDArray[np.int16] | NDArray[np.float64]) -> Samples:
        bank = self._bank
        held = len(self._held)
        filled = held + len(samples)
        usable = filled - 2 * bank.half_width
        ready = -(-usable * bank.up // bank.down) if usable > 0 else 0
        rows = -(-ready // bank.row_outputs)
        buffer = np.empty(max(filled, rows * bank.row_inputs + 2 * bank.half_width))
        buffer[:held] = self._held
        buffer[held:filled] = samples
        if ready <= self._emitted:
            self._held = buffer[:filled]
            return _EMPTY
        buffer[filled:] = 0.0
        values = self._filter(buffer, rows).ravel()[self._emitted : ready]
        done = ready // bank.row_outputs
        # A copy, so that a long append is not kept alive by the few samples that the filter still needs.
        self._held = buffer[done * bank.row_inputs : filled].copy()
        self._emitted = ready - done * bank.row_outputs
        return _to_int16(values)

    def finish(self, missing: int) -> Samples:
        tail = self.feed(np.zeros(self._bank.half_width))
        self.restart()
        return tail

    def _filter(self, buffer: NDArray[np.float64], rows: int) -> NDArray[np.float64]:
        if len(self._bank.segments) == 1:
            segment = self._bank.segments[0]
            if rows * segment.weights.size <= _SERIAL_GEMM:
                product: Weights = np.dot(self._windows(buffer, segment, 0, rows), segment.weights)
                return product
        result = np.empty((rows, self._bank.row_outputs))
        for segment in self._bank.segments:
            for first, end in _slices(rows, max(1, _SERIAL_GEMM // segment.weights.size)):
                part = np.dot(self._windows(buffer, segment, first, end), segment.weights)
                result[first:end, segment.first_output : segment.end_output] = part
        return result

    def _windows(self, buffer: NDArray[np.float64], segment: _Segment, first: int, end: int) -> Weights:
        """Overlapping windows as rows. Copied: the product of a strided view takes a slow path."""
        stride = self._bank.row_inputs
        view: Weights = np.ndarray(
            (end - first, segment.weights.shape[0]),
            np.float64,
            buffer,
            (first * stride + segment.first_input) * 8,
            (stride * 8, 8),
        )
        return view.copy()


def _slices(count: int, step: int) -> Iterator[tuple[int, int]]:
    for first in range(0, count, step):
        yield first, min(first + step, count)


class _Soxr:
    """The odd ratios, such as 12345 to 16000 Hz."""

    __slots__ = ("_stream", "delay_ms")

    def __init__(self, input_rate_hz: int, output_rate_hz: int) -> None:
        self._stream = soxr.ResampleStream(input_rate_hz, output_rate_hz, 1, dtype="float32", quality="HQ")
        self.delay_ms = _SOXR_DELAY_MS

    def restart(self) -> None:
        self._stream.clear()

    def feed(self, samples: Samples) -> Samples:
        return _to_int16(self._stream.resample_chunk(samples.astype(np.float32)))

    def finish(self, missing: int) -> Samples:
        tail = _to_int16(self._stream.resample_chunk(np.empty(0, np.float32), last=True))
        self.restart()
        whole = np.zeros(missing, np.int16)  # soxr may end one sample early or late
        whole[: len(tail)] = tail[:missing]
        return whole


class Resampler:
    """PCM16 mono bytes at one rate to PCM16 mono bytes at another, as a stream.

    After `flush` the samples returned since the start (or the last flush) number exactly
    ceil(input samples * output rate / input rate).
    """

    __slots__ = (
        "_engine",
        "_input_base",
        "_output_base",
        "input_rate_hz",
        "input_samples",
        "output_rate_hz",
        "output_samples",
    )

    def __init__(self, input_rate_hz: int, output_rate_hz: int) -> None:
        self.input_rate_hz = check_rate(input_rate_hz, "input_rate_hz")
        self.output_rate_hz = check_rate(output_rate_hz, "output_rate_hz")
        bank = _bank(input_rate_hz, output_rate_hz)
        self._engine: _Engine = (
            _Polyphase(bank, input_rate_hz) if bank is not None else _Soxr(input_rate_hz, output_rate_hz)
        )
        self._restart_counts()

    def _restart_counts(self) -> None:
        self.input_samples = 0
        self.output_samples = 0
        self._input_base = 0
        self._output_base = 0

    @property
    def delay_ms(self) -> float:
        """The most audio that is held back while a stream runs. Positions are not shifted by it."""
        return self._engine.delay_ms

    def feed(self, pcm16: bytes) -> bytes:
        """Take whole samples, return those that can be computed now (possibly none).

        Raises ValueError for an odd number of bytes.
        """
        if not pcm16:
            return b""
        samples = np.frombuffer(pcm16, "<i2")
        self.input_samples += len(samples)
        result = self._engine.feed(samples)
        self.output_samples += len(result)
        return result.astype("<i2", copy=False).tobytes()

    def flush(self) -> bytes:
        """Return what is held back, as if silence followed, and start a new stream; counts run on."""
        taken = self.input_samples - self._input_base
        given = self.output_samples - self._output_base
        missing = -(-taken * self.output_rate_hz // self.input_rate_hz) - given
        result = self._engine.finish(missing) if missing else self._restarted()
        self.output_samples += len(result)
        self._input_base = self.input_samples
        self._output_base = self.output_samples
        return result.astype("<i2", copy=False).tobytes()

    def _restarted(self) -> Samples:
        self._engine.restart()
        return _EMPTY

    def reset(self) -> None:
        """Forget everything, counts included."""
        self._engine.restart()
        self._restart_counts()

    def output_at(self, input_sample: int) -> int:
        """The output position of an input position (both counted from the start or last reset)."""
        ahead = (input_sample - self._input_base) * self.output_rate_hz // self.input_rate_hz
        return self._output_base + ahead

    def input_at(self, output_sample: int) -> int:
        """The input position of an output position (both counted from the start or last reset)."""
        ahead = (output_sample - self._output_base) * self.input_rate_hz // self.output_rate_hz
        return self._input_base + ahead
