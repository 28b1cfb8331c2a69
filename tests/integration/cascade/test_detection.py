"""Speech detection and turn end with their real weights, on recordings of a person."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from duologue.detect.onnx import OnnxGraph
from duologue.detect.speech import MODEL_FILE, RATE_HZ, Frames, SpeechFramer, SpeechScorer, SpeechState
from duologue.detect.turn_end import TurnEndClassifier
from duologue.models.cascade.synthesiser import Synthesiser
from duologue.models.cascade.voice import USER, speak
from tests.integration.cascade.recording import read_pcm16

pytestmark = pytest.mark.weights


@pytest.fixture(scope="module")
def scorer(models_dir: Path) -> SpeechScorer:
    return SpeechScorer(models_dir)


@pytest.fixture(scope="module")
def frames(models_dir: Path) -> Frames:
    return SpeechFramer().push(read_pcm16(models_dir / "beckett.wav", RATE_HZ))


def _one_by_one(models_dir: Path, frames: Frames) -> np.ndarray:
    """The same file run by onnxruntime, as its authors do."""
    graph = OnnxGraph(models_dir / MODEL_FILE)
    state, context = np.zeros((2, 1, 128), np.float32), np.zeros(64, np.float32)
    scores = []
    for frame in frames:
        feeds = {"input": np.concatenate([context, frame])[None], "state": state, "sr": np.array(RATE_HZ, np.int64)}
        score, state = graph.run(feeds, ("output", "stateN"))
        context = frame[-64:]
        scores.append(score[0, 0])
    return np.array(scores)


def test_scores_are_those_of_the_original_network(scorer: SpeechScorer, frames: Frames, models_dir: Path) -> None:
    (scores,) = scorer.score([(SpeechState(), frames)])
    assert np.allclose(scores, _one_by_one(models_dir, frames), atol=1e-4)
    assert np.count_nonzero(scores > 0.5) > 60
    assert np.count_nonzero(scores < 0.2) > 60


def test_a_session_does_not_depend_on_its_neighbours_or_its_appends(scorer: SpeechScorer, frames: Frames) -> None:
    (alone,) = scorer.score([(SpeechState(), frames)])
    state, other = SpeechState(), SpeechState()
    parts = []
    for start in range(0, len(frames), 7):
        noise = np.random.default_rng(start).uniform(-1, 1, (3, 512)).astype(np.float32)
        part, _ = scorer.score([(state, frames[start : start + 7]), (other, noise)])
        parts.append(part)
    assert np.allclose(np.concatenate(parts), alone, atol=1e-4)


def test_poison_in_one_session_harms_neither_it_nor_another(scorer: SpeechScorer, frames: Frames) -> None:
    poisoned, healthy = SpeechState(), SpeechState()
    bad = np.full((4, 512), np.nan, np.float32)
    bad[1:] = np.inf
    first, second = scorer.score([(poisoned, bad), (healthy, frames)])
    (alone,) = scorer.score([(SpeechState(), frames)])
    assert np.all(np.isfinite(first))
    assert np.allclose(second, alone, atol=1e-4)
    (after,) = scorer.score([(poisoned, frames)])
    assert np.all(np.isfinite(after))
    assert np.allclose(after[60:], alone[60:], atol=0.2)


def test_a_session_without_new_frames_stays_as_it_is(scorer: SpeechScorer, frames: Frames) -> None:
    idle, busy = SpeechState(), SpeechState()
    scorer.score([(idle, frames[:20])])
    before = idle.memory.copy()
    none, some = scorer.score([(idle, frames[:0]), (busy, frames[:3])])
    assert len(none) == 0
    assert len(some) == 3
    assert np.array_equal(idle.memory, before)
    assert scorer.score([]) == []


def test_one_session_twice_in_a_batch_is_refused(scorer: SpeechScorer, frames: Frames) -> None:
    state = SpeechState()
    with pytest.raises(ValueError, match="once"):
        scorer.score([(state, frames[:1]), (state, frames[1:2])])
    assert np.array_equal(state.memory, SpeechState().memory)


def test_a_finished_question_ends_a_turn_and_a_sentence_broken_off_does_not(models_dir: Path) -> None:
    classifier, synthesiser = TurnEndClassifier(models_dir), Synthesiser()

    def probability(text: str) -> float:
        return classifier.probability(speak(synthesiser, text, USER, rate_hz=RATE_HZ) + b"\x00" * 6400)

    assert probability("What is the capital of France?") > 0.5
    assert probability("I want to") < 0.5
    assert 0.0 <= classifier.probability(b"") <= 1.0
