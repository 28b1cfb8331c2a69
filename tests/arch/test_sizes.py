"""Files and functions keep the limits, and the measure tells what is over them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.arch.sizes import COMPLEXITY, FILE_LINES, FUNCTION_LINES, breaches, complexity, judged_files, report


def test_every_file_and_function_keeps_the_limits() -> None:
    paths = list(judged_files())
    assert Path(__file__) in paths
    assert report(paths) == []


def complexity_of(text: str) -> int:
    (function,) = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    return complexity(function)


def function_of(body: list[str]) -> str:
    return "\n".join(["def f(x):", *(f"    {line}" for line in body)]) + "\n"


def dispatch(arms: int, arm: list[str]) -> str:
    cases = [line for number in range(arms) for line in (f"    case {number}:", *(f"        {a}" for a in arm))]
    return function_of(["match x:", *cases, "    case _:", "        assert_never(x)"])


def test_a_dispatching_match_counts_as_one_branch() -> None:
    assert complexity_of(dispatch(30, ["return handle(x)"])) == 2
    assert complexity_of(dispatch(30, ["self.handle(x)"])) == 2


def test_a_match_with_work_in_its_arms_counts_every_arm() -> None:
    assert complexity_of(dispatch(12, ["prepare(x)", "return handle(x)"])) == 13
    assert complexity_of(dispatch(3, ["if x:", "    handle(x)"])) == 1 + 3 + 3


def test_guards_count_even_in_a_dispatching_match() -> None:
    text = function_of(["match x:", "    case 1 if a:", "        g(x)", "    case 1 if b:", "        h(x)"])
    assert complexity_of(text) == 1 + 1 + 2


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (["return x"], 1),
        (["if x:", "    pass", "elif y:", "    pass", "else:", "    pass"], 3),
        (["for a in x:", "    while a:", "        pass"], 3),
        (["async def g():", "    if x:", "        pass", "return g"], 1),
        (["try:", "    g()", "except A:", "    pass", "except B:", "    pass"], 3),
    ],
)
def test_branches_are_counted(body: list[str], expected: int) -> None:
    assert complexity_of(function_of(body)) == expected


def test_a_function_over_the_complexity_limit_is_named() -> None:
    branches = [line for number in range(COMPLEXITY) for line in (f"if x == {number}:", "    pass")]
    assert breaches(Path("m.py"), function_of(branches[:-2])) == []
    (breach,) = breaches(Path("m.py"), f"class A:\n    {function_of(branches).replace(chr(10), chr(10) + '    ')}\n")
    assert "m.py:2: A.f has complexity 11" in breach


def test_a_function_over_the_length_limit_is_named_and_its_docstring_is_not_counted() -> None:
    body = ["g(x)"] * (FUNCTION_LINES - 1)
    assert breaches(Path("m.py"), function_of(['"""One.', "", "Three.", '"""', *body])) == []
    (breach,) = breaches(Path("m.py"), function_of([*body, "g(x)"]))
    assert f"f has {FUNCTION_LINES + 1} lines" in breach


def test_a_file_over_the_length_limit_is_named() -> None:
    assert breaches(Path("m.py"), "x = 1\n" * FILE_LINES) == []
    (breach,) = breaches(Path("m.py"), "x = 1\n" * FILE_LINES + "x = 1")
    assert f"{FILE_LINES + 1} lines" in breach
