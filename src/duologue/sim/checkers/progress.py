"""What has begun goes on, and what failed stops: answers, stages behind a failure, sessions behind a death (L2, L3, S2, D10).

Rules kept here: an answer is judged where nothing but the model decides how fast it comes; what a death may cost is what the
replica held, by the word of that replica.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from duologue.engine.duplex.events import (
    InputCommitted,
    ItemDeleted,
    ResponseAudio,
    ResponseCreated,
    ResponseDone,
    ResponseText,
    SessionRecovered,
)
from duologue.errors import ErrorCode
from duologue.sim.checkers.evidence import Evidence, SessionEvidence, SiteEvidence, Violation, session_of
from duologue.sim.observation import Told
from duologue.sim.plan import Deaf, Kill, Lose, Person, Stall

STALL_S: Final = 6.0  # longer than the longest time that stage code takes here
STOP_S: Final = 0.05
_SLOW: Final = frozenset({"slow_stages", "slow_link", "small_window", "leaps", "detector"})
_CONTENT: Final = (ResponseCreated, ResponseAudio, ResponseText)


def check(evidence: Evidence) -> Iterator[Violation]:
    """Every session, every refusal and every death."""
    plan = evidence.plan
    calm = not (plan.replica_faults or plan.strikes or plan.shutdowns or _SLOW & set(plan.keeps))
    for session in evidence.sessions():
        if calm and session.undisturbed and session.person is not None and _steady(session.person):
            yield from _goes_on(session)
        if session.person is not None and session.site.plan.family == "ephemeral":  # others may decide to say nothing
            yield from _comes_next(session)
        if not (plan.strikes or plan.shutdowns or plan.leaps):
            yield from _deaths(session)
    stoppable = not any(fault.operation == "abort" for fault in plan.replica_faults)
    for site in evidence.sites:
        if stoppable:
            yield from _failures(site)
        yield from _refusals(site)


def _steady(person: Person) -> bool:
    away = any(isinstance(step, Deaf | Stall | Kill | Lose) for step in (*person.voice, *person.hands))
    return not (away or person.leave in ("vanish", "hang_up") or person.work or person.hooks)


def _goes_on(session: SessionEvidence) -> Iterator[Violation]:
    """L2: between the beginning of an answer and its end something is said, or the end comes."""
    if session.site.plan.family != "ephemeral":
        return  # a resident model talks as long as it is fed
    last: dict[str, Told] = {}
    for told in session.told:
        event = told.event
        if isinstance(event, _CONTENT):
            last[event.response_id] = told
        elif isinstance(event, ResponseDone):
            before = last.pop(event.response_id, told)
            playing = before.event.duration_ms / 1000 if isinstance(before.event, ResponseAudio) else 0.0
            if told.at - before.at > STALL_S + playing:
                text = f"nothing of {event.response_id} for {told.at - before.at:.1f} s, then it was {event.status}"
                yield Violation("L2", f"{session.session_id}: {text}")


def _comes_next(session: SessionEvidence) -> Iterator[Violation]:
    """L3: a turn that waits for the response in progress is answered at the moment at which that is over.

    Not if it was cancelled or failed, or the turn deleted: then the answer may be wanted no more.
    """
    waiting: set[str] = set()
    beside: set[str] = set()
    due: Told | None = None
    for told in session.told:
        if due is not None and told.at > due.at + STOP_S:
            break
        match told.event:
            case InputCommitted(deferred=True):
                waiting.add(told.event.item.item_id)
            case ItemDeleted():
                waiting.discard(told.event.item_id)
            case ResponseCreated(out_of_band=True):
                beside.add(told.event.response_id)
            case ResponseCreated():
                due = None
            case ResponseDone() if told.event.response_id not in beside:
                over = told.event.status in ("completed", "incomplete")
                due = told if over and waiting else None
                waiting.clear()
            case _:
                pass
    if due is not None and session.told[-1].at > due.at + STOP_S:
        yield Violation("L3", f"{session.session_id}: nothing was answered at {due.at:.3f} s, though a turn waited")


def _failures(site: SiteEvidence) -> Iterator[Violation]:
    """S2: a request that a plugin failed on does not run on."""
    for at, request_id in site.seen.failed:
        made = next((m for m in site.seen.output if m.request_id == request_id and m.at > at + STOP_S), None)
        if made is not None:
            text = f"stage {made.stage} works on a request {made.at - at:.3f} s after the plugin had failed on it"
            yield Violation("S2", f"{request_id[-16:]}: {text}")


def _refusals(site: SiteEvidence) -> Iterator[Violation]:
    """S3: nothing is submitted behind a piece that the stage did not take."""
    for number, request_id in site.seen.refused:
        later = next((p for p in site.seen.planned[number:] if p.request_id == request_id and not p.accepted), None)
        if later is not None:
            text = f"a piece was submitted at {later.at:.3f} s, after one that was refused"
            yield Violation("S3", f"{request_id[-16:]}: {text}")


def _deaths(session: SessionEvidence) -> Iterator[Violation]:
    """D10: a session is told of the loss of a replica only if that held something of it.

    Not where replicas take their time to start: whoever waits for one that dies meanwhile hears of it too.
    """
    seen = session.site.seen
    if session.site.by_groups or not seen.deaths or session.person is None or session.person.work:
        return
    if session.site.plan.load_ms:
        return
    begun: dict[str, float] = {}
    recovered_at = -1.0
    before: list[frozenset[str]] = []
    last_stage = 2 if session.site.plan.family == "ephemeral" else 0
    made = {
        entry.at
        for entry in seen.output
        if entry.stage < last_stage and session_of(entry.request_id) == session.session_id
    }
    for told in session.told:
        event = told.event
        if isinstance(event, ResponseCreated):
            begun[event.response_id] = told.at
        # Not what begins, or what a stage hands on, at the very moment: for that the replica is missing rather than lost.
        lost = (
            isinstance(event, ResponseDone)
            and event.error is ErrorCode.REPLICA_UNAVAILABLE
            and begun.get(event.response_id, told.at) < told.at
            and told.at not in made
        )
        if not lost and not isinstance(event, SessionRecovered):
            continue
        dead = [held for at, held in seen.deaths if at == told.at]
        # Recovered in the moment in which the next one dies: that, and the answers that end with it, were of an earlier loss.
        if isinstance(event, SessionRecovered):
            before = [held for at, held in seen.deaths if recovered_at <= at < told.at]
            recovered_at = told.at
        if dead and told.at == recovered_at:
            dead += before
        if dead and not any(session_of(request_id) == session.session_id for held in dead for request_id in held):
            yield Violation("D10", f"{session.session_id}: lost a replica at {told.at:.3f} s that held nothing of it")
