"""Client events to engine commands.

Rules kept here: a command is made whole or not at all (:class:`ClientFault`, raised with the client's field as
``param``); what one dialect means by an absent field is decided here and nowhere below.
"""

from __future__ import annotations

import base64
import re
from typing import Final, TypeVar, get_args

from msgspec import UNSET, UnsetType

from duologue.audio.format import AudioFormat
from duologue.config.session import SessionConfig
from duologue.engine.duplex.commands import (
    AckPlayback,
    AppendAudio,
    AppendText,
    BargeIn,
    CallOutput,
    CancelInput,
    CancelResponse,
    ClearAudio,
    ClearOutput,
    CloseSession,
    CommitAudio,
    CreateItem,
    CreateResponse,
    DeleteItem,
    DuplexCommand,
    Heartbeat,
    InputItem,
    ItemReference,
    OverlapHint,
    ResponseOptions,
    RetrieveItem,
    SignalTurn,
    TruncateItem,
    UpdateSession,
)
from duologue.engine.duplex.events import ItemRole
from duologue.errors import ClientFault, ErrorCode
from duologue.outputs import Image, ToolCall
from duologue.server.settings import (
    GA_RATE_HZ,
    SettingsReader,
    audio_format,
    instructions_of,
    modality_of,
    token_limit,
    tool_choice_of,
    tools_of,
)
from duologue.wire import client_events as wire
from duologue.wire.objects import AudioFormatParams, ContentPart, Item, OutputAudioParams, ResponseParams, Voice

LONGEST_MS: Final = 24 * 3_600_000
RESERVED_ID: Final = "root"  # the beginning, where a place is named
_T = TypeVar("_T")
_DATA_URL: Final = re.compile(r"data:image/(png|jpeg|webp|gif);base64,([A-Za-z0-9+/]+={0,2})\Z")
_SIGNATURES: Final = {
    "png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "jpeg": re.compile(rb"\xff\xd8\xff"),
    "webp": re.compile(rb"RIFF....WEBP", re.DOTALL),
    "gif": re.compile(rb"GIF8[79]a"),
}
"""How the file of each type begins."""
_HEAD_CHARS: Final = 16  # of base64: the 12 bytes of the longest signature
_ROLES: Final[tuple[ItemRole, ...]] = ("system", "user", "assistant")


def command_of(event: wire.AnyClientEvent, reader: SettingsReader, config: SessionConfig) -> DuplexCommand:
    """The command that an event asks for; ``config`` is the session's newest known settings.

    Raises :class:`ClientFault`. ``session.resume`` and ``session.event_ack`` never reach the engine: they are refused.
    """
    match event:
        case wire.AudioAppend():
            return _append(event)
        case wire.SessionUpdate():
            return UpdateSession(event_id=event.event_id, patch=reader.patch(event.session, config))
        case wire.InputCommit():
            return CommitAudio(event_id=event.event_id, create_response=_or_true(event.response_create))
        case wire.AudioCommit():
            return CommitAudio(event_id=event.event_id, create_response=event.response_create)
        case wire.AudioClear():
            return ClearAudio(event_id=event.event_id)
        case wire.OutputClear():
            return ClearOutput(event_id=event.event_id, response_id=event.response_id)
        case wire.ResponseCreate():
            return CreateResponse(event_id=event.event_id, options=_options(event.response))
        case wire.ResponseCancel():
            return CancelResponse(event_id=event.event_id, response_id=event.response_id)
        case wire.ItemCreate():
            return _create_item(event)
        case wire.ItemDelete():
            return DeleteItem(event_id=event.event_id, item_id=_named(event.item_id))
        case wire.ItemRetrieve():
            return RetrieveItem(event_id=event.event_id, item_id=_named(event.item_id))
        case wire.ItemTruncate():
            return _truncate(event)
        case wire.PlaybackAck():
            return _ack(event)
        case wire.Heartbeat():
            return Heartbeat(event_id=event.event_id)
        case wire.SessionClose():
            return CloseSession(event_id=event.event_id)
        case wire.TurnSignal():
            return _signal(event)
        case wire.TextAppend():
            return AppendText(event_id=event.event_id, text=event.text)
        case wire.InputCancel():
            return CancelInput(event_id=event.event_id)
        case wire.BargeInSignal():
            return BargeIn(event_id=event.event_id)
        case wire.SessionResume():
            raise ClientFault(
                ErrorCode.UNSUPPORTED_SESSION_RESUME, "session.resume must be the first message of a connection."
            )
        case wire.EventAck():
            raise ClientFault(ErrorCode.UNSUPPORTED, "session.event_ack needs a session that can be resumed.")


def _append(event: wire.AudioAppend) -> AppendAudio:
    return AppendAudio(
        event_id=event.event_id,
        audio=event.audio,
        overlap_hint=_hint(event.overlap_action),
        force_listen=event.force_listen,
        force_barge_in=event.force_barge_in,
        is_speech=event.is_speech,
    )


def _hint(name: str | None) -> OverlapHint | None:
    if name is None:
        return None
    for hint in get_args(OverlapHint):
        if name == hint:
            known: OverlapHint = hint
            return known
    raise ClientFault(
        ErrorCode.BAD_EVENT,
        f"overlap_action must be one of {', '.join(get_args(OverlapHint))}, got {name!r}.",
        param="overlap_action",
    )


def _or_true(value: bool | None) -> bool:
    return True if value is None else value


def _named(item_id: str) -> str:
    if not item_id:
        raise ClientFault(ErrorCode.MISSING_ITEM_ID, "The event must name an item.", param="item_id")
    return item_id


def _ms(value: float, param: str) -> int:
    if value < 0:
        raise ClientFault(ErrorCode.BAD_EVENT, f"{param} must not be negative, got {value:g}.", param=param)
    return round(min(value, LONGEST_MS))


def _truncate(event: wire.ItemTruncate) -> TruncateItem:
    if event.content_index < 0:
        raise ClientFault(
            ErrorCode.BAD_EVENT,
            f"content_index must not be negative, got {event.content_index}.",
            param="content_index",
        )
    return TruncateItem(
        event_id=event.event_id,
        item_id=_named(event.item_id),
        content_index=event.content_index,
        audio_end_ms=_ms(event.audio_end_ms, "audio_end_ms"),
    )


def _ack(event: wire.PlaybackAck) -> AckPlayback:
    played = event.played_ms if event.played_ms is not None else event.committed_ms
    if played is None:
        message = "playback.ack needs played_ms: how many milliseconds of the response have been heard."
        raise ClientFault(ErrorCode.BAD_EVENT, message, param="played_ms")
    return AckPlayback(
        event_id=event.event_id,
        played_ms=_ms(played, "played_ms"),
        response_id=event.response_id,
        item_id=event.item_id,
        truncate=event.truncate,
    )


def _signal(event: wire.TurnSignal) -> SignalTurn:
    name = event.event or event.signal or event.name
    if not name:
        raise ClientFault(ErrorCode.BAD_EVENT, "turn.signal needs the name of an event.", param="event")
    return SignalTurn(event_id=event.event_id, name=name)


def _options(params: ResponseParams | None) -> ResponseOptions:
    if params is None:
        return ResponseOptions()
    voice, output_format = _output(params)
    names = _set(params.modalities if params.output_modalities is UNSET else params.output_modalities)
    most = token_limit(params.max_output_tokens, "response.max_output_tokens")
    return ResponseOptions(
        instructions=_set(instructions_of(params.instructions, "response.instructions")),
        modality=None if names is None else modality_of(names, "response.output_modalities"),
        metadata=params.metadata or {},
        max_output_tokens=UNSET if params.max_output_tokens is None else most,
        temperature=_set(params.temperature),
        out_of_band=_is_beside(params.conversation),
        tools=None if params.tools is None else _set(tools_of(params.tools, "response")),
        tool_choice=None if params.tool_choice is None else _set(tool_choice_of(params.tool_choice, "response")),
        parallel_tool_calls=_set(params.parallel_tool_calls),
        voice=voice,
        output_format=output_format,
        input=_input(params.input),
    )


def _is_beside(conversation: str | UnsetType | None) -> bool:
    """Whether the response is to be outside the conversation."""
    if conversation not in (UNSET, None, "auto", "none"):
        message = f"conversation must be 'auto' or 'none', got {conversation!r}."
        raise ClientFault(ErrorCode.BAD_EVENT, message, param="response.conversation")
    return conversation == "none"


def _output(params: ResponseParams) -> tuple[str | None, AudioFormat | None]:
    """Voice and format of one response."""
    sink = (params.audio.output if params.audio else None) or OutputAudioParams()
    named = sink.voice if sink.voice is not UNSET else params.voice
    voice = named.id if isinstance(named, Voice) else named
    if not isinstance(sink.format, AudioFormatParams):
        return voice or None, None
    rate = sink.format.rate if isinstance(sink.format.rate, int) else None
    return voice or None, audio_format(sink.format.type, rate, GA_RATE_HZ, "response.audio.output.format")


def _input(items: list[Item] | UnsetType | None) -> tuple[InputItem | ItemReference, ...] | None:
    """What a response reads instead of the conversation: items, or references to some."""
    if items is None or items is UNSET:
        return None
    return tuple(_input_entry(item, f"response.input[{index}]") for index, item in enumerate(items))


def _input_entry(item: Item, param: str) -> InputItem | ItemReference:
    if item.type == "item_reference":
        return ItemReference(_field(item.id, f"{param}.id", "A reference needs the id of an item."))
    try:
        return input_item(item)
    except ClientFault as fault:
        inner = (fault.param or "item").removeprefix("item")
        raise ClientFault(fault.code, fault.message, param=param + inner) from None


def _set(value: _T | UnsetType | None) -> _T | None:
    return None if value is UNSET else value


def _create_item(event: wire.ItemCreate) -> CreateItem:
    return CreateItem(
        event_id=event.event_id, item=input_item(event.item), previous_item_id=event.previous_item_id or None
    )


def input_item(item: Item) -> InputItem:
    """A client's item as the engine keeps it: texts and transcripts, a call, or a result. Raises ``ClientFault``."""
    if item.id == RESERVED_ID:
        raise _bad_item(f"An item's id cannot be {RESERVED_ID!r}: it stands for the beginning.", "item.id")
    match item.type:
        case "message":
            return _message(item)
        case "function_call":
            name = _field(item.name, "item.name", "A function call needs the function's name.")
            call_id = _field(item.call_id, "item.call_id", "A function call needs its call_id.")
            call = ToolCall(name=name, arguments=item.arguments or "{}", call_id=call_id)
            return InputItem(item_id=item.id or None, role="assistant", call=call)
        case "function_call_output":
            call_id = _field(
                item.call_id, "item.call_id", "The result of a function needs the call_id that it answers."
            )
            if not isinstance(item.output, str):
                raise _bad_item("The result of a function needs its output: a text, which may be empty.", "item.output")
            output = CallOutput(call_id, item.output)
            return InputItem(item_id=item.id or None, role="tool", output=output)
    raise _bad_item(
        f"Items of type {item.type!r} are not offered; use 'message', 'function_call' or 'function_call_output'.",
        "item.type",
    )


def _field(value: str | UnsetType | None, param: str, message: str) -> str:
    if not value:
        raise _bad_item(message, param)
    return value


def _message(item: Item) -> InputItem:
    for role in _ROLES:
        if item.role == role:
            parts = list(enumerate(item.content or ()))
            texts = tuple(_text(part, index) for index, part in parts if part.type != "input_image")
            images = tuple(_image(part, index, role) for index, part in parts if part.type == "input_image")
            return InputItem(item_id=item.id or None, role=role, texts=texts, images=images)
    raise _bad_item(f"An item's role must be one of {', '.join(_ROLES)}, got {item.role!r}.", "item.role")


def _image(part: ContentPart, index: int, role: ItemRole) -> Image:
    param = f"item.content[{index}]"
    if role != "user":
        raise _bad_item("Only a user's message may hold an image.", f"{param}.type")
    url = part.image_url or ""
    found = _DATA_URL.match(url)
    if found is None or len(found[2]) % 4:
        message = (
            f"An image is a whole data URL of PNG, JPEG, WebP or GIF in base64, got {url[:40]!r} of {len(url)} chars."
        )
        raise _bad_item(message, f"{param}.image_url")
    if not _SIGNATURES[found[1]].match(base64.b64decode(found[2][:_HEAD_CHARS])):
        # A model that cannot read it would fail at every answer, as long as the picture is in the conversation.
        raise _bad_item(f"The data URL says image/{found[1]}, and its data is none.", f"{param}.image_url")
    detail = part.detail or "auto"
    if detail not in ("auto", "low", "high"):
        raise _bad_item(f"detail must be 'auto', 'low' or 'high', got {detail!r}.", f"{param}.detail")
    return Image(url, detail)


def _text(part: ContentPart, index: int) -> str:
    param = f"item.content[{index}]"
    match part.type:
        case "input_text" | "output_text" | "text":
            if part.text:
                return part.text
            raise _bad_item("A text part needs its text.", f"{param}.text")
        case "input_audio" | "output_audio" | "audio":
            if part.transcript:
                return part.transcript
            raise _bad_item(
                "Audio in an item needs a transcript; send new audio with input_audio_buffer.append.",
                f"{param}.transcript",
            )
        case _:
            raise _bad_item(f"Content of type {part.type!r} is not offered.", f"{param}.type")


def _bad_item(message: str, param: str) -> ClientFault:
    return ClientFault(ErrorCode.INVALID_ITEM, message, param=param)
