"""Function calls: a result applied once, in its epoch, before its deadline, and what models read of it (B16)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from duologue.engine.duplex import events
from duologue.errors import ErrorCode
from duologue.sim.checkers.bounds import tells_of_lateness
from duologue.sim.checkers.evidence import Evidence, SessionEvidence, Violation, by_request, session_of
from duologue.sim.observation import Fed
from duologue.sim.stages import ANSWER
from duologue.sim.toolbox import TIMEOUT_S

_ROUNDING_S: Final = 1e-6  # traces count from the beginning of the run
_ON_ITS_WAY_S: Final = 0.5
_ENOUGH: Final = 3  # pieces read that their stage took after a result, which goes before them


class _Calls:
    """What became of each call of a session."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.asked: dict[str, float] = {}
        self.results: dict[str, tuple[float, str]] = {}
        self._void: set[str] = set()
        self._noticed: set[str] = set()

    def called(self, at: float, event: events.FunctionCalled) -> Iterator[Violation]:
        for part in event.item.parts:
            if isinstance(part, events.CallPart):
                if part.call_id in self.asked:
                    yield Violation("B16", f"{self._name}: call {part.call_id} was made twice")
                self.asked[part.call_id] = at

    def applied(self, at: float, part: events.CallOutputPart) -> Iterator[Violation]:
        call_id = part.call_id
        asked_at = self.asked.get(call_id)
        if asked_at is None:
            yield Violation("B16", f"{self._name}: a result of {call_id}, which nobody asked for, was applied")
            return
        if call_id in self.results:
            yield Violation("B16", f"{self._name}: a second result of {call_id} was applied")
        if call_id in self._void:
            yield Violation("B16", f"{self._name}: a result of {call_id} was applied after its epoch")
        if call_id in self._noticed or at >= asked_at + TIMEOUT_S + _ROUNDING_S:
            yield Violation(
                "B16", f"{self._name}: a result of {call_id} was applied {at - asked_at:g} s after the call"
            )
        self.results[call_id] = (at, part.output)

    def timed_out(self, at: float, event: events.ErrorRaised) -> Iterator[Violation]:
        for call_id, asked_at in self.asked.items():
            if f"'{call_id}'" not in event.message or not tells_of_lateness(event):
                continue
            if call_id in self._noticed:
                yield Violation("B16", f"{self._name}: two notices of the time-out of {call_id}")
            if call_id in self.results or call_id in self._void or at < asked_at + TIMEOUT_S - _ROUNDING_S:
                yield Violation("B16", f"{self._name}: a time-out of {call_id}, which did not time out")
            self._noticed.add(call_id)

    def epoch_ended(self) -> None:
        self._void |= self.asked.keys() - self.results.keys() - self._noticed


def check(evidence: Evidence) -> Iterator[Violation]:
    """Every session of a deployment whose model asks for functions."""
    for session in evidence.sessions():
        if session.site.plan.tools:
            calls = _Calls(session.session_id)
            yield from ledger(session, calls)
            if session.site.plan.family == "resident":
                yield from _told(session, calls, surely=_certain(evidence, session))


def _certain(evidence: Evidence, session: SessionEvidence) -> bool:
    """Whether nothing that goes to a stage is lost on its way."""
    person = session.person
    return not (evidence.plan.disturbed or person is None or person.work or person.hooks)


def ledger(session: SessionEvidence, calls: _Calls | None = None) -> Iterator[Violation]:
    """What became of each call, and what models that read the conversation are told of it."""
    calls = calls or _Calls(session.session_id)
    beside: set[str] = set()
    for told in session.told:
        match told.event:
            case events.ResponseCreated(out_of_band=True):
                beside.add(told.event.response_id)
            case events.FunctionCalled() if told.event.response_id not in beside:
                yield from calls.called(told.at, told.event)
            case events.ItemAdded(item=events.ItemView(parts=(events.CallOutputPart() as part,))):
                yield from calls.applied(told.at, part)
            case events.ErrorRaised(code=ErrorCode.TOOL_RESULT_TIMEOUT):
                yield from calls.timed_out(told.at, told.event)
            case events.ResponseDone(status="cancelled") if told.event.response_id not in beside:
                calls.epoch_ended()
            case _:
                pass
    yield from _prompts(session, calls)


def _prompts(session: SessionEvidence, calls: _Calls) -> Iterator[Violation]:
    """Every call that a model reads is followed by its result, which is the one that was applied."""
    for fed in session.site.seen.input:
        if fed.stage != ANSWER or session_of(fed.request_id) != session.session_id:
            continue
        messages = fed.prompt.messages
        for index, message in enumerate(messages):
            for call in message.calls:
                following = messages[index + 1] if index + 1 < len(messages) else None
                if following is None or (following.role, following.call_id) != ("tool", call.call_id):
                    yield Violation("B16", f"{session.session_id}: call {call.call_id} is read without a result")
            if message.role == "tool" and message.text.startswith("result"):
                applied = calls.results.get(message.call_id)
                if applied is None or applied[0] > fed.at or applied[1] != message.text:
                    yield Violation("B16", f"{session.session_id}: {message.text!r} is read and was not applied")


def _results(pieces: Iterable[Fed]) -> Iterator[str]:
    """The calls whose results are read with ``pieces``."""
    for message in (message for fed in pieces for message in fed.prompt.messages):
        if message.call_id and message.text.startswith("result"):
            yield message.call_id


def _told(session: SessionEvidence, calls: _Calls, *, surely: bool) -> Iterator[Violation]:
    """A resident model, which reads no conversation again, is told of each result once while its request goes on."""
    requests = by_request(session.site.seen.input, session.session_id, 0).values()
    told = [Counter(_results(pieces)) for pieces in requests]
    ever = set().union(*told)  # what waited for a context that was rolled over is read by the request after it
    taken: dict[str, list[float]] = {}  # when its stage took each piece, which it may read much later
    for planned in session.accepted:
        taken.setdefault(planned.request_id, []).append(planned.at)
    for pieces, heard in zip(requests, told, strict=True):
        for call_id, count in heard.items():
            if count > 1:
                yield Violation("B16", f"{session.session_id}: one request was told {count} times of {call_id}")
        for call_id, (at, _) in calls.results.items():
            before = sum(when <= at + _ON_ITS_WAY_S for when in taken.get(pieces[0].request_id, ()))
            if surely and pieces[0].at < at and len(pieces) - before >= _ENOUGH and call_id not in ever:
                yield Violation("B16", f"{session.session_id}: the result of {call_id} was kept from the model")
