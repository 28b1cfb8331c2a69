"""Decoders and encoders over streams of bytes that are cut anywhere."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.audio import AudioDecoder, AudioEncoder, AudioFormat, DualDecoder
from duologue.audio.g711 import expand

FORMATS = [
    AudioFormat("pcm16", 16_000),
    AudioFormat("pcm16", 24_000),
    AudioFormat("pcm16", 44_100),
    AudioFormat("float32", 16_000),
    AudioFormat("float32", 24_000),
    AudioFormat("pcmu"),
    AudioFormat("pcma"),
]
cut_points = st.lists(st.integers(0, 1_200), max_size=10)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@given(audio_format=st.sampled_from(FORMATS), data=st.binary(max_size=1_200), cuts=cut_points)
def test_decoding_depends_on_the_bytes_alone(audio_format: AudioFormat, data: bytes, cuts: list[int]) -> None:
    """Random bytes: as float32 they hold NaN, infinities and values far beyond full scale."""
    whole = AudioDecoder(audio_format, 16_000)
    expected = whole.decode(data) + whole.flush()
    cut = AudioDecoder(audio_format, 16_000)
    dual = DualDecoder(audio_format, 24_000, 16_000)
    copies = []
    parts = []
    for piece in pieces(data, cuts):
        parts.append(cut.decode(piece))
        copies.append(dual.decode(piece)[1])
    assert b"".join(parts) + cut.flush() == expected
    assert b"".join(copies) + dual.flush()[1] == expected
    assert cut.non_finite_samples == whole.non_finite_samples == dual.non_finite_samples
    assert cut.input_samples == len(data) // audio_format.bytes_per_sample
    assert cut.dropped_bytes == len(data) % audio_format.bytes_per_sample
    assert cut.output_samples == len(expected) // 2


@given(audio_format=st.sampled_from(FORMATS), data=st.binary(max_size=1_200), cuts=cut_points)
def test_encoding_depends_on_the_bytes_alone(audio_format: AudioFormat, data: bytes, cuts: list[int]) -> None:
    whole = AudioEncoder(audio_format, 24_000)
    expected = whole.encode(data) + whole.flush()
    cut = AudioEncoder(audio_format, 24_000)
    parts = [cut.encode(piece) for piece in pieces(data, cuts)]
    assert b"".join(parts) + cut.flush() == expected
    assert cut.input_samples == len(data) // 2
    assert cut.output_samples * audio_format.bytes_per_sample == len(expected)


@given(samples=st.lists(st.integers(-32_768, 32_767), max_size=200))
def test_pcm16_survives_float32_unchanged(samples: list[int]) -> None:
    pcm16 = np.array(samples, "<i2").tobytes()
    audio_format = AudioFormat("float32", 16_000)
    floats = AudioEncoder(audio_format, 16_000).encode(pcm16)
    assert AudioDecoder(audio_format, 16_000).decode(floats) == pcm16


@pytest.mark.parametrize("law", ["pcmu", "pcma"])
def test_telephone_codes_pass_through_the_codec(law: str) -> None:
    audio_format = AudioFormat(law)  # type: ignore[arg-type]
    codes = bytes(range(256))
    pcm16 = AudioDecoder(audio_format, 8_000).decode(codes)
    assert np.frombuffer(pcm16, "<i2").tolist() == expand(law, codes).tolist()
    again = AudioEncoder(audio_format, 8_000).encode(pcm16)
    assert AudioDecoder(audio_format, 8_000).decode(again) == pcm16


def test_same_rate_pcm16_is_handed_through_as_the_same_object() -> None:
    chunk = bytes(2_560)
    assert AudioDecoder(AudioFormat("pcm16", 16_000), 16_000).decode(chunk) is chunk
    assert AudioEncoder(AudioFormat("pcm16", 24_000), 24_000).encode(chunk) is chunk


def test_equal_rates_are_converted_once() -> None:
    dual = DualDecoder(AudioFormat("pcm16", 24_000), 16_000, 16_000)
    model, detector = dual.decode(bytes(4_800))
    assert model is detector
    assert dual.model_samples == dual.detector_samples == len(model) // 2
    tail, same_tail = dual.flush()
    assert tail is same_tail
    assert dual.model_samples == 1_600


def test_model_keeps_its_rate_while_the_detector_gets_sixteen_kilohertz() -> None:
    dual = DualDecoder(AudioFormat("pcm16", 24_000), 24_000)
    chunk = np.arange(2_400, dtype="<i2").tobytes()
    model, detector = dual.decode(chunk)
    assert model == chunk
    reference = AudioDecoder(AudioFormat("pcm16", 24_000), 16_000)
    assert detector == reference.decode(chunk)
    assert dual.delay_ms == reference.delay_ms > 0
    assert (dual.input_samples, dual.model_samples) == (2_400, 2_400)
    dual.reset()
    assert (dual.input_samples, dual.model_samples, dual.detector_samples) == (0, 0, 0)
    assert dual.decode(chunk) == (model, detector)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_a_sample_that_is_no_number_becomes_silence(poison: float) -> None:
    audio_format = AudioFormat("float32", 24_000)
    clean = (np.sin(np.arange(1_600) / 20) * 0.5).astype("<f4")
    bad = clean.copy()
    bad[700] = poison
    zeroed = clean.copy()
    zeroed[700] = 0.0
    decoder = AudioDecoder(audio_format, 16_000)
    reference = AudioDecoder(audio_format, 16_000)
    assert decoder.decode(bad.tobytes()) == reference.decode(zeroed.tobytes())
    assert decoder.non_finite_samples == 1
    # and nothing of it stays in the filter
    assert decoder.decode(clean.tobytes()) == reference.decode(clean.tobytes())
    assert decoder.non_finite_samples == 1


def test_an_append_of_nothing_but_nan_is_silence() -> None:
    decoder = AudioDecoder(AudioFormat("float32", 16_000), 16_000)
    assert decoder.decode(np.full(160, np.nan, "<f4").tobytes()) == bytes(320)
    assert decoder.non_finite_samples == 160


def test_float_beyond_full_scale_is_clamped() -> None:
    values = np.array([1.0, 1.5, 3e38, -1.0, -2.0, 0.5, 0.0], "<f4")
    out = AudioDecoder(AudioFormat("float32", 16_000), 16_000).decode(values.tobytes())
    assert np.frombuffer(out, "<i2").tolist() == [32_767, 32_767, 32_767, -32_768, -32_768, 16_384, 0]


def test_flush_drops_half_a_sample_unless_told_to_keep_it() -> None:
    decoder = AudioDecoder(AudioFormat("pcm16", 16_000), 16_000)
    assert decoder.decode(b"\x01\x00\x02") == b"\x01\x00"
    assert decoder.flush() == b""
    assert decoder.dropped_bytes == 1
    assert decoder.decode(b"\x03\x00\x04") == b"\x03\x00"
    decoder.flush(keep_partial=True)
    assert decoder.decode(b"\x00") == b"\x04\x00"
    assert decoder.dropped_bytes == 1
    decoder.decode(b"\x05")
    decoder.reset()
    assert decoder.decode(b"\x06\x00") == b"\x06\x00"
    assert (decoder.input_samples, decoder.dropped_bytes) == (1, 0)


def test_positions_convert_both_ways() -> None:
    decoder = AudioDecoder(AudioFormat("pcm16", 24_000), 16_000)
    decoder.decode(bytes(4_800))
    assert decoder.output_at(2_400) == 1_600
    assert decoder.input_at(1_600) == 2_400
    same = AudioDecoder(AudioFormat("pcm16", 16_000), 16_000)
    assert same.output_at(5) == same.input_at(5) == 5
    assert same.delay_ms == 0.0


def test_encoder_reset_and_flush_drop_half_a_sample() -> None:
    encoder = AudioEncoder(AudioFormat("pcmu"), 24_000)
    first = encoder.encode(bytes(2_401)) + encoder.flush()
    assert len(first) == 400
    encoder.encode(b"\x01")
    encoder.reset()
    assert encoder.encode(bytes(2_400)) + encoder.flush() == first
    assert (encoder.input_samples, encoder.output_samples) == (1_200, 400)
    assert encoder.delay_ms < 3.0
