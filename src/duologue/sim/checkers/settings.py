"""Settings: what a resident model is fed goes to it under the settings in force where it stands in the stream (B9).

Audio that is fed again (to the request of a new epoch, or after a failure) may go under newer ones, never under older ones;
what goes while an answer is in progress may go under those with which the answer began.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from duologue.engine.duplex.commands import DuplexCommand, UpdateSession
from duologue.engine.duplex.events import ErrorRaised, ResponseCreated, ResponseDone, SessionCreated, SessionUpdated
from duologue.errors import ErrorCode
from duologue.sim.checkers.evidence import Evidence, SessionEvidence, Violation
from duologue.sim.checkers.feed import SHORT_BYTES, as_sent, place, sizes_of, stream_of, was_refused


def check(evidence: Evidence) -> Iterator[Violation]:
    """Every session whose samples can be compared, if its model hears them as they come."""
    for session in evidence.sessions():
        if session.talk is None or session.site.plan.family != "resident":
            continue
        if not any(isinstance(command, UpdateSession) for _, command in session.orders):
            continue
        if as_sent(session) and not was_refused(session) and _hears_at_once(session):
            yield from _fed(session, session.talk.name)


def _hears_at_once(session: SessionEvidence) -> bool:
    """Whether the model is fed what comes, and not what is committed: that goes under the settings of its commit."""
    created = next((event for event in session.events if isinstance(event, SessionCreated)), None)
    return created is not None and (created.config.auto_response or not session.site.plan.client_commit)


def _fed(session: SessionEvidence, name: str) -> Iterator[Violation]:
    changes = _changes(session)
    if changes is None or len(changes) < 2:
        return
    starts = [start for start, _ in changes]
    stream = stream_of([command for _, command in session.commands])
    made, done = _moments(session, ResponseCreated), _moments(session, ResponseDone)
    refused = _refused(session)
    position, epoch, reached = 0, 0, 0
    for planned in session.site.seen.planned:
        if planned.session_id != session.session_id or planned.accepted or planned.silence or not planned.audio:
            continue
        if planned.fence.epoch != epoch:
            position, epoch = 0, planned.fence.epoch
        found, size = place(planned.audio, stream, position)
        if found < 0 or (found != position and size < SHORT_BYTES):
            return  # which is for the checker of feeding to say, or nobody can say where it really stands
        position = found + size
        newest = bisect_left(starts, position) - 1  # what was changed after its last sample is not in force
        oldest = bisect_right(starts, found) - 1
        while refused and refused[0][0] <= planned.at:
            reached = max(reached, refused.pop(0)[1])
        if found < reached or size < len(planned.audio):  # fed again, or it waited for the rest of a unit
            newest = len(changes) - 1
        # An answer is in progress; one that ended at this very moment may have ended after it.
        if bisect_right(made, planned.at) > bisect_left(done, planned.at):
            oldest = 0
        reached = max(reached, position)
        known = [index for index, (_, text) in enumerate(changes) if text == planned.instructions]
        if known and not any(oldest <= index <= newest for index in known):
            text = f"bytes {found} to {position} were fed under settings {known}, not {oldest} to {newest}"
            yield Violation("B9", f"{name}: {text}")
            return


def _changes(session: SessionEvidence) -> list[tuple[int, str]] | None:
    """From which byte of the stream which instructions are in force; ``None`` if it cannot be told."""
    told = [event.config.instructions for event in session.events if isinstance(event, SessionUpdated)]
    refused = {event.event_id for event in session.events if isinstance(event, ErrorRaised)}
    changes = [(0, told[0])] if told else []
    for command, sent in _commands(session):
        if isinstance(command, UpdateSession):
            if command.event_id is None:
                return None
            if command.event_id not in refused and len(changes) < len(told):
                changes.append((sent, told[len(changes)]))
    return changes


def _commands(session: SessionEvidence) -> Iterator[tuple[DuplexCommand, int]]:
    """What the session was told, and how long the stream of what was sent is behind it."""
    commands = [command for _, command in session.commands]
    yield from zip(commands, sizes_of(commands), strict=True)


def _refused(session: SessionEvidence) -> list[tuple[float, int]]:
    """When input was refused before its plugin planned anything, for want of a replica, and how many bytes had come then."""
    came = [at for at, _ in session.commands]
    sizes = [0, *(size for _, size in _commands(session))]
    moments = (
        told.at
        for told in session.told
        if isinstance(told.event, ErrorRaised) and told.event.code is ErrorCode.REPLICA_UNAVAILABLE
    )
    return [(moment, sizes[bisect_right(came, moment)]) for moment in moments]


def _moments(session: SessionEvidence, kind: type[ResponseCreated | ResponseDone]) -> list[float]:
    """When events of a kind left the engine, in order; a long talk has too many to be counted anew for every unit."""
    return [told.at for told in session.told if isinstance(told.event, kind)]
