"""What clients read, judged by the simulator's checkers: order in every dialect, journal and takeovers where one resumes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from duologue.sim.checkers import Evidence
from duologue.sim.checkers.journal import check
from duologue.sim.checkers.order import on_the_wire
from duologue.sim.conversation import Attempt, Conversation, Heard
from duologue.sim.plan import Choices, Deployment, Person, Plan
from duologue.wire import Dialect, decode_server_event
from duologue.wire import server_events as wire

_PLAN = Plan(seed=0, deployments=(Deployment(limits={"journal_ttl_s": 1.0}),))  # each test has limits of its own


class Reader(Protocol):
    """A client of a test. ``resumes``: what it asked to resume, if it did; ``frames``: what it read."""

    @property
    def dialect(self) -> Dialect: ...

    @property
    def resumes(self) -> Mapping[str, Any]: ...

    @property
    def frames(self) -> Sequence[Mapping[str, Any]]: ...


def conversations(readers: Sequence[Reader]) -> list[Conversation]:
    """What the clients of the duplex dialect read, by session: one conversation, whoever resumed it."""
    talks: dict[str, Conversation] = {}
    for number, reader in enumerate(readers):
        heard = _heard(number, reader)
        session_id, how, asked, token = str(reader.resumes.get("session_id", "")), "behind", 0, ""
        if reader.resumes:
            seq, given = reader.resumes.get("last_received_server_event_seq", 0), reader.resumes.get("resume_token", "")
            asked, token = seq if isinstance(seq, int) else 0, str(given)
        else:
            how = "open"
            opened = next((entry.event for entry in heard if isinstance(entry.event, wire.SessionCreated)), None)
            session_id = str(opened.session.session_id) if opened is not None else ""
        if reader.dialect != "duplex" or not session_id:
            continue
        talk = talks.setdefault(session_id, Conversation(session_id, session_id, "duplex", Choices()))
        attempt = Attempt(number, how, asked=asked, token=token)
        talk.attempts.append(attempt)
        talk.heard.extend(heard)
        for entry in heard:
            if entry.event is not None:
                talk.take(entry.event, attempt)
    return list(talks.values())


def _heard(number: int, reader: Reader) -> list[Heard]:
    return [Heard(0.0, number, decode_server_event(json.dumps(frame))) for frame in reader.frames]


def _elsewhere(readers: Sequence[Reader]) -> list[Conversation]:
    """What the clients of other dialects read, which resume nothing."""
    others = [(number, reader) for number, reader in enumerate(readers) if reader.dialect != "duplex"]
    return [
        Conversation(f"client {number}", "", reader.dialect, Choices(), _heard(number, reader))
        for number, reader in others
    ]


def found(readers: Sequence[Reader]) -> list[str]:
    """What they should not have read."""
    talks = conversations(readers)
    people = {talk.name: (Person(name=talk.name), [talk]) for talk in talks}
    wrong = [
        *check(Evidence(_PLAN, [], people)),
        *(violation for talk in [*talks, *_elsewhere(readers)] for violation in on_the_wire(talk)),
    ]
    return [f"{violation.rule}: {violation.text}" for violation in wrong]
