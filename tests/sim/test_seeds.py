"""The simulator's share of every test run: fixed seeds, and fresh ones that belong to the commit."""

from __future__ import annotations

from pathlib import Path

import pytest

from duologue.sim.fresh import commit_of, fresh_seeds
from duologue.sim.outcome import simulate
from duologue.sim.swarm import draw

FIXED = 120
FRESH = 120
GROUP = 20
COMMIT = commit_of(Path(__file__).parent)
SEEDS = [*range(FIXED), *fresh_seeds(COMMIT, FRESH)]


@pytest.mark.parametrize("first", range(0, len(SEEDS), GROUP))
def test_nothing_is_violated(first: int) -> None:
    failures = []
    for seed in SEEDS[first : first + GROUP]:
        outcome = simulate(draw(seed))
        failures += [f"seed {seed}: {violation.rule}: {violation.text}" for violation in outcome.violations]
    lines = "\n".join(failures)
    assert not failures, (
        f"{lines}\n\nSee what happened: duologue sim replay SEED; make it smaller: duologue sim shrink SEED"
    )
