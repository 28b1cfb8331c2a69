"""Every command is answered once, and a change of settings is all or nothing (B20, B22)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from duologue.engine.duplex.events import ErrorRaised, SessionEvent
from duologue.errors import ErrorCode
from duologue.sim.checkers.evidence import Evidence, SessionEvidence, Violation
from duologue.wire import encode
from duologue.wire import server_events as wire

_ANSWERS: Final[dict[str, type[wire.ServerEvent]]] = {
    "ItemRetrieve": wire.ItemRetrieved,
    "ItemDelete": wire.ItemDeleted,
    "ItemTruncate": wire.ItemTruncated,
    "Heartbeat": wire.HeartbeatAck,
    "PlaybackAck": wire.PlaybackAcknowledged,
}
_ANSWERED: Final = {answer: kind for kind, answer in _ANSWERS.items()}
_TELLING: Final = frozenset({wire.Error, *_ANSWERED})
_SHOWN: Final = (wire.SessionUpdated, wire.SessionCreated, wire.SessionResumed)


def check(evidence: Evidence) -> Iterator[Violation]:
    """Every conversation that was read to its end.

    Where a stage may hang, what comes after input that it does not take waits for it, maybe until the session ends.
    """
    prompt = not any(fault.how in ("hang", "lose") for fault in evidence.plan.replica_faults)
    for session in evidence.sessions():
        talk = session.talk
        if talk is None:
            continue
        shown = [entry.event for entry in talk.heard if isinstance(entry.event, _SHOWN)]
        for event in shown:
            if b"must not be adopted" in encode(event):
                yield Violation("B22", f"{talk.name}: part of a refused session.update is in force")
        if session.undisturbed and talk.terminal is not None:
            yield from _answered(session, prompt=prompt)
            yield from _updated(session, prompt=prompt)


def _answered(session: SessionEvidence, *, prompt: bool) -> Iterator[Violation]:
    talk = session.talk
    assert talk is not None
    due = _due(session)
    named = [read for read in talk.read if read.event_id is not None]
    asked = Counter(read.kind for read in named if due(read.at))
    late = Counter(read.kind for read in named if not due(read.at))
    kinds = {read.event_id: read.kind for read in named}
    got: Counter[str] = Counter()
    for entry in talk.heard:
        event = entry.event
        if event is None or type(event) not in _TELLING:
            continue
        kind = kinds.get(event.error.event_id) if isinstance(event, wire.Error) else _ANSWERED.get(type(event))
        if kind is not None:
            got[kind] += 1
    anonymous = Counter([read.kind for read in talk.read if read.event_id is None])
    for kind in _ANSWERS:
        least, most = asked[kind] * prompt, asked[kind] + late[kind] + anonymous[kind] + anonymous["AudioPlaybackAck"]
        most += asked["AudioPlaybackAck"] if kind == "PlaybackAck" else 0
        if not least <= got[kind] <= most:
            yield Violation("B20", f"{talk.name}: {got[kind]} answers to {least} to {most} commands {kind}")


def _due(session: SessionEvidence) -> Callable[[float], bool]:
    """Whether what was read at an instant must be answered: not while the session was ending, when it is answered or not.

    Who waits for a slot is read all the same, and its session hears of that when it begins. An answer that there is no room
    for ends the session in its place.
    """
    begun, ended = (session.told[0].at, session.told[-1].at) if session.told else (0.0, 0.0)
    overflown = {told.at for told in session.told if _is_overflow(told.event)}
    return lambda at: max(at, begun) < ended and at not in overflown


def _is_overflow(event: SessionEvent) -> bool:
    return isinstance(event, ErrorRaised) and event.code is ErrorCode.OUTPUT_BACKPRESSURE


def _updated(session: SessionEvidence, *, prompt: bool) -> Iterator[Violation]:
    talk = session.talk
    assert talk is not None
    due = _due(session)
    updates = {read.event_id: read.at for read in talk.read if read.kind == "SessionUpdate"}
    refused = {
        entry.event.error.event_id
        for entry in talk.heard
        if isinstance(entry.event, wire.Error) and entry.event.error.event_id in updates
    }
    certain = prompt * sum(due(at) for event_id, at in updates.items() if event_id not in refused)
    got = sum(isinstance(entry.event, wire.SessionUpdated) for entry in talk.heard)
    # The session says session.updated once by itself when it begins, which also answers an update that opened it.
    if not certain - 1 <= got <= len(updates) - len(refused) + 2:
        yield Violation("B22", f"{talk.name}: {got} session.updated for {certain} updates that were not refused")
