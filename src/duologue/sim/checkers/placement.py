"""Sessions that lost a replica go on, and say nothing twice (B3, decision 9)."""

from __future__ import annotations

from collections.abc import Iterator

from duologue.engine.duplex.events import (
    ResponseAudio,
    ResponseCreated,
    ResponseDone,
    ResponseText,
    SessionRecovered,
)
from duologue.errors import ErrorCode
from duologue.sim.checkers.evidence import Evidence, SessionEvidence, Violation


def check(evidence: Evidence) -> Iterator[Violation]:
    """Every session of every site."""
    for session in evidence.sessions():
        yield from _recovered(session)
        yield from _said_once(session)


def _recovered(session: SessionEvidence) -> Iterator[Violation]:
    """Placements count up from 1, epochs grow, and no response is created in an epoch that was left behind."""
    placement, epoch = 0, -1
    for event in session.events:
        match event:
            case SessionRecovered():
                if event.placement != placement + 1 or event.epoch <= epoch:
                    yield Violation(
                        "D9", f"placement {event.placement} in epoch {event.epoch} after {placement}, {epoch}"
                    )
                placement, epoch = event.placement, event.epoch
            case ResponseCreated():
                if event.epoch < epoch:
                    yield Violation(
                        "B3", f"{event.response_id} is of epoch {event.epoch}, and {epoch} was recovered to"
                    )
            case _:
                pass


def _said_once(session: SessionEvidence) -> Iterator[Violation]:
    """An answer of which something was said is not made again after a loss: the next one stands elsewhere."""
    said: set[str] = set()
    places: dict[str, str | None] = {}
    cut: dict[str | None, str] = {}
    for event in session.events:
        match event:
            case ResponseAudio() | ResponseText():
                said.add(event.response_id)
            case ResponseCreated():
                places[event.response_id] = event.previous_item_id
                twice = cut.get(event.previous_item_id)
                if twice is not None and event.previous_item_id is not None:
                    yield Violation("D9", f"{event.response_id} says again what {twice} had begun to say")
            case ResponseDone():
                lost = event.error is ErrorCode.REPLICA_UNAVAILABLE
                if lost and event.response_id in said:
                    cut[places.get(event.response_id)] = event.response_id
            case _:
                pass
