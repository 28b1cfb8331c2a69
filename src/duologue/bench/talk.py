"""What a minute of simulated talk costs: ``python -m duologue.bench.talk [RUNS]``.

One person says a sentence of 1.2 s every three seconds, for three minutes, in appends of 80 ms, and every one is answered:
nothing is idle. The families take turns, so that a loaded machine slows them alike; CPU time is taken, and the best of RUNS
counts. What living takes and what judging takes is told apart. Everything runs in one process, in virtual time.
"""

from __future__ import annotations

import sys
import time
from typing import Final, NamedTuple

from duologue.sim.outcome import judged, live
from duologue.sim.plan import Deployment, Family, Person, Plan, Say

RUNS: Final = 5
SENTENCES: Final = 60
LOUD_MS: Final = 1200
QUIET_MS: Final = 1800
FAMILIES: Final[tuple[Family, ...]] = ("ephemeral", "resident")


class Cost(NamedTuple):
    """CPU seconds of one run, and how long its sessions were, in minutes of virtual time."""

    live_s: float
    judge_s: float
    session_min: float

    @property
    def rate(self) -> float:
        """Session minutes per CPU second."""
        return self.session_min / (self.live_s + self.judge_s)


def plan(family: Family, seed: int, sentences: int) -> Plan:
    """So much talk, three seconds a sentence."""
    voice = tuple(Say(loud_ms=LOUD_MS, quiet_ms=QUIET_MS) for _ in range(sentences))
    return Plan(seed=seed, deployments=(Deployment(family=family),), people=(Person(name="ann", voice=voice),))


def measure(family: Family, seed: int, sentences: int = SENTENCES) -> Cost:
    """Live and judge one talk. Raises ``RuntimeError`` if anything was wrong with it: then its cost says nothing."""
    talk = plan(family, seed, sentences)
    begin = time.process_time()
    world, found = live(talk)
    lived = time.process_time()
    outcome = judged(talk, world, found, begin)
    if outcome.violations:
        raise RuntimeError(f"{family}, seed {seed}: {outcome.violations[0].text}")
    return Cost(lived - begin, time.process_time() - lived, outcome.session_s / 60)


def main() -> None:
    """Measure and print, one line for each family."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    measure(FAMILIES[0], 0)  # imports and first calls
    costs: dict[Family, list[Cost]] = {family: [] for family in FAMILIES}
    for seed in range(runs):
        for family in FAMILIES:
            costs[family].append(measure(family, seed))
    for family, taken in costs.items():
        best = max(taken, key=lambda cost: cost.rate)
        worst = min(cost.rate for cost in taken)
        print(
            f"{family}: {best.rate:.2f} session minutes per CPU second (worst of {runs}: {worst:.2f}); "
            f"{best.session_min:.1f} minutes took {best.live_s:.2f} s to live, {best.judge_s:.2f} s to judge"
        )


if __name__ == "__main__":
    main()
