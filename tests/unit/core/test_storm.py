"""Random lives of sessions: invariants after each step, nothing left at the end, and the same seed gives the same digest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.engine.duplex.core import calls, lease, lifecycle, responses, state, tail
from duologue.engine.duplex.core.tables import TABLES, Table, advance
from tests.unit.core.harness import World
from tests.unit.core.storm import LIMITED, Storm

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("block", range(10))
def test_storms(block: int) -> None:
    for seed in range(block * 100, block * 100 + 100):
        try:
            Storm(seed).run()
        except Exception as error:
            raise AssertionError(f"storm {seed} failed") from error


@pytest.mark.parametrize("block", range(2))
def test_storms_of_models_whose_context_fills(block: int) -> None:
    for seed in range(block * 100, block * 100 + 100):
        try:
            Storm(seed, LIMITED).run()
        except Exception as error:
            raise AssertionError(f"storm {seed} failed") from error


@given(st.integers(0, 2**32), st.integers(1, 200))
def test_fresh_storms(seed: int, steps: int) -> None:
    Storm(seed).run(steps)


def test_one_seed_one_digest_under_any_hash_seed() -> None:
    digests = set()
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-m", "tests.unit.core.storm", "7", "40"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(done.stdout)
    assert len(digests) == 1


def test_storms_take_every_transition_that_the_tables_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that no life of a session ever takes is either dead or not tested."""
    seen: set[tuple[int, str, str]] = set()

    def noting(table: Table, state: str, event: str) -> str:
        seen.add((id(table), state, event))
        return advance(table, state, event)

    for module in (calls, lease, lifecycle, responses, state, tail):
        monkeypatch.setattr(module, "advance", noting)
    for seed in range(150):
        Storm(seed).run(120)
    unopened = World(opened=False)
    unopened.close()
    missing = [(name, *row) for name, table in TABLES.items() for row in table if (id(table), *row) not in seen]
    assert missing == []
