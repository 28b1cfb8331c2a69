"""Proof that the checkers bite: safeguards switched off one at a time, each of which some seed must notice.

Rules kept here: production code knows nothing of this; a mutation rewrites the source of single functions in this process
and puts them back; a mutation whose text is no longer in the code is an error and not a survivor, so the list stays true.
"""

from __future__ import annotations
import __future__

import importlib
import inspect
import statistics
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Final

import msgspec

from duologue.sim.mutations import MUTATIONS, Edit, Mutation
from duologue.sim.outcome import Outcome, simulate
from duologue.sim.shrink import rules_of
from duologue.sim.swarm import draw

LIMIT: Final = 2_000
STARTS: Final = (0, 100_000, 200_000)


class StaleMutationError(Exception):
    """The code has changed: the text that a mutation replaces is not in it, or more than once."""


class Detection(msgspec.Struct, frozen=True, kw_only=True):
    """How a mutation was found: seeds needed from each start (``None``: not within the limit), and the rules broken."""

    name: str
    what: str
    seeds: tuple[int | None, ...]
    rules: tuple[str, ...]

    @property
    def median(self) -> float | None:
        """Seeds to detection; ``None`` if it was missed from any start."""
        found = [count for count in self.seeds if count is not None]
        return statistics.median(found) if len(found) == len(self.seeds) else None


def function_of(target: str) -> FunctionType:
    """The function that ``package.module:Class.method`` names; a property's getter."""
    module, _, path = target.partition(":")
    found: object = importlib.import_module(module)
    for name in path.split("."):
        found = inspect.getattr_static(found, name)
    if isinstance(found, property):
        found = found.fget
    found = inspect.unwrap(getattr(found, "__func__", found))  # type: ignore[arg-type]
    if not isinstance(found, FunctionType):
        raise StaleMutationError(f"{target} is not a function")
    return found


def rewritten(edit: Edit) -> FunctionType:
    """The function of an edit with its text replaced."""
    function = function_of(edit.target)
    source = textwrap.dedent(inspect.getsource(function))
    if source.count(edit.old) != 1:
        raise StaleMutationError(f"{edit.target} holds {edit.old!r} {source.count(edit.old)} times, not once")
    code = compile(
        source.replace(edit.old, edit.new),
        f"<{edit.target}, mutated>",
        "exec",
        flags=__future__.annotations.compiler_flag,
        dont_inherit=True,
    )
    space = dict(function.__globals__)
    exec(code, space)
    return next(value for name, value in space.items() if name == function.__name__ and isinstance(value, FunctionType))


@contextmanager
def applied(mutation: Mutation) -> Iterator[None]:
    """The mutation is in force inside the block."""
    kept = []
    try:
        for edit in mutation.edits:
            function = function_of(edit.target)
            replacement = rewritten(edit)
            kept.append((function, function.__code__))
            function.__code__ = replacement.__code__
        yield
    finally:
        for function, code in reversed(kept):
            function.__code__ = code


def hunt(
    mutation: Mutation,
    *,
    starts: Sequence[int] = STARTS,
    limit: int = LIMIT,
    judge: Callable[[int], Outcome] = lambda seed: simulate(draw(seed)),
) -> Detection:
    """Run seeds from each start until one notices the mutation."""
    counts: list[int | None] = []
    rules: set[str] = set()
    with applied(mutation):
        for start in starts:
            counts.append(None)
            for number in range(limit):
                broken = rules_of(judge(start + number))
                if broken:
                    counts[-1] = number + 1
                    rules |= broken
                    break
    return Detection(name=mutation.name, what=mutation.what, seeds=tuple(counts), rules=tuple(sorted(rules)))


def table(detections: Sequence[Detection]) -> str:
    """The rows for the documentation."""
    lines = [
        "| Safeguard switched off | What it guards | Median seeds | Each | Rules broken |",
        "|---|---|---|---|---|",
    ]
    for found in detections:
        median = "missed" if found.median is None else f"{found.median:g}"
        each = ", ".join("-" if count is None else str(count) for count in found.seeds)
        lines.append(f"| {found.name} | {found.what} | {median} | {each} | {' '.join(found.rules)} |")
    return "\n".join(lines)


__all__ = ["MUTATIONS", "Detection", "StaleMutationError", "applied", "hunt", "rewritten", "table"]
