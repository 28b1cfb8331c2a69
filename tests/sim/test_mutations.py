"""Safeguards switched off: the list fits the code, and the checkers notice."""

from __future__ import annotations

from pathlib import Path

import pytest

from duologue.sim.board import STARTS, Board, Find, load, save, table
from duologue.sim.checkers import Violation
from duologue.sim.hunt import campaign, hunt
from duologue.sim.mutation import applied, rewritten
from duologue.sim.mutations import MUTATIONS, Edit, Mutation, StaleMutationError, function_of
from duologue.sim.outcome import Outcome, simulate
from duologue.sim.survey import Survey, survey
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


def test_a_seed_that_never_enters_what_was_changed_is_counted_and_not_run() -> None:
    """What a survey says of a seed is what its run says: the hunts with and without it find the same."""
    mutation = next(mutation for mutation in MUTATIONS if mutation.name == "replay repeats the last frame")
    board = Board(limit=8)
    campaign(board, [mutation], starts=STARTS[:1])
    plain = hunt(Board(limit=8), mutation, STARTS[0])
    found = board.find(mutation.name, STARTS[0])
    assert (found.seeds, found.tried, found.rules) == (plain.seeds, plain.tried, plain.rules)
    known = board.survey(STARTS[0])
    assert known.seen == 8 and not known.failed
    worth = known.worth([edit.target for edit in mutation.edits], 0, 8)
    assert 0 < len(worth) < 8
    assert (plain.seeds or 0) - 1 in worth


def test_a_survey_changes_nothing_and_puts_everything_back() -> None:
    code = function_of(MUTATIONS[0].edits[0].target).__code__
    plain = simulate(draw(7))
    entered, failed = survey(7, 0, 1)[0]
    assert entered and not failed
    assert simulate(draw(7)).digest == plain.digest
    assert function_of(MUTATIONS[0].edits[0].target).__code__ is code


def test_a_seed_that_fails_by_itself_proves_nothing() -> None:
    known = Survey(start=10)
    known.add(frozenset({"one"}), failed=True)
    known.add(frozenset({"one", "two"}), failed=False)
    assert known.worth(["one"], 0, 2) == [1]
    assert known.failed == [10]


def test_other_code_makes_a_survey_worthless() -> None:
    board = Board()
    board.at("first")
    board.survey(0).add(frozenset({"one"}), failed=False)
    board.at("first")
    assert board.survey(0).seen == 1
    board.at("second")
    assert board.survey(0).seen == 0


def test_the_documented_table_names_the_safeguards_that_there_are() -> None:
    text = (Path(__file__).parents[2] / "docs" / "simulator.md").read_text()
    section = text.split("## Do the checkers bite?")[1].split("\n## ")[0]
    rows = [line.split("|") for line in section.splitlines() if line.startswith("| ")][1:]
    assert [(row[1].strip(), row[2].strip()) for row in rows] == [(m.name, m.what) for m in MUTATIONS]
    count = next(word for word in section.split() if word.isdigit())
    assert int(count) == len(MUTATIONS)
