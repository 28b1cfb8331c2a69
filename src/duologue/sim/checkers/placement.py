"""Sessions that lost a replica go on, and say nothing twice (B3, decision 9).

Rule kept here: what was lost is what a replica held when it died, however long nobody noticed that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from duologue.engine.duplex.events import (
    ErrorRaised,
    ItemDeleted,
    ResponseAudio,
    ResponseCreated,
    ResponseDone,
    ResponseText,
    SessionEvent,
    SessionRecovered,
)
from duologue.errors import ErrorCode
from duologue.sim.checkers.evidence import Evidence, SessionEvidence, SiteEvidence, Violation, session_of

_FIRST_RESTART_S: Final = 0.5
_LATE_S: Final = 1.0


def check(evidence: Evidence) -> Iterator[Violation]:
    """Every session of every site."""
    plan = evidence.plan
    calm = not (plan.replica_faults or plan.strikes or plan.shutdowns or plan.leaps or plan.operations)
    for session in evidence.sessions():
        yield from _recovered(session)
        yield from _said_once(session)
        if calm and session.person is not None and not (session.site.by_groups or session.site.plan.load_ms):
            yield from _placed_anew(session)
    if not (evidence.plan.replica_faults or evidence.plan.strikes):  # these may cost a request of a living replica
        for site in evidence.sites:
            yield from _left_behind(site)


def _left_behind(site: SiteEvidence) -> Iterator[Violation]:
    """A resident session whose request was lost goes on in another epoch: in the same one it would know nothing of it."""
    if site.plan.family != "resident":
        return
    for count, held in site.seen.lost:
        epochs = {p.request_id: p.fence.epoch for p in site.seen.planned[:count] if p.request_id in held and p.accepted}
        owners = {session_of(request_id): (request_id, epoch) for request_id, epoch in epochs.items()}
        for piece in site.seen.planned[count:]:
            lost_id, epoch = owners.get(piece.session_id, (piece.request_id, -1))
            if piece.request_id != lost_id and piece.fence.epoch == epoch:
                text = f"{piece.request_id[-16:]} follows {lost_id[-16:]}, which was lost, in the same epoch"
                yield Violation("D9", f"{piece.session_id}: {text}")
                break


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


def _placed_anew(session: SessionEvidence) -> Iterator[Violation]:
    """A session that lost its replica is placed again as soon as another one can have started, unless it ends before.

    The start of a replica is put off for twice as long each time that one dies. What a session is told or asks for at the
    very moment of a death may have come first, and its request be none any more.
    """
    seen = session.site.seen
    if not seen.deaths:
        return
    first, last = session.told[0].at, session.told[-1].at
    meanwhile = {at for at, _ in session.commands}
    meanwhile |= {told.at for told in session.told if not _of_a_loss(told.event)}
    held = (at for at, ids in seen.deaths if any(session_of(name) == session.session_id for name in ids))
    lost_at = next((at for at in held if first < at < last and at not in meanwhile), None)
    if lost_at is None or any(isinstance(told.event, SessionRecovered) and told.at >= lost_at for told in session.told):
        return
    deaths = [at for at, _ in seen.deaths]
    by = max(deaths) + _FIRST_RESTART_S * 2 ** len(deaths) + _LATE_S
    if last > by:
        yield Violation("D9", f"{session.session_id}: lost its replica at {lost_at:.3f} s and has none at {by:.3f} s")


def _of_a_loss(event: SessionEvent) -> bool:
    return isinstance(event, SessionRecovered | ResponseDone | ErrorRaised)


def _said_once(session: SessionEvidence) -> Iterator[Violation]:
    """An answer of which something was said is not made again after a loss: the next one stands elsewhere.

    Where the client deleted what was said, the answer that it asks for next has that place.
    """
    said: set[str] = set()
    items: dict[str, str] = {}
    places: dict[str, str | None] = {}
    cut: dict[str | None, str] = {}
    for event in session.events:
        match event:
            case ResponseAudio() | ResponseText():
                said.add(event.response_id)
            case ResponseCreated():
                places[event.response_id] = event.previous_item_id
                items[event.item_id] = event.response_id
                twice = cut.get(event.previous_item_id)
                if twice is not None and event.previous_item_id is not None:
                    yield Violation("D9", f"{event.response_id} says again what {twice} had begun to say")
            case ResponseDone():
                lost = event.error is ErrorCode.REPLICA_UNAVAILABLE
                if lost and event.response_id in said:
                    cut[places.get(event.response_id)] = event.response_id
            case ItemDeleted():
                deleted = items.get(event.item_id)
                cut = {place: response_id for place, response_id in cut.items() if response_id != deleted}
            case _:
                pass
