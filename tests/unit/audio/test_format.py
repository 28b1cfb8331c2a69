"""What counts as a sample format, and what the refusal says."""

import msgspec
import pytest

from duologue.audio import AudioFormat, AudioFormatError


@pytest.mark.parametrize(("encoding", "size"), [("pcm16", 2), ("float32", 4), ("pcmu", 1), ("pcma", 1)])
def test_sizes(encoding: str, size: int) -> None:
    audio_format = AudioFormat(encoding, 16_000)  # type: ignore[arg-type]
    assert audio_format.bytes_per_sample == size
    assert audio_format.bytes_per_second == 16_000 * size
    assert audio_format.duration_s(16_000 * size + size - 1) == 1.0


def test_telephone_formats_default_to_their_rate() -> None:
    assert AudioFormat("pcmu").rate_hz == 8_000
    assert AudioFormat("pcma", 16_000).rate_hz == 16_000


@pytest.mark.parametrize("rate_hz", [8_000, 11_025, 48_000])
def test_rates_within_the_limits(rate_hz: int) -> None:
    assert AudioFormat("pcm16", rate_hz).rate_hz == rate_hz


@pytest.mark.parametrize("rate_hz", [0, -1, 7_999, 48_001, 16_000.0, True, "16000", None])
def test_other_rates_are_named_in_the_refusal(rate_hz: object) -> None:
    with pytest.raises(AudioFormatError, match="8000 to 48000") as caught:
        AudioFormat("pcm16", rate_hz)  # type: ignore[arg-type]
    assert repr(rate_hz) in str(caught.value)


def test_unknown_encoding_and_stereo_are_refused() -> None:
    with pytest.raises(AudioFormatError, match=r"'mp3'.*pcm16, float32, pcmu, pcma"):
        AudioFormat("mp3", 16_000)  # type: ignore[arg-type]
    with pytest.raises(AudioFormatError, match="channels 2"):
        AudioFormat("pcm16", 16_000, 2)  # type: ignore[arg-type]


def test_formats_from_the_wire_pass_the_same_check() -> None:
    assert msgspec.json.decode(b'{"encoding":"pcma"}', type=AudioFormat) == AudioFormat("pcma", 8_000)
    with pytest.raises(msgspec.ValidationError, match="96000"):
        msgspec.json.decode(b'{"encoding":"pcm16","rate_hz":96000}', type=AudioFormat)
