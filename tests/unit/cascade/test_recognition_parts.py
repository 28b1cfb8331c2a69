"""The pure parts of recognition: vocabulary, loops, quiet places."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.detect.weights import ModelUnavailableError
from duologue.models.cascade.quiet import (
    RATE_HZ,
    is_audible,
    samples_from_pcm16,
    segments,
)
from duologue.models.cascade.repetition import loop_start
from duologue.models.cascade.vocabulary import Vocabulary, parse_pieces


def _packed(pieces: list[bytes]) -> bytes:
    packed = b""
    for piece in pieces:
        size = len(piece)
        packed += (bytes([size]) if size < 0x80 else bytes([size & 0x7F | 0x80, size >> 7])) + piece
    return packed


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_a_vocabulary_file_holds_its_pieces_in_order(pieces: list[bytes]) -> None:
    assert parse_pieces(_packed(pieces)) == pieces


@pytest.mark.parametrize("data", [b"\x05abc", b"\x81", b"\x01a\xff"])
def test_a_vocabulary_that_ends_early_is_refused(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="ends inside"):
        parse_pieces(data)
    path = tmp_path / "tokenizer.bin"
    path.write_bytes(data)
    with pytest.raises(ModelUnavailableError, match="duologue setup"):
        Vocabulary.load(path)


def test_tokens_become_words_without_specials_or_half_characters() -> None:
    pieces = [b"<unk>", b"<s>", b"</s>", "▁Hel".encode(), b"lo", "▁you".encode(), b"\xe2\x82", b"\xac", b"<<ST_0>>"]
    vocabulary = Vocabulary(pieces)
    assert vocabulary.decode([1, 3, 4, 5, 2, 8]) == "Hello you"
    assert vocabulary.decode([3, 6, 7]) == "Hel€"
    assert vocabulary.decode([3, 6]) == "Hel"
    assert vocabulary.decode([-1, 99]) == ""


def test_a_loop_is_cut_after_its_first_round() -> None:
    assert loop_start([9, 8, *[1, 2, 3] * 4]) == 2 + 3
    assert loop_start([7] * 12) == 1


@pytest.mark.parametrize("tokens", [[], [5] * 8, [1, 2, 3] * 3, list(range(40)), [1, 2] * 5])
def test_what_people_do_say_is_no_loop(tokens: list[int]) -> None:
    assert loop_start(tokens) is None


def test_samples_are_scaled_and_an_odd_byte_is_ignored() -> None:
    assert samples_from_pcm16(b"\x00\x80\x00\x40\x01").tolist() == [-1.0, 0.5]
    assert len(samples_from_pcm16(b"\x01")) == 0


def test_audible_means_louder_than_an_open_microphone() -> None:
    noise = np.random.default_rng(0).standard_normal(RATE_HZ).astype(np.float32)
    assert not is_audible(noise * 0.0005)
    assert is_audible(np.concatenate([noise * 0.0, noise[:640] * 0.01]))
    assert not is_audible(np.zeros(0, np.float32))


@given(st.integers(0, 70 * RATE_HZ))
def test_segments_cover_a_recording_of_any_length_within_bounds(length: int) -> None:
    pieces = segments(np.zeros(length, np.float32), min_s=6.0, max_s=20.0)
    assert [start for start, _ in pieces] == [0, *[end for _, end in pieces[:-1]]]
    assert pieces[-1][1] == length
    assert all(0 < end - start <= 20 * RATE_HZ for start, end in pieces) or length == 0
    assert all(end - start >= 6 * RATE_HZ for start, end in pieces[:-1])


def test_a_recording_is_cut_where_it_is_quiet() -> None:
    speech = np.random.default_rng(0).standard_normal(30 * RATE_HZ).astype(np.float32) * 0.1
    speech[13 * RATE_HZ : 14 * RATE_HZ] *= 0.01
    (_, cut), (start, _) = segments(speech)
    assert cut == start
    assert 13 * RATE_HZ < cut < 14 * RATE_HZ


def test_bounds_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="min_s"):
        segments(np.zeros(10, np.float32), min_s=5.0, max_s=5.0)
