"""Declared counters: slots, placements, reservations, tables (B5 to B7, B11, B20, B25), withdrawals (D7), contexts (C1)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from duologue.sim.checkers.evidence import Evidence, Violation
from duologue.sim.sample import Idle, Left, Occupancy, Overflown, Sample, Slots, Struck, Terminal, Withdrawn

_RESERVED = ("turns", "commands", "backlog_ms")


def check(evidence: Evidence) -> Iterator[Violation]:
    """Every sample of every site."""
    for site in evidence.sites:
        for sample in site.seen.samples:
            yield from judge_sample(sample)


def judge_sample(sample: Sample) -> Iterator[Violation]:
    """What is wrong with what an engine declared of itself."""
    match sample:
        case Slots():
            yield from _slots(sample)
        case Occupancy():
            yield from _occupancy(sample)
        case Terminal():
            yield from _terminal(sample)
        case Withdrawn():
            yield Violation("D7", f"{sample.response_id} was handed over after it had been withdrawn or cancelled")
        case Overflown():
            yield Violation("C1", f"{sample.client}: more than {sample.limit} units were fed into a context")
        case Idle():
            yield from _idle(sample)
        case Left():
            yield from _left(sample)
        case Struck():
            yield from _struck(sample)
        case _:
            assert_never(sample)


def _occupancy(sample: Occupancy) -> Iterator[Violation]:
    if sample.carried > sample.cap or sample.carried != sample.owners:
        where = f"replica {sample.replica} of stage {sample.stage}"
        yield Violation("B6", f"{sample.carried} sessions on {where}, {sample.owners} own it and {sample.cap} may")


def _terminal(sample: Terminal) -> Iterator[Violation]:
    if sample.slot_released and sample.held:
        yield Violation("B5", f"the terminal of {sample.session_id} left while its slot was held")


def _left(sample: Left) -> Iterator[Violation]:
    for name, size in sample.tables.items():
        yield Violation(_rule(name), f"{sample.when} {name} still holds {size}")


def _struck(sample: Struck) -> Iterator[Violation]:
    if sample.requests:
        left = list(sample.requests)
        yield Violation("B25", f"{sample.after_s:g} s after the strike the engine still has {left}")


def _slots(sample: Slots) -> Iterator[Violation]:
    if not 0 <= sample.held <= sample.limit:
        yield Violation("B6", f"{sample.held} slots are held, the limit is {sample.limit}")
    if sample.placements > sample.held:
        yield Violation("B6", f"{sample.placements} placements for {sample.held} sessions that hold a slot")


def _idle(sample: Idle) -> Iterator[Violation]:
    reserved = dict(sample.reserved)
    if any(size < 0 for size in reserved.values()) or any(reserved.get(name, 0) for name in _RESERVED):
        yield Violation("B7", f"{sample.after_s:g} s after the last fault an idle session holds {reserved}")
    if sample.tables:
        yield Violation("B20", f"{sample.after_s:g} s after the last fault an idle session holds {dict(sample.tables)}")


def _rule(name: str) -> str:
    """Which invariant a table belongs to."""
    if name.startswith("held."):
        return "B7"
    return "B6" if name == "slots" else "B11"
