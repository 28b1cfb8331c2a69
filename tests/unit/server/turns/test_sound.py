"""Recordings and answers as bytes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from duologue.audio.wav import parse_wav
from duologue.models.scripted.sound import silence, tone
from duologue.outputs import RequestOutput
from duologue.server.turns.sound import AnswerAudio, Recording, slices, utterances

RATE_HZ = 16_000


@given(st.lists(st.integers(0, 9_000), max_size=8), st.integers(400, 5_000), st.integers(0, 2**31))
def test_cuts_cover_the_recording_and_no_piece_is_too_long(lengths_ms: list[int], longest_ms: int, seed: int) -> None:
    noise = np.random.default_rng(seed).integers(-3000, 3000, 1600).astype("<i2").tobytes()
    pcm16 = b"".join((noise * (length // 100 + 1))[: length * 32] for length in lengths_ms)
    cuts = utterances(Recording(pcm16, RATE_HZ), longest_ms)
    assert [start for start, _ in cuts[1:]] == [end for _, end in cuts[:-1]]
    assert sum(end - start for start, end in cuts) == len(pcm16) // 2
    assert all(0 < end - start <= (longest_ms + 40) * RATE_HZ // 1000 for start, end in cuts)


def test_a_recording_is_cut_in_its_pauses() -> None:
    pcm16 = b"".join(tone(2_000, rate_hz=RATE_HZ) + silence(300, rate_hz=RATE_HZ) for _ in range(8))
    cuts = utterances(Recording(pcm16, RATE_HZ), 5_000)
    assert len(cuts) > 3
    for _, end in cuts[:-1]:
        assert end * 1000 / RATE_HZ % 2_300 >= 2_000


@given(st.lists(st.integers(0, 3_000), max_size=6), st.sampled_from([8_000, 16_000, 22_050, 24_000, 48_000]))
def test_a_streamed_answer_is_a_whole_file_at_24_khz(lengths: list[int], rate_hz: int) -> None:
    audio = AnswerAudio("wav", streamed=True)
    outputs = [RequestOutput(request_id="r", audio=bytes(2 * length), audio_rate_hz=rate_hz) for length in lengths]
    pieces = [audio.encode(output) for output in outputs] + [audio.finish()]
    pcm16, own_rate_hz = parse_wav(b"".join(pieces))
    assert own_rate_hz == 24_000
    assert len(pcm16) // 2 == -(-sum(lengths) * 24_000 // rate_hz)


def test_a_change_of_rate_within_an_answer_loses_nothing() -> None:
    audio = AnswerAudio("pcm16", streamed=True)
    first = audio.encode(RequestOutput(request_id="r", audio=bytes(3_200), audio_rate_hz=16_000))
    second = audio.encode(RequestOutput(request_id="r", audio=bytes(4_800), audio_rate_hz=24_000))
    assert len(first + second + audio.finish()) == 9_600


def test_slices_are_whole_samples() -> None:
    data = bytes(100_002)
    assert b"".join(slices(data)) == data
    assert all(len(piece) % 2 == 0 for piece in slices(data))
