"""The player's arithmetic on a clock that the test turns."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.client.playback import PlaybackTracker


@dataclass
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def player(clock: Clock) -> PlaybackTracker:
    return PlaybackTracker(now=clock, rate_hz=1000)


def played(player: PlaybackTracker, response_id: str) -> int:
    heard = player.heard(response_id)
    assert heard is not None
    return heard.played_ms


def test_audio_that_arrives_early_waits_for_the_audio_before_it(player: PlaybackTracker, clock: Clock) -> None:
    assert player.add("r1", "i1", 500) == 0.0
    clock.now_s = 0.1
    assert player.add("r1", "i1", 500) == 0.5
    assert played(player, "r1") == 100
    clock.now_s = 0.75
    assert played(player, "r1") == 750
    clock.now_s = 9.0
    assert played(player, "r1") == 1000
    assert player.underruns == 0


def test_a_gap_is_an_underrun_and_is_not_heard(player: PlaybackTracker, clock: Clock) -> None:
    player.add("r1", "i1", 200)
    clock.now_s = 0.5
    assert player.add("r1", "i1", 200) == 0.5
    clock.now_s = 0.6
    assert played(player, "r1") == 300
    assert player.underruns == 1


def test_stopping_cuts_what_plays_and_refuses_what_comes_later(player: PlaybackTracker, clock: Clock) -> None:
    player.add("r1", "i1", 1000)
    clock.now_s = 0.25
    cut = player.stop()
    assert cut is not None
    assert (cut.response_id, cut.item_id, cut.played_ms, cut.received_ms) == ("r1", "i1", 250, 1000)
    assert not cut.complete
    assert player.add("r1", "i1", 100) is None
    clock.now_s = 5.0
    assert played(player, "r1") == 250
    assert player.playing is None


def test_a_stopped_player_starts_the_next_answer_at_once(player: PlaybackTracker, clock: Clock) -> None:
    player.add("r1", "i1", 1000)
    clock.now_s = 0.25
    player.stop()
    assert player.add("r2", "i2", 100) == 0.25
    assert player.playing == "r2"


def test_an_unfinished_response_is_cut_even_while_the_player_starves(player: PlaybackTracker, clock: Clock) -> None:
    player.add("r1", "i1", 100)
    clock.now_s = 0.2
    cut = player.stop()
    assert cut is not None and cut.response_id == "r1"
    assert player.add("r1", "i1", 100) is None


def test_a_finished_response_that_was_heard_is_not_cut(player: PlaybackTracker, clock: Clock) -> None:
    player.add("r1", "i1", 100)
    player.finish("r1")
    clock.now_s = 0.2
    assert player.stop() is None


def test_stopping_one_response_lets_the_one_before_it_play_out(player: PlaybackTracker, clock: Clock) -> None:
    player.add("r1", "i1", 300)
    player.finish("r1")
    player.add("r2", "i2", 300)
    clock.now_s = 0.1
    player.stop_response("r2")
    assert player.remaining_s == pytest.approx(0.2)
    clock.now_s = 0.5
    assert (played(player, "r1"), played(player, "r2")) == (300, 0)


def test_a_response_may_be_stopped_before_its_audio_comes(player: PlaybackTracker) -> None:
    player.stop_response("r1")
    assert player.add("r1", "i1", 100) is None


def test_acknowledgements_report_progress_once(player: PlaybackTracker, clock: Clock) -> None:
    player.add("r1", "i1", 300)
    assert player.acknowledgements() == []
    clock.now_s = 0.2
    assert [(heard.response_id, heard.played_ms) for heard in player.acknowledgements()] == [("r1", 200)]
    assert player.acknowledgements() == []
    clock.now_s = 1.0
    assert [heard.played_ms for heard in player.acknowledgements()] == [300]


def test_an_unknown_response_was_not_heard(player: PlaybackTracker) -> None:
    assert player.heard("nothing") is None


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 300)), max_size=40), st.integers(0, 5000))
def test_never_more_is_heard_than_arrived_or_than_time_allows(steps: list[tuple[int, int]], stop_ms: int) -> None:
    clock = Clock()
    player = PlaybackTracker(now=clock, rate_hz=1000)
    arrived = 0
    before = 0
    for wait_ms, samples in steps:
        clock.now_s += wait_ms / 1000
        if clock.now_s * 1000 >= stop_ms:
            player.stop()
        if player.add("r", "i", samples) is not None:
            arrived += samples
        now_played = played(player, "r")
        assert before <= now_played <= min(arrived, clock.now_s * 1000 + 1)
        before = now_played
