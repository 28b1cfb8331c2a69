"""WAV files in the kinds that recordings come in, and loudness."""

import struct
from pathlib import Path

import numpy as np
import pytest

from duologue.audio import AudioFormatError, interleave, read_wav, rms_dbfs, write_wav


def riff(kind: int, channels: int, rate_hz: int, bits: int, data: bytes, extra: bytes = b"") -> bytes:
    width = bits // 8
    header = struct.pack("<HHIIHH", kind, channels, rate_hz, rate_hz * channels * width, channels * width, bits)
    # An odd chunk before the samples: readers must step over it and its pad byte.
    chunks = b"fmt " + struct.pack("<I", len(header + extra)) + header + extra
    chunks += b"note" + struct.pack("<I", 3) + b"abc\0"
    chunks += b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


SAMPLES = np.array([0, 256, -256, 16_384, -16_384, 32_512, -32_768], np.int16)


def extensible(kind: int) -> bytes:
    return struct.pack("<HHIH", 22, 16, 4, kind) + bytes(14)


@pytest.mark.parametrize(
    ("kind", "bits", "data", "extra"),
    [
        (1, 16, SAMPLES.astype("<i2").tobytes(), b""),
        (1, 8, (SAMPLES // 256 + 128).astype(np.uint8).tobytes(), b""),
        (1, 24, b"".join((int(s) << 8).to_bytes(3, "little", signed=True) for s in SAMPLES), b""),
        (1, 32, (SAMPLES.astype("<i4") << 16).tobytes(), b""),
        (3, 32, (SAMPLES / 32_768).astype("<f4").tobytes(), b""),
        (3, 64, (SAMPLES / 32_768).astype("<f8").tobytes(), b""),
        (0xFFFE, 16, SAMPLES.astype("<i2").tobytes(), extensible(1)),
        (0xFFFE, 32, (SAMPLES / 32_768).astype("<f4").tobytes(), extensible(3)),
    ],
)
def test_every_kind_reads_as_the_same_samples(tmp_path: Path, kind: int, bits: int, data: bytes, extra: bytes) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(riff(kind, 1, 22_050, bits, data, extra))
    pcm16, rate_hz = read_wav(path)
    assert rate_hz == 22_050
    assert np.frombuffer(pcm16, "<i2").tolist() == SAMPLES.tolist()


def test_telephone_recordings(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(riff(7, 1, 8_000, 8, b"\xff\x80\x00"))
    assert np.frombuffer(read_wav(path)[0], "<i2").tolist() == [0, 32_124, -32_124]
    path.write_bytes(riff(6, 1, 8_000, 8, b"\xd5\xaa\x2a"))
    assert np.frombuffer(read_wav(path)[0], "<i2").tolist() == [8, 32_256, -32_256]


def test_stereo_is_averaged_and_mono_written_back(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    left = np.array([100, -100, 32_767], "<i2")
    right = np.array([300, -300], "<i2")
    write_wav(path, interleave(left.tobytes(), right.tobytes()), 24_000, channels=2)
    pcm16, rate_hz = read_wav(path)
    assert rate_hz == 24_000
    assert np.frombuffer(pcm16, "<i2").tolist() == [200, -200, 16_384]
    write_wav(path, pcm16, rate_hz)
    assert read_wav(str(path)) == (pcm16, rate_hz)


def test_a_file_cut_short_gives_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(riff(1, 1, 16_000, 16, SAMPLES.astype("<i2").tobytes())[:-3])
    assert np.frombuffer(read_wav(path)[0], "<i2").tolist() == SAMPLES[:-2].tolist()


def test_non_finite_float_reads_as_silence(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(riff(3, 1, 16_000, 32, np.array([np.nan, np.inf, 9.0], "<f4").tobytes()))
    assert np.frombuffer(read_wav(path)[0], "<i2").tolist() == [0, 0, 32_767]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"OggS" + bytes(40), "not a WAV file"),
        (b"", "not a WAV file"),
        (riff(85, 1, 16_000, 16, b""), "kind 85 with 16 bits"),
        (riff(1, 0, 16_000, 16, b""), "0 channels"),
        (riff(1, 1, 16_000, 16, b"")[:12], "no format chunk"),
        (riff(1, 1, 16_000, 16, b"")[:40], "no data chunk"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "strange.wav"
    path.write_bytes(content)
    with pytest.raises(AudioFormatError, match=message) as caught:
        read_wav(path)
    assert "strange.wav" in str(caught.value)


def test_levels() -> None:
    sine = np.rint(32_767 * np.sin(np.arange(16_000) * 2 * np.pi / 40)).astype("<i2")
    assert rms_dbfs(sine.tobytes()) == pytest.approx(-3.01, abs=0.01)
    assert rms_dbfs((sine // 10).tobytes()) == pytest.approx(-23.0, abs=0.05)
    assert rms_dbfs(np.full(100, -32_768, "<i2").tobytes()) == pytest.approx(0.0)
    assert rms_dbfs(bytes(1_000)) == rms_dbfs(b"") == rms_dbfs(b"\x01") == -120.0
