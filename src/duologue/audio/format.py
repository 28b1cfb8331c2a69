"""Sample formats: what the bytes of a stream of audio mean.

Rules: a format is a value, checked when it is made, so that nothing further down checks it again;
every error names the value that was wrong and what is allowed.
"""

from typing import Final, Literal, get_args

import msgspec

Encoding = Literal["pcm16", "float32", "pcmu", "pcma"]

MIN_RATE_HZ: Final = 8_000
MAX_RATE_HZ: Final = 48_000
G711_RATE_HZ: Final = 8_000

_BYTES_PER_SAMPLE: Final[dict[str, int]] = {"pcm16": 2, "float32": 4, "pcmu": 1, "pcma": 1}


class AudioFormatError(ValueError):
    """A sample format that this engine does not read or write; the text says which value and what is allowed."""


def check_rate(rate_hz: int, name: str = "rate_hz") -> int:
    """Return `rate_hz` if it is a sample rate in 8000..48000 Hz, else raise AudioFormatError naming `name`."""
    if type(rate_hz) is not int or not MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ:
        raise AudioFormatError(
            f"{name} {rate_hz!r} is not a usable sample rate: "
            f"give a whole number of hertz from {MIN_RATE_HZ} to {MAX_RATE_HZ}"
        )
    return rate_hz


class AudioFormat(msgspec.Struct, frozen=True):
    """How the samples of a mono stream are written as bytes.

    encoding: "pcm16" (signed, little-endian), "float32" (little-endian, full scale is 1.0), "pcmu" or
    "pcma" (G.711 mu-law and A-law). rate_hz: 8000..48000; may be left out for G.711 only, where it is 8000.
    channels: always 1. Raises AudioFormatError for anything else.
    """

    encoding: Encoding
    rate_hz: int = 0
    channels: Literal[1] = 1

    def __post_init__(self) -> None:
        if self.encoding not in _BYTES_PER_SAMPLE:
            allowed = ", ".join(get_args(Encoding))
            raise AudioFormatError(f"encoding {self.encoding!r} is not known: use one of {allowed}")
        if self.rate_hz == 0 and self.encoding in ("pcmu", "pcma"):
            msgspec.structs.force_setattr(self, "rate_hz", G711_RATE_HZ)
        check_rate(self.rate_hz)
        if type(self.channels) is not int or self.channels != 1:
            raise AudioFormatError(f"channels {self.channels!r} is not supported: audio is mono, channels is 1")

    @property
    def bytes_per_sample(self) -> int:
        """Size of one sample: 1, 2 or 4 bytes."""
        return _BYTES_PER_SAMPLE[self.encoding]

    @property
    def bytes_per_second(self) -> int:
        """Size of one second of audio."""
        return self.rate_hz * self.bytes_per_sample

    def duration_s(self, byte_count: int) -> float:
        """Length in seconds of the whole samples in `byte_count` bytes."""
        return (byte_count // self.bytes_per_sample) / self.rate_hz
