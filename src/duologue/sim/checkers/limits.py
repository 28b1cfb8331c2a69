"""Limits that a client meets: how often it may ask, which pictures are kept, what it can have heard (R1, I1, B19)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from duologue.engine.duplex.commands import CommitAudio, CreateItem, CreateResponse, DuplexCommand, UpdateSession
from duologue.engine.duplex.events import (
    ErrorRaised,
    ImagePart,
    InputCommitted,
    ItemAdded,
    ItemDeleted,
    ItemTruncated,
    PlaybackAcknowledged,
    ResponseAudio,
    SessionUpdated,
    SpeechStarted,
)
from duologue.errors import ErrorCode
from duologue.sim.checkers.evidence import Evidence, SessionEvidence, Violation, session_of
from duologue.sim.plan import RuntimeValue

_BURST: Final = 20
_PER_MINUTE: Final = 120
_ANSWERS: Final = (ErrorRaised, InputCommitted, ItemAdded, SessionUpdated)  # to what waits for the input before it
_IMAGE_BYTES: Final = 4 * 1024 * 1024
_ALL_IMAGE_BYTES: Final = 16 * 1024 * 1024


def check(evidence: Evidence) -> Iterator[Violation]:
    """Every session."""
    for session in evidence.sessions():
        if not evidence.plan.leaps:
            yield from _asked(session)
        yield from _pictures(session)
        yield from _heard(session)


def _number(value: RuntimeValue, default: int) -> float:
    return float(value) if isinstance(value, int | float) else default


def _asked(session: SessionEvidence) -> Iterator[Violation]:
    """R1: in no stretch of time more turns and responses are accepted than a burst and the rate allow.

    What came while a command waited for the input before it was held back behind that, and asked later or never.
    """
    runtime = session.site.plan.runtime
    burst, per_minute = (
        _number(runtime.get("turn_burst"), _BURST),
        _number(runtime.get("turns_per_minute"), _PER_MINUTE),
    )
    begin, end = session.told[0].at, session.told[-1].at
    named = {told.event.event_id for told in session.told if isinstance(told.event, ErrorRaised)} - {None}
    asked = [
        at
        for at, command in _at_once(session)
        if isinstance(command, CommitAudio | CreateResponse) and begin <= at < end and command.event_id not in named
    ]
    for told in session.told:
        refused = isinstance(told.event, ErrorRaised) and told.event.code is ErrorCode.RATE_LIMITED
        if refused and told.at in asked:
            asked.remove(told.at)
    for index, first in enumerate(asked):
        for count, last in enumerate(asked[index:], 1):
            if count > burst + (last - first) * per_minute / 60 + 1e-6:
                text = f"{count} turns and responses were accepted within {last - first:.3f} s"
                yield Violation("R1", f"{session.session_id}: {text}, {burst:g} and {per_minute:g} a minute may be")
                return


def _at_once(session: SessionEvidence) -> Iterator[tuple[float, DuplexCommand]]:
    """The commands that the session had as soon as they were sent.

    After one that was not answered in its instant, others wait until it is: until then nobody can say from here when they
    were judged, nor, where detection commits too, which answer it is.
    """
    answers = [told for told in session.told if isinstance(told.event, _ANSWERS)]
    detected = any(isinstance(told.event, SpeechStarted) for told in session.told)
    since: float | None = None
    waits: str | None = None  # the id of what waits since then: errors of other commands are no answers to it
    for at, command in session.orders:
        if since is not None and not detected:
            due = (told for told in answers if since < told.at < at)
            if any(not isinstance(told.event, ErrorRaised) or told.event.event_id == waits for told in due):
                since = None
        if since is None:
            yield at, command
            result = isinstance(command, CreateItem) and command.item.output is not None
            if isinstance(command, CommitAudio | UpdateSession) or result:
                since, waits = None if any(told.at == at for told in answers) else at, command.event_id


def _pictures(session: SessionEvidence) -> Iterator[Violation]:
    """I1: pictures are kept by who takes them, within the limits, and read as they were shown."""
    plan = session.site.plan
    shown = {
        (command.item.texts, tuple(image.url for image in command.item.images))
        for _, command in session.orders
        if isinstance(command, CreateItem) and command.item.images
    }
    if not shown:
        return
    sizes = {texts: sum(map(len, urls)) for texts, urls in shown}
    most = _number(plan.runtime.get("max_image_bytes_per_item"), _IMAGE_BYTES)
    for event in session.events:
        if not isinstance(event, ItemAdded) or not any(isinstance(part, ImagePart) for part in event.item.parts):
            continue
        texts = _texts(event)
        if not plan.images or sizes.get(texts, 0) > most:
            yield Violation("I1", f"{session.session_id}: {sizes.get(texts, 0)} bytes of pictures were kept")
    every = _number(plan.runtime.get("max_image_bytes_per_session"), _ALL_IMAGE_BYTES)
    if "max_items_per_session" not in plan.runtime:  # nobody is told of items that make room for newer ones
        yield from _kept(session, sizes, every)
    yield from _read(session, shown, every)


def _texts(event: ItemAdded) -> tuple[str, ...]:
    return tuple(part.text for part in event.item.parts if hasattr(part, "text"))


def _kept(session: SessionEvidence, sizes: dict[tuple[str, ...], int], every: float) -> Iterator[Violation]:
    """The conversation never holds more pictures than it may, read or not."""
    kept: dict[str, int] = {}
    for event in session.events:
        if isinstance(event, ItemDeleted):
            kept.pop(event.item_id, None)
        elif isinstance(event, ItemAdded) and any(isinstance(part, ImagePart) for part in event.item.parts):
            kept[event.item.item_id] = sizes.get(_texts(event), 0)
            if sum(kept.values()) > every:
                text = f"{sum(kept.values())} bytes of pictures are kept, {every:g} may be"
                yield Violation("I1", f"{session.session_id}: {text}")
                return


def _read(
    session: SessionEvidence, shown: set[tuple[tuple[str, ...], tuple[str, ...]]], every: float
) -> Iterator[Violation]:
    by_text = {" ".join(texts): urls for texts, urls in shown}
    for fed in session.site.seen.input:
        if session_of(fed.request_id) != session.session_id:
            continue
        for message in fed.prompt.messages:
            urls = tuple(image.url for image in message.images)
            expected = by_text.get(message.text)
            if urls and (expected is None or urls != expected):
                yield Violation("I1", f"{session.session_id}: {len(urls)} pictures are read that were not shown so")
            elif not urls and expected is not None:
                yield Violation("I1", f"{session.session_id}: {message.text!r} is read without its pictures")
        size = sum(len(image.url) for message in fed.prompt.messages for image in message.images)
        if size > every:
            yield Violation("I1", f"{session.session_id}: {size} bytes of pictures are read, {every:g} may be kept")


def _heard(session: SessionEvidence) -> Iterator[Violation]:
    """B19: nobody has heard more of an answer than was sent of it."""
    sent: dict[str, float] = {}
    for event in session.events:
        match event:
            case ResponseAudio():
                sent[event.item_id] = sent.get(event.item_id, 0.0) + len(event.audio) * 500 / event.rate_hz
            case PlaybackAcknowledged(note="superseded"):
                pass  # it was of no answer that still plays, and counts for nothing
            case PlaybackAcknowledged() if event.item_id and event.played_ms > sent.get(event.item_id, 0.0) + 1:
                text = f"{event.played_ms} ms of {event.item_id} were heard, {sent.get(event.item_id, 0.0):.0f} ms were sent"
                yield Violation("B19", f"{session.session_id}: {text}")
            case ItemTruncated() if event.audio_end_ms > sent.get(event.item_id, 0.0) + 1:
                text = f"{event.item_id} was cut to {event.audio_end_ms} ms, {sent.get(event.item_id, 0.0):.0f} ms were sent"
                yield Violation("B19", f"{session.session_id}: {text}")
            case _:
                pass
