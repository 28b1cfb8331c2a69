"""Sequence numbers and fences, the silence that clocks a resident model, how far audio runs
ahead, and how soon stages stop (B8, B17, P1, S1).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final

from duologue.engine.duplex.events import ResponseAudio, ResponseCreated, ResponseDone
from duologue.sim.checkers.evidence import (
    Evidence,
    SessionEvidence,
    Violation,
    epoch_of,
    session_of,
)
from duologue.sim.observation import Planned
from duologue.sim.plan import Order, Person

STOP_S: Final = 0.05
_CLOCK_ORDERS: Final = frozenset(
    {"ack", "wrong_ack", "truncate", "again", "output_clear", "output_clear_old", "barge_in", "signal", "delete"}
)


def check(evidence: Evidence) -> Iterator[Violation]:
    """Every session."""
    for session in evidence.sessions():
        yield from _numbers(session)
        yield from _silence(session, leaps=bool(evidence.plan.leaps))
        if not evidence.plan.leaps:
            yield from _ahead(session)
        if not evidence.plan.disturbed:
            yield from _stopped(session)


def _numbers(session: SessionEvidence) -> Iterator[Violation]:
    epochs: dict[int, int] = {}
    turns: dict[int, tuple[int, int]] = {}
    epoch = 0
    for planned in session.accepted:
        fence = planned.fence
        if fence.epoch < epoch:
            yield Violation("B8", f"{session.session_id}: fence {fence.position} was accepted after epoch {epoch}")
        epoch = fence.epoch
        expected = epochs.get(fence.epoch, 0) + 1
        if planned.seq != expected:
            yield Violation("B8", f"{session.session_id}: seq {planned.seq} in place of {expected}")
        epochs[fence.epoch] = planned.seq
        before, last = turns.get(fence.turn_id, (0, 0))
        # What was in flight when the epoch moved was taken by the stage and counts for nothing.
        again = planned.turn_seq == last and before < fence.epoch
        if planned.turn_seq not in (last + 1, 1) and not again:
            yield Violation("B8", f"{session.session_id}: turn_seq {planned.turn_seq} after {last} at {fence.position}")
        turns[fence.turn_id] = (fence.epoch, planned.turn_seq)


def _silence(session: SessionEvidence, *, leaps: bool) -> Iterator[Violation]:
    plan = session.site.plan
    if plan.family != "resident":
        return
    period_s = max(plan.unit_ms, 80) / 1000
    created = [told.at for told in session.told if isinstance(told.event, ResponseCreated)]
    run: list[Planned] = []
    for planned in [*session.accepted, None]:
        # One that asks for an answer is sent when the client asks: it is none of the clock's, and its answer has its own.
        if planned is not None and planned.silence and not planned.final:
            run.append(planned)
            continue
        if not run:
            continue
        if len(run) > 2 and not leaps:
            took = run[-1].at - run[0].at
            if took < (len(run) - 3) * period_s - 1e-6:
                text = f"{len(run)} units of silence within {took:.3f} s, one is due every {period_s:g} s"
                yield Violation("B17", f"{session.session_id}: {text}")
        # The limit is one of each answer; a model that goes on talking may begin another.
        answers = 1 + bisect_right(created, run[-1].at) - bisect_left(created, run[0].at)
        if len(run) > plan.silence_units * answers:
            text = (
                f"{len(run)} units of silence in a row for {answers} answers, {plan.silence_units} are allowed for each"
            )
            yield Violation("B17", f"{session.session_id}: {text}")
        run = []


def _ahead(session: SessionEvidence) -> Iterator[Violation]:
    """No more than ``send_ahead_ms`` beyond what can have been played leaves; a client that lies may hurry it."""
    limit_ms, person = session.site.send_ahead_ms, session.person
    if limit_ms is None or person is None or person.acks == "wrong" or _lies(person):
        return
    begin: dict[str, float] = {}
    sent_ms: dict[str, float] = {}
    for told in session.told:
        event = told.event
        if not isinstance(event, ResponseAudio):
            continue
        name = event.response_id
        begin.setdefault(name, told.at)
        sent_ms[name] = sent_ms.get(name, 0.0) + len(event.audio) * 500 / event.rate_hz
        played_ms = (told.at - begin[name]) * 1000
        # The answer before may still play when this one begins: both run ahead, by the same allowance in all.
        if sent_ms[name] > played_ms + limit_ms + 1.0:
            text = f"{sent_ms[name]:.0f} ms of {name} left within {played_ms:.0f} ms, {limit_ms} ms ahead are allowed"
            yield Violation("P1", f"{session.session_id}: {text}")
            return


def _lies(person: Person) -> bool:
    """Whether its commands may move the playback clock."""
    steps = (*person.voice, *person.hands)
    return person.truncates or any(isinstance(step, Order) and step.name in _CLOCK_ORDERS for step in steps)


def _stopped(session: SessionEvidence) -> Iterator[Violation]:
    """A cancel stops the stages, and not only what the client sees of them."""
    created = {told.event.response_id: told.event for told in session.told if isinstance(told.event, ResponseCreated)}
    ended: list[tuple[int, float]] = []
    # By what the request's name ends with: of no epoch, and stopped by its own cancel alone.
    beside: dict[str, float] = {}
    for told in session.told:
        if not isinstance(told.event, ResponseDone) or told.event.status != "cancelled":
            continue
        response_id = told.event.response_id
        if response_id in created and created[response_id].out_of_band:
            beside[response_id.rpartition("-")[2]] = told.at
        else:
            ended.append((told.event.epoch, told.at))
    for made in session.site.seen.output if ended or beside else ():
        if session_of(made.request_id) != session.session_id:
            continue
        epoch = epoch_of(made.request_id)
        own = "-aside-" in made.request_id
        at = min((at for of, at in ended if of >= epoch), default=None)
        at = beside.get(made.request_id.rpartition("-aside-")[2]) if own else at
        if at is not None and made.at > at + STOP_S:
            text = f"stage {made.stage} works for epoch {epoch} {made.at - at:.3f} s after its end"
            yield Violation("S1", f"{session.session_id}: {text}")
            return
