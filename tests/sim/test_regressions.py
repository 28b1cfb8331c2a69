"""Every plan that once failed runs without a violation."""

from __future__ import annotations

from pathlib import Path

import pytest

from duologue.sim.outcome import simulate
from duologue.sim.regression import load

FOLDER = Path(__file__).parent / "regressions"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_a_plan_that_failed_is_fine(path: Path) -> None:
    outcome = simulate(load(path).plan)
    assert outcome.violations == ()
