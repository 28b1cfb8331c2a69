"""What the checkers of one run judge: its sites, its clients' conversations, and how they belong together.

Rules kept here: checkers see what a client read and sent, what left the engine, what stages were fed and made, and declared
counters; they never look into the system under test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

import msgspec

from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.commands import AppendAudio, DuplexCommand
from duologue.engine.duplex.events import SessionClosed, SessionEvent, SessionExpired
from duologue.engine.duplex.plugin import ModelCapabilities
from duologue.ids import parse_stage_request_id
from duologue.sim.conversation import Conversation
from duologue.sim.observation import Fed, Made, Observations, Planned, Told
from duologue.sim.plan import Deployment, Person, Plan, Strike

ANYTHING: Final = Strike(at_ms=0, kind="whatever a test does")


class Violation(msgspec.Struct, frozen=True):
    """Something that must not happen. ``rule`` is the number of the invariant, ``text`` says what was seen."""

    rule: str
    text: str


class SiteEvidence(NamedTuple):
    """One deployment. ``crashed``: its engine was made to fail, so its sessions could not end in order."""

    plan: Deployment
    seen: Observations
    max_sessions: int
    by_groups: bool
    idle_ttl_s: float | None
    grace_s: float
    send_ahead_ms: int | None
    crashed: bool
    stopped_at: float | None
    acted: Mapping[str, int] = {}  # declared: how often each limit acted


@dataclass(frozen=True)
class SessionEvidence:
    """One session as it was seen from all sides. ``talk`` is ``None`` if its client never learnt of it."""

    session_id: str
    site: SiteEvidence
    told: list[Told]
    talk: Conversation | None
    person: Person | None

    @property
    def name(self) -> str:
        """How violations call it: as its client did, if it had one."""
        return self.session_id if self.talk is None else self.talk.name

    @cached_property
    def events(self) -> list[SessionEvent]:
        """What left the engine, in order, answers to strangers aside."""
        return [told.event for told in self.told if told.number > 0]

    @property
    def commands(self) -> Sequence[tuple[float, DuplexCommand]]:
        """What the server passed on of what the client sent, in order, and when."""
        return self.site.seen.commands.get(self.session_id, ())

    @cached_property
    def orders(self) -> list[tuple[float, DuplexCommand]]:
        """Of these all but the audio, which is most of them."""
        return [entry for entry in self.commands if not isinstance(entry[1], AppendAudio)]

    @cached_property
    def accepted(self) -> list[Planned]:
        """Its accepted appends, in order; those beside the conversation have no number and are not of it."""
        session_id = self.session_id
        return [
            entry for entry in self.site.seen.planned if entry.accepted and entry.session_id == session_id and entry.seq
        ]

    @property
    def terminal(self) -> Told | None:
        """The end of the session, as it left the engine."""
        last = self.told[-1] if self.told else None
        return last if last is not None and isinstance(last.event, SessionClosed | SessionExpired) else None

    @property
    def undisturbed(self) -> bool:
        """Whether the client read everything: one connection, which the plan did not break, and no gap."""
        talk = self.talk
        return talk is not None and len(talk.attempts) == 1 and not talk.attempts[0].lost and not talk.gap


@dataclass(slots=True)
class Evidence:
    """One run."""

    plan: Plan
    sites: list[SiteEvidence]
    people: dict[str, tuple[Person, list[Conversation]]]
    _sessions: list[SessionEvidence] = field(default_factory=list)

    def sessions(self) -> list[SessionEvidence]:
        """Every session that said something, in order of opening."""
        if not self._sessions:
            talks = {talk.session_id: talk for _, talks in self.people.values() for talk in talks if talk.session_id}
            for site in self.sites:
                for session_id, told in site.seen.told.items():
                    known = self.people.get(site.seen.key_of_session.get(session_id, ""))
                    person = known[0] if known is not None else None
                    own = [one for one in told if one.number > 0]
                    if own:
                        self._sessions.append(SessionEvidence(session_id, site, own, talks.get(session_id), person))
        return self._sessions

    @property
    def calm(self) -> bool:
        """Whether nothing was planned that may lose input: no faults, no tight limits."""
        plan = self.plan
        tight = {"tiny", "detector", "leaps", "crash", "shutdown"} & set(plan.keeps)
        return not (plan.disturbed or tight)


def engine_evidence(
    seen: Observations, config: DuplexSessionRuntimeConfig, model: ModelCapabilities, *, whole: bool = True
) -> Evidence:
    """What was seen at the borders of one engine without a simulated world: no clients, and anything may go wrong.

    ``whole``: every session was seen to its end.
    """
    plan = Deployment(
        family=model.family,
        unit_ms=model.unit_ms,
        silence_units=model.max_silence_units,
        transcribes=model.transcribes_input,
        images=model.takes_images,
        runtime={
            name: value for name, value in msgspec.structs.asdict(config).items() if isinstance(value, int | float)
        },
    )
    site = SiteEvidence(
        plan=plan,
        seen=seen,
        max_sessions=config.max_sessions,
        by_groups=config.replica_policy != "legacy",
        idle_ttl_s=config.idle_ttl_s,
        grace_s=config.disconnect_grace_s,
        send_ahead_ms=config.send_ahead_ms,
        crashed=not whole,
        stopped_at=None,
    )
    return Evidence(plan=Plan(seed=0, deployments=(plan,), strikes=(ANYTHING,)), sites=[site], people={})


def by_request(entries: list[Fed], session_id: str, stage: int) -> dict[str, list[Fed]]:
    """What one stage was fed for one session, by request, in order."""
    found: dict[str, list[Fed]] = {}
    for entry in entries:
        if entry.stage == stage and session_of(entry.request_id) == session_id:
            found.setdefault(entry.request_id, []).append(entry)
    return found


def made_for(entries: list[Made], session_id: str, stage: int) -> dict[str, list[Made]]:
    """What one stage made for one session, by request, in order, each to its end: a replica may say that end again."""
    found: dict[str, list[Made]] = {}
    ended: set[str] = set()
    for entry in entries:
        if entry.stage != stage or entry.request_id in ended or session_of(entry.request_id) != session_id:
            continue
        found.setdefault(entry.request_id, []).append(entry)
        if entry.output.finished or entry.output.error is not None:
            ended.add(entry.request_id)
    return found


def session_of(request_id: str) -> str:
    """The session of a stage request; empty for others."""
    parsed = parse_stage_request_id(request_id)
    return "" if parsed is None else parsed.session_id


def epoch_of(request_id: str) -> int:
    """The epoch of a stage request."""
    parsed = parse_stage_request_id(request_id)
    return -1 if parsed is None else parsed.epoch
