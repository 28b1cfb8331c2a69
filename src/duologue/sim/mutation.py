"""Proof that the checkers bite: safeguards switched off one at a time, each of which some seed must notice.

Rules kept here: production code knows nothing of this; a mutation rewrites the source of single functions in this process
and puts them back; a mutation whose text is no longer in the code is an error and not a survivor, so the list stays true.
"""

from __future__ import annotations
import __future__

import importlib
import inspect
import os
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType
from typing import Final

import msgspec

from duologue.sim.mutations import MUTATIONS, Edit, Mutation
from duologue.sim.outcome import Outcome, simulate
from duologue.sim.shrink import rules_of
from duologue.sim.swarm import draw

LIMIT: Final = 2_000
STARTS: Final = (0, 100_000, 200_000, 300_000, 400_000)  # disjoint ranges, so that no lucky seed counts twice

PATIENCE_S: Final = (15.0, 60.0, float("inf"))
"""How long one hunt goes on, first, then, and at last, before the others get their turn."""


class StaleMutationError(Exception):
    """The code has changed: the text that a mutation replaces is not in it, or more than once."""


class Find(msgspec.Struct, kw_only=True):
    """One hunt for a mutation: from ``start`` on ``tried`` seeds were run; ``seeds`` of them were needed to notice it.

    ``seeds`` is ``None`` as long as nothing was noticed. ``rules`` are those that were broken; ``commit`` was tried.
    """

    start: int
    tried: int = 0
    seeds: int | None = None
    rules: tuple[str, ...] = ()
    commit: str = ""


class Board(msgspec.Struct, kw_only=True):
    """What is known of each mutation, by name: the state of a long hunt."""

    limit: int = LIMIT
    finds: dict[str, list[Find]] = {}

    def find(self, name: str, start: int) -> Find:
        """The hunt for a mutation from a start, begun if it was not."""
        finds = self.finds.setdefault(name, [])
        known = next((find for find in finds if find.start == start), None)
        if known is None:
            known = Find(start=start)
            finds.append(known)
        return known

    def over(self, find: Find) -> bool:
        """Whether nothing more is to be learnt from this hunt."""
        return find.seeds is not None or find.tried >= self.limit


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
    board: Board,
    mutation: Mutation,
    start: int,
    *,
    commit: str = "",
    seconds: float | None = None,
    judge: Callable[[int], Outcome] = lambda seed: simulate(draw(seed)),
) -> Find:
    """Run seeds from ``start`` until one notices the mutation, the limit is reached or ``seconds`` have passed."""
    find = board.find(mutation.name, start)
    begin = time.monotonic()
    with applied(mutation):
        while not board.over(find) and (seconds is None or time.monotonic() - begin < seconds):
            broken = rules_of(judge(start + find.tried))
            find.tried += 1
            find.commit = commit
            if broken:
                find.seeds, find.rules = find.tried, tuple(sorted(broken))
    return find


def load(path: Path) -> Board:
    """The state in a file; a fresh one if there is none. Raises ``msgspec.ValidationError`` for anything else."""
    return msgspec.json.decode(path.read_bytes(), type=Board) if path.exists() else Board()


def save(board: Board, path: Path) -> None:
    """Write the state, whole or not at all."""
    beside = path.with_suffix(".tmp")
    beside.write_bytes(msgspec.json.format(msgspec.json.encode(board), indent=1))
    os.replace(beside, path)


def _median(finds: Sequence[Find]) -> str:
    """The middle of the hunts, in seeds; one that came to no end counts as the longest, so that it never flatters."""
    if not finds:
        return "-"
    middle = sorted(finds, key=lambda find: (find.seeds is None, find.seeds or find.tried))[(len(finds) - 1) // 2]
    return f">{middle.tried}" if middle.seeds is None else str(middle.seeds)


def table(board: Board, mutations: Sequence[Mutation] = MUTATIONS) -> str:
    """The rows for the documentation. A hunt that came to no end shows how many seeds noticed nothing."""
    lines = [
        "| Safeguard switched off | What it guards | Median | Seeds, from each start | Rules broken |",
        "|---|---|---|---|---|",
    ]
    for mutation in mutations:
        finds = sorted(board.finds.get(mutation.name, ()), key=lambda find: find.start)
        each = ", ".join(f">{find.tried}" if find.seeds is None else str(find.seeds) for find in finds)
        median = _median(finds)
        rules = " ".join(sorted({rule for find in finds for rule in find.rules}))
        lines.append(f"| {mutation.name} | {mutation.what} | {median} | {each} | {rules} |")
    return "\n".join(lines)


__all__ = ["MUTATIONS", "Board", "Find", "StaleMutationError", "applied", "hunt", "load", "rewritten", "save", "table"]
