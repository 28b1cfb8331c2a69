"""Order: what must come before what, once and only once (B1 to B4), at the engine's border and on the wire."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from duologue.engine.duplex import events
from duologue.sim.checkers.evidence import Evidence, SessionEvidence, Violation
from duologue.sim.conversation import Conversation, Heard
from duologue.wire import server_events as wire

_CONTENT = (events.ResponseAudio, events.ResponseText, events.ResponseSpeak)


def check(evidence: Evidence) -> Iterator[Violation]:
    """Every session."""
    for session in evidence.sessions():
        yield from at_the_engine(session)
        if session.talk is not None:
            yield from on_the_wire(session.talk)
            yield from _complete(session, session.talk)


def at_the_engine(session: SessionEvidence) -> Iterator[Violation]:
    """What left the engine."""
    name = session.session_id
    said = session.events
    numbers = [told.number for told in session.told]
    if numbers != sorted(set(numbers)):
        yield Violation("B3", f"{name}: event numbers do not grow: {numbers[:40]}")
    if said and not isinstance(said[0], events.SessionCreated):
        yield Violation("B4", f"{name}: began with {type(said[0]).__name__}")
    ends = [
        index for index, event in enumerate(said) if isinstance(event, events.SessionClosed | events.SessionExpired)
    ]
    if len(ends) > 1:
        yield Violation("B4", f"{name}: {len(ends)} session terminals")
    if ends and ends[0] != len(said) - 1:
        yield Violation("B4", f"{name}: {type(said[ends[0] + 1]).__name__} after the session terminal")
    if not ends and not session.site.crashed:
        yield Violation("B4", f"{name}: no session terminal")
    again = sum(
        isinstance(told.event, events.ResponseListen) and told.event == before.event
        for before, told in pairwise(session.told)
        if told.number == before.number + 1
    )
    if again:
        yield Violation("B2", f"{name}: said {again} times that the model listens, as the event before had said")
    yield from _responses(name, said, ended=bool(ends))


class _Responses:
    """Which responses of a session were created and done, and under which epoch the last one was."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._state: dict[str, str] = {}
        self._epoch = -1
        self._beside: dict[str, str] = {}  # outside the conversation: of no epoch, and not in its order

    def created(self, event: events.ResponseCreated) -> Iterator[Violation]:
        name, response_id = self._name, event.response_id
        if response_id in self._state or response_id in self._beside:
            yield Violation("B1", f"{name}: {response_id} was created twice")
        if event.out_of_band:
            self._beside[response_id] = "created"
            return
        if "created" in self._state.values():
            yield Violation("B1", f"{name}: {response_id} was created while another is open")
        if event.epoch < self._epoch:
            yield Violation("B3", f"{name}: {response_id} of epoch {event.epoch} after epoch {self._epoch}")
        self._state[response_id], self._epoch = "created", event.epoch

    def done(self, event: events.ResponseDone) -> Iterator[Violation]:
        known = self._known(event.response_id)
        was = known.get(event.response_id)
        if was != "created":
            yield Violation("B1", f"{self._name}: {event.response_id} done but {was}")
        known[event.response_id] = "done"
        if event.status == "cancelled" and known is self._state:
            self._epoch = max(self._epoch, event.epoch + 1)

    def content(self, kind: str, response_id: str) -> Iterator[Violation]:
        was = self._known(response_id).get(response_id)
        if was != "created":
            yield Violation("B2", f"{self._name}: {kind} of {response_id}, which is {was}")

    def left(self) -> list[str]:
        every = {**self._state, **self._beside}
        return [response_id for response_id, where in every.items() if where == "created"]

    def _known(self, response_id: str) -> dict[str, str]:
        return self._beside if response_id in self._beside else self._state


def _responses(name: str, said: list[events.SessionEvent], *, ended: bool) -> Iterator[Violation]:
    responses = _Responses(name)
    for event in said:
        match event:
            case events.ResponseCreated():
                yield from responses.created(event)
            case events.ResponseDone():
                yield from responses.done(event)
            case events.ResponseAudio() | events.ResponseText() | events.ResponseSpeak():
                yield from responses.content(type(event).__name__, event.response_id)
            case _:
                pass
    if ended and responses.left():
        yield Violation("B1", f"{name}: {responses.left()} never done")


class _Response:
    """How far the frames of one response have come on the wire."""

    def __init__(self) -> None:
        self.part = self.audio_done = self.text_done = self.item_done = self.done = False


def on_the_wire(talk: Conversation) -> Iterator[Violation]:
    """What one client read, over all its connections."""
    if talk.gap:
        return
    open_: dict[str, _Response] = {}
    seen: set[int] = set()
    for heard in talk.heard:
        event = heard.event
        seq = event.server_event_seq if event is not None else None
        if isinstance(seq, int):
            if seq in seen:
                continue
            seen.add(seq)
        fault = _frame(open_, event)
        if fault is not None:
            yield Violation("B2", f"{talk.name}: {fault}")


def _item_done(open_: dict[str, _Response], event: wire.OutputItemDone) -> str | None:
    response = open_.get(event.response_id)
    message = event.item.type == "message"  # function calls end as they begin, one after the other
    if response is None or response.done or (message and response.item_done):
        return f"output_item.done of {event.response_id} out of place"
    response.item_done |= message
    return None


def _frame(open_: dict[str, _Response], event: wire.ServerEvent | None) -> str | None:
    match event:
        case wire.AudioDelta() | wire.TranscriptDelta():  # most of them
            return _content(open_, event)
        case wire.ResponseCreated():
            if event.response.id in open_:
                return f"{event.response.id} was created twice"
            open_[event.response.id] = _Response()
        case wire.ResponseDone():
            response = open_.get(event.response.id)
            if response is None or response.done:
                return f"{event.response.id} done, but it {'was already' if response else 'never began'}"
            if response.part and not response.item_done:
                return f"{event.response.id} done before its item was"
            response.done = True
        case wire.TextDelta() | wire.AudioDone() | wire.TextDone():
            return _content(open_, event)
        case wire.TranscriptDone() | wire.PartAdded() | wire.PartDone():
            return _content(open_, event)
        case wire.OutputItemDone():
            return _item_done(open_, event)
        case _:
            pass
    return None


_Content = (
    wire.AudioDelta
    | wire.TranscriptDelta
    | wire.TextDelta
    | wire.AudioDone
    | wire.TextDone
    | wire.TranscriptDone
    | wire.PartAdded
    | wire.PartDone
)


def _content(open_: dict[str, _Response], event: _Content) -> str | None:
    response = open_.get(event.response_id)
    name = type(event).__name__
    if response is None or response.done or response.item_done:
        return f"{name} of {event.response_id}, which {'is over' if response else 'never began'}"
    if isinstance(event, wire.PartAdded):
        response.part = True
    elif not response.part:
        return f"{name} of {event.response_id} before its part was added"
    late = False
    match event:
        case wire.AudioDelta():
            late = response.audio_done
        case wire.TranscriptDelta() | wire.TextDelta():
            late = response.text_done
        case wire.AudioDone():
            response.audio_done = True
        case wire.TranscriptDone() | wire.TextDone():
            response.text_done = True
        case _:
            pass
    return f"{name} of {event.response_id} after its content was done" if late else None


def _complete(session: SessionEvidence, talk: Conversation) -> Iterator[Violation]:
    """A client that was there to the end has seen the end of everything."""
    heard = [entry for entry in talk.heard if entry.event is not None]
    frames = [entry.event for entry in heard if entry.event is not None]
    ends = [index for index, event in enumerate(frames) if isinstance(event, wire.SessionClosed | wire.SessionExpired)]
    distinct = {frames[index].server_event_seq for index in ends}
    if len(distinct) > 1:
        yield Violation("B4", f"{talk.name}: {len(distinct)} session terminals on the wire")
    if not ends or talk.gap:
        return
    end = heard[ends[0]]
    after = [type(entry.event).__name__ for entry in heard[ends[0] + 1 :] if _follows(entry, end)]
    if after and len(ends) == 1:
        yield Violation("B4", f"{talk.name}: {after[0]} after the session terminal")
    done = {event.response.id for event in frames if isinstance(event, wire.ResponseDone)}
    missing = [response_id for response_id in talk.responses if response_id not in done]
    if missing and session.undisturbed:
        yield Violation("B1", f"{talk.name}: {missing} never done on the wire")


def _follows(entry: Heard, end: Heard) -> bool:
    """Whether the session said something behind its end."""
    event, last = entry.event, end.event
    # Another connection may be told that it came too late; errors of commands in flight are not of the session either.
    if event is None or last is None:
        return False
    if isinstance(event, wire.Error | wire.SessionReplaced | wire.SessionResumed | wire.ResyncRequired):
        return False
    if entry.connection == end.connection:
        return True
    # A connection that was taken over may deliver later than its successor what it had been given before.
    seq, last_seq = event.server_event_seq, last.server_event_seq
    return not (isinstance(seq, int) and isinstance(last_seq, int) and seq < last_seq)
