"""Bytes of a frame to a typed event, and back.

Rules kept here:

* whatever a peer sends, :func:`decode_client_event` returns an event or raises :class:`WireFault`, nothing else;
* a fault carries the client's ``event_id`` whenever one can be read from the frame, however bad the rest of it is;
* the ordinary frame is decoded once; only a frame that fails is looked at again;
* size is judged before anything is decoded; only audio may be long, since a million fields would hold up everybody.
"""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec

from duologue.audio.payload import AudioDataError, decode_base64
from duologue.errors import ClientFault, ErrorCode
from duologue.wire.client_events import (
    AnyClientEvent,
    AudioAppend,
    ClientEvent,
    DuplexAlias,
    DuplexOnlyEvent,
    GaClientEvent,
)
from duologue.wire.objects import LONGEST_NAME, Name, Whole
from duologue.wire.server_events import DuplexServerEvent, ServerEvent

Dialect = Literal["ga", "duplex"]

MAX_EVENT_BYTES: Final = 15 * 1024 * 1024
MAX_COMMAND_BYTES: Final = 1536 * 1024  # events other than audio
_ID_SEARCH: Final = 2048  # how much of either end of a bad frame is searched for an event id
_LONGEST_REASON: Final = 500
_LONE_SURROGATE: Final = re.compile(
    rb"(?<!\\)\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"  # a first half that no second follows
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})(?<!\\)\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # and the reverse
    rb"|\xed[\xa0-\xbf][\x80-\xbf]"  # either, written as if it were a character
)
_EVENT_ID: Final = re.compile(rb'"event_id"\s*:\s*"([^"\\\x00-\x1f]{1,512})"')
_PATH: Final = re.compile(r" - at `\$\.?([^`]*)`$")


class WireFault(ClientFault):
    """A frame that is not an event of the dialect. ``event_id`` is the client's, if it could be read."""

    def __init__(self, code: ErrorCode, message: str, *, event_id: str | None = None, param: str | None = None) -> None:
        super().__init__(code, message, param=param)
        self.event_id = event_id


class _DirtyAppend(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="input_audio_buffer.append"):
    """An append whose audio is not plain base64: line breaks, a data URL, or garbage."""

    event_id: Name | None = None
    audio: str
    format: Name | None = None
    sample_rate_hz: Whole | None = None
    is_speech: bool | None = None
    force_listen: bool = False
    force_barge_in: bool = False
    overlap_action: Name | None = None


class _Head(msgspec.Struct):
    """The two fields of a bad event that tell what it was meant to be."""

    type: object = None
    event_id: object = None


_DECODERS: Final = {
    "ga": msgspec.json.Decoder[AnyClientEvent](GaClientEvent),
    "duplex": msgspec.json.Decoder[AnyClientEvent](GaClientEvent | DuplexOnlyEvent | DuplexAlias),
}
_APPEND: Final = msgspec.json.Decoder[AnyClientEvent](AudioAppend)
_DIRTY: Final = msgspec.json.Decoder(_DirtyAppend)
_HEAD: Final = msgspec.json.Decoder(_Head)
_ENCODER: Final = msgspec.json.Encoder()
_SERVER: Final = msgspec.json.Decoder[ServerEvent](DuplexServerEvent)


def _types_of(union: object) -> frozenset[str]:
    members: tuple[type[msgspec.Struct], ...] = union.__args__  # type: ignore[attr-defined]
    return frozenset(str(member.__struct_config__.tag) for member in members)


GA_CLIENT_TYPES: Final = _types_of(GaClientEvent)
DUPLEX_CLIENT_TYPES: Final = GA_CLIENT_TYPES | _types_of(DuplexOnlyEvent) | _types_of(DuplexAlias)
SERVER_TYPES: Final = _types_of(DuplexServerEvent)
_KNOWN: Final = {"ga": GA_CLIENT_TYPES, "duplex": DUPLEX_CLIENT_TYPES}


def decode_client_event(frame: bytes | str, dialect: Dialect, *, max_bytes: int = MAX_EVENT_BYTES) -> AnyClientEvent:
    """The event in one text frame of at most ``max_bytes`` bytes (as UTF-8).

    Raises :class:`WireFault` with ``event_too_large``, ``invalid_json``, ``unknown_event``, ``bad_event``
    (``invalid_session_resume`` for that event) or ``bad_audio``.
    """
    if len(frame) > max_bytes or (isinstance(frame, str) and not frame.isascii()):
        frame = _sized(frame, max_bytes)
    try:
        decoder = _DECODERS[dialect] if len(frame) <= MAX_COMMAND_BYTES else _APPEND
        event: AnyClientEvent = decoder.decode(frame)
        return event
    except msgspec.ValidationError as fault:
        return _second_look(frame, dialect, fault)
    except RecursionError:
        raise _fault(ErrorCode.BAD_EVENT, "The event is nested too deeply; send flat events.", frame) from None
    except (msgspec.DecodeError, ValueError) as fault:
        raise _fault(ErrorCode.INVALID_JSON, _not_json(frame, fault), frame) from None


def decode_server_event(frame: bytes | str) -> ServerEvent | None:
    """The event in a frame from the server, or ``None`` for a type that this version does not know.

    For clients. Raises ``ValueError`` (a ``msgspec.DecodeError`` is one) when the frame is not an event at all.
    """
    try:
        return _SERVER.decode(frame)
    except msgspec.ValidationError:
        if _is_unknown(frame):
            return None
        raise
    except RecursionError:
        raise ValueError("the frame is nested too deeply") from None


def _is_unknown(frame: bytes | str) -> bool:
    """Whether a frame is an event of a type that this version does not know. Raises ``ValueError`` if it is no event."""
    try:
        head = _HEAD.decode(frame)
    except RecursionError:
        raise ValueError("the frame is nested too deeply") from None
    return isinstance(head.type, str) and head.type not in SERVER_TYPES


def encode(event: ClientEvent | ServerEvent) -> bytes:
    """One event as the bytes of a text frame."""
    return _ENCODER.encode(event)


def oversized(size: int, limit: int, event_id: str | None = None) -> WireFault:
    """The fault for an event of ``size`` bytes where ``limit`` are allowed."""
    return WireFault(
        ErrorCode.EVENT_TOO_LARGE,
        f"The event has {size} bytes and the limit is {limit}: send long audio in several appends.",
        event_id=event_id,
    )


def _sized(frame: bytes | str, max_bytes: int) -> bytes:
    """``frame`` as bytes if it is within the limit."""
    if isinstance(frame, str):
        frame = frame.encode("utf-8", "surrogatepass")  # a lone surrogate is refused by the decoder, with the rest
    if len(frame) > max_bytes:
        raise oversized(len(frame), max_bytes, _search_id(frame))
    return frame


def _second_look(frame: bytes | str, dialect: Dialect, fault: msgspec.ValidationError) -> AnyClientEvent:
    """Why the decoder refused a frame that is JSON, or the event after all if only its base64 is unusual."""
    try:
        head = _HEAD.decode(frame)
    except RecursionError:
        raise _fault(ErrorCode.BAD_EVENT, "The event is nested too deeply; send flat events.", frame) from None
    except msgspec.ValidationError:
        raise _fault(ErrorCode.INVALID_JSON, "The frame is JSON but not an object with a `type`.", frame) from None
    except (msgspec.DecodeError, ValueError) as broken:
        raise _fault(ErrorCode.INVALID_JSON, _not_json(frame, broken), frame) from None
    event_id = head.event_id if isinstance(head.event_id, str) and len(head.event_id) <= LONGEST_NAME else None
    if not isinstance(head.type, str):
        raise WireFault(ErrorCode.BAD_EVENT, "The event has no `type`.", event_id=event_id, param="type")
    if head.type not in _KNOWN[dialect]:
        raise WireFault(ErrorCode.UNKNOWN_EVENT, _unknown(head.type, dialect), event_id=event_id, param="type")
    if head.type == "input_audio_buffer.append":
        return _dirty_append(frame, event_id)
    if len(frame) > MAX_COMMAND_BYTES:
        message = f"The event has {len(frame)} bytes; one that is not audio may have {MAX_COMMAND_BYTES}."
        raise WireFault(ErrorCode.EVENT_TOO_LARGE, message, event_id=event_id)
    raise _bad(head.type, fault, event_id)


def _unknown(name: str, dialect: Dialect) -> str:
    shown = name if len(name) <= 80 else name[:77] + "..."
    if dialect == "ga" and name in DUPLEX_CLIENT_TYPES:
        return f"Event type {shown!r} belongs to the duplex dialect: connect with ?duplex=1 to use it."
    return f"Event type {shown!r} is not known in the {dialect} dialect."


def _dirty_append(frame: bytes | str, event_id: str | None) -> AudioAppend:
    try:
        event = _DIRTY.decode(frame)
    except msgspec.ValidationError as fault:
        raise _bad("input_audio_buffer.append", fault, event_id) from None
    except (msgspec.DecodeError, ValueError) as broken:  # what the first pass took for unusual base64 is no text at all
        raise WireFault(ErrorCode.INVALID_JSON, _not_json(frame, broken), event_id=event_id) from None
    try:
        audio = decode_base64(event.audio, MAX_EVENT_BYTES)
    except AudioDataError as fault:
        code = ErrorCode.EVENT_TOO_LARGE if fault.code == "too_large" else ErrorCode.BAD_AUDIO
        raise WireFault(code, f"{fault}.", event_id=event_id, param="audio") from None
    return AudioAppend(
        event_id=event.event_id,
        audio=audio,
        format=event.format,
        sample_rate_hz=event.sample_rate_hz,
        is_speech=event.is_speech,
        force_listen=event.force_listen,
        force_barge_in=event.force_barge_in,
        overlap_action=event.overlap_action,
    )


def problem_of(fault: msgspec.ValidationError) -> tuple[str, str | None]:
    """What is wrong with a decoded body (no full stop at its end), and the field that it is about, if one is named."""
    text = str(fault)
    path = _PATH.search(text)
    message = _PATH.sub("", text)[:_LONGEST_REASON]  # it may hold what the client wrote
    if path is not None:
        return f"{message} (in {path.group(1)})", path.group(1)
    missing = re.search(r"missing required field `([^`]+)`", text)
    return message, None if missing is None else missing.group(1)


def _bad(name: str, fault: msgspec.ValidationError, event_id: str | None) -> WireFault:
    message, param = problem_of(fault)
    code = ErrorCode.INVALID_SESSION_RESUME if name == "session.resume" else ErrorCode.BAD_EVENT
    return WireFault(code, f"{name}: {message}.", event_id=event_id, param=param)


def _not_json(frame: bytes | str, why: Exception) -> str:
    """What is wrong with a frame that is no JSON. Half a character is named: the decoder takes it for the frame's end."""
    data = frame.encode("utf-8", "surrogatepass") if isinstance(frame, str) else frame
    if _LONE_SURROGATE.search(data) is not None:
        return "The frame is not valid JSON: it holds half of a surrogate pair, which is no character."
    return f"The frame is not valid JSON: {why}."


def _fault(code: ErrorCode, message: str, frame: bytes | str) -> WireFault:
    data = frame.encode("utf-8", "replace") if isinstance(frame, str) else frame
    return WireFault(code, message, event_id=_search_id(data))


def _search_id(frame: bytes) -> str | None:
    """An event id near either end of a frame that is too large or too broken to be parsed."""
    for piece in (frame[:_ID_SEARCH], frame[-_ID_SEARCH:]):
        found = _EVENT_ID.search(piece)
        if found is not None:
            return found.group(1).decode("utf-8", "replace")
    return None
