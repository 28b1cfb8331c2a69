"""A seed decides everything: the same digest in another process with another hash seed."""

from __future__ import annotations

import os
import subprocess
import sys

from duologue.sim.outcome import simulate
from duologue.sim.swarm import draw

SEEDS = (3, 7, 11, 24, 42, 77)
PROGRAM = """
import sys
from duologue.sim.outcome import simulate
from duologue.sim.swarm import draw
print(" ".join(simulate(draw(int(seed))).digest for seed in sys.argv[1:]))
"""


def test_a_seed_gives_the_same_digest_in_another_process() -> None:
    here = [simulate(draw(seed)).digest for seed in SEEDS]
    environment = {**os.environ, "PYTHONHASHSEED": "4711"}
    arguments = [sys.executable, "-c", PROGRAM, *map(str, SEEDS)]
    there = subprocess.run(arguments, capture_output=True, text=True, check=True, env=environment, timeout=300)
    assert there.stdout.split() == here
    assert len(set(here)) == len(here), "different seeds are different runs"


def test_a_seed_draws_the_same_plan_every_time_and_another_seed_another() -> None:
    assert draw(5) == draw(5)
    assert len({draw(seed).people for seed in range(40)}) == 40
