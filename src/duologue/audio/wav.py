"""WAV files: any common kind in, PCM16 out.

Reading walks the RIFF chunks itself, since the standard library's reader knows neither float samples nor (before
Python 3.12) the extensible header. Writing uses the standard library.
"""

import os
import struct
import wave
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .format import AudioFormatError
from .g711 import expand

_PCM: Final = 1
_FLOAT: Final = 3
_A_LAW: Final = 6
_MU_LAW: Final = 7
_EXTENSIBLE: Final = 0xFFFE


class AudioTooLongError(AudioFormatError):
    """A recording that lasts longer than it may."""


@dataclass(frozen=True, slots=True)
class _Header:
    kind: int
    channels: int
    rate_hz: int
    sample_bits: int


def read_wav(path: str | os.PathLike[str]) -> tuple[bytes, int]:
    """Read a WAV file as (PCM16 little-endian mono, rate in Hz as in the file).

    Raises as :func:`parse_wav`, and OSError if the file can't be read.
    """
    return parse_wav(Path(path).read_bytes(), name=path)


def parse_wav(
    content: bytes, *, name: str | os.PathLike[str] = "the audio", longest_s: float | None = None
) -> tuple[bytes, int]:
    """The content of a WAV file as (PCM16 little-endian mono, rate in Hz as in the file).

    Reads PCM of 8, 16, 24 and 32 bits, float of 32 and 64 bits and G.711; several channels are averaged. A file that was
    streamed may state any size: what is there is read. Raises AudioFormatError (its text begins with `name`) for anything
    else, and for more than `longest_s` seconds.
    """
    if len(content) < 12 or content[:4] != b"RIFF" or content[8:12] != b"WAVE":
        raise AudioFormatError(f"{name} is not a WAV file: it does not begin with RIFF and WAVE")
    header: _Header | None = None
    data: bytes | None = None
    position = 12
    while position + 8 <= len(content) and data is None:
        chunk, size = struct.unpack_from("<4sI", content, position)
        body = content[position + 8 : position + 8 + size]
        if chunk == b"fmt ":
            header = _header(name, body)
        elif chunk == b"data":
            data = body
        position += 8 + size + (size & 1)
    if header is None or data is None:
        missing = "format" if header is None else "data"
        raise AudioFormatError(f"{name} is not a usable WAV file: it has no {missing} chunk")
    frame_bytes = max(1, header.sample_bits // 8) * header.channels
    if longest_s is not None and len(data) > longest_s * header.rate_hz * frame_bytes:
        lasts_s = len(data) / frame_bytes / header.rate_hz
        raise AudioTooLongError(f"{name} lasts {lasts_s:.0f} s and the limit is {longest_s:.0f} s")
    if (header.kind, header.sample_bits, header.channels) == (_PCM, 16, 1):
        return data[: len(data) & ~1], header.rate_hz
    samples = _samples(name, header, data)
    whole = len(samples) // header.channels * header.channels
    mono = samples[:whole].reshape(-1, header.channels).mean(axis=1) if header.channels > 1 else samples
    return np.clip(np.rint(mono), -32_768, 32_767).astype("<i2").tobytes(), header.rate_hz


def wav_header(rate_hz: int, data_bytes: int | None) -> bytes:
    """The 44 bytes in front of PCM16 mono. `None`: a stream whose length nobody knows yet."""
    size = 0xFFFFFFFE - 36 if data_bytes is None else data_bytes
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        *(b"RIFF", size + 36, b"WAVE", b"fmt ", 16, _PCM, 1, rate_hz, rate_hz * 2, 2, 16, b"data", size),
    )


def write_wav(path: str | os.PathLike[str], pcm16: bytes, rate_hz: int, channels: int = 1) -> None:
    """Write PCM16 (little-endian, interleaved if there are 2 channels) as a WAV file."""
    with wave.open(os.fspath(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate_hz)
        file.writeframes(pcm16)


def interleave(left: bytes, right: bytes) -> bytes:
    """Two PCM16 mono streams as one stereo stream; the shorter one is padded with silence."""
    frames = max(len(left), len(right)) // 2
    stereo = np.zeros((frames, 2), "<i2")
    for column, channel in enumerate((left, right)):
        samples = np.frombuffer(channel[: len(channel) & ~1], "<i2")
        stereo[: len(samples), column] = samples
    return stereo.tobytes()


def _header(path: str | os.PathLike[str], body: bytes) -> _Header:
    if len(body) < 16:
        raise AudioFormatError(f"{path} has a format chunk of {len(body)} bytes: at least 16 are needed")
    kind, channels, rate_hz, _, _, sample_bits = struct.unpack_from("<HHIIHH", body)
    if kind == _EXTENSIBLE and len(body) >= 26:
        (kind,) = struct.unpack_from("<H", body, 24)  # first field of the sub-format's identifier
    if channels < 1 or rate_hz < 1:
        raise AudioFormatError(f"{path} claims {channels} channels at {rate_hz} Hz: both must be at least 1")
    return _Header(kind, channels, rate_hz, sample_bits)


def _samples(path: str | os.PathLike[str], header: _Header, data: bytes) -> NDArray[np.float64]:
    """All samples on the scale of 16 bits, channels interleaved."""
    width = max(1, header.sample_bits // 8)
    data = data[: len(data) // width * width]
    match (header.kind, header.sample_bits):
        case (1, 8):
            return (np.frombuffer(data, np.uint8).astype(np.float64) - 128.0) * 256.0
        case (1, 16):
            return np.frombuffer(data, "<i2").astype(np.float64)
        case (1, 24):
            wide = np.zeros((len(data) // 3, 4), np.uint8)
            wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
            return wide.view("<i4").ravel() / 65_536.0
        case (1, 32):
            return np.frombuffer(data, "<i4") / 65_536.0
        case (3, 32 | 64):
            values = np.frombuffer(data, f"<f{width}").astype(np.float64)
            return np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0) * 32_768.0
        case (6 | 7, 8):
            return expand("pcma" if header.kind == _A_LAW else "pcmu", data).astype(np.float64)
        case _:
            raise AudioFormatError(
                f"{path} holds samples of kind {header.kind} with {header.sample_bits} bits: "
                f"readable are PCM ({_PCM}) of 8, 16, 24 or 32 bits, float ({_FLOAT}) of 32 or 64 bits "
                f"and G.711 ({_A_LAW}, {_MU_LAW})"
            )
