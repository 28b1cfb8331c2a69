"""What must hold of the events of one session, whoever hears them: cursors, calls, and the end of one that is not read.

Invariants 16, 19 and 21, over nothing but the events, so that tests without a simulated world can share them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from duologue.engine.duplex.events import (
    CallOutputPart,
    CallPart,
    ErrorRaised,
    FunctionCalled,
    ItemAdded,
    ItemTruncated,
    ResponseAudio,
    ResponseText,
    SessionEvent,
)
from duologue.errors import ErrorCode
from duologue.sim.checkers.evidence import Evidence, Violation


def check(evidence: Evidence) -> Iterator[Violation]:
    """Every session."""
    for session in evidence.sessions():
        for violation in judge_events(session.events):
            yield Violation(violation.rule, f"{session.session_id}: {violation.text}")


def judge_events(events: Sequence[SessionEvent]) -> Iterator[Violation]:
    """All that one session said, in order."""
    yield from _cursors(events)
    yield from _calls(events)
    yield from _overflow(events)


def _cursors(events: Sequence[SessionEvent]) -> Iterator[Violation]:
    """B19: what was sent of an answer only grows, what a truncation left of it only shrinks."""
    sent: dict[str, int] = {}
    cut: dict[str, int] = {}
    for event in events:
        if isinstance(event, ResponseAudio):
            before = sent.get(event.item_id, 0)
            if event.start_ms < before:
                yield Violation("B19", f"audio of {event.item_id} at {event.start_ms} ms after {before} ms")
            sent[event.item_id] = event.start_ms
        elif isinstance(event, ItemTruncated):
            least = cut.get(event.item_id, event.audio_end_ms)
            if event.audio_end_ms > least:
                yield Violation("B19", f"{event.item_id} was cut to {least} ms and then to {event.audio_end_ms} ms")
            cut[event.item_id] = min(least, event.audio_end_ms)


def tells_of_lateness(event: ErrorRaised) -> bool:
    """Whether it is the one notice that a call timed out. Each result that comes later is refused with the same code, and
    with the client's name for it, if it has one.
    """
    late = event.code is ErrorCode.TOOL_RESULT_TIMEOUT and event.event_id is None
    return late and event.message.startswith("No result of function call")


def _calls(events: Sequence[SessionEvent]) -> Iterator[Violation]:
    """B16: each call is made once, has one result at most, and is told to be late once at most."""
    made: Counter[str] = Counter()
    results: Counter[str] = Counter()
    late: Counter[str] = Counter()
    for event in events:
        if isinstance(event, FunctionCalled):
            made.update(part.call_id for part in event.item.parts if isinstance(part, CallPart))
        elif isinstance(event, ItemAdded):
            for part in event.item.parts:
                if isinstance(part, CallPart):
                    results[part.call_id] = 0  # the client wrote a call of its own, maybe after it had deleted one
            results.update(part.call_id for part in event.item.parts if isinstance(part, CallOutputPart))
        elif isinstance(event, ErrorRaised) and tells_of_lateness(event):
            late[event.message] += 1
    for what, counts in (("made", made), ("answered", results), ("late", late)):
        for call, count in counts.items():
            if count > 1:
                yield Violation("B16", f"call {call} was {what} {count} times")


def _overflow(events: Sequence[SessionEvent]) -> Iterator[Violation]:
    """B21: once the client is told that it reads too slowly, no content follows."""
    over = False
    for event in events:
        if isinstance(event, ErrorRaised) and event.code is ErrorCode.OUTPUT_BACKPRESSURE:
            over = over or "to be read" in event.message  # not that of a paused request, which costs its answer alone
        elif over and isinstance(event, ResponseAudio | ResponseText):
            yield Violation("B21", f"content of {event.response_id} left after the output had overflowed")
