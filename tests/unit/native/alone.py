"""What the native network says by itself, without any server around it."""

from __future__ import annotations

import functools

import numpy as np

from duologue.models.native.network import Network
from duologue.models.native.shape import FRAME_BYTES, FRAME_SAMPLES
from duologue.models.native.weights import draw


@functools.cache
def _network() -> Network:
    return Network(draw(0))


def alone(pcm: bytes) -> bytes:
    """The answers to ``pcm``, each from its first sound to its last. What fills no frame is not heard."""
    network = _network()
    memory = network.remember_nothing()
    samples = np.frombuffer(pcm[: len(pcm) // FRAME_BYTES * FRAME_BYTES], "<i2").astype(np.float32) / np.float32(32768)
    said = b""
    for frame in samples.reshape(-1, FRAME_SAMPLES):
        made = network.step(memory, frame)
        if made.decision != "listen" or made.audio.any():
            said += np.rint(made.audio * np.float32(32767)).astype("<i2").tobytes()
    return said
