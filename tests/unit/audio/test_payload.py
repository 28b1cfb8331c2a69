"""Base64 text: strict, tolerant of wrapping only, and refused by its length before it is decoded."""

import base64
import binascii

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.audio import AudioDataError, decode_base64

LIMIT = 3_000


@given(data=st.binary(max_size=300), width=st.sampled_from([64, 76]), newline=st.sampled_from(["\n", "\r\n"]))
def test_any_bytes_come_back_plain_wrapped_and_from_a_data_url(data: bytes, width: int, newline: str) -> None:
    text = base64.b64encode(data).decode()
    wrapped = newline.join(text[at : at + width] for at in range(0, len(text), width)) + newline
    for form in (text, wrapped, "data:audio/pcm;rate=24000;base64," + text, " " + wrapped):
        assert decode_base64(form, LIMIT) == data
        assert decode_base64(form.encode(), LIMIT) == data


@given(text=st.text(alphabet="AQz9+/=-_*\n ", max_size=24))
def test_exactly_what_a_strict_decoder_accepts_once_white_space_is_gone(text: str) -> None:
    bare = "".join(text.split())
    try:
        expected = binascii.a2b_base64(bare, strict_mode=True)
    except binascii.Error:
        for form in (text, text.encode()):
            with pytest.raises(AudioDataError) as caught:
                decode_base64(form, LIMIT)
            assert caught.value.code == "bad_audio"
    else:
        assert decode_base64(text, LIMIT) == decode_base64(text.encode(), LIMIT) == expected


@pytest.mark.parametrize("text", ["AAA", "A", "AA=", "AA==AAAA", "====", "é" * 4, "AA\x00A", "data:audio/pcm,AAAA"])
def test_garbage_is_an_error_that_says_so(text: str) -> None:
    with pytest.raises(AudioDataError, match="not valid base64") as caught:
        decode_base64(text, LIMIT)
    assert caught.value.code == "bad_audio"
    assert text not in str(caught.value)


@pytest.mark.parametrize("excess", [-2, -1, 0])
def test_up_to_the_limit(excess: int) -> None:
    data = bytes(LIMIT + excess)
    assert decode_base64(base64.b64encode(data), LIMIT) == data


@pytest.mark.parametrize("excess", [1, 2, 3, 1_000, 100_000])
@pytest.mark.parametrize("limit", [3_000, 3_001, 3_002])
def test_above_the_limit(excess: int, limit: int) -> None:
    text = base64.b64encode(bytes(limit + excess)).decode()
    for form in (text, text.encode(), base64.encodebytes(bytes(limit + excess))):
        with pytest.raises(AudioDataError, match=f"limit is {limit}") as caught:
            decode_base64(form, limit)
        assert caught.value.code == "too_large"


def test_too_large_is_found_without_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    def must_not_run(*_: object, **__: object) -> bytes:
        raise AssertionError("decoded before the length was checked")

    monkeypatch.setattr("duologue.audio.payload.binascii.a2b_base64", must_not_run)
    monkeypatch.setattr("duologue.audio.payload.msgspec.convert", must_not_run)
    for text in ("A" * 40_000, "*" * 40_000, b" " * 40_000):
        with pytest.raises(AudioDataError) as caught:
            decode_base64(text, LIMIT)
        assert caught.value.code == "too_large"


def test_wrapping_does_not_count_against_the_limit() -> None:
    data = bytes(LIMIT)
    assert decode_base64(base64.encodebytes(data), LIMIT) == data
    assert decode_base64(b"data:audio/pcm;base64," + base64.encodebytes(data), LIMIT) == data


def test_nothing_is_nothing() -> None:
    assert decode_base64("", LIMIT) == b""
    assert decode_base64("data:audio/pcm;base64,", LIMIT) == b""
