"""Safeguards switched off: the list fits the code, and the checkers notice."""

from __future__ import annotations

from pathlib import Path

import pytest

from duologue.sim.checkers import Violation
from duologue.sim.mutation import (
    MUTATIONS,
    Board,
    Find,
    StaleMutationError,
    applied,
    function_of,
    hunt,
    load,
    rewritten,
    save,
    table,
)
from duologue.sim.mutations import Edit, Mutation
from duologue.sim.outcome import Outcome, simulate
from duologue.sim.swarm import draw

NOTICED_SOON = ("slice lost", "running count not lowered", "epoch does not move")


def test_each_mutation_still_fits_the_code() -> None:
    for mutation in MUTATIONS:
        for edit in mutation.edits:
            rewritten(edit)
    names = [mutation.name for mutation in MUTATIONS]
    assert len(set(names)) == len(names) >= 25


def test_a_text_that_is_not_in_the_code_is_an_error() -> None:
    with pytest.raises(StaleMutationError, match="0 times"):
        rewritten(Edit("duologue.server.journal:Journal.after", "no such text", "pass"))


@pytest.mark.parametrize("name", NOTICED_SOON)
def test_a_missing_safeguard_is_noticed_and_comes_back(name: str) -> None:
    mutation = next(mutation for mutation in MUTATIONS if mutation.name == name)
    code = function_of(mutation.edits[0].target).__code__
    find = hunt(Board(limit=60), mutation, 0)
    assert find.seeds is not None
    assert find.rules
    assert function_of(mutation.edits[0].target).__code__ is code
    assert not simulate(draw(find.start + find.seeds - 1)).violations, "without the mutation the seed is fine"


def _third_fails(seed: int) -> Outcome:
    found = (Violation("B1", "x"),) if seed % 10 == 3 else ()
    return Outcome(seed=seed, digest="", violations=found, counts={}, session_s=0.0, cpu_s=0.0)


def test_a_hunt_goes_on_where_it_stopped(tmp_path: Path) -> None:
    mutation = Mutation("m", "what", ())
    board = Board(limit=2)
    assert hunt(board, mutation, 10, judge=_third_fails).seeds is None
    save(board, tmp_path / "board.json")
    board = load(tmp_path / "board.json")
    assert "| >2 |" in table(board, [mutation])
    board.limit = 9
    find = hunt(board, mutation, 10, judge=_third_fails)
    assert (find.tried, find.seeds, find.rules) == (4, 4, ("B1",))
    hunt(board, mutation, 22, judge=_third_fails)
    hunt(board, mutation, 34, judge=_third_fails)
    assert "| m | what | 4 | 4, 2, >9 | B1 |" in table(board, [mutation])


def test_a_hunt_without_an_end_never_makes_a_median_smaller() -> None:
    mutation = Mutation("m", "what", ())
    finds = [Find(start=0, tried=1), Find(start=10, tried=8, seeds=8), Find(start=20, tried=5, seeds=5)]
    assert "| m | what | 8 | >1, 8, 5 |" in table(Board(finds={"m": finds}), [mutation])
    finds[1] = Find(start=10, tried=2)
    assert "| m | what | >1 | >1, >2, 5 |" in table(Board(finds={"m": finds}), [mutation])


def test_an_error_inside_puts_everything_back() -> None:
    mutation = MUTATIONS[0]
    codes = [function_of(edit.target).__code__ for edit in mutation.edits]
    with pytest.raises(KeyError), applied(mutation):
        raise KeyError
    assert [function_of(edit.target).__code__ for edit in mutation.edits] == codes
