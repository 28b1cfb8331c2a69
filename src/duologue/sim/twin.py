"""Twins: the same run without the others. Who is not touched by a fault must not notice it (B23, B24).

Rules kept here: the witness's dice, arrival and deployment are the same in both runs, so every difference comes from the
other clients; ids are compared by the order of their appearance.
"""

from __future__ import annotations

import msgspec

from duologue.sim.checkers import Violation
from duologue.sim.plan import Plan
from duologue.sim.trace import Entry, Trace, anonymous, difference


def alone(plan: Plan) -> Plan:
    """The plan of the witness's twin: nobody else is there, and nobody has faults."""
    people = tuple(person for person in plan.people if person.name == plan.witness)
    return msgspec.structs.replace(plan, people=people, errands=())


def errands_alone(plan: Plan) -> Plan:
    """The plan of the errands' twin: no sessions at all."""
    return msgspec.structs.replace(plan, people=())


def compare(plan: Plan, together: Trace, twin: Trace) -> list[Violation]:
    """Where the witness noticed the others."""
    found = difference(_seen_by(plan.witness, together), _seen_by(plan.witness, twin))
    return [] if found is None else [Violation("B23", f"{plan.witness} noticed the others: {found}")]


def compare_errands(plan: Plan, together: Trace, twin: Trace) -> list[Violation]:
    """Where an errand noticed the sessions."""
    violations: list[Violation] = []
    for errand in plan.errands:
        found = difference(_seen_by(errand.name, together), _seen_by(errand.name, twin))
        if found is not None:
            violations.append(Violation("B24", f"{errand.name} noticed the sessions: {found}"))
    return violations


def _seen_by(name: str, trace: Trace) -> list[Entry]:
    return anonymous(trace.of(name))
