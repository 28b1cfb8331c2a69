"""Framing and input rules of speech detection, without weights."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.detect.speech import (
    FRAME_BYTES,
    FRAME_SAMPLES,
    MODEL_FILE,
    SpeechFramer,
    SpeechScorer,
    SpeechState,
    checked_frames,
    frame_count,
)
from duologue.detect.weights import ModelUnavailableError, require_weights


@given(st.binary(max_size=4 * FRAME_BYTES), st.lists(st.integers(0, 4 * FRAME_BYTES), max_size=6))
def test_frames_do_not_depend_on_how_the_stream_was_cut(pcm: bytes, cuts: list[int]) -> None:
    whole = SpeechFramer()
    expected = whole.push(pcm)
    pieces = SpeechFramer()
    edges = [0, *sorted(min(cut, len(pcm)) for cut in cuts), len(pcm)]
    frames = [pieces.push(pcm[start:end]) for start, end in itertools.pairwise(edges)]
    assert np.array_equal(np.concatenate(frames), expected)
    assert pieces.pending_bytes == whole.pending_bytes == len(pcm) - len(expected) * FRAME_BYTES


def test_a_frame_holds_the_samples_scaled_to_one() -> None:
    pcm = np.array([-32768, 0, 16384] + [0] * (FRAME_SAMPLES - 3), "<i2").tobytes()
    frames = SpeechFramer().push(pcm)
    assert frames.dtype == np.float32
    assert frames[0, :3].tolist() == [-1.0, 0.0, 0.5]


def test_a_reset_framer_forgets_the_odd_bytes() -> None:
    framer = SpeechFramer()
    framer.push(b"\x01\x02\x03")
    framer.reset()
    assert framer.pending_bytes == 0


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 1e30, -7.0])
def test_what_is_no_sample_never_reaches_the_model(poison: float) -> None:
    frames = np.full((2, FRAME_SAMPLES), 0.25, np.float32)
    frames[1, 5] = poison
    checked = checked_frames(frames)
    assert np.all(np.isfinite(checked))
    assert float(np.abs(checked).max()) <= 1.0
    assert np.array_equal(checked[0], frames[0])
    assert checked[1, 4] == frames[1, 4]


@pytest.mark.parametrize("shape", [(FRAME_SAMPLES,), (2, FRAME_SAMPLES - 1), (1, 1, FRAME_SAMPLES)])
def test_frames_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="512"):
        frame_count(np.zeros(shape, np.float32))


def test_a_reset_state_equals_a_new_one() -> None:
    state = SpeechState()
    state.memory += 1
    state.reset()
    assert np.array_equal(state.memory, SpeechState().memory)


def test_missing_weights_say_which_file_and_what_to_type(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailableError, match=rf"{MODEL_FILE}.*duologue setup"):
        SpeechScorer(tmp_path)


def test_an_empty_weights_file_is_not_taken_for_a_model(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.touch()
    with pytest.raises(ModelUnavailableError, match="empty"):
        require_weights(path)
    path.write_bytes(b"x")
    assert require_weights(path) == path
