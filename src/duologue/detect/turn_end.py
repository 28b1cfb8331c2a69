"""Has the speaker finished, judged from how the last seconds sounded (smart-turn v3.2, 16 kHz).

The model reads the last eight seconds; shorter audio is preceded by silence. It is an opinion, not a verdict: it
rates some finished sentences below one half, so a caller needs a longest silence beside it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from duologue.detect.mel import log_mel
from duologue.detect.onnx import OnnxGraph

RATE_HZ = 16_000
WINDOW_S = 8
WINDOW_SAMPLES = WINDOW_S * RATE_HZ
WINDOW_BYTES = 2 * WINDOW_SAMPLES
MODEL_FILE = "smart-turn-v3.2-cpu.onnx"

_VARIANCE_FLOOR = np.float32(1e-7)


class TurnEndClassifier:
    """The model. One instance serves all sessions of a process; about 30 ms of one core per call."""

    def __init__(self, models_dir: Path, *, threads: int = 1) -> None:
        """Load the weights from `models_dir`. Raises ModelUnavailableError if they or onnxruntime are missing."""
        self._graph = OnnxGraph(models_dir / MODEL_FILE, threads=threads)

    def probability(self, pcm16: bytes) -> float:
        """Probability in [0, 1] that the turn is over at the end of `pcm16` (little-endian, mono, 16 kHz).

        Pass the turn so far including the pause after it. Only the last eight seconds count; an odd last byte is
        ignored. No audio at all, or digital silence, gives the model's opinion of silence.
        """
        features = log_mel(normalised_window(pcm16))
        (output,) = self._graph.run({"input_features": features[None]}, ("logits",))
        # The graph's output carries the name of its input layer: it is a probability already.
        return float(np.clip(np.nan_to_num(output[0, 0]), 0.0, 1.0))


def normalised_window(pcm16: bytes) -> NDArray[np.float32]:
    """The last eight seconds, preceded by silence if there is less: float32 [128000], mean 0, variance 1 (or all 0)."""
    whole = pcm16[: len(pcm16) - len(pcm16) % 2]
    samples = np.frombuffer(whole, "<i2")[-WINDOW_SAMPLES:]
    window = np.zeros(WINDOW_SAMPLES, np.float32)
    if len(samples):
        window[-len(samples) :] = samples.astype(np.float32) / np.float32(32768)
    centred = window - window.mean()
    scaled: NDArray[np.float32] = centred / np.sqrt(window.var() + _VARIANCE_FLOOR)
    return scaled
