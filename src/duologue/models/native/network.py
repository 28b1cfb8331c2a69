"""The native model: a full-duplex network in the shape of Moshi, small enough for numpy.

Each frame (80 ms) goes through a causal convolutional encoder and a residual quantiser into codes. A causal transformer
over time takes the codes of what was heard, with the codes and the word that the model itself said one frame earlier. Its
output chooses a word (the inner monologue) and, through a recurrent network over the codebooks, the codes of what is said
now. A streaming decoder makes sound of them.

Rules kept here: all that a conversation needs is in its :class:`Memory`; one step is one frame, whatever came before it;
the attention keeps a ring of frames and knows distances only, so a conversation may last for ever; frame by frame gives
what the whole would give at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from duologue.models.native.gate import Decision, Gate
from duologue.models.native.shape import DEFAULT_SHAPE, FRAME_SAMPLES, WORDS, Shape
from duologue.models.native.weights import Floats, Weights

FRAMES_PER_WORD = 3
RECALLED_FRAMES = 2
"""The encoder reaches back less far than this."""

TEMPERATURE = np.float32(0.7)


@dataclass(slots=True)
class Memory:
    """One conversation. ``keys`` and ``values`` are rings over the last ``window`` frames, ``frames`` counts all of them.

    ``contexts`` are the samples that the next frame's convolutions reach back to, ``tail`` is the sound that fades into
    the next frame, ``said`` the codes of the last frame (``entries``: nothing) and ``word`` its word. ``earlier`` frames
    came before what is remembered: a memory that was rebuilt goes back as far as anything can have an effect.
    """

    contexts: list[Floats]
    keys: Floats
    values: Floats
    said: tuple[int, ...]
    tail: Floats
    gate: Gate = field(default_factory=Gate)
    frames: int = 0
    earlier: int = 0
    word: int = 0
    pause: int = FRAMES_PER_WORD


@dataclass(slots=True, frozen=True)
class Frame:
    """What the model made of one frame. ``audio`` is within ±1; ``tokens``: codes heard, codes said, word."""

    decision: Decision
    audio: Floats
    tokens: tuple[int, ...]

    @property
    def word(self) -> str:
        """The word that begins in this frame, if one does."""
        return WORDS[self.tokens[-1] - 1] if self.tokens[-1] else ""


class Network:
    """The weights with the arithmetic. One instance serves every conversation of a process, one frame at a time."""

    def __init__(self, weights: Weights, shape: Shape = DEFAULT_SHAPE) -> None:
        self.shape = shape
        self.weights = weights
        self._half_norms = [
            (weights[f"quantiser.{level}"] ** 2).sum(axis=1) / np.float32(2) for level in range(shape.codes)
        ]
        slopes = 2.0 ** (-8.0 * np.arange(1, shape.heads + 1) / shape.heads)
        self._age_penalty = (slopes[:, None] * np.arange(shape.window)).astype(np.float32)

    def remember_nothing(self) -> Memory:
        """The memory of a conversation that begins."""
        shape = self.shape
        ring = (shape.layers, shape.window, shape.heads, shape.width // shape.heads)
        return Memory(
            contexts=[np.zeros((c.kernel - c.stride, c.inputs), np.float32) for c in shape.convolutions],
            keys=np.zeros(ring, np.float32),
            values=np.zeros(ring, np.float32),
            said=(shape.entries,) * shape.codes,
            tail=np.zeros(FRAME_SAMPLES, np.float32),
        )

    def step(self, memory: Memory, frame: Floats, *, listen: bool = False) -> Frame:
        """Hear one frame (float32, ``FRAME_SAMPLES`` samples within ±1) and say one."""
        decision = memory.gate.step(frame, listen=listen)
        heard = self.quantise(self._encode(memory, frame))
        thought = self._think(memory, heard)
        number = memory.earlier + memory.frames - 1
        speaks = decision == "speak"
        word = self._choose_word(memory, thought, number) if speaks else 0
        said = self.choose_codes(thought, word, number) if speaks else (self.shape.entries,) * self.shape.codes
        memory.pause = 0 if word else memory.pause + 1
        if decision == "end":
            memory.pause = FRAMES_PER_WORD
        memory.said, memory.word = said, word
        return Frame(decision=decision, audio=self._sound(memory, said), tokens=(*heard, *said, word))

    def recall(self, memory: Memory, tokens: Sequence[int], audio: Floats) -> None:
        """Live through frames again of which the tokens are known. ``audio``: of the last :data:`RECALLED_FRAMES`.

        With the tokens of ``memory_frames`` - 1 frames the memory is what it would be had it never been lost, but for
        the gate, which the caller restores, and the sound of the last frame, which fades into nothing any more.
        """
        size, codes = self.shape.tokens_per_frame, self.shape.codes
        for start in range(0, len(tokens), size):
            frame = tokens[start : start + size]
            self._think(memory, frame[:codes])
            memory.said, memory.word = tuple(frame[codes : 2 * codes]), frame[-1]
            memory.pause = 0 if memory.word else memory.pause + 1
        for start in range(0, len(audio), FRAME_SAMPLES):
            self._encode(memory, audio[start : start + FRAME_SAMPLES])

    # The parts, in the order in which a frame passes them

    def _encode(self, memory: Memory, frame: Floats) -> Floats:
        signal = frame[:, None]
        for index, conv in enumerate(self.shape.convolutions):
            signal = np.concatenate((memory.contexts[index], signal))
            memory.contexts[index] = signal[len(signal) - (conv.kernel - conv.stride) :]
            signal = self.convolve(index, signal)
        vector: Floats = signal[0]
        return vector

    def convolve(self, index: int, signal: Floats) -> Floats:
        """One convolution of the encoder over ``signal`` [time, channels], which begins with its context."""
        conv = self.shape.convolutions[index]
        windows = np.lib.stride_tricks.sliding_window_view(signal, conv.kernel, axis=0)[:: conv.stride]
        flat = windows.transpose(0, 2, 1).reshape(len(windows), conv.kernel * conv.inputs)
        return _squash(flat @ self.weights[f"encoder.{index}"] * np.float32(3))

    def quantise(self, vector: Floats) -> tuple[int, ...]:
        """The codes of one frame: each codebook describes what the ones before it left over."""
        codes = []
        for level, half_norms in enumerate(self._half_norms):
            book = self.weights[f"quantiser.{level}"]
            code = int(np.argmax(book @ vector - half_norms))
            vector = vector - book[code]
            codes.append(code)
        return tuple(codes)

    def embed(self, heard: Sequence[int], said: Sequence[int], word: int) -> Floats:
        """The input of the transformer: what is heard now, what was said one frame ago."""
        weights = self.weights
        levels = np.arange(self.shape.codes)
        vector: Floats = (
            weights["heard"][levels, list(heard)].sum(axis=0)
            + weights["said"][levels, list(said)].sum(axis=0)
            + weights["word"][word]
        )
        return vector

    def _think(self, memory: Memory, heard: Sequence[int]) -> Floats:
        shape, weights = self.shape, self.weights
        vector = self.embed(heard, memory.said, memory.word)
        at = memory.frames % shape.window
        known = min(memory.frames + 1, shape.window)
        ages = (at - np.arange(known)) % shape.window
        penalty = self._age_penalty[:, ages]
        for layer in range(shape.layers):
            qkv = (normed(vector) @ weights[f"layer.{layer}.qkv"]).reshape(3, shape.heads, -1)
            memory.keys[layer, at], memory.values[layer, at] = qkv[1], qkv[2]
            keys, values = memory.keys[layer, :known], memory.values[layer, :known]
            scores = np.einsum("hd,thd->ht", qkv[0], keys) / np.float32(np.sqrt(qkv.shape[-1])) - penalty
            mixed = np.einsum("ht,thd->hd", softmax(scores), values).reshape(-1)
            vector = self.layer_rest(layer, vector, mixed)
        memory.frames += 1
        return normed(vector)

    def layer_rest(self, layer: int, vector: Floats, mixed: Floats) -> Floats:
        """A layer after its attention: [..., width] from its input and what it attended to."""
        weights = self.weights
        vector = vector + mixed @ weights[f"layer.{layer}.out"]
        hidden = np.maximum(normed(vector) @ weights[f"layer.{layer}.up"], np.float32(0))
        result: Floats = vector + hidden @ weights[f"layer.{layer}.down"]
        return result

    def _choose_word(self, memory: Memory, thought: Floats, number: int) -> int:
        return self.choose_word(thought, number) if memory.pause >= FRAMES_PER_WORD - 1 else 0

    def choose_word(self, thought: Floats, number: int) -> int:
        """The word that begins in frame ``number``. Never the pause: those lie between words by themselves."""
        noise = self.weights["noise.words"][number % self.shape.noise_frames]
        scores = thought @ self.weights["speech.words"] + noise * TEMPERATURE
        return 1 + int(np.argmax(scores[1:]))

    def choose_codes(self, thought: Floats, word: int, number: int) -> tuple[int, ...]:
        """The codes of frame ``number``, coarse to fine, each knowing the one before it."""
        weights = self.weights
        noise = weights["noise"][number % self.shape.noise_frames]
        state: Floats = np.zeros(self.shape.depth_width, np.float32)
        before, codes = word, []
        for level in range(self.shape.codes):
            pushed = thought @ weights["depth.context"][level] + weights["depth.before"][level, before]
            state = _squash(pushed + state @ weights["depth.state"])
            before = int(np.argmax(state @ weights["depth.code"][level] + noise[level] * TEMPERATURE))
            codes.append(before)
        return tuple(codes)

    def sound_of(self, said: Sequence[int]) -> Floats:
        """Two frames of sound for the codes of one: the second half fades under the next frame. Nothing for nothing."""
        if said[0] == self.shape.entries:
            return np.zeros(2 * FRAME_SAMPLES, np.float32)
        levels = np.arange(self.shape.codes)
        bands = _squash(self.weights["voice.bands"][levels, list(said)].sum(axis=0) * np.float32(2))
        sound: Floats = bands @ self.weights["voice.waves"]
        return sound

    def _sound(self, memory: Memory, said: Sequence[int]) -> Floats:
        both = self.sound_of(said)
        audio: Floats = np.clip(memory.tail + both[:FRAME_SAMPLES], np.float32(-1), np.float32(1))
        memory.tail = both[FRAME_SAMPLES:]
        return audio


def softmax(scores: Floats) -> Floats:
    """Over the last axis."""
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares: Floats = powers / powers.sum(axis=-1, keepdims=True)
    return shares


def normed(vector: Floats) -> Floats:
    """Over the last axis, to a mean square of 1."""
    scale = np.sqrt((vector * vector).mean(axis=-1, keepdims=True) + np.float32(1e-6))
    result: Floats = vector / scale
    return result


def _squash(vector: Floats) -> Floats:
    squashed: Floats = np.tanh(vector)
    return squashed
