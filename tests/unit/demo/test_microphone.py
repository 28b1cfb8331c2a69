"""The stream of a microphone, and where speech lies in it."""

from __future__ import annotations

import numpy as np
import pytest

from duologue.audio import rms_dbfs
from duologue.demo.microphone import Microphone, annotate

RATE_HZ = 16_000


def tone(duration_s: float, level: float = 8000.0) -> bytes:
    time_s = np.arange(int(duration_s * RATE_HZ)) / RATE_HZ
    return (level * np.sin(2 * np.pi * 220 * time_s)).astype("<i2").tobytes()


def silence(duration_s: float) -> bytes:
    return bytes(2 * int(duration_s * RATE_HZ))


def test_speech_is_found_between_the_silences() -> None:
    utterance = annotate("hm", silence(0.5) + tone(1.0) + silence(0.25), RATE_HZ)
    assert utterance.first_speech_sample == 8000
    assert utterance.last_speech_sample == 23_999


def test_noise_far_below_the_speech_is_not_speech() -> None:
    utterance = annotate("hm", tone(0.5, 50.0) + tone(1.0) + tone(0.5, 50.0), RATE_HZ)
    assert (utterance.first_speech_sample, utterance.last_speech_sample) == (8000, 23_999)


def test_an_utterance_without_sound_is_refused() -> None:
    with pytest.raises(ValueError, match="no sound in the utterance 'hm'"):
        annotate("hm", silence(1.0), RATE_HZ)


def test_the_stream_holds_the_utterance_where_it_was_promised() -> None:
    microphone = Microphone(RATE_HZ, chunks_ms=(20, 50))
    for _ in range(5):
        microphone.take()
    utterance = annotate("hm", tone(0.333), RATE_HZ)
    spoken = microphone.say(utterance)
    assert microphone.speaking
    while microphone.speaking:
        microphone.take()
    for _ in range(5):
        microphone.take()
    track = microphone.track()
    begin = 2 * spoken.start_sample
    assert track[begin : begin + len(utterance.pcm16)] == utterance.pcm16
    quiet = track[:begin], track[begin + len(utterance.pcm16) :]
    assert all(-90.0 < rms_dbfs(part) < -65.0 for part in quiet)
    assert len(track) == 2 * microphone.position
    assert spoken.end_sample == spoken.start_sample + utterance.last_speech_sample


def test_chunks_have_the_lengths_asked_for_in_turn() -> None:
    microphone = Microphone(RATE_HZ, chunks_ms=(20, 100))
    assert [len(microphone.take()) // 2 for _ in range(4)] == [320, 1600, 320, 1600]


def test_what_is_said_while_speaking_comes_after() -> None:
    microphone = Microphone(RATE_HZ)
    first = microphone.say(annotate("one", tone(0.1), RATE_HZ))
    second = microphone.say(annotate("two", tone(0.1), RATE_HZ))
    assert second.start_sample == first.start_sample + 1600


def test_the_same_utterances_give_the_same_stream() -> None:
    def stream() -> bytes:
        microphone = Microphone(RATE_HZ)
        microphone.take()
        microphone.say(annotate("one", tone(0.1), RATE_HZ))
        for _ in range(6):
            microphone.take()
        return microphone.track()

    assert stream() == stream()


def test_another_rate_is_refused() -> None:
    with pytest.raises(ValueError, match="16000 Hz, the microphone 24000 Hz"):
        Microphone(24_000).say(annotate("one", tone(0.1), RATE_HZ))
