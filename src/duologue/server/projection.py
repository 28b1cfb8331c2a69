"""What every dialect does alike with a session's events: responses, transcripts and errors as wire frames.

Rules kept here:

* a frame is made when the socket can take it, so that what is cancelled before never touches this state;
* every response that began ends with the same closing frames, whatever was dropped in between;
* a response keeps the audio format that it began with; its audio is one stream through one encoder;
* no frame is larger than a mebibyte, the least that a client in use accepts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from duologue.audio import AudioEncoder
from duologue.config.session import SessionConfig
from duologue.engine.duplex import events
from duologue.errors import ERRORS, ErrorCode
from duologue.server.views import created_response, done_response, empty_item, item_object, output_part
from duologue.wire import Dialect
from duologue.wire import server_events as wire
from duologue.wire.objects import DurationUsage, ErrorBody, Item

MAX_DELTA_BYTES: Final = 480_000  # of audio: 640,000 characters of base64; whole samples in every format
MAX_TEXT_CHARS: Final = 150_000
_SENT_WHOLE: Final = ("completed", "incomplete")  # an end after all that the model said

Frames = list[wire.ServerEvent]


class Style(msgspec.Struct, frozen=True, kw_only=True):
    """Where two dialects differ in what surrounds the same content."""

    dialect: Dialect
    created_items: bool  # conversation.item.created beside .added
    rates_first: bool  # rate_limits.updated at a response's start, else at its end
    paired_transcript: bool  # a transcript delta after every audio delta, if only an empty one
    own_fields: bool  # response ids at the top level, rates on deltas, retry hints on errors


GA_STYLE: Final = Style(dialect="ga", created_items=False, rates_first=True, paired_transcript=False, own_fields=False)
DUPLEX_STYLE: Final = Style(
    dialect="duplex", created_items=True, rates_first=False, paired_transcript=True, own_fields=True
)


def error_frame(
    style: Style,
    code: ErrorCode,
    message: str,
    *,
    event_id: str | None = None,
    param: str | None = None,
    response_id: str | None = None,
) -> wire.Error:
    """An ``error`` event. The GA dialect uses OpenAI's name for a cause where there is one."""
    spec = ERRORS[code]
    if code is ErrorCode.RESPONSE_NOT_ACTIVE and not message.startswith("Cancellation failed"):
        message = f"Cancellation failed: {message}"  # stock clients know this benign race by how its message begins
    own = style.own_fields
    body = ErrorBody(
        type=spec.wire_type,
        code=code.value if own or spec.ga_code is None else spec.ga_code,
        message=message,
        param=param,
        event_id=event_id,
        retryable=spec.retryable if own else UNSET,
    )
    return wire.Error(error=body, response_id=response_id if own and response_id else UNSET)


@dataclass(slots=True)
class _OpenResponse:
    """A response that has begun on this wire."""

    event: events.ResponseCreated
    config: SessionConfig
    announced: bool = False  # its message and content part are on the wire
    index: int = 0  # of its message among the output
    outputs: int = 0  # items of it on the wire so far
    encoder: AudioEncoder | None = None
    sent: list[str] = field(default_factory=list)


class ResponseProjection:
    """Frames of responses, in order, for one session."""

    __slots__ = ("_open", "_session_id", "_style")

    def __init__(self, style: Style, session_id: str) -> None:
        self._style = style
        self._session_id = session_id
        self._open: dict[str, _OpenResponse] = {}

    def created(self, event: events.ResponseCreated, config: SessionConfig) -> Frames:
        config = msgspec.structs.replace(
            config,
            max_output_tokens=event.max_output_tokens,
            output_format=event.output_format or config.output_format,
        )
        self._open[event.response_id] = _OpenResponse(event, config)
        response = created_response(event, config, self._session_id)
        frames: Frames = [wire.ResponseCreated(response=response, response_id=self._own(event.response_id))]
        if self._style.rates_first:
            frames.append(wire.RateLimitsUpdated())
        return frames

    def announce(self, response_id: str) -> Frames:
        """Item and content part, if they are not on the wire yet."""
        response = self._open.get(response_id)
        return [] if response is None else self._announce(response)

    def audio(self, event: events.ResponseAudio) -> Frames:
        response = self._open.get(event.response_id)
        if response is None:
            return []
        frames = self._announce(response)
        frames += self._deltas(response, self._encode(response, event))
        if event.text or self._style.paired_transcript:
            response.sent.append(event.text)
            frames += [
                wire.TranscriptDelta(
                    response_id=event.response_id, item_id=event.item_id, output_index=response.index, delta=piece
                )
                for piece in _pieces(event.text)
            ]
        return frames

    def text(self, event: events.ResponseText) -> Frames:
        response = self._open.get(event.response_id)
        if response is None:
            return []
        response.sent.append(event.text)
        return self._announce(response) + [
            wire.TextDelta(
                response_id=event.response_id, item_id=event.item_id, output_index=response.index, delta=piece
            )
            for piece in _pieces(event.text)
        ]

    def called(self, event: events.FunctionCalled) -> Frames:
        """A function call, whole: it begins and ends here, whatever becomes of the response."""
        response = self._open.get(event.response_id)
        if response is None:
            return []
        frames = [] if event.leads else self._announce(response)
        index, response.outputs = response.outputs, response.outputs + 1
        item = item_object(event.item)
        begun = msgspec.structs.replace(item, status="in_progress", arguments="")
        where = (event.response_id, event.item.item_id, index)
        out_of_band = response.event.out_of_band
        if not out_of_band:
            frames += item_frames(self._style, begun, event.previous_item_id, done=False)
        frames.append(wire.OutputItemAdded(response_id=event.response_id, output_index=index, item=begun))
        for part in event.item.parts:
            if isinstance(part, events.CallPart):
                frames += _arguments(part, *where)
        frames.append(wire.OutputItemDone(response_id=event.response_id, output_index=index, item=item))
        if not out_of_band:
            frames.append(wire.ItemDone(item=item, previous_item_id=event.previous_item_id))
        return frames

    def done(self, event: events.ResponseDone) -> Frames:
        response = self._open.pop(event.response_id, None)
        if response is None:
            return []
        frames: Frames = []
        if event.item is not None and event.status in _SENT_WHOLE:
            frames += self._announce(response)
        output: list[Item] = []
        output += [item_object(call) for call in event.calls]
        if response.announced:
            item = self._final_item(response, event)
            output.insert(response.index, item)
            frames += self._closing(response, event, item)
        shown = done_response(event, response.event, response.config, self._session_id, output)
        own = self._style.own_fields
        frames.append(
            wire.ResponseDone(
                response=shown,
                response_id=self._own(event.response_id),
                generated_audio_ms=event.audio_ms if own else UNSET,
                generated_text=event.full_text if own else UNSET,
                delays=_delays(event.delays) if own else UNSET,
            )
        )
        if not self._style.rates_first:
            frames.append(wire.RateLimitsUpdated())
        return frames

    def withdraw(self, response_id: str) -> None:
        """What was not sent of a response is void: the end of it that its encoder still holds as well."""
        response = self._open.get(response_id)
        if response is not None:
            response.encoder = None

    def abandon(self, code: ErrorCode) -> Frames:
        """End what the engine left open: it should not, but a response that began must be seen to end."""
        frames: Frames = []
        for response_id, response in list(self._open.items()):
            event = events.ResponseDone(
                response_id=response_id,
                epoch=response.event.epoch,
                status="failed",
                error=code,
                modality=response.event.modality,
            )
            frames += self.done(event)
        return frames

    def _own(self, response_id: str) -> str | UnsetType:
        return response_id if self._style.own_fields else UNSET

    def _announce(self, response: _OpenResponse) -> Frames:
        if response.announced:
            return []
        response.announced = True
        response.index, response.outputs = response.outputs, response.outputs + 1
        event = response.event
        item = empty_item(event.item_id)
        frames: Frames = []
        if not event.out_of_band:
            frames += item_frames(self._style, item, event.previous_item_id, done=False)
        index = response.index
        frames.append(wire.OutputItemAdded(response_id=event.response_id, output_index=index, item=item))
        part = output_part(event.modality, "")
        frames.append(
            wire.PartAdded(response_id=event.response_id, item_id=event.item_id, output_index=index, part=part)
        )
        return frames

    def _encode(self, response: _OpenResponse, event: events.ResponseAudio) -> bytes:
        encoder = response.encoder
        if encoder is not None and encoder.input_rate_hz == event.rate_hz:
            return encoder.encode(event.audio)
        tail = encoder.flush() if encoder is not None else b""
        response.encoder = AudioEncoder(response.config.output_format, event.rate_hz)
        return tail + response.encoder.encode(event.audio)

    def _deltas(self, response: _OpenResponse, audio: bytes) -> Frames:
        event = response.event
        rate_hz = response.config.output_format.rate_hz if self._style.own_fields else UNSET
        return [
            wire.AudioDelta(
                response_id=event.response_id,
                item_id=event.item_id,
                output_index=response.index,
                delta=audio[start : start + MAX_DELTA_BYTES],
                sample_rate_hz=rate_hz,
            )
            for start in range(0, len(audio), MAX_DELTA_BYTES)
        ]

    def _final_item(self, response: _OpenResponse, event: events.ResponseDone) -> Item:
        if event.item is not None:
            return item_object(event.item)
        status = "completed" if event.status == "completed" else "incomplete"
        return msgspec.structs.replace(empty_item(response.event.item_id), status=status)

    def _closing(self, response: _OpenResponse, event: events.ResponseDone, item: Item) -> Frames:
        created = response.event
        frames: Frames = []
        if response.encoder is not None and event.status in _SENT_WHOLE:
            frames += self._deltas(response, response.encoder.flush())
        text = _final_text(response, event)
        response_id, item_id, index = created.response_id, created.item_id, response.index
        if created.modality == "text":
            frames.append(wire.TextDone(response_id=response_id, item_id=item_id, output_index=index, text=text))
        else:
            frames.append(wire.AudioDone(response_id=response_id, item_id=item_id, output_index=index))
            frames.append(
                wire.TranscriptDone(response_id=response_id, item_id=item_id, output_index=index, transcript=text)
            )
        part = output_part(created.modality, text)
        frames.append(wire.PartDone(response_id=response_id, item_id=item_id, output_index=index, part=part))
        frames.append(wire.OutputItemDone(response_id=response_id, output_index=index, item=item))
        if not created.out_of_band:
            frames.append(wire.ItemDone(item=item, previous_item_id=created.previous_item_id))
        return frames


def _arguments(call: events.CallPart, response_id: str, item_id: str, index: int) -> Frames:
    frames: Frames = [
        wire.ArgumentsDelta(
            response_id=response_id, item_id=item_id, output_index=index, call_id=call.call_id, delta=piece
        )
        for piece in _pieces(call.arguments)
    ]
    done = wire.ArgumentsDone(
        response_id=response_id,
        item_id=item_id,
        output_index=index,
        call_id=call.call_id,
        name=call.name,
        arguments=call.arguments,
    )
    return [*frames, done]


def item_frames(style: Style, item: Item, previous_item_id: str | None, *, done: bool) -> Frames:
    """An item that joins the conversation, whole (``done``) or as a beginning."""
    frames: Frames = [wire.ItemAdded(item=item, previous_item_id=previous_item_id)]
    if style.created_items:
        frames.append(wire.ItemCreated(item=item, previous_item_id=previous_item_id))
    if done:
        frames.append(wire.ItemDone(item=item, previous_item_id=previous_item_id))
    return frames


def _final_text(response: _OpenResponse, event: events.ResponseDone) -> str:
    """What the closing frames call the text: all that was sent, or, after a cut, what may have been heard."""
    if event.status in _SENT_WHOLE or event.item is None:
        return "".join(response.sent) or event.full_text
    return " ".join(events.part_text(part) for part in event.item.parts)


def _pieces(text: str) -> list[str]:
    return [text[start : start + MAX_TEXT_CHARS] for start in range(0, len(text), MAX_TEXT_CHARS)] or [""]


class TranscriptProjection:
    """Guesses at what the user says, as deltas that only ever append.

    A recogniser revises its last words, and a delta cannot be taken back: a word is sent once two guesses in a row
    agree on it. The completed transcript is the truth in any case.
    """

    __slots__ = ("_guesses", "_style")

    def __init__(self, style: Style) -> None:
        self._style = style
        self._guesses: dict[str, tuple[str, str]] = {}  # item id -> (last guess, what was sent of it)

    def project(self, event: events.InputTranscribed) -> Frames:
        last, sent = self._guesses.pop(event.item_id, ("", ""))
        if event.final:
            frames = self._delta(event, sent, event.text) if event.text.startswith(sent) else []
            usage = DurationUsage(seconds=event.audio_ms / 1000)
            return [*frames, wire.TranscriptionCompleted(item_id=event.item_id, transcript=event.text, usage=usage)]
        agreed = _whole_words(_shared(last, event.text), event.text)
        frames = []
        if len(agreed) > len(sent) and agreed.startswith(sent):
            frames = self._delta(event, sent, agreed)
            sent = agreed
        self._guesses[event.item_id] = (event.text, sent)
        return frames

    def forget(self, item_id: str) -> None:
        """The item is gone."""
        self._guesses.pop(item_id, None)

    def _delta(self, event: events.InputTranscribed, sent: str, text: str) -> Frames:
        if len(text) <= len(sent):
            return []
        whole = event.text if self._style.own_fields else UNSET
        return [wire.TranscriptionDelta(item_id=event.item_id, delta=text[len(sent) :], transcript=whole)]


def _shared(first: str, second: str) -> str:
    """The common beginning of two texts."""
    length = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        length += 1
    return second[:length]


def _whole_words(beginning: str, text: str) -> str:
    """``beginning`` of ``text`` without a word that it cuts in two."""
    rest = text[len(beginning) :]
    if not rest or rest[0].isspace():
        return beginning
    cut = max(beginning.rfind(" "), 0)
    return beginning[:cut]


def _delays(delays: events.AnswerDelays | None) -> wire.AnswerDelays | UnsetType:
    if delays is None:
        return UNSET
    return wire.AnswerDelays(
        judged_ms=delays.judged_ms,
        ended_ms=delays.ended_ms,
        understood_ms=delays.understood_ms,
        answered_ms=delays.answered_ms,
        sent_ms=delays.sent_ms,
    )
