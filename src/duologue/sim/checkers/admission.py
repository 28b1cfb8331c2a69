"""Slots, correlated operations and ordinary requests (B5, B6, B24)."""

from __future__ import annotations

from collections.abc import Iterator

from duologue.sim.checkers.evidence import Evidence, SiteEvidence, Violation
from duologue.sim.observation import Admission
from duologue.sim.plan import Errand


def check(evidence: Evidence) -> Iterator[Violation]:
    """Every site."""
    for index, site in enumerate(evidence.sites):
        yield from _slots(site)
        for control_id, count in site.seen.answers.items():
            if count > max(1, site.seen.asked.get(control_id, 0)):
                yield Violation("B12", f"operation {control_id} was answered {count} times")
        for errand in evidence.plan.errands:
            if errand.deployment == index:
                yield from _errand(errand, site)


def _slots(site: SiteEvidence) -> Iterator[Violation]:
    if site.plan.load_ms:
        return  # what came before the engine had started was judged later than it came
    for admission in site.seen.admissions:
        before = sum(_comes_first(one, admission) for one in site.seen.admissions)
        full = admission.held + before >= site.max_sessions or site.by_groups  # a group may be full or gone before that
        if admission.refused == "resource_exhausted" and not full:
            text = f"refused at {admission.at:.3f} s with {admission.held} of {site.max_sessions} slots held"
            yield Violation("B5", f"{admission.session_id}: {text}")


def _comes_first(other: Admission, admission: Admission) -> bool:
    """Who asked before in the same instant, and is not judged yet; who still waits, and so has the slot that is free."""
    waits = other.queued and (other.answered is None or other.answered >= admission.at)
    return other.number < admission.number and (other.at == admission.at or waits)


def _errand(errand: Errand, site: SiteEvidence) -> Iterator[Violation]:
    """One last message: an output that says so, or an error."""
    said = site.seen.errands.get(errand.name, [])
    ends = [what for _, what, _ in said if what != "output"]
    expected = not site.crashed and (site.stopped_at is None or errand.at_ms / 1000 < site.stopped_at)
    if len(ends) > 1 or (ends and said[-1][1] == "output"):
        yield Violation("B24", f"{errand.name}: ended {len(ends)} times: {[what for _, what, _ in said]}")
    if expected and not ends:
        yield Violation("B24", f"{errand.name}: never ended")
