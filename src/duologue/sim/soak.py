"""Many seeds: in chunks, on several cores, with a state file from which a long run goes on where it was stopped.

Rules kept here: which seeds are run depends on their numbers alone, so that a run that was stopped and resumed is the same
run; a failing seed does not stop the others; what was exercised is added up over all of them.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.pool
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import msgspec

from duologue.sim.outcome import Outcome, simulate
from duologue.sim.swarm import draw

CHUNK: Final = 100
PIECE: Final = 10  # what one process takes at a time


class Failure(msgspec.Struct, frozen=True):
    """A seed that failed, and how."""

    seed: int
    rules: tuple[str, ...]
    text: str


class Progress(msgspec.Struct, kw_only=True):
    """How far a long run has come. ``next_seed`` is the first that was not run; ``session_s`` and ``cpu_s`` are sums."""

    first_seed: int
    next_seed: int
    seeds: int = 0
    session_s: float = 0.0
    cpu_s: float = 0.0
    wall_s: float = 0.0
    counts: dict[str, int] = {}
    failures: list[Failure] = []

    def add(self, outcome: Outcome) -> None:
        """One more seed."""
        self.seeds += 1
        self.session_s += outcome.session_s
        self.cpu_s += outcome.cpu_s
        counts = Counter(self.counts)
        counts.update(outcome.counts)
        self.counts = dict(counts)
        if outcome.failed:
            rules = tuple(dict.fromkeys(violation.rule for violation in outcome.violations))
            self.failures.append(Failure(outcome.seed, rules, outcome.violations[0].text[:300]))


def load(path: Path, first_seed: int) -> Progress:
    """The state in a file; a fresh one if there is none. Raises ``ValueError`` for the state of another run."""
    if not path.exists():
        return Progress(first_seed=first_seed, next_seed=first_seed)
    progress = msgspec.json.decode(path.read_bytes(), type=Progress)
    if progress.first_seed != first_seed:
        raise ValueError(f"{path} belongs to a run from seed {progress.first_seed}, not from {first_seed}")
    return progress


def save(progress: Progress, path: Path) -> None:
    """Write the state, whole or not at all."""
    beside = path.with_suffix(".tmp")
    beside.write_bytes(msgspec.json.format(msgspec.json.encode(progress), indent=1))
    os.replace(beside, path)


def run_seeds(
    seeds: range, pool: multiprocessing.pool.Pool | None = None, also: frozenset[str] = frozenset()
) -> Iterator[Outcome]:
    """The outcomes of some seeds, in order; without a pool in this process."""
    if pool is None:
        for seed in seeds:
            yield simulate(draw(seed, also))
        return
    pieces = [(seeds[start : start + PIECE], also) for start in range(0, len(seeds), PIECE)]
    for outcomes in pool.imap(_piece, pieces):
        yield from outcomes


def _piece(work: tuple[range, frozenset[str]]) -> list[Outcome]:
    seeds, also = work
    return [simulate(draw(seed, also)) for seed in seeds]


def soak(
    progress: Progress,
    *,
    seeds: int,
    jobs: int = 1,
    minutes: float | None = None,
    also: frozenset[str] = frozenset(),
    saved: Callable[[Progress], None] = lambda _: None,
) -> Progress:
    """Run on until ``seeds`` seeds are done in all, or ``minutes`` have passed; ``saved`` is called after each chunk."""
    begin = time.monotonic()
    last = progress.first_seed + seeds
    with ExitStack() as stack:
        pool = stack.enter_context(multiprocessing.get_context("spawn").Pool(jobs)) if jobs > 1 else None
        while progress.next_seed < last and (minutes is None or time.monotonic() - begin < minutes * 60):
            chunk = range(progress.next_seed, min(progress.next_seed + CHUNK, last))
            started = time.monotonic()
            for outcome in run_seeds(chunk, pool, also):
                progress.add(outcome)
            progress.next_seed = chunk.stop
            progress.wall_s += time.monotonic() - started
            saved(progress)
    return progress
