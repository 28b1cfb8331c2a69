"""The size of files and functions and the complexity of functions, with the limits of the architecture.

Complexity is McCabe's: one, plus one for each `if`, `elif`, conditional loop, handler and `case`. A `match` whose
every arm is one plain statement (a call, a return, an assignment, a raise) counts as one: it is a table written as
code, and splitting it would hide what `assert_never` proves. Guards count. Docstrings do not count as lines of a
function, since documentation must not compete with code.

`python -m tests.arch.sizes` prints every breach and exits 1 if there is one.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
JUDGED = ("src", "tests", "scripts")
FILE_LINES = 500
FUNCTION_LINES = 70
COMPLEXITY = 10

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_PLAIN_ARM = (
    *(ast.Return, ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign),
    *(ast.Raise, ast.Pass, ast.Continue, ast.Break),
)
_OWN_SCOPE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler)


def breaches(path: Path, text: str) -> list[str]:
    """What in one file is over a limit, as lines for a person."""
    found = []
    lines = text.count("\n") + (not text.endswith("\n"))
    if lines > FILE_LINES:
        found.append(f"{path}: {lines} lines, at most {FILE_LINES}: split it by what it holds")
    for name, function in _functions(ast.parse(text, filename=str(path)), ""):
        length = function_lines(function)
        if length > FUNCTION_LINES:
            found.append(f"{path}:{function.lineno}: {name} has {length} lines, at most {FUNCTION_LINES}")
        branches = complexity(function)
        if branches > COMPLEXITY:
            found.append(f"{path}:{function.lineno}: {name} has complexity {branches}, at most {COMPLEXITY}")
    return found


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, _Function]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            continue  # most of the tree, and no `def` lies in it
        name = prefix
        if isinstance(child, _Function):
            name = f"{prefix}{child.name}"
            yield name, child
            name += "."
        elif isinstance(child, ast.ClassDef):
            name = f"{prefix}{child.name}."
        yield from _functions(child, name)


def function_lines(function: _Function) -> int:
    """Lines from `def` to the last statement, without the docstring."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function, clean=False) is not None:
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def complexity(function: _Function) -> int:
    """McCabe's number for one function; functions inside it are judged on their own."""
    return 1 + sum(_branches(statement) for statement in function.body)


def _branches(node: ast.AST) -> int:
    if isinstance(node, _OWN_SCOPE):
        return 0
    own = _match_branches(node) if isinstance(node, ast.Match) else int(isinstance(node, _BRANCHES))
    return own + sum(_branches(child) for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr))


def _match_branches(match: ast.Match) -> int:
    guards = sum(case.guard is not None for case in match.cases)
    if all(_is_plain_arm(case) for case in match.cases):
        return 1 + guards
    irrefutable = sum(_is_wildcard(case) for case in match.cases)
    return len(match.cases) - irrefutable + guards


def _is_plain_arm(case: ast.match_case) -> bool:
    (first, *rest) = case.body
    return not rest and isinstance(first, _PLAIN_ARM)


def _is_wildcard(case: ast.match_case) -> bool:
    return case.guard is None and isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None


def judged_files(repository: Path = REPOSITORY) -> Iterator[Path]:
    """Every Python file that the limits hold for."""
    for folder in JUDGED:
        for path in sorted((repository / folder).rglob("*.py")):
            if "__pycache__" not in path.parts:
                yield path


def report(paths: Iterable[Path]) -> list[str]:
    """Every breach in these files."""
    return [line for path in paths for line in breaches(path, path.read_text(encoding="utf-8"))]


if __name__ == "__main__":
    found = report(judged_files())
    for line in found:
        print(line.replace(f"{REPOSITORY}/", ""))
    sys.exit(1 if found else 0)
