"""Running a plan, and what came of it."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from duologue.sim.checkers import Evidence, SiteEvidence, Violation, counters, judge
from duologue.sim.coverage import tally
from duologue.sim.loop import SimulationError, VirtualRuntime, run
from duologue.sim.plan import Plan
from duologue.sim.trace import Trace
from duologue.sim.twin import alone, compare, compare_errands, errands_alone
from duologue.sim.world import World

LIMIT_S: Final = 3_600.0


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one run. ``session_s``: virtual seconds of sessions that were open; ``cpu_s``: what it cost."""

    seed: int
    digest: str
    violations: tuple[Violation, ...]
    counts: dict[str, int]
    session_s: float
    cpu_s: float

    @property
    def failed(self) -> bool:
        """Whether anything was wrong."""
        return bool(self.violations)


@contextmanager
def quiet() -> Iterator[None]:
    """Without the logs of the system under test: faults are wanted here, and there are many."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def live(
    plan: Plan, prepare: Callable[[VirtualRuntime, World], None] | None = None
) -> tuple[World | None, list[Violation]]:
    """Run a plan; the world as it ended, and what its own bookkeeping found wrong. ``prepare``: before it begins."""
    worlds: list[World] = []
    violations: list[Violation] = []

    async def main(runtime: VirtualRuntime) -> None:
        world = World(runtime, plan)
        worlds.append(world)
        if prepare is not None:
            prepare(runtime, world)
        await world.live()

    with quiet():
        try:
            run(main, seed=plan.seed, limit_s=LIMIT_S, shuffle=plan.shuffle)
        except SimulationError as fault:
            violations.append(Violation(type(fault).__name__, str(fault)))
        except Exception as fault:
            violations.append(Violation("crash", f"{type(fault).__name__}: {fault}"))
    world = worlds[0] if worlds else None
    if world is not None:
        violations += [Violation("L1", text) for text in world.left_over]
    return world, violations


def evidence_of(world: World) -> Evidence:
    """What the checkers may see of a world."""
    crashed = {shutdown.deployment for shutdown in world.plan.shutdowns if shutdown.crash}
    return Evidence(
        plan=world.plan,
        sites=[
            SiteEvidence(
                plan=site.plan,
                seen=site.seen,
                max_sessions=site.config.max_sessions,
                by_groups=site.config.replica_policy != "legacy",
                idle_ttl_s=site.config.idle_ttl_s,
                grace_s=site.config.disconnect_grace_s,
                send_ahead_ms=site.config.send_ahead_ms,
                crashed=index in crashed or site.crashed,
                stopped_at=site.stopped_at,
                acted=site.acted,
            )
            for index, site in enumerate(world.sites)
        ],
        people={talker.person.name: (talker.person, talker.conversations) for talker in world.talkers},
    )


def _twins(plan: Plan, trace: Trace) -> list[Violation]:
    """Run what was promised not to notice the rest without the rest."""
    if plan.witness:
        twin, violations = live(alone(plan))
        if twin is not None:
            trace.count("twin.witness")
            violations += [*counters(evidence_of(twin))]
            violations += compare(plan, trace, twin.trace)
        return violations
    if plan.errands and plan.people and not (plan.disturbed or plan.shuffle):
        twin, violations = live(errands_alone(plan))
        if twin is not None:
            trace.count("twin.errands")
            violations += [*counters(evidence_of(twin))]
            violations += compare_errands(plan, trace, twin.trace)
        return violations
    return []


def simulate(plan: Plan) -> Outcome:
    """Run a plan and judge it."""
    begin = time.process_time()
    world, found = live(plan)
    return judged(plan, world, found, begin)


def judged(plan: Plan, world: World | None, found: list[Violation], begin: float) -> Outcome:
    """The outcome of a run that :func:`live` returned. ``begin``: the process time when it began, in seconds."""
    violations = list(found)
    session_s = 0.0
    if world is not None:
        evidence = evidence_of(world)
        violations += judge(evidence)
        session_s = tally(evidence, world.trace)
        violations += _twins(plan, world.trace)
    trace = world.trace if world is not None else Trace(lambda: 0.0)
    counts: Counter[str] = trace.counts
    return Outcome(
        seed=plan.seed,
        digest=trace.digest(),
        violations=tuple(violations),
        counts=dict(sorted(counts.items())),
        session_s=session_s,
        cpu_s=time.process_time() - begin,
    )
