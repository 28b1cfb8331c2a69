"""The objects inside wire events, in the spelling of OpenAI's GA dialect, with the extras of the duplex dialect.

Rules kept here:

* one struct serves both directions: what is ``UNSET`` is not on the wire, ``None`` is JSON ``null``;
* fields that only one dialect writes stand at the end of their struct, and are ``UNSET`` for the other;
* whatever a peer may send has a bound, so that nothing behind the decoder meets a number that no machine holds, and no
  name comes back in an error or an echo longer than a name is;
* reading is wide (unknown fields are ignored, a few fields of the beta spelling are known), writing is exact.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

LONGEST_NAME: Final = 512
LARGEST_INTEGER: Final = 2**53  # what every JSON parser can hold

Name = Annotated[str, Meta(max_length=LONGEST_NAME)]
"""An id, a name, a choice: anything that is shown again as it came."""
Whole = Annotated[int, Meta(ge=-LARGEST_INTEGER, le=LARGEST_INTEGER)]
Metadata = Annotated[dict[Name, Name], Meta(max_length=64)]


class AudioFormatParams(msgspec.Struct, frozen=True, kw_only=True):
    """``audio/pcm`` (with a rate), ``audio/pcmu`` or ``audio/pcma``."""

    type: Name
    rate: Whole | UnsetType | None = UNSET


class TurnDetectionParams(msgspec.Struct, frozen=True, kw_only=True):
    """Turn detection as written by a client or echoed: ``UNSET`` leaves a setting as it is."""

    type: Name | UnsetType = UNSET
    threshold: float | UnsetType | None = UNSET
    prefix_padding_ms: Whole | UnsetType | None = UNSET
    silence_duration_ms: Whole | UnsetType | None = UNSET
    eagerness: Name | UnsetType | None = UNSET
    create_response: bool | UnsetType | None = UNSET
    interrupt_response: bool | UnsetType | None = UNSET
    idle_timeout_ms: Whole | UnsetType | None = UNSET


class TranscriptionParams(msgspec.Struct, frozen=True, kw_only=True):
    """Input transcription: its presence turns it on."""

    model: Name | UnsetType | None = UNSET
    language: Name | UnsetType | None = UNSET
    prompt: str | UnsetType | None = UNSET


class InputAudioParams(msgspec.Struct, frozen=True, kw_only=True):
    """``session.audio.input``. ``sample_rate_hz`` is the duplex client's way to state the rate."""

    format: AudioFormatParams | Name | UnsetType | None = UNSET
    turn_detection: TurnDetectionParams | UnsetType | None = UNSET
    transcription: TranscriptionParams | UnsetType | None = UNSET
    sample_rate_hz: Whole | UnsetType | None = UNSET


class Voice(msgspec.Struct, frozen=True, kw_only=True):
    """A voice given as an object."""

    id: Name


class OutputAudioParams(msgspec.Struct, frozen=True, kw_only=True):
    """``session.audio.output``."""

    format: AudioFormatParams | Name | UnsetType | None = UNSET
    voice: Name | Voice | UnsetType | None = UNSET
    speed: float | UnsetType | None = UNSET
    sample_rate_hz: Whole | UnsetType | None = UNSET


class AudioParams(msgspec.Struct, frozen=True, kw_only=True):
    """``session.audio``."""

    input: InputAudioParams | UnsetType | None = UNSET
    output: OutputAudioParams | UnsetType | None = UNSET


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool; only ``function`` is offered. ``parameters`` is a JSON schema, kept as it was written."""

    type: Name = "function"
    name: Name | UnsetType | None = UNSET
    description: str | UnsetType | None = UNSET
    parameters: Raw | UnsetType = UNSET


class ToolChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A forced tool."""

    type: Name
    name: Name | UnsetType | None = UNSET


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A session: settings to change (client) or the whole effective state (server)."""

    type: Name | UnsetType = UNSET
    object: Name | UnsetType = UNSET
    id: Name | UnsetType = UNSET
    model: Name | UnsetType | None = UNSET
    output_modalities: list[Name] | UnsetType | None = UNSET
    instructions: str | UnsetType | None = UNSET
    max_output_tokens: Whole | Name | UnsetType | None = UNSET
    tools: Annotated[list[Tool], Meta(max_length=128)] | UnsetType | None = UNSET
    tool_choice: Name | ToolChoice | UnsetType | None = UNSET
    parallel_tool_calls: bool | UnsetType | None = UNSET
    audio: AudioParams | UnsetType | None = UNSET
    expires_at: Whole | UnsetType | None = UNSET
    temperature: float | UnsetType | None = UNSET
    # the beta spelling, which the duplex dialect uses too
    modalities: list[Name] | UnsetType | None = UNSET
    voice: Name | Voice | UnsetType | None = UNSET
    speed: float | UnsetType | None = UNSET
    input_audio_format: Name | AudioFormatParams | UnsetType | None = UNSET
    output_audio_format: Name | AudioFormatParams | UnsetType | None = UNSET
    input_audio_transcription: TranscriptionParams | UnsetType | None = UNSET
    turn_detection: TurnDetectionParams | UnsetType | None = UNSET
    max_response_output_tokens: Whole | Name | UnsetType | None = UNSET
    # the duplex dialect
    session_id: Name | UnsetType = UNSET
    sample_rate_hz: Whole | UnsetType | None = UNSET
    overlap_policy: Name | UnsetType | None = UNSET
    overlap_short_ack_ms: Whole | UnsetType | None = UNSET
    overlap_barge_in_ms: Whole | UnsetType | None = UNSET
    overlap_silence_rms: float | UnsetType | None = UNSET
    acknowledgements: Annotated[list[Name], Meta(max_length=1024)] | UnsetType | None = UNSET
    playback_commit_policy: Name | UnsetType | None = UNSET
    metadata: Metadata | UnsetType | None = UNSET
    auto_response: bool | UnsetType | None = UNSET
    extra_body: Raw | UnsetType = UNSET


class ContentPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of an item's content (``input_text``, ``output_audio``, …) or of a response (``text``, ``audio``)."""

    type: Name
    text: str | UnsetType | None = UNSET
    transcript: str | UnsetType | None = UNSET
    audio: str | UnsetType | None = UNSET
    image_url: str | UnsetType | None = UNSET
    detail: Name | UnsetType | None = UNSET


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation item."""

    type: Name = "message"
    id: Name | UnsetType | None = UNSET
    object: Name | UnsetType | None = UNSET
    status: Name | UnsetType | None = UNSET
    role: Name | UnsetType | None = UNSET
    content: Annotated[list[ContentPart], Meta(max_length=256)] | UnsetType | None = UNSET
    call_id: Name | UnsetType | None = UNSET
    name: Name | UnsetType | None = UNSET
    arguments: str | UnsetType | None = UNSET
    output: str | UnsetType | None = UNSET


class ResponseAudioParams(msgspec.Struct, frozen=True, kw_only=True):
    """``response.audio``."""

    output: OutputAudioParams | UnsetType | None = UNSET


class StatusError(msgspec.Struct, frozen=True, kw_only=True):
    """Why a response failed."""

    type: str
    code: str
    message: str | UnsetType = UNSET


class StatusDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Why a response ended as it did."""

    type: str
    reason: str | UnsetType | None = UNSET
    error: StatusError | UnsetType | None = UNSET


class InputTokens(msgspec.Struct, frozen=True, kw_only=True):
    """What a response read."""

    text_tokens: int = 0
    audio_tokens: int = 0
    image_tokens: int = 0
    cached_tokens: int = 0


class OutputTokens(msgspec.Struct, frozen=True, kw_only=True):
    """What a response wrote."""

    text_tokens: int = 0
    audio_tokens: int = 0


class ResponseUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of one response."""

    total_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    input_token_details: InputTokens = InputTokens()
    output_token_details: OutputTokens = OutputTokens()


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """A response as events show it. Its output never holds audio."""

    object: Literal["realtime.response"] = "realtime.response"
    id: str
    status: str
    status_details: StatusDetails | None = None
    output: list[Item] = []
    conversation_id: str | None = None
    output_modalities: list[str] = []
    max_output_tokens: int | str = "inf"
    audio: ResponseAudioParams | UnsetType = UNSET
    usage: ResponseUsage | None = None
    metadata: dict[str, str] | None = None


class ResponseParams(msgspec.Struct, frozen=True, kw_only=True):
    """What a client may set for one response."""

    instructions: str | UnsetType | None = UNSET
    output_modalities: list[Name] | UnsetType | None = UNSET
    modalities: list[Name] | UnsetType | None = UNSET
    metadata: Metadata | UnsetType | None = UNSET
    max_output_tokens: Whole | Name | UnsetType | None = UNSET
    conversation: Name | UnsetType | None = UNSET
    input: Annotated[list[Item], Meta(max_length=256)] | UnsetType | None = UNSET
    audio: ResponseAudioParams | UnsetType | None = UNSET
    voice: Name | Voice | UnsetType | None = UNSET
    tools: Annotated[list[Tool], Meta(max_length=128)] | UnsetType | None = UNSET
    tool_choice: Name | ToolChoice | UnsetType | None = UNSET
    parallel_tool_calls: bool | UnsetType | None = UNSET
    temperature: float | UnsetType | None = UNSET


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """The error inside an ``error`` event. ``event_id`` is the client's own id of the event at fault."""

    type: str
    message: str
    code: str | None = None
    param: str | None = None
    event_id: str | None = None
    retryable: bool | UnsetType = UNSET


class DurationUsage(msgspec.Struct, frozen=True, kw_only=True):
    """How much audio was transcribed."""

    type: Literal["duration"] = "duration"
    seconds: float = 0.0


class RateLimit(msgspec.Struct, frozen=True, kw_only=True):
    """One row of ``rate_limits.updated``; this server has none."""

    name: str
    limit: int = 0
    remaining: int = 0
    reset_seconds: float = 0.0
