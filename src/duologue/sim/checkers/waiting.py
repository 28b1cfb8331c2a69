"""The waiting room: first come, first served, bounded, and no slot stays free while somebody waits (Q1)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.events import SessionClosed, SessionExpired
from duologue.sim.checkers.evidence import Evidence, SiteEvidence, Violation
from duologue.sim.observation import Admission

_EPSILON_S: Final = 0.01


def check(evidence: Evidence) -> Iterator[Violation]:
    """Every site that has a waiting room."""
    for site in evidence.sites:
        if site.plan.runtime.get("max_waiting_sessions") is not None and not evidence.plan.leaps:
            waited = [admission for admission in site.seen.admissions if admission.queued]
            yield from _in_turn(site, waited)
            yield from _bounded(site, waited)
            if not site.by_groups:
                yield from _called(site, waited)


def _end(admission: Admission) -> float:
    return float("inf") if admission.answered is None else admission.answered


def _in_turn(site: SiteEvidence, waited: list[Admission]) -> Iterator[Violation]:
    for guest in waited:
        for other in site.seen.admissions:
            later = other.number > guest.number and other.answered is not None and other.refused is None
            if later and other.answered is not None and other.answered < _end(guest) - _EPSILON_S:
                text = f"was admitted at {other.answered:.3f} s, before {guest.session_id}, which waited already"
                yield Violation("Q1", f"{other.session_id}: {text}")


def _bounded(site: SiteEvidence, waited: list[Admission]) -> Iterator[Violation]:
    settings = msgspec.convert(site.plan.runtime, DuplexSessionRuntimeConfig)
    longest, places = settings.max_wait_s, settings.max_waiting_sessions or 0
    starting_s = 3 * site.plan.load_ms / 1000  # stage after stage; the wait begins when the engine has started
    for guest in waited:
        ended = guest.answered
        if ended is not None and ended - guest.at > longest + starting_s + _EPSILON_S:
            text = f"waited {ended - guest.at:.3f} s for a slot, {longest:g} s are the limit"
            yield Violation("Q1", f"{guest.session_id}: {text}")
        waiting = sum(other.at <= guest.at < _end(other) for other in waited if other.number <= guest.number)
        if waiting > places:
            yield Violation("Q1", f"{guest.session_id}: {waiting} wait, {places} may")


def _called(site: SiteEvidence, waited: list[Admission]) -> Iterator[Violation]:
    """A slot that becomes free is somebody's at once."""
    for told in site.seen.told.values():
        last = told[-1]
        if not isinstance(last.event, SessionClosed | SessionExpired) or not last.event.slot_released:
            continue
        if site.stopped_at is not None and last.at >= site.stopped_at - _EPSILON_S:
            continue  # nobody is admitted any more
        waiting = [guest for guest in waited if guest.at < last.at - _EPSILON_S and _end(guest) > last.at - _EPSILON_S]
        if waiting and not any(_end(guest) <= last.at + _EPSILON_S for guest in waiting):
            first = waiting[0].session_id
            yield Violation("Q1", f"{first}: goes on waiting although a slot became free at {last.at:.3f} s")
