"""The loudspeaker and its recording."""

from __future__ import annotations

import numpy as np

from duologue.demo.player import Player

RATE_HZ = 1000


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def pcm(value: int, samples: int) -> bytes:
    return np.full(samples, value, "<i2").tobytes()


def track(player: Player, duration_s: float) -> list[int]:
    return np.frombuffer(player.track(duration_s), "<i2").tolist()


def test_the_recording_holds_each_answer_when_it_was_heard() -> None:
    clock = Clock()
    player = Player(now=clock, rate_hz=RATE_HZ)
    clock.now_s = 0.01
    player.play("r1", "i1", pcm(1, 5))
    player.play("r1", "i1", pcm(2, 5))
    clock.now_s = 0.03
    player.play("r2", "i2", pcm(3, 5))
    assert track(player, 0.04) == [0] * 10 + [1] * 5 + [2] * 5 + [0] * 10 + [3] * 5 + [0] * 5


def test_what_was_stopped_is_not_in_the_recording() -> None:
    clock = Clock()
    player = Player(now=clock, rate_hz=RATE_HZ)
    player.play("r1", "i1", pcm(1, 10))
    player.play("r1", "i1", pcm(2, 10))
    clock.now_s = 0.004
    cut = player.stop()
    assert cut is not None and cut.played_ms == 4
    player.play("r1", "i1", pcm(3, 10))
    assert track(player, 0.02) == [1] * 4 + [0] * 16
    assert player.refused_ms == {"r1": 10.0}


def test_the_recording_ends_where_it_is_asked_to() -> None:
    player = Player(now=Clock(), rate_hz=RATE_HZ)
    player.play("r1", "i1", pcm(1, 10))
    assert track(player, 0.003) == [1] * 3
    assert track(player, 0.0) == []


def test_an_answer_whose_end_the_server_told_is_silent_from_then_on() -> None:
    clock = Clock()
    player = Player(now=clock, rate_hz=RATE_HZ)
    player.play("r1", "i1", pcm(1, 10))
    clock.now_s = 0.002
    player.stop_response("r1")
    clock.now_s = 0.005
    player.stop_response("r1")
    assert track(player, 0.01) == [1] * 2 + [0] * 8
