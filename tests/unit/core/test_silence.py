"""The schedule of silence: the documented formula, and a clock on which acceptance and wishes come in any order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.engine.duplex.core.silence import SilenceClock, compute_silence_continuation_deadline

P = 0.08
times = st.floats(-1e4, 1e4)
maybe = st.one_of(st.none(), times)


def formula(period: float, now: float, last: float | None, current: float | None) -> tuple[float, float]:
    """The text of the specification, word for word."""
    if current is not None:
        d = current
    else:
        base = last if last is not None else now
        d = base + period
    if now - d > period:
        d = now
    return max(0.0, d - now), d + period


@given(st.floats(0.001, 10.0), times, maybe, maybe)
def test_the_formula(period: float, now: float, last: float | None, current: float | None) -> None:
    result = compute_silence_continuation_deadline(
        chunk_period_s=period, now=now, last_submit=last, current_deadline=current
    )
    assert result == formula(period, now, last, current)
    assert result[0] >= 0.0


@pytest.mark.parametrize(
    ("now", "last", "current", "delay", "following"),
    [
        (10.0, None, None, 1.0, 12.0),  # nothing was submitted: one period from now
        (10.25, 10.0, None, 0.75, 12.0),  # one period after the last submission
        (10.5, 10.0, 11.0, 0.5, 12.0),  # later ones advance from the deadline, not from now
        (11.25, 10.0, 11.0, 0.0, 12.0),  # late, but the schedule stands
        (12.0, 10.0, 11.0, 0.0, 12.0),  # exactly one period overdue is not stale
        (12.5, 10.0, 11.0, 0.0, 13.5),  # more is: one at once, and the schedule starts anew
        (99.0, 10.0, None, 0.0, 100.0),
    ],
)
def test_the_documented_cases(
    now: float, last: float | None, current: float | None, delay: float, following: float
) -> None:
    assert compute_silence_continuation_deadline(
        chunk_period_s=1.0, now=now, last_submit=last, current_deadline=current
    ) == (delay, following)


def test_a_wish_is_due_one_period_after_the_last_input_and_asking_twice_changes_nothing() -> None:
    clock = SilenceClock(P)
    clock.accepted(5.0, silence=False)
    clock.want(5.01, "r")
    assert clock.due_at == pytest.approx(5.08)
    clock.want(5.06, "r")
    assert clock.due_at == pytest.approx(5.08)


def test_real_input_starts_the_wait_anew() -> None:
    """Field case F12: the answer is never abandoned for it."""
    clock = SilenceClock(P)
    clock.accepted(5.0, silence=False)
    clock.want(5.01, "r")
    clock.accepted(5.05, silence=False)
    assert clock.due_at == pytest.approx(5.13) and clock.deadline is None


@pytest.mark.parametrize("wished_at", [5.082, 5.085, 5.1, 5.2])
def test_a_wish_that_overtakes_an_acceptance_does_not_double_the_rate(wished_at: float) -> None:
    """The model answers the unit before this one while this one is on its way."""
    clock = SilenceClock(P)
    clock.accepted(5.0, silence=False)
    clock.want(5.01, "r")
    clock.take()
    clock.want(wished_at, "r")
    clock.accepted(5.08, silence=True)
    assert clock.due_at == pytest.approx(5.16) and clock.following == pytest.approx(5.24)


@given(
    st.lists(
        st.tuples(st.floats(0.0, 0.3), st.floats(0.0, 0.1), st.sampled_from(["before", "after", "both"])),
        min_size=1,
        max_size=30,
    )
)
def test_accepted_units_lie_one_period_apart_or_the_schedule_was_stale(lives: list[tuple[float, float, str]]) -> None:
    """Invariant 17. Each unit is submitted ``late`` after it is due, accepted ``slow`` after that, and the next one is wished
    for before or after the acceptance.
    """
    clock = SilenceClock(P)
    clock.accepted(1.0, silence=False)
    clock.want(1.0, "r")
    now = 1.0
    for late, slow, wish in lives:
        assert clock.due_at is not None and clock.following is not None
        scheduled = clock.following - P
        at = max(clock.due_at, now) + late
        clock.take()
        if wish in ("before", "both"):
            clock.want(at + slow / 2, "r")
        clock.accepted(at, silence=True)
        assert clock.deadline == pytest.approx(scheduled + P if at <= scheduled + P else at + P)
        now = at + slow
        clock.want(now, "r")
        assert clock.due_at is not None
        if now <= clock.deadline + P:
            assert clock.due_at == pytest.approx(max(now, clock.deadline) if wish == "after" else clock.deadline)
    assert clock.units == len(lives)


def test_another_owner_counts_its_own_units() -> None:
    clock = SilenceClock(P)
    clock.want(1.0, "a")
    clock.take()
    clock.want(1.1, "a")
    assert clock.units == 1
    clock.take()
    clock.want(1.2, "b")
    assert clock.units == 0


def test_stopping_forgets_the_schedule_and_keeps_the_anchor() -> None:
    clock = SilenceClock(P)
    clock.accepted(5.0, silence=False)
    clock.want(5.0, "r")
    clock.stop()
    assert (clock.due_at, clock.deadline, clock.owner, clock.last_submit) == (None, None, None, 5.0)
