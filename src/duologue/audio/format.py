"""Sample formats, as negotiated with a client. Imports nothing heavy: configuration and the core use it."""

from __future__ import annotations

from typing import Literal

import msgspec

Encoding = Literal["pcm16", "float32", "pcmu", "pcma"]

MIN_RATE_HZ = 8_000
MAX_RATE_HZ = 48_000


class AudioFormatError(ValueError):
    """A format that Duologue does not speak; the message names the value and what is allowed."""


class AudioFormat(msgspec.Struct, frozen=True, kw_only=True):
    """Mono audio: ``encoding`` and ``rate_hz`` (8000 to 48000; G.711 is normally 8000).

    Raises :class:`AudioFormatError` when a value is out of range.
    """

    encoding: Encoding = "pcm16"
    rate_hz: int = 24_000

    def __post_init__(self) -> None:
        if self.encoding not in ("pcm16", "float32", "pcmu", "pcma"):
            raise AudioFormatError(
                f"audio encoding {self.encoding!r} is not supported; use pcm16, float32, pcmu or pcma"
            )
        if not MIN_RATE_HZ <= self.rate_hz <= MAX_RATE_HZ:
            raise AudioFormatError(
                f"audio rate {self.rate_hz!r} Hz is not supported; use {MIN_RATE_HZ} to {MAX_RATE_HZ} Hz"
            )

    @property
    def bytes_per_sample(self) -> int:
        """1 for G.711, 2 for pcm16, 4 for float32."""
        match self.encoding:
            case "pcm16":
                return 2
            case "float32":
                return 4
            case "pcmu" | "pcma":
                return 1
