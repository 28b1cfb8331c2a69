"""Weights of the native model: drawn from a seed at set-up, or when they are first needed, and kept in the models folder.

Rules kept here: the same seed and shape give the same weights; a file appears under its name only when it is whole; a
folder that cannot be written costs the drawing again at each start, nothing else.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from duologue.log import init_logger
from duologue.models.native.shape import DEFAULT_SHAPE, FRAME_SAMPLES, RATE_HZ, WORDS, Shape

logger = init_logger(__name__)

Floats = NDArray[np.float32]
Weights = Mapping[str, Floats]

VERSION: Final = 1
"""Goes up when the drawing changes: files of older versions are not read."""

_LOWEST_HZ, _HIGHEST_HZ = 110.0, 1_400.0
_SCALE = (0, 2, 4, 7, 9)  # a pentatonic scale: whatever sounds together does not clash
_ENERGY_OF_A_BAND = 0.035


def draw(seed: int, shape: Shape = DEFAULT_SHAPE) -> dict[str, Floats]:
    """All weights, as arrays by name. About 900,000 numbers, in some tens of milliseconds."""
    random = np.random.default_rng(seed)

    def normal(*size: int, fan_in: int | None = None) -> Floats:
        scale = 1.0 / np.sqrt(size[-2] if fan_in is None else fan_in)
        drawn: Floats = (random.standard_normal(size) * scale).astype(np.float32)
        return drawn

    width, words = shape.width, len(WORDS) + 1
    tokens = shape.entries + 1  # the last one stands for "nothing was said"
    weights = {f"encoder.{i}": normal(c.kernel * c.inputs, c.outputs) for i, c in enumerate(shape.convolutions)}
    for level in range(shape.codes):
        weights[f"quantiser.{level}"] = normal(shape.entries, width, fan_in=width) * np.float32(0.6**level)
    weights["heard"] = normal(shape.codes, shape.entries, width, fan_in=shape.codes)
    weights["said"] = normal(shape.codes, tokens, width, fan_in=shape.codes)
    weights["word"] = normal(words, width, fan_in=1)
    for layer in range(shape.layers):
        weights[f"layer.{layer}.qkv"] = normal(width, 3 * width)
        weights[f"layer.{layer}.out"] = normal(width, width)
        weights[f"layer.{layer}.up"] = normal(width, 4 * width)
        weights[f"layer.{layer}.down"] = normal(4 * width, width)
    weights["speech.words"] = normal(width, words)
    weights["depth.context"] = normal(shape.codes, width, shape.depth_width)
    weights["depth.before"] = normal(shape.codes, max(tokens, words), shape.depth_width, fan_in=2)
    weights["depth.state"] = normal(shape.depth_width, shape.depth_width)
    weights["depth.code"] = normal(shape.codes, shape.depth_width, shape.entries)
    weights["noise"] = random.gumbel(size=(shape.noise_frames, shape.codes, shape.entries)).astype(np.float32)
    weights["noise.words"] = random.gumbel(size=(shape.noise_frames, words)).astype(np.float32)
    weights["voice.bands"] = normal(shape.codes, shape.entries, shape.bands, fan_in=shape.codes)
    weights["voice.waves"] = _waves(random, shape.bands)
    return weights


def _waves(random: np.random.Generator, bands: int) -> Floats:
    """The synthesis: each band is a tone under a window of two frames, so that frames fade into each other."""
    octaves = np.log2(_HIGHEST_HZ / _LOWEST_HZ)
    steps = np.array([12 * octave + step for octave in range(int(octaves) + 1) for step in _SCALE])
    pitches = _LOWEST_HZ * 2.0 ** (steps[np.arange(bands) % len(steps)] / 12.0)
    at = np.arange(2 * FRAME_SAMPLES)
    phases = random.uniform(0, 2 * np.pi, (bands, 1))
    window = np.sin(np.pi * (at + 0.5) / (2 * FRAME_SAMPLES)) ** 2
    loudness = _ENERGY_OF_A_BAND * (_LOWEST_HZ / pitches[:, None]) ** 0.7
    waves: Floats = (loudness * window * np.sin(2 * np.pi * pitches[:, None] * at / RATE_HZ + phases)).astype(
        np.float32
    )
    return waves


def file_name(seed: int) -> str:
    """The file of one set of weights in the models folder."""
    return f"native-{VERSION}-{seed}.npz"


def load(folder: Path, seed: int, shape: Shape = DEFAULT_SHAPE) -> dict[str, Floats]:
    """The weights in ``folder``, drawn and put there if they are missing, damaged or of another shape."""
    kept = _kept(folder, seed, shape)
    if kept is not None:
        return kept
    weights = draw(seed, shape)
    try:
        _write(folder / file_name(seed), weights)
    except OSError as fault:
        logger.warning("the native model's weights cannot be kept", extra={"reason": fault.strerror})
    return weights


def prepare(folder: Path, seed: int = 0, shape: Shape = DEFAULT_SHAPE) -> bool:
    """Put the weights into ``folder`` unless they are there; whether they were drawn. Raises OSError when it cannot."""
    if _kept(folder, seed, shape) is not None:
        return False
    _write(folder / file_name(seed), draw(seed, shape))
    return True


def _kept(folder: Path, seed: int, shape: Shape) -> dict[str, Floats] | None:
    weights = _read(folder / file_name(seed))
    return weights if weights is not None and _fits(weights, shape) else None


def _read(path: Path) -> dict[str, Floats] | None:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        return None


def _fits(weights: Weights, shape: Shape) -> bool:
    wanted = (shape.noise_frames, shape.codes, shape.entries)
    sizes = {name: weights[name].shape for name in ("noise", "voice.waves", "word") if name in weights}
    return (
        sizes.get("noise") == wanted
        and sizes.get("voice.waves") == (shape.bands, 2 * FRAME_SAMPLES)
        and sizes.get("word") == (len(WORDS) + 1, shape.width)
        and f"layer.{shape.layers - 1}.down" in weights
        and f"layer.{shape.layers}.down" not in weights
    )


def _write(path: Path, weights: Weights) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **weights)  # type: ignore[arg-type]
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
