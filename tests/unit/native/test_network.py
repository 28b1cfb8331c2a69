"""The native network: streaming equals the whole, conversations do not touch each other, a lost memory is rebuilt."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from duologue.models.native.network import RECALLED_FRAMES, Frame, Memory, Network
from duologue.models.native.shape import FRAME_SAMPLES, WORDS, Shape
from duologue.models.native.weights import Floats, draw
from tests.unit.native import whole

SMALL = Shape(width=32, layers=3, heads=4, window=9, codes=3, entries=32, depth_width=16, bands=12)


@pytest.fixture(scope="module")
def network() -> Network:
    return Network(draw(7))


@pytest.fixture(scope="module")
def small() -> Network:
    return Network(draw(7, SMALL), SMALL)


def conversation(seed: int, *turns: tuple[int, int]) -> Floats:
    """``turns``: so many frames of noise, then so many of near silence."""
    random = np.random.default_rng(seed)
    parts = []
    for loud, quiet in turns:
        for frames, level in ((loud, 0.1), (quiet, 0.0003)):
            parts.append(random.standard_normal(frames * FRAME_SAMPLES) * level)
    return np.concatenate(parts).astype(np.float32)


def frames_of(audio: Floats) -> Iterator[Floats]:
    return iter(audio.reshape(-1, FRAME_SAMPLES))


def run(network: Network, memory: Memory, audio: Floats) -> list[Frame]:
    return [network.step(memory, frame) for frame in frames_of(audio)]


def decisions(made: list[Frame]) -> str:
    return "".join(frame.decision[0] for frame in made)


@pytest.mark.parametrize("turns", [((12, 40),), ((3, 60), (30, 60)), ((0, 20), (50, 5), (20, 90))])
def test_frame_by_frame_equals_the_whole(network: Network, turns: tuple[tuple[int, int], ...]) -> None:
    audio = conversation(1, *turns)
    made = run(network, network.remember_nothing(), audio)
    assert "s" in decisions(made), "it must have something to say, or nothing is compared"
    frames = [frame.tokens for frame in made]
    codes = network.shape.codes
    assert whole.heard(network, audio) == [frame[:codes] for frame in frames]
    assert whole.spoken(network, frames, whole.thoughts(network, frames)) == [frame[codes:] for frame in frames]
    streamed = np.concatenate([frame.audio for frame in made])
    np.testing.assert_allclose(streamed, whole.sound(network, frames), atol=1e-5)


def test_frame_by_frame_equals_the_whole_long_after_the_ring_has_gone_round(small: Network) -> None:
    audio = conversation(2, *((6, 25),) * 10)
    made = run(small, small.remember_nothing(), audio)
    assert len(made) > 30 * SMALL.window
    frames = [frame.tokens for frame in made]
    codes = SMALL.codes
    assert whole.spoken(small, frames, whole.thoughts(small, frames)) == [frame[codes:] for frame in frames]


def test_two_conversations_in_turns_are_each_what_it_is_alone(network: Network) -> None:
    ours, theirs = conversation(3, (10, 50), (4, 30)), conversation(4, (25, 69))
    alone = [run(network, network.remember_nothing(), audio) for audio in (ours, theirs)]
    memories = [network.remember_nothing() for _ in range(2)]
    both: list[list[Frame]] = [[], []]
    for frames in zip(frames_of(ours), frames_of(theirs), strict=True):
        for index, frame in enumerate(frames):
            both[index].append(network.step(memories[index], frame))
    for together, apart in zip(both, alone, strict=True):
        assert [frame.tokens for frame in together] == [frame.tokens for frame in apart]
        assert all(np.array_equal(a.audio, b.audio) for a, b in zip(together, apart, strict=True))
    assert decisions(alone[0]) != decisions(alone[1])


@pytest.mark.parametrize("lost_after", [1, 2, 20, 24, 25, 26, 60, 160])
def test_what_a_conversation_knew_is_rebuilt_from_its_tokens(small: Network, lost_after: int) -> None:
    """As after the loss of its replica: nothing that follows may tell that it was lost."""
    audio = conversation(5, (8, 40), (10, 100), (8, 90))
    first, rest = np.split(audio, [lost_after * FRAME_SAMPLES])
    memory = small.remember_nothing()
    made = run(small, memory, first)
    memory.tail[:] = 0
    again = small.remember_nothing()
    known = made[-(SMALL.memory_frames - 1) :]
    tokens = [token for frame in known for token in frame.tokens]
    small.recall(again, tokens, first[-RECALLED_FRAMES * FRAME_SAMPLES :])
    again.earlier = len(made) - len(known)
    again.gate.heard, again.gate.quiet, again.gate.wish = memory.gate.heard, memory.gate.quiet, memory.gate.wish
    expected, got = run(small, memory, rest), run(small, again, rest)
    assert [frame.tokens for frame in got] == [frame.tokens for frame in expected]
    assert "s" in decisions(got) and all(np.array_equal(a.audio, b.audio) for a, b in zip(got, expected, strict=True))


def test_it_answers_after_speech_and_quiet_and_not_before(network: Network) -> None:
    made = run(network, network.remember_nothing(), conversation(6, (0, 20), (10, 60)))
    heard = decisions(made)
    begun = heard.index("s")
    assert 30 + 4 <= begun <= 30 + 6, "400 ms after the last sound"
    assert heard.count("e") == 1 and heard[heard.index("e") + 1 :].strip("l") == ""


def test_a_click_is_not_answered(network: Network) -> None:
    assert set(decisions(run(network, network.remember_nothing(), conversation(7, (1, 60))))) == {"l"}


def test_it_yields_to_the_user_within_half_a_second_and_answers_that_too(network: Network) -> None:
    audio = conversation(8, (30, 15), (10, 60))
    heard = decisions(run(network, network.remember_nothing(), audio))
    assert heard[44] == "s", "it speaks when the user begins"
    assert heard.index("e") <= 45 + 6
    assert heard[55:].count("e") == 1, "and says something again once the user is quiet"


def test_asked_to_listen_it_stops_in_the_same_frame(network: Network) -> None:
    memory = network.remember_nothing()
    made = run(network, memory, conversation(9, (20, 12)))
    assert made[-1].decision == "speak"
    quiet = np.zeros(FRAME_SAMPLES, np.float32)
    assert network.step(memory, quiet, listen=True).decision == "end"
    assert decisions([network.step(memory, quiet) for _ in range(40)]) == "l" * 40


def test_speech_is_audible_varied_and_ends_without_a_step(network: Network) -> None:
    made = run(network, network.remember_nothing(), conversation(10, (30, 80)))
    spoken = [frame for frame in made if frame.decision == "speak"]
    audio = np.concatenate([frame.audio for frame in made])
    during = np.concatenate([frame.audio for frame in spoken[1:]])
    assert 0.02 < during.std() < 0.4 and np.abs(audio).max() < 1.0
    assert np.abs(np.diff(audio)).max() < 0.2, "no clicks"
    assert len({frame.tokens[4:8] for frame in spoken}) > len(spoken) // 2
    words = [frame.word for frame in spoken if frame.word]
    assert len(words) >= len(spoken) // 3 and len(set(words)) > 3 and set(words) <= set(WORDS)
    assert not made[-1].audio.any()
