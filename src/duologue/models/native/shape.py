"""Sizes of the native model. Everything else is derived from them.

Rule kept here: a frame is 80 ms of audio in and 80 ms of audio out, and the strides of the encoder multiply to it.
"""

from __future__ import annotations

from typing import Final

import msgspec

RATE_HZ: Final = 24_000
FRAME_MS: Final = 80
FRAME_SAMPLES: Final = RATE_HZ * FRAME_MS // 1000
FRAME_BYTES: Final = 2 * FRAME_SAMPLES

WORDS: Final = (
    "and", "but", "so", "then", "now", "here", "there", "yes", "well", "still", "I", "you", "we", "they", "it", "this",
    "that", "one", "two", "more", "hear", "see", "know", "say", "go", "come", "make", "keep", "think", "sing", "round",
    "low", "high", "long", "soft", "slow", "bright", "near", "far", "day", "night", "sea", "wind", "stone", "light",
    "song", "word",
)  # fmt: skip
"""What the inner monologue is made of. Token 0 is the pause between words; token *n* is word *n* - 1."""


class Convolution(msgspec.Struct, frozen=True):
    """One causal convolution: channels in and out, kernel and stride in samples of its input."""

    inputs: int
    outputs: int
    kernel: int
    stride: int


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """``width``: of the temporal transformer; ``window``: how many frames its attention reaches back (8 s); ``codes``
    codebooks with ``entries`` each describe a frame, coarse to fine; ``depth_width``: of the network over codebooks;
    ``bands``: of the synthesis. ``noise_frames``: length of the table that varies what is said.
    """

    width: int = 128
    layers: int = 4
    heads: int = 4
    window: int = 100
    codes: int = 4
    entries: int = 128
    depth_width: int = 64
    bands: int = 48
    noise_frames: int = 257

    @property
    def convolutions(self) -> tuple[Convolution, ...]:
        """The encoder: 1920 samples become one vector."""
        return (
            Convolution(1, 8, 16, 8),
            Convolution(8, 16, 12, 6),
            Convolution(16, 32, 10, 5),
            Convolution(32, self.width, 16, 8),
        )

    @property
    def memory_frames(self) -> int:
        """How many frames back anything can have an effect: a layer sees a window of what the layer below saw."""
        return self.layers * (self.window - 1) + 1

    @property
    def tokens_per_frame(self) -> int:
        """Codes of what was heard, codes of what was said, and the word."""
        return 2 * self.codes + 1


DEFAULT_SHAPE: Final = Shape()
