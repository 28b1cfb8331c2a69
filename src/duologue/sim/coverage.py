"""What a run exercised: events, decisions, ends and errors by name, and how long sessions were open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from duologue.engine.duplex import events
from duologue.errors import ErrorCode
from duologue.sim.checkers import Evidence
from duologue.sim.trace import Trace
from duologue.wire import server_events as wire

EXPECTED: Final = (
    "session",
    "session.resumed",
    "session.replaced",
    "resync.journal_gap",
    "resync.journal_overflow",
    "done.completed",
    "done.cancelled",
    "done.failed",
    "overlap.barge_in",
    "overlap.drop",
    "overlap.listen",
    "overlap.pending",
    "closed.client_close",
    "closed.shutdown",
    "closed.fault",
    "expired.idle_ttl_expired",
    "expired.disconnect_grace_expired",
    "expired.request_cleanup",
    "refused.resource_exhausted",
    "error.input_backpressure",
    "error.output_backpressure",
    "error.runtime_plugin_failed",
    "error.replica_unavailable",
    "commit.deferred",
    "input_timed_out",
    "withdrawn",
    "listen.continuation_limit",
    "replica.death",
    "session.recovered",
    "session.queued",
    "slot.quarantined",
    "image.kept",
    "image.refused",
    "call.resident",
    "call.ephemeral",
    "call.answered",
    "call.late",
    "context.compacted",
    "expired.context_full",
    "wire.rate_limited",
    "eager",
    "acted.backlog",
)
"""Names that a long run must not leave at zero (beside the features of the swarm)."""


_CONTENT: Final = frozenset({events.ResponseAudio, events.ResponseText})
_FRAMES: Final = frozenset({wire.SessionResumed, wire.SessionReplaced, wire.ResyncRequired, wire.Error})


def tally(evidence: Evidence, trace: Trace) -> float:
    """Count what a run exercised into its trace; returns the seconds that its sessions were open, all together."""
    counts = trace.counts
    open_s = 0.0
    for session in evidence.sessions():
        counts["session"] += 1
        told = session.told
        if told:
            open_s += told[-1].at - told[0].at
        family = session.site.plan.family
        for event in session.events:
            if type(event) not in _CONTENT:
                _event(counts, event)
                _ability(counts, event, family)
    for site in evidence.sites:
        counts["withdrawn"] += sum(len(entries) for entries in site.seen.invalidated.values())
        refused = (admission.refused for admission in site.seen.admissions if admission.refused is not None)
        counts.update(f"refused.{why}" for why in refused)
    for _, talks in evidence.people.values():
        for frame in [heard.event for talk in talks for heard in talk.heard if type(heard.event) in _FRAMES]:
            _frame(counts, frame)
    for site in evidence.sites:
        counts.update({f"acted.{limit}": times for limit, times in site.acted.items()})
        counts["context.compacted"] += sum(planned.compact and planned.accepted for planned in site.seen.planned)
    counts["eager"] += sum(person.eager for person, _ in evidence.people.values())
    for name in evidence.plan.keeps:
        counts[f"feature.{name}"] += 1
    return open_s


def _event(counts: Counter[str], event: events.SessionEvent) -> None:
    match event:
        case events.ResponseDone():
            counts[f"done.{event.status}"] += 1
        case events.OverlapDecided():
            counts[f"overlap.{event.action}"] += 1
        case events.SessionClosed():
            counts[f"closed.{'fault' if event.fault is not None else event.reason}"] += 1
            counts["slot.quarantined"] += not event.slot_released
        case events.SessionExpired():
            counts[f"expired.{event.reason}"] += 1
            counts["slot.quarantined"] += not event.slot_released
        case events.SessionRecovered():
            counts["session.recovered"] += 1
        case events.ErrorRaised():
            counts[f"error.{event.code.value}"] += 1
        case events.InputCommitted():
            counts["commit"] += 1
            counts["commit.deferred"] += event.deferred
        case events.InputTimedOut():
            counts["input_timed_out"] += 1
        case events.ResponseListen():
            counts[f"listen.{event.reason}"] += 1
        case _:
            pass


def _ability(counts: Counter[str], event: events.SessionEvent, family: str) -> None:
    match event:
        case events.FunctionCalled():
            counts[f"call.{family}"] += 1
        case events.ItemAdded():
            kinds = [type(part) for part in event.item.parts]
            counts["call.answered"] += events.CallOutputPart in kinds
            counts["image.kept"] += events.ImagePart in kinds
        case events.ErrorRaised():
            counts["call.late"] += event.code is ErrorCode.TOOL_RESULT_TIMEOUT
            counts["image.refused"] += "image" in event.message
        case _:
            pass


def _frame(counts: Counter[str], event: wire.ServerEvent | None) -> None:
    match event:
        case wire.SessionResumed():
            counts["session.resumed"] += 1
        case wire.SessionReplaced():
            counts["session.replaced"] += 1
        case wire.ResyncRequired():
            counts[f"resync.{event.reason}"] += 1
        case wire.Error():
            counts[f"wire.{event.error.code}"] += 1
        case _:
            pass


def missing(counts: Mapping[str, int]) -> list[str]:
    """Names of :data:`EXPECTED` that were never exercised."""
    return [name for name in EXPECTED if not counts.get(name)]


def table(counts: Mapping[str, int]) -> str:
    """The coverage as lines of three columns; what should not be zero and is stands first."""
    lines = [f"never: {name}" for name in missing(counts)]
    entries = [f"{name} {count}" for name, count in sorted(counts.items())]
    rows = -(-len(entries) // 3)
    for row in range(rows):
        lines.append("".join(f"{entry:<44}" for entry in entries[row::rows]).rstrip())
    return "\n".join(lines)
