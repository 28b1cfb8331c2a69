"""Journal and lease: sequence numbers, replay after a resume, generations, takeovers, expiry (B12 to B15)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from duologue.engine.duplex.commands import AckPlayback, CreateItem, CreateResponse, DuplexCommand
from duologue.engine.duplex.events import InputTimedOut, SessionExpired
from duologue.sim.checkers.evidence import Evidence, SessionEvidence, Violation
from duologue.sim.conversation import Attempt, Conversation, Heard
from duologue.wire import server_events as wire

_EPSILON_S = 1e-6
_MARKS = frozenset(
    {
        wire.SessionCreated,
        wire.SessionResumed,
        wire.SessionReplaced,
        wire.SessionExpired,
        wire.ResyncRequired,
    }
)


def check(evidence: Evidence) -> Iterator[Violation]:
    """Every conversation of the duplex dialect, and every expiry."""
    for _, talks in evidence.people.values():
        for talk in talks:
            if talk.dialect == "duplex":
                marks = [entry for entry in talk.heard if type(entry.event) in _MARKS]
                yield from _sequence(talk)
                yield from _generations(talk, marks)
                yield from _takeovers(talk, marks)
                yield from _resyncs(talk, marks, evidence)
    for session in evidence.sessions():
        yield from _expiry(session)


def _sequence(talk: Conversation) -> Iterator[Violation]:
    frames: dict[int, wire.ServerEvent] = {}
    for attempt in talk.attempts:
        heard = [entry for entry in talk.heard if entry.connection == attempt.number]
        yield from _connection(talk, attempt, heard, frames)


def _connection(
    talk: Conversation, attempt: Attempt, heard: list[Heard], frames: dict[int, wire.ServerEvent]
) -> Iterator[Violation]:
    expected = attempt.asked + 1 if attempt.how != "open" else 1
    head = None
    for entry in heard:
        event = entry.event
        match event:
            case wire.SessionResumed():
                head = event.last_server_event_seq
            case wire.ResyncRequired():
                if event.next_server_event_seq != (head or 0) + 1:
                    text = f"resync to {event.next_server_event_seq} with the head at {head}"
                    yield Violation("B14", f"{talk.name}: {text}")
                expected = event.next_server_event_seq
            case _:
                pass
        seq = event.server_event_seq if event is not None else None
        if not isinstance(seq, int) or event is None:
            continue
        if seq != expected:
            yield Violation("B14", f"{talk.name} connection {attempt.number}: event {seq} in place of {expected}")
        expected = seq + 1
        first = frames.setdefault(seq, event)
        if first is not event and first != event:
            yield Violation("B14", f"{talk.name}: event {seq} is another than the first time")


def _resyncs(talk: Conversation, marks: list[Heard], evidence: Evidence) -> Iterator[Violation]:
    """Who asks for what it has not seen gets it, unless the journal's bounds cost it: those say another word."""
    person, _ = evidence.people[talk.client]
    if "journal_ttl_s" in evidence.plan.deployments[person.deployment].limits:
        return
    attempts = {attempt.number: attempt for attempt in talk.attempts}
    for entry in marks:
        if not isinstance(entry.event, wire.ResyncRequired) or entry.event.reason != "journal_gap":
            continue
        attempt = attempts[entry.connection]
        # Who takes over may have acknowledged more at the older connection since it asked.
        more = any(at <= entry.at and number > attempt.asked for at, number in talk.acks)
        if attempt.how not in ("ahead", "behind") and not (attempt.how == "takeover" and more):
            yield Violation("B14", f"{talk.name} connection {entry.connection}: sent back although nothing was lost")


def _generations(talk: Conversation, marks: list[Heard]) -> Iterator[Violation]:
    generations = [entry.event.generation for entry in marks if isinstance(entry.event, wire.SessionResumed)]
    if len(set(generations)) != len(generations):
        yield Violation("B12", f"{talk.name}: generations {generations} are not distinct")
    wins = Counter(attempt.token for attempt in talk.attempts if attempt.resumed)
    for token, count in wins.items():
        if count > 1:
            yield Violation("B12", f"{talk.name}: {count} resumes won with one token ({token[:6]})")
    for attempt in talk.attempts:
        if attempt.resumed and attempt.how == "wrong_token":
            yield Violation("B15", f"{talk.name}: a wrong token was accepted")
    yield from _old_tokens(talk, marks)


def _old_tokens(talk: Conversation, marks: list[Heard]) -> Iterator[Violation]:
    """A token is worthless once the client was given the next one."""
    current = ""
    tokens = {attempt.number: attempt.token for attempt in talk.attempts}
    superseded: set[str] = set()
    for entry in marks:
        event = entry.event
        if isinstance(event, wire.SessionCreated) and isinstance(event.resume_token, str):
            current = event.resume_token
        if isinstance(event, wire.SessionResumed):
            if tokens.get(entry.connection) in superseded:
                yield Violation("B15", f"{talk.name}: a token that had been replaced was accepted")
            superseded.add(current)
            current = event.resume_token


def _takeovers(talk: Conversation, marks: list[Heard]) -> Iterator[Violation]:
    told = {entry.connection for entry in marks if isinstance(entry.event, wire.SessionReplaced)}
    for attempt in talk.attempts:
        if attempt.number not in told:
            continue
        heard = [entry.event for entry in talk.heard if entry.connection == attempt.number]
        replaced = [index for index, event in enumerate(heard) if isinstance(event, wire.SessionReplaced)]
        if len(replaced) > 1:
            yield Violation("B15", f"{talk.name} connection {attempt.number} was replaced {len(replaced)} times")
        if replaced[0] != len(heard) - 1:
            following = type(heard[replaced[0] + 1]).__name__
            yield Violation("B15", f"{talk.name} connection {attempt.number}: {following} after session.replaced")
    resumed = sum(isinstance(entry.event, wire.SessionResumed) for entry in marks)
    notices = sum(isinstance(entry.event, wire.SessionReplaced) for entry in marks)
    # A resume whose answer was lost may have replaced somebody too: only the surplus that no attempt explains is wrong.
    tries = sum(attempt.how != "open" for attempt in talk.attempts)
    if notices > max(resumed, tries):
        yield Violation("B15", f"{talk.name}: {notices} replaced notices for {resumed} resumes")
    for entry in marks:
        if isinstance(entry.event, wire.SessionExpired) and entry.event.reason == "disconnect_grace_expired":
            attempt = next(attempt for attempt in talk.attempts if attempt.number == entry.connection)
            text = f"grace expired while connection {attempt.number} was attached"
            yield Violation("B12", f"{talk.name}: {text}")


def _expiry(session: SessionEvidence) -> Iterator[Violation]:
    """Never earlier than due (later than due is caught by the wait for rest)."""
    terminal, talk, site = session.terminal, session.talk, session.site
    if terminal is None or talk is None or not isinstance(terminal.event, SessionExpired):
        return
    commands = session.commands
    prompted = any(isinstance(event, InputTimedOut) for event in session.events)
    signs = _by_hand(commands) if prompted else (at for at, _ in commands)
    last = max((at for at in signs if at <= terminal.at), default=session.told[0].at)
    wait_s = {"idle_ttl_expired": site.idle_ttl_s, "disconnect_grace_expired": site.grace_s}.get(terminal.event.reason)
    if wait_s is not None and terminal.at + _EPSILON_S < last + wait_s:
        text = f"{terminal.event.reason} {terminal.at - last:.3f} s after a command, {wait_s:g} s were due"
        yield Violation("B13", f"{talk.name}: {text}")


def _by_hand(commands: Sequence[tuple[float, DuplexCommand]]) -> Iterator[float]:
    """When somebody did something who may have been asked whether he is there.

    He is not there because his player acknowledges the question, nor because his program answers a function's call that
    comes of it and asks for what follows.
    """
    answered = False
    for at, command in commands:
        if isinstance(command, AckPlayback):
            continue
        if isinstance(command, CreateItem) and command.item.output is not None:
            answered = True
        elif not (answered and isinstance(command, CreateResponse)):
            answered = False
            yield at
