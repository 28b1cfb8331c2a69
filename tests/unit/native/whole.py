"""The native network over a whole conversation at once, written without any of its streaming code: what it must equal."""

from __future__ import annotations

import numpy as np

from duologue.models.native.network import Network, normed, softmax
from duologue.models.native.shape import FRAME_SAMPLES
from duologue.models.native.weights import Floats

Tokens = list[tuple[int, ...]]


def heard(network: Network, audio: Floats) -> Tokens:
    """Codes of every frame, from convolutions over the whole of ``audio``."""
    signal = audio[:, None]
    for index, conv in enumerate(network.shape.convolutions):
        padded = np.concatenate((np.zeros((conv.kernel - conv.stride, conv.inputs), np.float32), signal))
        signal = network.convolve(index, padded)
    return [network.quantise(vector) for vector in signal]


def thoughts(network: Network, frames: Tokens) -> Floats:
    """The transformer over all frames at once, under a mask: [frames, width]. ``frames``: codes heard, said, word."""
    shape, weights = network.shape, network.weights
    codes = shape.codes
    nothing = (*(shape.entries,) * codes, 0)
    before = [nothing, *(frame[codes:] for frame in frames[:-1])]
    inputs = [network.embed(frame[:codes], last[:codes], last[-1]) for frame, last in zip(frames, before, strict=True)]
    vectors = np.stack(inputs)
    ages = np.arange(len(frames))[:, None] - np.arange(len(frames))[None]
    slopes = 2.0 ** (-8.0 * np.arange(1, shape.heads + 1) / shape.heads)
    mask = np.where((ages < 0) | (ages >= shape.window), -np.inf, -slopes[:, None, None] * ages)
    for layer in range(shape.layers):
        qkv = (normed(vectors) @ weights[f"layer.{layer}.qkv"]).reshape(len(frames), 3, shape.heads, -1)
        queries, keys, values = (qkv[:, part].transpose(1, 0, 2) for part in range(3))
        scores = queries @ keys.transpose(0, 2, 1) / np.sqrt(qkv.shape[-1]) + mask
        mixed = softmax(scores.astype(np.float32)) @ values
        vectors = network.layer_rest(layer, vectors, mixed.transpose(1, 0, 2).reshape(len(frames), -1))
    return normed(vectors)


def spoken(network: Network, frames: Tokens, all_thoughts: Floats) -> Tokens:
    """What is said in each frame in which something is said, word by word and code by code."""
    said = []
    for number, (frame, thought) in enumerate(zip(frames, all_thoughts, strict=True)):
        codes = network.shape.codes
        if frame[codes] == network.shape.entries:
            said.append(frame[codes:])
            continue
        word = network.choose_word(thought, number) if frame[-1] else 0
        said.append((*network.choose_codes(thought, frame[-1], number), word))
    return said


def sound(network: Network, frames: Tokens) -> Floats:
    """The audio of all frames, by adding up the whole."""
    codes = network.shape.codes
    audio = np.zeros((len(frames) + 1) * FRAME_SAMPLES, np.float32)
    for number, frame in enumerate(frames):
        start = number * FRAME_SAMPLES
        audio[start : start + 2 * FRAME_SAMPLES] += network.sound_of(frame[codes : 2 * codes])
    return np.clip(audio[:-FRAME_SAMPLES], -1, 1)
