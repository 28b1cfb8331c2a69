"""At the end of every test of a connection the simulator's checkers judge what was read: order, journal, takeovers."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from duologue.sim.checkers import Evidence
from duologue.sim.checkers.journal import check
from duologue.sim.checkers.order import on_the_wire
from duologue.sim.conversation import Attempt, Conversation, Heard
from duologue.sim.plan import Choices, Deployment, Person, Plan
from duologue.wire import decode_server_event
from duologue.wire import server_events as wire
from tests.unit.server import driver

_PLAN = Plan(seed=0, deployments=(Deployment(limits={"journal_ttl_s": 1.0}),))  # each test has limits of its own


def conversations(clients: list[driver.Client]) -> list[Conversation]:
    """What the clients of the duplex dialect read, by session: one conversation, whoever resumed it."""
    talks: dict[str, Conversation] = {}
    for number, client in enumerate(clients):
        heard = _heard(number, client)
        session_id, how, asked, token = str(client.resumes.get("session_id", "")), "behind", 0, ""
        if client.resumes:
            seq, given = client.resumes.get("last_received_server_event_seq", 0), client.resumes.get("resume_token", "")
            asked, token = seq if isinstance(seq, int) else 0, str(given)
        else:
            how = "open"
            opened = next((entry.event for entry in heard if isinstance(entry.event, wire.SessionCreated)), None)
            session_id = str(opened.session.session_id) if opened is not None else ""
        if client.dialect != "duplex" or not session_id:
            continue
        talk = talks.setdefault(session_id, Conversation(session_id, session_id, "duplex", Choices()))
        attempt = Attempt(number, how, asked=asked, token=token)
        talk.attempts.append(attempt)
        talk.heard.extend(heard)
        for entry in heard:
            if entry.event is not None:
                talk.take(entry.event, attempt)
    return list(talks.values())


def _heard(number: int, client: driver.Client) -> list[Heard]:
    return [Heard(0.0, number, decode_server_event(json.dumps(frame))) for frame in client.frames]


def _elsewhere(clients: list[driver.Client]) -> list[Conversation]:
    """What the clients of other dialects read, which resume nothing."""
    others = [(number, client) for number, client in enumerate(clients) if client.dialect != "duplex"]
    return [
        Conversation(f"client {number}", "", client.dialect, Choices(), _heard(number, client))
        for number, client in others
    ]


def found(clients: list[driver.Client]) -> list[str]:
    """What they should not have read."""
    talks = conversations(clients)
    people = {talk.name: (Person(name=talk.name), [talk]) for talk in talks}
    wrong = [
        *check(Evidence(_PLAN, [], people)),
        *(violation for talk in [*talks, *_elsewhere(clients)] for violation in on_the_wire(talk)),
    ]
    return [f"{violation.rule}: {violation.text}" for violation in wrong]


@pytest.fixture(autouse=True)
def _judged() -> Iterator[None]:
    driver.WORLDS.clear()
    yield
    wrong = [text for world in driver.WORLDS for text in found(world.clients)]
    driver.WORLDS.clear()
    assert not wrong, "\n".join(wrong)
