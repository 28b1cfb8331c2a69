"""A cancel at every await point of engine, server and client, found by watching: nothing is left open, bound or held.

The same in the ten thousands, to be stopped and gone on with at will: `duologue sim strike`.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

import msgspec
import pytest

from duologue.engine.duplex.session.model_channel import ModelChannel
from duologue.sim.plan import Plan
from duologue.sim.strike import SHARED, Progress, Strike, Suspensions, group, live, storm
from duologue.sim.strike_plan import LATECOMER, THEMES, plan_of
from duologue.sim.suspension import ELSEWHERE, SELDOM, catalogue, elsewhere, suspended_at

GROUP = 3
KEPT = sorted((Path(__file__).parent / "strikes").glob("*.json"))


class Kept(msgspec.Struct, forbid_unknown_fields=True):
    """A plan and the strikes that found something: each list of strikes is a run."""

    why: str
    runs: list[list[Strike]]
    plan: Plan


@pytest.mark.parametrize("first", range(0, len(THEMES), GROUP))
def test_behaviour_15_a_cancel_at_any_await_point_leaves_nothing(first: int) -> None:
    """Invariant 25, and all others: every run is judged like any simulated one, and somebody who comes late is served."""
    progress, struck = Progress(), 0
    for number in range(first, first + GROUP):
        for run in group(number):
            progress.add(number, run)
            struck += bool(run.struck)
    assert not progress.failures, "\n".join(progress.failures)
    assert struck >= GROUP * (SHARED - 1) * 0.7


def test_every_await_point_is_reached_or_it_is_known_why_not() -> None:
    """A new one: let a plan of `sim/strike_plan.py` wait there, or say in `sim/suspension.py` why none can."""
    reached: set[str] = set()
    for number in range(2 * len(THEMES)):
        outcome, watch = live(plan_of(number))
        assert watch is not None and not outcome.violations
        reached |= watch.points.keys()
    names = {point.name for point in catalogue()}
    assert len(names) == len(catalogue())
    assert reached <= names
    assert sorted(names - reached - SELDOM - {name for name in names if elsewhere(name)}) == []


def test_what_is_said_not_to_be_reached_is_there_and_is_not() -> None:
    names = [point.name for point in catalogue()]
    assert set(names) >= SELDOM
    for pattern in ELSEWHERE:
        assert any(fnmatchcase(name, pattern) for name in names), pattern
    assert not [name for name in SELDOM if elsewhere(name)]
    _, watch = live(plan_of(0))
    assert watch is not None and not [name for name in watch.points if elsewhere(name)]


def test_what_a_coroutine_waits_for_is_found_through_all_that_lies_between() -> None:
    """A lane's task, an asynchronous generator, a context manager: whatever is between, the frames lead on."""
    seen: set[str] = set()
    for number in (THEMES.index("calls"), THEMES.index("errands")):
        _, watch = live(plan_of(number))
        assert watch is not None
        seen |= watch.points.keys()
    assert "engine/stage_pool.py StagePool.submit_initial: self._hand_over()" in seen
    assert "engine/stages/piece.py run_piece_async: async for outputs" in seen
    assert suspended_at(object()) == []


def test_a_cancel_that_reaches_no_stage_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelChannel, "abort", lambda self, request_ids: None)
    progress = storm(Progress(plans=3), runs=30)
    assert any("B25" in failure for failure in progress.failures)
    assert progress.runs == 30 and progress.plans == 6


def test_a_server_that_refuses_everybody_after_a_strike_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever comes late must be served."""
    plan = plan_of(0)
    assert any(person.name == LATECOMER for person in plan.people)

    def crowded(watch: Suspensions) -> None:
        watch.world.sites[0].hub.draining = True

    monkeypatch.setattr(Suspensions, "_look", crowded)
    outcome, watch = live(plan, Strike(at=60, what="cancel"))
    assert watch is not None and watch.struck
    assert any("came after the strike" in found.text for found in outcome.violations)


def test_a_run_can_be_repeated() -> None:
    plan, strike = plan_of(0), Strike(at=60, what="input_cancel")
    first, second = live(plan, strike)[0], live(plan, strike)[0]
    assert first.digest == second.digest and first.counts == second.counts
    assert first.counts["strike.input_cancel"] == 1


def test_a_strike_falls_while_its_task_is_suspended() -> None:
    """Recording changes nothing, and a strike is at the point that was counted."""
    _, counted = live(plan_of(1))
    assert counted is not None
    name = "server/shell.py SocketShell._pump: self._wake.wait()"
    at = [count for count in counted.points[name] if count in counted.connected][3]
    _, struck = live(plan_of(1), Strike(at=at, what="cancel"))
    assert struck is not None and [points[-1] for _, points in struck.struck] == [name]


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_what_was_found_once_is_not_found_again(path: Path) -> None:
    kept = msgspec.json.decode(path.read_bytes(), type=Kept)
    for strikes in kept.runs:
        outcome, watch = live(kept.plan, *strikes)
        assert watch is not None and watch.struck
        assert not outcome.violations, kept.why
