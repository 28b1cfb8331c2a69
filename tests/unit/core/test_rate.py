"""How often a client may ask for turns and responses, taken back or not: a bucket of tokens per session (decision 27)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.allowance import Allowance
from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.commands import CancelInput, CancelResponse, CommitAudio, CreateResponse
from duologue.engine.duplex.events import ErrorRaised, InputCleared, InputCommitted, ResponseCreated
from duologue.errors import ErrorCode
from tests.unit.core.harness import MANUAL, VAD, World, audio

BURST = 5
LIMITS = DuplexSessionRuntimeConfig(turn_burst=BURST, turns_per_minute=60)


def commit_and_cancel(world: World, event_id: str) -> None:
    world.append(audio("S" * 10))
    world.send(CommitAudio(create_response=True, event_id=event_id))
    world.send(CancelInput())


def create_and_cancel(world: World, event_id: str) -> None:
    world.send(CreateResponse(event_id=event_id))
    world.send(CancelResponse())


def refusals(world: World) -> list[str | None]:
    return [error.event_id for error in world.of(ErrorRaised) if error.code is ErrorCode.RATE_LIMITED]


@pytest.mark.parametrize("loop", [commit_and_cancel, create_and_cancel])
@pytest.mark.parametrize("asked", [BURST - 1, BURST, BURST + 1])
def test_a_burst_is_accepted_and_what_exceeds_it_is_refused(loop: Callable[[World, str], None], asked: int) -> None:
    world = World(MANUAL, runtime=LIMITS)
    world.append(audio("S" * 20))
    world.send(CommitAudio())
    world.advance(60.0)  # something to answer, and the bucket is full again
    for number in range(min(asked, BURST)):
        loop(world, f"e{number}")
    assert refusals(world) == []
    before = len(world.submits)
    for number in range(BURST, asked):
        loop(world, f"e{number}")
    assert refusals(world) == [f"e{number}" for number in range(BURST, asked)]
    assert len(world.submits) == before, "the stages hear nothing of what is refused"
    if asked > BURST:
        assert any("the next one is in 1.0 s" in error.message for error in world.of(ErrorRaised))
        world.advance(1.0)
        loop(world, "in time")
        loop(world, "too soon")
        assert refusals(world)[-1] == "too soon" and "in time" not in refusals(world)


def test_a_refused_commit_loses_nothing() -> None:
    world = World(MANUAL, runtime=DuplexSessionRuntimeConfig(turn_burst=1, turns_per_minute=60))
    world.append(audio("S" * 10))
    world.send(CommitAudio())
    world.append(audio("S" * 12))
    world.send(CommitAudio(event_id="e"))
    assert world.last(ErrorRaised).event_id == "e" and len(world.of(InputCommitted)) == 1
    world.advance(1.0)
    world.send(CommitAudio())
    last = world.last(InputCommitted).item.item_id
    assert world.state.committed[last].audio == audio("S" * 12)


def test_cancelling_input_again_and_again_starts_nothing_again() -> None:
    """Words that are still being recognised belong to committed turns, which a cancel of the input leaves alone."""
    world = World(MANUAL)
    for _ in range(3):
        world.append(audio("S" * 10))
        world.send(CommitAudio())
    assert len(world.submits) == 3
    for _ in range(100):
        world.send(CancelInput())
    assert len(world.submits) == 3 and not world.aborted
    assert len(world.of(InputCleared)) == 100


def test_turns_that_detection_ends_are_not_counted() -> None:
    """Decision 15: what is heard depends on the samples alone, however fast they come."""
    world = World(VAD, runtime=DuplexSessionRuntimeConfig(turn_burst=1, turns_per_minute=1))
    for _ in range(5):
        world.say("S" * 20 + "." * 30)
        world.reply("Yes.", 10)
        world.now += 0.001
    assert len(world.of(InputCommitted)) == 5 and not world.of(ErrorRaised)
    assert len(world.of(ResponseCreated)) >= 1


def test_without_a_limit_anything_goes() -> None:
    world = World(MANUAL, runtime=DuplexSessionRuntimeConfig(turn_burst=1, turns_per_minute=None))
    for number in range(60):  # in no time at all
        commit_and_cancel(world, f"e{number}")
    assert refusals(world) == []


@pytest.mark.parametrize("values", [{"turns_per_minute": 0}, {"turn_burst": 0}, {"turns_per_minute": -1}])
def test_limits_that_allow_nothing_are_refused_by_name(values: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=f"sessions.{next(iter(values))} must be greater than 0"):
        DuplexSessionRuntimeConfig(**values)


@given(
    per_minute=st.integers(1, 6_000),
    burst=st.integers(1, 50),
    gaps_ms=st.lists(st.integers(0, 3_000), min_size=1, max_size=200),
)
def test_in_no_span_more_than_the_burst_and_what_the_span_earns(
    per_minute: int, burst: int, gaps_ms: list[int]
) -> None:
    allowance = Allowance(per_minute, burst)
    now, taken = 1_000.0, []
    for gap_ms in gaps_ms:
        now += gap_ms / 1_000
        wait_s = allowance.wait_s(now)
        assert allowance.take(now) is (wait_s == 0)
        if wait_s == 0:
            taken.append(now)
        else:
            assert 0 < wait_s <= 60 / per_minute + 1e-6, "one is always near"
    for first, since in enumerate(taken):
        for last in range(first, len(taken)):
            earned = (taken[last] - since) * per_minute / 60
            assert last - first + 1 <= burst + earned + 1e-6
    assert len(taken) >= min(burst, len(gaps_ms))
