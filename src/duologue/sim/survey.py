"""Which seeds reach a function at all: one that does not cannot notice what was changed in it, and need not be run for that.

Rules kept here: a seed is surveyed without any mutation, and fails or not as it does everywhere; its seed decides a run, so
that a run with a mutation whose functions it never enters is that very run again.
"""

from __future__ import annotations
import __future__

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import CodeType
from typing import Final

import msgspec

from duologue.sim.mutations import MUTATIONS, function_of
from duologue.sim.outcome import Outcome, simulate
from duologue.sim.swarm import draw

_MARK: Final = "_entered_by_this_run"


class Survey(msgspec.Struct, kw_only=True):
    """The first ``seen`` seeds from a start; ``reached``: which of them (counted from 0) enter a function, by its name.

    ``failed`` are seeds at which something is wrong without a mutation: they prove nothing, and must be looked at.
    """

    start: int
    seen: int = 0
    reached: dict[str, list[int]] = {}
    failed: list[int] = []

    def add(self, entered: frozenset[str], *, failed: bool) -> None:
        """The next seed."""
        for target in sorted(entered):
            self.reached.setdefault(target, []).append(self.seen)
        if failed:
            self.failed.append(self.start + self.seen)
        self.seen += 1

    def worth(self, targets: Sequence[str], first: int, last: int) -> list[int]:
        """Of the seeds from ``first`` to before ``last`` those that enter one of these functions and are fine as they are."""
        wanted = {seed for target in targets for seed in self.reached.get(target, ()) if first <= seed < last}
        return sorted(seed for seed in wanted if self.start + seed not in self.failed)


def targets() -> tuple[str, ...]:
    """Every function that some mutation changes."""
    return tuple(sorted({edit.target for mutation in MUTATIONS for edit in mutation.edits}))


@contextmanager
def watched(names: Sequence[str]) -> Iterator[set[str]]:
    """Inside the block functions note that they are entered; what is yielded grows, and may be emptied between two runs."""
    entered: set[str] = set()
    kept = []
    try:
        for name in names:
            function = function_of(name)
            kept.append((function, function.__code__))
            function.__globals__[_MARK] = entered.add
            function.__code__ = _noting(name)
        yield entered
    finally:
        for function, code in reversed(kept):
            function.__code__ = code
            function.__globals__.pop(_MARK, None)


def _noting(name: str) -> CodeType:
    """The code of a function that first notes its name."""
    function = function_of(name)
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef)
    definition.decorator_list.clear()
    note = ast.parse(f"{_MARK}({name!r})").body[0]
    definition.body.insert(1 if ast.get_docstring(definition) is not None else 0, note)
    flags = __future__.annotations.compiler_flag
    module = compile(ast.fix_missing_locations(tree), f"<{name}, watched>", "exec", flags=flags, dont_inherit=True)
    return next(code for code in module.co_consts if isinstance(code, CodeType) and code.co_name == function.__name__)


def survey(
    start: int,
    first: int,
    last: int,
    judge: Callable[[int], Outcome] = lambda seed: simulate(draw(seed)),
) -> list[tuple[frozenset[str], bool]]:
    """What each of the seeds ``start + first`` to before ``start + last`` enters, and whether it fails."""
    found = []
    with watched(targets()) as entered:
        for seed in range(start + first, start + last):
            entered.clear()
            failed = judge(seed).failed
            found.append((frozenset(entered), failed))
    return found
