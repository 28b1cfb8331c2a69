"""A cancel at every await point of engine and server, found by watching: nothing is left open, bound or held.

The same in the ten thousands, to be stopped and gone on with at will: `duologue sim strike`.
"""

from __future__ import annotations

import pytest

from duologue.engine.duplex.session.model_channel import ModelChannel
from duologue.sim.strike import SHARED, Progress, Strike, group, live, plan_of, storm

PLANS = 20
GROUP = 5


@pytest.mark.parametrize("first", range(0, PLANS, GROUP))
def test_behaviour_15_a_cancel_at_any_await_point_leaves_nothing(first: int) -> None:
    """Invariant 25, and all others: every run is judged like any simulated one."""
    failures, struck = [], 0
    for number in range(first, first + GROUP):
        for strike, outcome in group(number):
            struck += any(name.startswith("strike.") for name in outcome.counts)
            failures += [f"plan {number}, {strike}: {found.rule}: {found.text}" for found in outcome.violations]
    assert not failures, "\n".join(failures)
    assert struck >= GROUP * (SHARED - 1) * 0.6


def test_the_points_are_those_at_which_engine_and_server_wait() -> None:
    points: dict[str, int] = {}
    for number in range(6):
        _, watch = live(plan_of(number), None)
        assert watch is not None and watch.count == sum(map(len, watch.points.values()))
        for point, counts in watch.points.items():
            points[point.split()[1]] = points.get(point.split()[1], 0) + len(counts)
    assert {"_read", "_pump", "submit_initial", "submit_update", "abort", "reaper_loop"} <= points.keys()


def test_a_cancel_that_reaches_no_stage_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelChannel, "abort", lambda self, request_ids: None)
    progress = storm(Progress(), runs=30)
    assert any("B25" in failure or "B11" in failure for failure in progress.failures)
    assert progress.runs == 30 and progress.plans == 3


def test_a_run_can_be_repeated() -> None:
    plan, strike = plan_of(2), Strike(at=30, what="input_cancel")
    first, second = live(plan, strike)[0], live(plan, strike)[0]
    assert first.digest == second.digest and first.counts == second.counts
    assert first.counts["strike.input_cancel"] == 1


FOUND = [
    # A commit without an answer withdrew an append on its way; the next one got its number once more.
    (125, Strike(at=57, what="commit", pick=8)),
]


@pytest.mark.parametrize(("number", "strike"), FOUND)
def test_what_was_found_once_is_not_found_again(number: int, strike: Strike) -> None:
    outcome, watch = live(plan_of(number), strike)
    assert watch is not None and watch.struck
    assert not outcome.violations
