"""Bodies of the ordinary HTTP requests and their answers, in OpenAI's spelling: chat completions, speech, transcriptions.

Rules kept here: reading is wide (fields that nothing here acts on are ignored; those that would change the answer are
read, so that they can be refused), writing is exact; what is ``UNSET`` is not on the wire, ``None`` is JSON ``null``.
"""

from __future__ import annotations

from typing import Literal, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from duologue.errors import ClientFault, DuologueError, ErrorCode
from duologue.wire.decoder import problem_of
from duologue.wire.objects import DurationUsage, ErrorBody, Voice, Whole

BodyT = TypeVar("BodyT")


class ErrorAnswer(msgspec.Struct, frozen=True):
    """The body of every answer that is an error, and the last event of a stream that failed."""

    error: ErrorBody


# -- chat completions: the request


class InputAudio(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded speech: base64 in ``data``, ``wav`` or ``pcm16`` (24 kHz) as ``format``."""

    data: str
    format: str


class TextPart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    """Written text."""

    text: str


class RefusalPart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="refusal"):
    """What an assistant said instead of an answer."""

    refusal: str


class AudioPart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="input_audio"):
    """Spoken text."""

    input_audio: InputAudio


class ImagePart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="image_url"):
    """A picture; read only to be refused by name."""


class FilePart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="file"):
    """A file; read only to be refused by name."""


ContentPart = TextPart | RefusalPart | AudioPart | ImagePart | FilePart


class AudioReference(msgspec.Struct, frozen=True, kw_only=True):
    """An earlier spoken answer of the assistant, by its id."""

    id: str


class ChatRequestMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | tuple[ContentPart, ...] | None = None
    audio: AudioReference | None = None


class ChatAudio(msgspec.Struct, frozen=True, kw_only=True):
    """How a spoken answer is wanted."""

    format: str
    voice: str | Voice | None = None


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """``include_usage``: one more chunk at the end tells what the answer cost."""

    include_usage: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True, kw_only=True):
    """Only ``text`` is offered."""

    type: str = "text"


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of ``POST /v1/chat/completions``."""

    messages: tuple[ChatRequestMessage, ...]
    model: str | None = None
    modalities: tuple[Literal["text", "audio"], ...] | None = None
    audio: ChatAudio | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: Whole | None = None
    max_completion_tokens: Whole | None = None
    seed: Whole | None = None
    stop: str | tuple[str, ...] | None = None
    n: Whole | None = None
    logprobs: bool | None = None
    response_format: ResponseFormat | None = None
    tools: tuple[Raw, ...] | None = None
    functions: tuple[Raw, ...] | None = None


# -- chat completions: the answer


class PromptDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Of the prompt's tokens, how many were not computed again."""

    cached_tokens: int


class ChatUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer cost, in tokens; 0 where the model does not count."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails | UnsetType = UNSET


class SpokenAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The audio of an answer: base64, and until when its id may stand for it in a later request (Unix seconds)."""

    id: str
    data: bytes
    expires_at: int
    transcript: str


FinishReason = Literal["stop", "length", "content_filter"]


class AnswerMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The assistant's message; ``content`` is null where it was spoken."""

    content: str | None
    role: str = "assistant"
    refusal: None = None
    audio: SpokenAnswer | UnsetType = UNSET


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The one answer."""

    message: AnswerMessage
    finish_reason: FinishReason
    index: int = 0
    logprobs: None = None


class ChatAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The body of an answer that is not streamed."""

    id: str
    created: int
    model: str
    choices: tuple[Choice, ...]
    usage: ChatUsage
    object: str = "chat.completion"


class SpokenDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a spoken answer."""

    id: str | UnsetType = UNSET
    data: bytes | UnsetType = UNSET
    transcript: str | UnsetType = UNSET
    expires_at: int | UnsetType = UNSET


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """What a chunk adds to the message."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    audio: SpokenDelta | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What a chunk adds to the one answer."""

    delta: Delta
    finish_reason: FinishReason | None = None
    index: int = 0
    logprobs: None = None


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a streamed answer. ``usage`` is there only if it was asked for, null in all chunks but the last."""

    id: str
    created: int
    model: str
    choices: tuple[ChunkChoice, ...]
    usage: ChatUsage | UnsetType | None = UNSET
    object: str = "chat.completion.chunk"


# -- speech


class SpeechRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of ``POST /v1/audio/speech``."""

    input: str
    model: str | None = None
    voice: str | Voice | None = None
    response_format: str | None = None
    speed: float | None = None
    instructions: str | None = None
    stream_format: Literal["audio", "sse"] | None = None


class SpeechDelta(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="speech.audio.delta"):
    """A piece of streamed speech."""

    audio: bytes


class TokenUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a spoken text, where the model counts them."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0


class SpeechDone(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="speech.audio.done"):
    """All of it was said."""

    usage: TokenUsage = TokenUsage()


# -- transcriptions


class TranscriptionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """``response_format: json``."""

    text: str
    usage: DurationUsage


class TranscriptionSegment(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of the recording, in seconds. The figures that follow ``text`` are not measured."""

    id: int
    start: float
    end: float
    text: str
    seek: int = 0
    tokens: tuple[int, ...] = ()
    temperature: float = 0.0
    avg_logprob: float = 0.0
    compression_ratio: float = 1.0
    no_speech_prob: float = 0.0


class VerboseTranscription(msgspec.Struct, frozen=True, kw_only=True):
    """``response_format: verbose_json``."""

    language: str
    duration: float
    text: str
    segments: tuple[TranscriptionSegment, ...]
    usage: DurationUsage
    task: str = "transcribe"


class TranscriptDelta(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="transcript.text.delta"):
    """More of a streamed transcript."""

    delta: str


class TranscriptDone(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="transcript.text.done"):
    """The whole transcript."""

    text: str


StreamEvent = ChatChunk | SpeechDelta | SpeechDone | TranscriptDelta | TranscriptDone | ErrorAnswer


def decode_body(body: bytes, kind: type[BodyT]) -> BodyT:
    """A JSON body as ``kind``. Raises :class:`ClientFault` (``invalid_json``, ``request_invalid`` naming the field)."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as fault:
        message, param = problem_of(fault)
        raise ClientFault(ErrorCode.REQUEST_INVALID, f"{message}.", param=param) from None
    except RecursionError:
        raise ClientFault(ErrorCode.REQUEST_INVALID, "The body is nested too deeply.") from None
    except (msgspec.DecodeError, ValueError) as fault:
        raise ClientFault(ErrorCode.INVALID_JSON, f"The body is not valid JSON: {fault}.") from None


def error_answer(fault: DuologueError) -> ErrorAnswer:
    """The error body of a fault."""
    spec = fault.spec
    return ErrorAnswer(ErrorBody(type=spec.wire_type, code=fault.code.value, message=fault.message, param=fault.param))
