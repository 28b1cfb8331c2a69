"""Checkers: the invariants of a run, judged from outside (see :mod:`duologue.sim.checkers.evidence`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from duologue.sim.checkers.admission import check as admission
from duologue.sim.checkers.answer import check as answer
from duologue.sim.checkers.bounds import check as bounds
from duologue.sim.checkers.counters import check as counters
from duologue.sim.checkers.delivery import check as delivery
from duologue.sim.checkers.evidence import Evidence, SessionEvidence, SiteEvidence, Violation, engine_evidence
from duologue.sim.checkers.feed import check as feed
from duologue.sim.checkers.history import check as history
from duologue.sim.checkers.journal import check as journal
from duologue.sim.checkers.limits import check as limits
from duologue.sim.checkers.order import check as order
from duologue.sim.checkers.pace import check as pace
from duologue.sim.checkers.placement import check as placement
from duologue.sim.checkers.progress import check as progress
from duologue.sim.checkers.settings import check as settings
from duologue.sim.checkers.tools import check as tools
from duologue.sim.checkers.waiting import check as waiting

CHECKERS: Final[tuple[Callable[[Evidence], Iterator[Violation]], ...]] = (
    order,
    journal,
    delivery,
    feed,
    settings,
    pace,
    answer,
    history,
    admission,
    placement,
    bounds,
    tools,
    counters,
    progress,
    waiting,
    limits,
)


def judge(evidence: Evidence, *, stages: bool = True) -> list[Violation]:
    """Everything that a run did wrong. ``stages`` false: what stages made is not known, so delivery is not compared."""
    checkers = CHECKERS if stages else tuple(checker for checker in CHECKERS if checker is not delivery)
    return [violation for checker in checkers for violation in checker(evidence)]


__all__ = [
    "CHECKERS",
    "Evidence",
    "SessionEvidence",
    "SiteEvidence",
    "Violation",
    "counters",
    "engine_evidence",
    "judge",
]
