"""Every rule that stays, every case from the field and every invariant has its test or its checker (see `kept.py`)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from duologue.sim.invariants import INVARIANTS
from tests.arch.kept import DECISIONS, DOCUMENTED, FIELD_CASES, RULES
from tests.arch.test_documented_api import MANAGER_METHODS, PORT_METHODS, RUNNER_METHODS, SEAMS

TESTS = Path(__file__).resolve().parents[1]


@cache
def names() -> frozenset[str]:
    """Every test function there is."""
    return frozenset(name for path in sorted(TESTS.rglob("test_*.py")) for name in _tests(path))


def _tests(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            marks = ast.unparse(ast.Module(body=list(node.decorator_list), type_ignores=[]))  # type: ignore[arg-type]
            if "skip" not in marks and "xfail" not in marks:
                yield node.name


def having(beginning: str) -> list[str]:
    return [name for name in names() if name.startswith(beginning)]


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_that_stays_has_its_tests(rule: str) -> None:
    section = rule.split()[0]
    assert RULES[rule]
    for beginning in RULES[rule]:
        assert beginning.startswith((f"test_behaviour_{section}_", "test_decision_"))
        assert having(beginning), f"{rule}: no test begins with {beginning}"


def test_every_test_of_a_rule_is_listed() -> None:
    listed = tuple(beginning for beginnings in RULES.values() for beginning in beginnings)
    assert [
        name for name in sorted(names()) if name.startswith("test_behaviour_") and not name.startswith(listed)
    ] == []


@pytest.mark.parametrize("case", FIELD_CASES)
def test_every_case_from_the_field_is_a_test(case: int) -> None:
    assert having(f"test_field_F{case:02}_")


@pytest.mark.parametrize("decision", DECISIONS)
def test_every_decision_is_a_test(decision: int) -> None:
    assert having(f"test_decision_{decision:02}_") or having(f"test_decision_{decision}_")


def test_every_invariant_has_a_checker() -> None:
    """What each asserts, and that it fires, is for ``tests/sim/test_invariants.py`` to prove."""
    assert [invariant.number for invariant in INVARIANTS] == list(range(1, 26))
    assert all(invariant.checkers for invariant in INVARIANTS)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_documented_name_has_a_test_of_what_it_does(name: str) -> None:
    assert DOCUMENTED[name]
    assert [test for test in DOCUMENTED[name] if test not in names()] == []


def test_no_documented_name_is_forgotten() -> None:
    owners = {
        "DuplexSessionManager": MANAGER_METHODS,
        "DuplexSessionRunner": [*RUNNER_METHODS, "closing", "closed_emitted"],
        "DuplexStagePort": PORT_METHODS,
        "DuplexOrchestrator": SEAMS,
    }
    wanted = {f"{owner}.{name}" for owner, methods in owners.items() for name in methods}
    assert wanted - DOCUMENTED.keys() == set()
