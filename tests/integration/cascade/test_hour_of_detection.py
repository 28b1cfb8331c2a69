"""An hour of room tone and speech through the real detector and the state machine that tells it when to start afresh.

What makes an hour cheap: a detector that starts afresh remembers nothing, so what it says of a stretch depends on the
samples since then alone. The hour is made of a few half minutes that come again and again; a stretch that begins at the
same sample of the same half minute is scored once. That a fresh start forgets everything is proved here too.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from duologue.config.session import ServerVad, SessionConfig
from duologue.detect.speech import RATE_HZ, Frames, Probabilities, SpeechFramer, SpeechScorer, SpeechState
from duologue.engine.duplex.core.effects import Detect, Effect
from duologue.engine.duplex.core.items import AudioAppended, SpeechScored
from duologue.engine.duplex.events import InputCommitted, SpeechStarted
from tests.integration.cascade.recording import read_pcm16
from tests.unit.core.harness import PLAIN, World

pytestmark = pytest.mark.weights

SPEECH, CYCLE = 156, 938  # frames of 32 ms: five seconds of speech, then twenty-five of the room
HOUR = 120 * CYCLE
KINDS = 4  # different half minutes
APPEND = 14  # frames


@pytest.fixture(scope="module")
def scorer(models_dir: Path) -> SpeechScorer:
    return SpeechScorer(models_dir)


@pytest.fixture(scope="module")
def pcm(models_dir: Path) -> bytes:
    """``KINDS`` half minutes, 16 kHz: another five seconds of a person in each, in a room that hums and hisses."""
    voice = np.frombuffer(read_pcm16(models_dir / "two_cities.wav", RATE_HZ), "<i2").astype(np.float32)
    chance = np.random.default_rng(35)
    pieces = []
    for kind in range(KINDS):
        room = chance.normal(0, 30, CYCLE * 512) + 20 * np.sin(2 * np.pi * 50 / RATE_HZ * np.arange(CYCLE * 512))
        room[: SPEECH * 512] += voice[kind * 2 * SPEECH * 512 :][: SPEECH * 512]
        pieces.append(np.clip(np.rint(room), -32768, 32767).astype("<i2"))
    return b"".join(piece.tobytes() for piece in pieces)


class Stretch:
    """What the detector says from a fresh start at one frame on, as far as anybody asked."""

    def __init__(self, scorer: SpeechScorer, frames: Frames, start: int) -> None:
        self._scorer, self._state = scorer, SpeechState()
        self._frames = np.roll(frames, -start, axis=0)
        self._scores = np.empty(len(frames), np.float32)
        self._length = 0

    def scores(self, begin: int, end: int) -> Probabilities:
        assert end <= len(self._frames), "the detector did not start afresh for two minutes"
        if self._length < end:
            (new,) = self._scorer.score([(self._state, self._frames[self._length : end])])
            self._scores[self._length : end] = new
            self._length = end
        return self._scores[begin:end]


class Listening(World):
    """A session whose detector is the real one, which hears the half minutes over and over."""

    committed = 0

    def listen(self, scorer: SpeechScorer, pcm: bytes) -> None:
        self.scorer, self.pcm, self.frames = scorer, pcm, SpeechFramer().push(pcm)
        self.stretches: dict[int, Stretch] = {}
        self.begins: list[int] = []
        self.heard = np.empty(HOUR, np.float32)
        self.position = 0

    def minutes(self, count: int) -> list[int]:
        """Hear so many; returns at which frame each turn began."""
        starts: list[int] = []
        for at in (APPEND * number for number in range(count * CYCLE * 2 // APPEND)):
            self.now += APPEND * 0.032
            begin = at % len(self.frames) * 1024
            self.apply(AudioAppended(pcm=self.pcm[begin : begin + APPEND * 1024]))
            if at % len(self.frames) == 0:
                self._forget(starts)
        self._forget(starts)
        return starts

    def _forget(self, starts: list[int]) -> None:
        """Count what was said, and let go of it: an hour of it is not needed."""
        starts += [event.audio_start_ms // 32 for event in self.of(SpeechStarted)]
        self.committed += len(self.of(InputCommitted))
        self.effects.clear()
        self.events.clear()
        self.seen.commands.clear()

    def answer(self, effect: Effect, *, ok: bool = True) -> None:
        if not isinstance(effect, Detect):
            super().answer(effect, ok=ok)
            return
        if effect.reset:
            self.begins.append(self.position)
        begun = self.begins[-1]
        start = begun % len(self.frames)
        if start not in self.stretches:
            self.stretches[start] = Stretch(self.scorer, self.frames, start)
        end = self.position + len(effect.pcm) // 1024
        scores = self.stretches[start].scores(self.position - begun, end - begun)
        self.heard[self.position : end] = scores
        self.position = end
        self.apply(SpeechScored(number=effect.number, probabilities=tuple(scores.tolist())))


def test_field_F35_the_real_detector_hears_as_much_after_an_hour_as_at_first(scorer: SpeechScorer, pcm: bytes) -> None:
    config = SessionConfig(turn_detection=ServerVad(silence_duration_ms=1_500, create_response=False))
    world = Listening(config, capabilities=PLAIN, checked=False)
    world.listen(scorer, pcm)
    turns = []
    for _ in range(6):
        starts = world.minutes(10)
        turns.append(world.committed)
        world.committed = 0
        assert len(starts) == 20, "a turn per half minute"
    assert turns == [20] * 6
    assert world.position == HOUR
    # As sure of speech in the last ten minutes as in the first.
    of_speech = world.heard.reshape(-1, CYCLE)[:, :SPEECH].reshape(6, -1).mean(axis=1)
    assert of_speech.min() > 0.7 and of_speech.max() - of_speech.min() < 0.01, of_speech
    # It starts afresh in every silence, and never in or soon after speech.
    assert {begin // CYCLE for begin in world.begins} == set(range(120))
    for begin in world.begins[1:]:
        assert world.heard[begin - 200 : begin].max() < 0.5, f"a fresh start at frame {begin % CYCLE} of a half minute"


def test_a_fresh_start_forgets_everything(scorer: SpeechScorer, pcm: bytes) -> None:
    frames = SpeechFramer().push(pcm)
    used = SpeechState()
    scorer.score([(used, frames[: CYCLE // 2])])
    assert not np.array_equal(used.memory, SpeechState().memory)
    used.reset()
    (after,), (fresh,) = (scorer.score([(state, frames[CYCLE : CYCLE + 300])]) for state in (used, SpeechState()))
    assert np.array_equal(after, fresh)
