"""Speech probability of 32 ms frames, for many sessions in one model call (silero VAD, 16 kHz).

Rules kept here:

* frames of one session are scored in order, each with the state the previous one left; sessions share a call but
  nothing else, so a session's figures do not depend on who else is in the batch, beyond the rounding of a matrix
  product (about 1e-6);
* what enters a model's state is finite and within [-1, 1], whatever the input was;
* how a byte stream was cut into appends, odd bytes included, never changes the frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from duologue.detect.silero import CONTEXT_SAMPLES, FRAME_SAMPLES, STATE_WIDTH, SileroNetwork

RATE_HZ = 16_000
FRAME_BYTES = 2 * FRAME_SAMPLES
FRAME_MS = 32
MODEL_FILE = "silero_vad_16k_op15.onnx"

# One array per session, so that a batch is gathered in one go.
_HIDDEN = slice(0, STATE_WIDTH)
_CELL = slice(STATE_WIDTH, 2 * STATE_WIDTH)
_CONTEXT = slice(2 * STATE_WIDTH, 2 * STATE_WIDTH + CONTEXT_SAMPLES)
_MEMORY_WIDTH = _CONTEXT.stop

_PCM16_SCALE = np.float32(1 / 32768)

Frames = NDArray[np.float32]
Probabilities = NDArray[np.float32]


def _nothing_heard() -> Frames:
    return np.zeros(_MEMORY_WIDTH, np.float32)


@dataclass(slots=True)
class SpeechState:
    """What the model remembers of one session (1.3 KiB). Opaque: only SpeechScorer reads or writes it."""

    memory: Frames = field(default_factory=_nothing_heard)

    def reset(self) -> None:
        """Forget everything heard, as if the session had just opened."""
        self.memory = _nothing_heard()


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

    def __init__(self, models_dir: Path) -> None:
        """Load the weights from `models_dir`. Raises ModelUnavailableError if they are missing or damaged."""
        self._network = SileroNetwork(models_dir / MODEL_FILE)

    def score(self, batch: Sequence[tuple[SpeechState, Frames]]) -> list[Probabilities]:
        """Probability of speech in each frame, and the states moved on past those frames.

        Each entry is one session: its state and its new frames (float32 [n, 512], oldest first, n may be 0 and may
        differ between sessions). Returns float32 [n] per entry, in the order of `batch`.
        Raises ValueError for frames of another shape, or if one state appears twice (its order would be undefined);
        no state has changed then.
        """
        states = [state for state, _ in batch]
        if len({id(state) for state in states}) != len(batch):
            raise ValueError("a session may appear only once in a batch: join its frames in order first")
        lengths = np.array([frame_count(entry) for _, entry in batch], np.intp)
        if not lengths.any():
            return [np.empty(0, np.float32) for _ in batch]
        frames = checked_frames(np.concatenate([entry for _, entry in batch]))
        memory = np.concatenate([state.memory for state in states]).reshape(len(states), _MEMORY_WIDTH)
        ends = np.cumsum(lengths)
        scores = self._score(frames, memory, ends - lengths, lengths)
        heard = lengths > 0
        memory[heard, _CONTEXT] = frames[ends[heard] - 1, -CONTEXT_SAMPLES:]
        for row, state in enumerate(states):
            # Into the state's own memory: a view would keep the whole batch alive for as long as the session idles.
            state.memory[:] = memory[row]
        return [scores[end - length : end] for end, length in zip(ends, lengths, strict=True)]

    def _score(
        self, frames: Frames, memory: Frames, starts: NDArray[np.intp], lengths: NDArray[np.intp]
    ) -> Probabilities:
        """Scores of all frames, which lie below each other by session; hidden and cell memory is moved on."""
        heard = lengths > 0
        windows = np.empty((len(frames), CONTEXT_SAMPLES + FRAME_SAMPLES), np.float32)
        windows[:, CONTEXT_SAMPLES:] = frames
        windows[1:, :CONTEXT_SAMPLES] = frames[:-1, -CONTEXT_SAMPLES:]
        windows[starts[heard], :CONTEXT_SAMPLES] = memory[heard, _CONTEXT]
        encoded = self._network.encode(windows)
        scores = np.empty(len(frames), np.float32)
        for step in range(int(lengths.max())):
            rows = np.flatnonzero(lengths > step)
            at = starts[rows] + step
            moved = self._network.advance(encoded[at], memory[rows, _HIDDEN], memory[rows, _CELL])
            scores[at], memory[rows, _HIDDEN], memory[rows, _CELL] = moved
        return scores


def frame_count(frames: Frames) -> int:
    """Rows of an array of frames. Raises ValueError if it is not one."""
    if frames.ndim != 2 or frames.shape[1] != FRAME_SAMPLES:
        raise ValueError(f"frames must be [n, {FRAME_SAMPLES}] at {RATE_HZ} Hz, not {list(frames.shape)}")
    return len(frames)


def checked_frames(frames: Frames) -> Frames:
    """The frames as the model may see them: float32, finite, within [-1, 1]."""
    frames = frames.astype(np.float32, copy=False)
    # min and max are NaN if any sample is, so this one comparison also finds what is not a number.
    if frames.size == 0 or (float(frames.min()) >= -1.0 and float(frames.max()) <= 1.0):
        return frames
    finite: Frames = np.nan_to_num(frames, nan=0.0, posinf=1.0, neginf=-1.0)
    return np.clip(finite, -1.0, 1.0)
