"""What is known of each mutation: the state of a long hunt, and the table for the documentation."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from duologue.sim.mutations import MUTATIONS, Mutation
from duologue.sim.survey import Survey

LIMIT: Final = 2_000
STARTS: Final = (0, 100_000, 200_000)  # disjoint ranges, so that no lucky seed counts twice


class Find(msgspec.Struct, kw_only=True):
    """One hunt for a mutation: from ``start`` on ``tried`` seeds were looked at; ``seeds`` of them were needed to notice it.

    ``seeds`` is ``None`` as long as nothing was noticed. ``rules`` are those that were broken; ``commit`` was tried. A seed
    that never enters what was changed is counted and not run: it is known what comes of it.
    """

    start: int
    tried: int = 0
    seeds: int | None = None
    rules: tuple[str, ...] = ()
    commit: str = ""


class Board(msgspec.Struct, kw_only=True):
    """What is known of each mutation, by name, and of the seeds that are hunted with. ``cpu_s``: what it cost in all."""

    limit: int = LIMIT
    finds: dict[str, list[Find]] = {}
    surveys: list[Survey] = []
    commit: str = ""  # of the surveys
    cpu_s: float = 0.0

    def find(self, name: str, start: int) -> Find:
        """The hunt for a mutation from a start, begun if it was not."""
        finds = self.finds.setdefault(name, [])
        known = next((find for find in finds if find.start == start), None)
        if known is None:
            known = Find(start=start)
            finds.append(known)
        return known

    def survey(self, start: int) -> Survey:
        """What is known of the seeds from a start."""
        known = next((survey for survey in self.surveys if survey.start == start), None)
        if known is None:
            known = Survey(start=start)
            self.surveys.append(known)
        return known

    def over(self, find: Find) -> bool:
        """Whether nothing more is to be learnt from this hunt."""
        return find.seeds is not None or find.tried >= self.limit

    def at(self, commit: str) -> None:
        """The code is that of ``commit``: what was found out about seeds under other code is forgotten."""
        if self.commit != commit:
            self.surveys, self.commit = [], commit


def load(path: Path) -> Board:
    """The state in a file; a fresh one if there is none. Raises ``msgspec.ValidationError`` for anything else."""
    return msgspec.json.decode(path.read_bytes(), type=Board) if path.exists() else Board()


def save(board: Board, path: Path) -> None:
    """Write the state, whole or not at all."""
    beside = path.with_suffix(".tmp")
    beside.write_bytes(msgspec.json.encode(board))
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
