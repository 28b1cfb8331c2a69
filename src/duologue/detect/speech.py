"""Speech probability of 32 ms frames, for many sessions in one model call (silero VAD, 16 kHz).

Rules kept here:

* frames of one session are scored in order, each with the state the previous one left; sessions share a call but
  nothing else, so a session's figures do not depend on who else is in the batch (beyond rounding, about 1e-6);
* what enters a model's state is finite and within [-1, 1], whatever the input was;
* how a byte stream was cut into appends, odd bytes included, never changes the frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from duologue.detect.onnx import OnnxGraph, Tensor

RATE_HZ = 16_000
FRAME_SAMPLES = 512
FRAME_BYTES = 2 * FRAME_SAMPLES
FRAME_MS = 32
MODEL_FILE = "silero_vad_16k_op15.onnx"

_CONTEXT_SAMPLES = 64  # the model wants the tail of the previous frame before each frame
_STATE_WIDTH = 128
_PCM16_SCALE = np.float32(1 / 32768)

Frames = NDArray[np.float32]
Probabilities = NDArray[np.float32]


def _silent_context() -> Frames:
    return np.zeros(_CONTEXT_SAMPLES, np.float32)


def _silent_recurrent() -> Frames:
    return np.zeros((2, _STATE_WIDTH), np.float32)


@dataclass(slots=True)
class SpeechState:
    """What the model remembers of one session. Opaque: only SpeechScorer reads or writes it."""

    recurrent: Frames = field(default_factory=_silent_recurrent)
    context: Frames = field(default_factory=_silent_context)

    def reset(self) -> None:
        """Forget everything heard, as if the session had just opened."""
        self.recurrent = _silent_recurrent()
        self.context = _silent_context()


class SpeechFramer:
    """Cuts one session's PCM16 byte stream (little-endian, mono, 16 kHz) into frames, keeping the rest."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    @property
    def pending_bytes(self) -> int:
        """Bytes held back because they do not fill a frame yet; always less than FRAME_BYTES."""
        return len(self._rest)

    def push(self, pcm16: bytes) -> Frames:
        """All frames completed by `pcm16`: float32 [n, 512] in [-1, 1), n may be 0."""
        pcm = self._rest + pcm16
        count = len(pcm) // FRAME_BYTES
        self._rest = pcm[count * FRAME_BYTES :]
        samples = np.frombuffer(pcm, "<i2", count * FRAME_SAMPLES)
        return (samples.astype(np.float32) * _PCM16_SCALE).reshape(count, FRAME_SAMPLES)

    def reset(self) -> None:
        """Drop the held-back bytes."""
        self._rest = b""


class SpeechScorer:
    """The model. One instance serves all sessions of a process; not for two threads at once."""

    def __init__(self, models_dir: Path, *, threads: int = 1) -> None:
        """Load the weights from `models_dir`. Raises ModelUnavailableError if they or onnxruntime are missing."""
        self._graph = OnnxGraph(models_dir / MODEL_FILE, threads=threads)
        self._rate = np.array(RATE_HZ, np.int64)

    def score(self, batch: Sequence[tuple[SpeechState, Frames]]) -> list[Probabilities]:
        """Probability of speech in each frame, and the states moved on past those frames.

        Each entry is one session: its state and its new frames (float32 [n, 512], oldest first, n may be 0 and may
        differ between sessions). Returns float32 [n] per entry, in the order of `batch`.
        Raises ValueError for frames of another shape, or if one state appears twice (its order would be undefined);
        no state has changed then.
        """
        frames = [checked_frames(entry) for _, entry in batch]
        if len({id(state) for state, _ in batch}) != len(batch):
            raise ValueError("a session may appear only once in a batch: join its frames in order first")
        scores = [np.empty(len(entry), np.float32) for entry in frames]
        for step in range(max(map(len, frames), default=0)):
            rows = [row for row, entry in enumerate(frames) if len(entry) > step]
            probabilities = self._step([batch[row][0] for row in rows], [frames[row][step] for row in rows])
            for column, row in enumerate(rows):
                scores[row][step] = probabilities[column]
        return scores

    def _step(self, states: list[SpeechState], frames: list[Frames]) -> Probabilities:
        """One frame of each of these sessions in one call; moves their states on."""
        count = len(states)
        window = np.empty((count, _CONTEXT_SAMPLES + FRAME_SAMPLES), np.float32)
        recurrent = np.empty((2, count, _STATE_WIDTH), np.float32)
        for column, (state, frame) in enumerate(zip(states, frames, strict=True)):
            window[column, :_CONTEXT_SAMPLES] = state.context
            window[column, _CONTEXT_SAMPLES:] = frame
            recurrent[:, column] = state.recurrent
        feeds: dict[str, Tensor] = {"input": window, "state": recurrent, "sr": self._rate}
        output, moved = self._graph.run(feeds, ("output", "stateN"))
        for column, state in enumerate(states):
            state.recurrent = moved[:, column]
            state.context = window[column, -_CONTEXT_SAMPLES:]
        probabilities: Probabilities = output[:, 0]
        return probabilities


def checked_frames(frames: Frames) -> Frames:
    """The frames as the model may see them: right shape, finite, within [-1, 1]."""
    if frames.ndim != 2 or frames.shape[1] != FRAME_SAMPLES:
        raise ValueError(f"frames must be [n, {FRAME_SAMPLES}] at {RATE_HZ} Hz, not {list(frames.shape)}")
    if frames.size == 0:
        return frames
    # min and max are NaN if any sample is, so this one comparison also finds what is not a number.
    if float(frames.min()) >= -1.0 and float(frames.max()) <= 1.0:
        return frames
    finite: Frames = np.nan_to_num(frames, nan=0.0, posinf=1.0, neginf=-1.0)
    return np.clip(finite, -1.0, 1.0)
