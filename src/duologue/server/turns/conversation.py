"""From the messages of a chat request to what the model is asked.

Rules kept here: rules of the application become the model's instructions, whatever their place; what was spoken becomes the
model's input as it is if it is the last thing said, and words otherwise; what cannot be taken is refused by its place.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import Final

import msgspec

from duologue.errors import ClientFault, ErrorCode
from duologue.outputs import ChatMessage
from duologue.server.turns.handler import Services
from duologue.server.turns.sound import OUTPUT_RATE_HZ, Recording, read_base64, read_recording
from duologue.server.turns.transcription import recognise
from duologue.wire.http import AudioPart, ChatRequestMessage, ContentPart, FilePart, ImagePart, RefusalPart, TextPart

MAX_MESSAGES: Final = 2_048

_RAW_FORMATS: Final = ("pcm16", "pcm")


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """What the model gets. ``spoken`` is what the user says last, after ``messages``."""

    messages: tuple[ChatMessage, ...]
    instructions: str
    spoken: Recording | None = None


class _Said(msgspec.Struct, frozen=True):
    """A message, or speech that is not read yet. ``place`` is its name in the request."""

    place: str
    message: ChatMessage | None = None
    speech: AudioPart | None = None


async def converse(services: Services, messages: tuple[ChatRequestMessage, ...]) -> Conversation:
    """Read a conversation, and recognise whatever in it was spoken earlier.

    Raises :class:`ClientFault` for what cannot be read, and what ends a recognition early.
    """
    said = check(services, messages)
    instructions = "\n\n".join(
        one.message.text for one in said if one.message is not None and one.message.role == "system"
    )
    turns = [one for one in said if one.message is None or one.message.role != "system"]
    read: list[ChatMessage] = []
    for index, one in enumerate(turns):
        if one.speech is None:
            assert one.message is not None
            read.append(one.message)
            continue
        recording = await _read(services, one.speech, one.place)
        short = recording.duration_s * 1000 <= services.turns.longest_utterance_ms
        if index == len(turns) - 1 and short:
            return Conversation(messages=tuple(read), instructions=instructions, spoken=recording)
        words = await _words(services, recording)
        if words:
            read.append(ChatMessage("user", words))
    return Conversation(messages=tuple(read), instructions=instructions)


def check(services: Services, messages: tuple[ChatRequestMessage, ...]) -> list[_Said]:
    """The conversation with its speech unread. Raises :class:`ClientFault`. Cheap."""
    if not messages:
        raise _refused("messages must hold at least one message.", "messages")
    if len(messages) > MAX_MESSAGES:
        raise _refused(f"messages may hold {MAX_MESSAGES} messages and holds {len(messages)}.", "messages")
    return [one for index, message in enumerate(messages) for one in _said(services, message, f"messages[{index}]")]


def _said(services: Services, message: ChatRequestMessage, place: str) -> list[_Said]:
    match message.role:
        case "system" | "developer":
            return [_Said(place, ChatMessage("system", _written(message, place)))]
        case "user":
            return _user(message, place)
        case "assistant":
            text = _written(message, place)
            if message.audio is not None:
                text = _spoken_before(services, message.audio.id, f"{place}.audio.id")
            return [_Said(place, ChatMessage("assistant", text))] if text else []
        case "tool" | "function":
            return [_Said(place, ChatMessage("tool", _written(message, place)))]


def _user(message: ChatRequestMessage, place: str) -> list[_Said]:
    if message.content is None:
        raise _refused("A user's message needs content.", f"{place}.content")
    if isinstance(message.content, str):
        return [_Said(place, ChatMessage("user", message.content))]
    said: list[_Said] = []
    texts: list[str] = []
    for index, part in enumerate(message.content):
        where = f"{place}.content[{index}]"
        if isinstance(part, AudioPart):
            said += _joined(texts, place)
            said.append(_Said(where, speech=part))
            texts = []
        else:
            texts.append(_text(part, where))
    return said + _joined(texts, place)


def _joined(texts: list[str], place: str) -> list[_Said]:
    return [_Said(place, ChatMessage("user", "\n".join(texts)))] if texts else []


def _written(message: ChatRequestMessage, place: str) -> str:
    """The text of a message that may not be spoken."""
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    return "\n".join(_text(part, f"{place}.content[{index}]") for index, part in enumerate(message.content))


def _text(part: ContentPart, where: str) -> str:
    match part:
        case TextPart():
            return part.text
        case RefusalPart():
            return part.refusal
        case AudioPart():
            raise ClientFault(ErrorCode.INVALID_INPUT_MODALITY, "Only the user's messages may be spoken.", param=where)
        case ImagePart():
            raise ClientFault(ErrorCode.INVALID_INPUT_MODALITY, "The model does not see pictures.", param=where)
        case FilePart():
            raise ClientFault(ErrorCode.INVALID_INPUT_MODALITY, "The model does not read files.", param=where)


def _spoken_before(services: Services, answer_id: str, where: str) -> str:
    text = services.spoken.find(answer_id)
    if text is None:
        raise ClientFault(
            ErrorCode.ITEM_NOT_FOUND,
            "This spoken answer is not known any more: send its transcript as content instead.",
            param=where,
        )
    return text


async def _read(services: Services, part: AudioPart, where: str) -> Recording:
    audio = part.input_audio
    if audio.format not in ("wav", *_RAW_FORMATS):
        raise ClientFault(
            ErrorCode.UNSUPPORTED_AUDIO_FORMAT,
            f"Speech is read as wav or pcm16 (24 kHz), not as {audio.format[:40]!r}.",
            param=f"{where}.input_audio.format",
        )
    param = f"{where}.input_audio.data"

    def read() -> Recording:
        return read_recording(
            read_base64(audio.data, services.limits.max_body_bytes, param),
            services.turns.input_rate_hz,
            longest_s=services.limits.max_audio_s,
            param=param,
            raw_rate_hz=OUTPUT_RATE_HZ if audio.format in _RAW_FORMATS else None,
        )

    recording = await services.runtime.offload(read)
    if not recording.pcm16:
        raise ClientFault(ErrorCode.BAD_AUDIO, "The recording is empty.", param=param)
    return recording


async def _words(services: Services, recording: Recording) -> str:
    async with aclosing(recognise(services, recording)) as segments:
        return " ".join([segment.text async for segment in segments])


def _refused(message: str, param: str) -> ClientFault:
    return ClientFault(ErrorCode.REQUEST_INVALID, message, param=param)
