"""Proof that the checkers bite: mutations in force, seed after seed, until something is noticed.

Rules kept here: which seeds a hunt counts depends on where it starts alone, so that a hunt that was stopped goes on as if it
had not been; all mutations are hunted a little deeper in turn, so that those that take long wait for those that do not.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.pool
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Final, TypeVar

import msgspec

from duologue.sim.board import Board, Find
from duologue.sim.mutation import applied
from duologue.sim.mutations import MUTATIONS, Mutation
from duologue.sim.outcome import Outcome, simulate
from duologue.sim.shrink import rules_of
from duologue.sim.survey import survey
from duologue.sim.swarm import draw

DEPTHS: Final = (25, 100, 300, 700, 1_300, 2_000)
"""How deep everything is hunted before anything is hunted deeper."""

_PIECE: Final = 5  # seeds that one process surveys at a time

Judge = Callable[[int], Outcome]
_Work = TypeVar("_Work")
_Result = TypeVar("_Result")


class _Chase(msgspec.Struct, frozen=True, kw_only=True):
    """Seeds to run with a mutation in force, counted from the start; up to ``depth`` all others are known."""

    name: str
    start: int
    seeds: tuple[int, ...]
    depth: int
    until: float


class _Chased(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    start: int
    tried: int
    rules: tuple[str, ...]
    cpu_s: float


class _Look(msgspec.Struct, frozen=True, kw_only=True):
    """Seeds to survey."""

    start: int
    first: int
    last: int


def hunt(
    board: Board,
    mutation: Mutation,
    start: int,
    *,
    commit: str = "",
    judge: Judge = lambda seed: simulate(draw(seed)),
) -> Find:
    """Run every seed from ``start`` until one notices the mutation or the limit is reached."""
    find = board.find(mutation.name, start)
    with applied(mutation):
        while not board.over(find):
            broken = rules_of(judge(start + find.tried))
            find.tried += 1
            find.commit = commit
            if broken:
                find.seeds, find.rules = find.tried, tuple(sorted(broken))
    return find


def campaign(
    board: Board,
    wanted: Sequence[Mutation],
    *,
    starts: Sequence[int],
    jobs: int = 1,
    until: float = float("inf"),
    saved: Callable[[Find, str], None] = lambda find, name: None,
) -> None:
    """Hunt for all of them from every start, until everything is known or ``until`` (of the monotonic clock).

    ``saved`` is called whenever something more is known of a hunt.
    """
    with ExitStack() as stack:
        pool = stack.enter_context(multiprocessing.get_context("spawn").Pool(jobs)) if jobs > 1 else None
        for depth in (*(depth for depth in DEPTHS if depth < board.limit), board.limit):
            for start in starts:
                _deeper(board, wanted, start, depth, until, pool, saved)


def _deeper(
    board: Board,
    wanted: Sequence[Mutation],
    start: int,
    depth: int,
    until: float,
    pool: multiprocessing.pool.Pool | None,
    saved: Callable[[Find, str], None],
) -> None:
    finds = {mutation.name: board.find(mutation.name, start) for mutation in wanted}
    left = [m for m in wanted if not board.over(finds[m.name]) and finds[m.name].tried < depth]
    if not left or time.monotonic() >= until:
        return
    known = board.survey(start)
    looks = [
        _Look(start=start, first=first, last=min(first + _PIECE, depth)) for first in range(known.seen, depth, _PIECE)
    ]
    for found, cpu_s in _each(pool, _look, looks):
        board.cpu_s += cpu_s
        for entered, failed in found:
            known.add(entered, failed=failed)
        if time.monotonic() >= until:
            return  # what else was surveyed is surveyed again: it is not in order any more
    chases = []
    for mutation in left:
        seeds = known.worth([edit.target for edit in mutation.edits], finds[mutation.name].tried, depth)
        chases.append(_Chase(name=mutation.name, start=start, seeds=tuple(seeds), depth=depth, until=until))
    for chased in _each(pool, _chase, chases):
        find = finds[chased.name]
        find.tried, find.commit = chased.tried, board.commit
        board.cpu_s += chased.cpu_s
        if chased.rules:
            find.seeds, find.rules = chased.tried, chased.rules
        saved(find, chased.name)


def _each(
    pool: multiprocessing.pool.Pool | None, work: Callable[[_Work], _Result], items: Sequence[_Work]
) -> Iterator[_Result]:
    yield from map(work, items) if pool is None else pool.imap(work, items)


def _look(look: _Look) -> tuple[list[tuple[frozenset[str], bool]], float]:
    begin = time.process_time()
    return survey(look.start, look.first, look.last), time.process_time() - begin


def _chase(chase: _Chase) -> _Chased:
    begin = time.process_time()
    mutation = next(mutation for mutation in MUTATIONS if mutation.name == chase.name)
    tried, rules = chase.depth, frozenset[str]()
    with applied(mutation):
        for seed in chase.seeds:
            if time.monotonic() >= chase.until:
                tried = seed
                break
            rules = rules_of(simulate(draw(chase.start + seed)))
            if rules:
                tried = seed + 1
                break
    return _Chased(
        name=chase.name,
        start=chase.start,
        tried=tried,
        rules=tuple(sorted(rules)),
        cpu_s=time.process_time() - begin,
    )
