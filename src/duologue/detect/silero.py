"""The silero VAD network (16 kHz) as plain matrix products, for batches of frames.

Why not an inference library: the network is tiny, and a general runtime spends most of a frame on bookkeeping (about
100 us a frame on the machine where this takes about 20). Written out, three things help: the Fourier transform is
folded by its symmetry, which halves it; convolutions over two to four positions become one product each, without the
taps that only see padding; and everything before the recurrent layer is computed for all frames at once.

The network: magnitudes of 4 windows of 256 samples every 128, four convolutions (129 to 128 to 64 to 64 to 128
channels, the middle two with stride 2, so that one position is left), one LSTM of 128, one weighted sum.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from duologue.detect.onnx_file import FloatTensors, read_float_tensors
from duologue.detect.weights import ModelUnavailableError

CONTEXT_SAMPLES = 64
FRAME_SAMPLES = 512
STATE_WIDTH = 128

_WINDOW, _HOP, _POSITIONS, _MIRRORED = 256, 128, 4, 64
_HALF = _WINDOW // 2
_BINS = _HALF + 1
_CHANNELS = 128  # after the first convolution
_BLOCK = 32  # frames worked off together: more do not fit into a core's cache
_SHAPES = {
    "model.stft.forward_basis_buffer": (2 * _BINS, 1, _WINDOW),
    "model.encoder.0.reparam_conv.weight": (_CHANNELS, _BINS, 3),
    "model.encoder.0.reparam_conv.bias": (_CHANNELS,),
    "model.encoder.1.reparam_conv.weight": (64, _CHANNELS, 3),
    "model.encoder.1.reparam_conv.bias": (64,),
    "model.encoder.2.reparam_conv.weight": (64, 64, 3),
    "model.encoder.2.reparam_conv.bias": (64,),
    "model.encoder.3.reparam_conv.weight": (STATE_WIDTH, 64, 3),
    "model.encoder.3.reparam_conv.bias": (STATE_WIDTH,),
    "model.decoder.rnn.weight_ih": (4 * STATE_WIDTH, STATE_WIDTH),
    "model.decoder.rnn.weight_hh": (4 * STATE_WIDTH, STATE_WIDTH),
    "model.decoder.rnn.bias_ih": (4 * STATE_WIDTH,),
    "model.decoder.rnn.bias_hh": (4 * STATE_WIDTH,),
    "model.decoder.decoder.2.weight": (1, STATE_WIDTH, 1),
    "model.decoder.decoder.2.bias": (1,),
}

Matrix = NDArray[np.float32]
_ZERO, _ONE = np.float32(0), np.float32(1)


@dataclass(slots=True)
class _Scratch:
    """Intermediate results of one block, allocated once: fresh memory of this size costs more than the arithmetic."""

    signal: Matrix = field(default_factory=lambda: _zeros(CONTEXT_SAMPLES + FRAME_SAMPLES + _MIRRORED))
    even: Matrix = field(default_factory=lambda: _zeros(_POSITIONS, _BINS))
    odd: Matrix = field(default_factory=lambda: _zeros(_POSITIONS, _HALF - 1))
    real: Matrix = field(default_factory=lambda: _zeros(_POSITIONS, _BINS).reshape(-1, _BINS))
    imaginary: Matrix = field(default_factory=lambda: _zeros(_POSITIONS, _BINS).reshape(-1, _BINS))
    taps: Matrix = field(default_factory=lambda: _zeros(_POSITIONS, 3 * _CHANNELS).reshape(-1, 3 * _CHANNELS))
    first: Matrix = field(default_factory=lambda: _zeros(_POSITIONS, _CHANNELS))
    second: Matrix = field(default_factory=lambda: _zeros(128))


def _zeros(*shape: int) -> Matrix:
    return np.zeros((_BLOCK, *shape), np.float32)


def _sigmoid(values: Matrix) -> Matrix:
    # Far below zero the exponential is infinite, and one over it the zero that is wanted.
    with np.errstate(over="ignore"):
        return _ONE / (_ONE + np.exp(-values))


class SileroNetwork:
    """The network with its weights. The recurrent state is an argument and a result; not for two threads at once."""

    def __init__(self, path: Path) -> None:
        """Read the weights from an ONNX file of the 16 kHz model.

        Raises ModelUnavailableError if it is missing, damaged, or holds another network.
        """
        tensors = read_float_tensors(path)
        for name, shape in _SHAPES.items():
            found = tensors.get(name)
            if found is None or found.shape != shape:
                actual = "nothing" if found is None else list(found.shape)
                raise ModelUnavailableError(f"{path} is another network: {name} is {actual}, not {list(shape)}")
        self._scratch = _Scratch()
        self._load_transform(tensors)
        self._load_encoder(tensors)
        self._load_decoder(tensors)

    def encode(self, windows: Matrix) -> Matrix:
        """What each frame brings to the recurrent layer: [n, 576] (context, then frame) to [n, 512]."""
        encoded = np.empty((len(windows), 4 * STATE_WIDTH), np.float32)
        for start in range(0, len(windows), _BLOCK):
            block = windows[start : start + _BLOCK]
            self._encode_block(block, encoded[start : start + len(block)])
        return encoded

    def _encode_block(self, windows: Matrix, encoded: Matrix) -> None:
        count = len(windows)
        rows = count * _POSITIONS
        self._transform(windows)
        taps = self._scratch.taps[:rows]
        np.matmul(self._scratch.real[:rows], self._first, out=taps)
        by_tap = taps.reshape(count, _POSITIONS, 3, _CHANNELS)
        # The three taps of one position meet in the position before, at and after it.
        first = self._scratch.first[:count]
        np.add(by_tap[:, :, 1], self._first_bias, out=first)
        first[:, 1:] += by_tap[:, :-1, 0]
        first[:, :-1] += by_tap[:, 1:, 2]
        np.maximum(first, 0.0, out=first)
        flat = first.reshape(count, _POSITIONS * _CHANNELS)
        second = self._scratch.second[:count]
        # Position 0 sees padding, 0 and 1; position 1 sees 1, 2 and 3.
        np.matmul(flat[:, : 2 * _CHANNELS], self._second[_CHANNELS:], out=second[:, :64])
        np.matmul(flat[:, _CHANNELS:], self._second, out=second[:, 64:])
        second += self._second_bias
        np.maximum(second, 0.0, out=second)
        third: Matrix = second @ self._third
        third += self._third_bias
        np.maximum(third, 0.0, out=third)
        fourth: Matrix = third @ self._fourth
        fourth += self._fourth_bias
        np.maximum(fourth, 0.0, out=fourth)
        np.matmul(fourth, self._input_gates, out=encoded)
        encoded += self._gate_bias

    def advance(self, encoded: Matrix, hidden: Matrix, cell: Matrix) -> tuple[Matrix, Matrix, Matrix]:
        """One frame of each of n sessions: [n, 512], [n, 128], [n, 128] to probabilities [n], hidden, cell."""
        gates = encoded + hidden @ self._hidden_gates
        # The gate columns are ordered so that one sigmoid serves the first three; tanh(x) = 2 sigmoid(2x) - 1, with
        # the 2x already in the weights.
        opened = _sigmoid(gates)
        admit, keep, show, new = (opened[:, at : at + STATE_WIDTH] for at in range(0, 4 * STATE_WIDTH, STATE_WIDTH))
        moved_cell: Matrix = keep * cell + admit * (new + new - _ONE)
        moved_hidden: Matrix = show * np.tanh(moved_cell)
        score: Matrix = np.maximum(moved_hidden, _ZERO) @ self._output + self._output_bias
        return _sigmoid(score), moved_hidden, moved_cell

    def _transform(self, windows: Matrix) -> None:
        """Spectrum magnitudes of windows [n, 576], mirrored at their end, into the first 4 n rows of `real`."""
        scratch, count, length = self._scratch, len(windows), windows.shape[1]
        rows = count * _POSITIONS
        signal = scratch.signal[:count]
        signal[:, :length] = windows
        signal[:, length:] = windows[:, -2 : -2 - _MIRRORED : -1]
        views = np.lib.stride_tricks.sliding_window_view(signal, _WINDOW, axis=1)[:, ::_HOP]
        early, late = views[:, :, 1:_HALF], views[:, :, :-_HALF:-1]
        even, odd = scratch.even[:count], scratch.odd[:count]
        even[:, :, 0] = views[:, :, 0]
        even[:, :, _HALF] = views[:, :, _HALF]
        np.add(early, late, out=even[:, :, 1:_HALF])
        np.subtract(early, late, out=odd)
        real, imaginary = scratch.real[:rows], scratch.imaginary[:rows]
        np.matmul(even.reshape(rows, _BINS), self._cosines, out=real)
        np.matmul(odd.reshape(rows, _HALF - 1), self._sines, out=imaginary)
        np.square(real, out=real)
        np.square(imaginary, out=imaginary)
        real += imaginary
        np.sqrt(real, out=real)

    def _load_transform(self, tensors: FloatTensors) -> None:
        basis = tensors["model.stft.forward_basis_buffer"][:, 0]
        cosines, sines = basis[:_BINS], basis[_BINS:]
        mirrored = slice(None, -_HALF, -1)
        symmetric = np.allclose(cosines[:, 1:_HALF], cosines[:, mirrored], atol=1e-5)
        antisymmetric = np.allclose(sines[:, 1:_HALF], -sines[:, mirrored], atol=1e-5)
        if not (symmetric and antisymmetric and np.allclose(sines[:, [0, _HALF]], 0, atol=1e-5)):
            raise ModelUnavailableError("the speech detector's transform is not the windowed one this code folds")
        self._cosines = np.ascontiguousarray(cosines[:, :_BINS].T)
        self._sines = np.ascontiguousarray(sines[:, 1:_HALF].T)

    def _load_encoder(self, tensors: FloatTensors) -> None:
        def taps(layer: int) -> Matrix:
            """Weights as [tap, from, to]."""
            return tensors[f"model.encoder.{layer}.reparam_conv.weight"].transpose(2, 1, 0)

        biases = [tensors[f"model.encoder.{layer}.reparam_conv.bias"] for layer in range(4)]
        self._first = np.ascontiguousarray(taps(0).transpose(1, 0, 2)).reshape(_BINS, 3 * _CHANNELS)
        self._first_bias = biases[0]
        self._second = np.ascontiguousarray(taps(1)).reshape(3 * _CHANNELS, 64)
        self._second_bias = np.tile(biases[1], 2)
        # One position is left: the first tap of the third layer and the outer taps of the fourth see only padding.
        self._third = np.ascontiguousarray(taps(2)[1:]).reshape(128, 64)
        self._third_bias = biases[2]
        self._fourth = np.ascontiguousarray(taps(3)[1])
        self._fourth_bias = biases[3]

    def _load_decoder(self, tensors: FloatTensors) -> None:
        # Stored as input, forget, new, output gate; kept as input, forget, output, 2 x new.
        width = STATE_WIDTH
        order = np.r_[0 : 2 * width, 3 * width : 4 * width, 2 * width : 3 * width]
        factor = np.ones((4 * width, 1), np.float32)
        factor[3 * width :] = 2.0

        def gates(name: str) -> Matrix:
            rows = tensors[f"model.decoder.rnn.{name}"].reshape(4 * width, -1)
            return np.ascontiguousarray((rows[order] * factor).T)

        self._input_gates = gates("weight_ih")
        self._hidden_gates = gates("weight_hh")
        self._gate_bias = (gates("bias_ih") + gates("bias_hh"))[0]
        self._output = tensors["model.decoder.decoder.2.weight"][0, :, 0]
        self._output_bias = tensors["model.decoder.decoder.2.bias"][0]
