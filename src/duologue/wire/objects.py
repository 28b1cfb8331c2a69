"""The objects inside wire events, in the spelling of OpenAI's GA dialect, with the extras of the duplex dialect.

Rules kept here:

* one struct serves both directions: what is ``UNSET`` is not on the wire, ``None`` is JSON ``null``;
* fields that only one dialect writes stand at the end of their struct, and are ``UNSET`` for the other;
* reading is wide (unknown fields are ignored, a few fields of the beta spelling are known), writing is exact.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType


class AudioFormatParams(msgspec.Struct, frozen=True, kw_only=True):
    """``audio/pcm`` (with a rate), ``audio/pcmu`` or ``audio/pcma``."""

    type: str
    rate: int | UnsetType | None = UNSET


class TurnDetectionParams(msgspec.Struct, frozen=True, kw_only=True):
    """Turn detection as written by a client or echoed: ``UNSET`` leaves a setting as it is."""

    type: str | UnsetType = UNSET
    threshold: float | UnsetType | None = UNSET
    prefix_padding_ms: int | UnsetType | None = UNSET
    silence_duration_ms: int | UnsetType | None = UNSET
    eagerness: str | UnsetType | None = UNSET
    create_response: bool | UnsetType | None = UNSET
    interrupt_response: bool | UnsetType | None = UNSET
    idle_timeout_ms: int | UnsetType | None = UNSET


class TranscriptionParams(msgspec.Struct, frozen=True, kw_only=True):
    """Input transcription: its presence turns it on."""

    model: str | UnsetType | None = UNSET
    language: str | UnsetType | None = UNSET
    prompt: str | UnsetType | None = UNSET


class InputAudioParams(msgspec.Struct, frozen=True, kw_only=True):
    """``session.audio.input``. ``sample_rate_hz`` is the duplex client's way to state the rate."""

    format: AudioFormatParams | str | UnsetType | None = UNSET
    turn_detection: TurnDetectionParams | UnsetType | None = UNSET
    transcription: TranscriptionParams | UnsetType | None = UNSET
    sample_rate_hz: int | UnsetType | None = UNSET


class Voice(msgspec.Struct, frozen=True, kw_only=True):
    """A voice given as an object."""

    id: str


class OutputAudioParams(msgspec.Struct, frozen=True, kw_only=True):
    """``session.audio.output``."""

    format: AudioFormatParams | str | UnsetType | None = UNSET
    voice: str | Voice | UnsetType | None = UNSET
    speed: float | UnsetType | None = UNSET
    sample_rate_hz: int | UnsetType | None = UNSET


class AudioParams(msgspec.Struct, frozen=True, kw_only=True):
    """``session.audio``."""

    input: InputAudioParams | UnsetType | None = UNSET
    output: OutputAudioParams | UnsetType | None = UNSET


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool; only ``function`` is offered. ``parameters`` is a JSON schema, kept as it was written."""

    type: str = "function"
    name: str | UnsetType | None = UNSET
    description: str | UnsetType | None = UNSET
    parameters: Raw | UnsetType = UNSET


class ToolChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A forced tool."""

    type: str
    name: str | UnsetType | None = UNSET


class ExtraBody(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the duplex dialect's ``extra_body`` that is a setting of ours; the rest is passed to the model."""

    auto_response: bool | UnsetType | None = UNSET


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A session: settings to change (client) or the whole effective state (server)."""

    type: str | UnsetType = UNSET
    object: str | UnsetType = UNSET
    id: str | UnsetType = UNSET
    model: str | UnsetType | None = UNSET
    output_modalities: list[str] | UnsetType | None = UNSET
    instructions: str | UnsetType | None = UNSET
    max_output_tokens: int | str | UnsetType | None = UNSET
    tools: list[Tool] | UnsetType | None = UNSET
    tool_choice: str | ToolChoice | UnsetType | None = UNSET
    audio: AudioParams | UnsetType | None = UNSET
    expires_at: int | UnsetType | None = UNSET
    temperature: float | UnsetType | None = UNSET
    # the beta spelling, which the duplex dialect uses too
    modalities: list[str] | UnsetType | None = UNSET
    voice: str | Voice | UnsetType | None = UNSET
    speed: float | UnsetType | None = UNSET
    input_audio_format: str | AudioFormatParams | UnsetType | None = UNSET
    output_audio_format: str | AudioFormatParams | UnsetType | None = UNSET
    input_audio_transcription: TranscriptionParams | UnsetType | None = UNSET
    turn_detection: TurnDetectionParams | UnsetType | None = UNSET
    max_response_output_tokens: int | str | UnsetType | None = UNSET
    # the duplex dialect
    session_id: str | UnsetType = UNSET
    sample_rate_hz: int | UnsetType | None = UNSET
    overlap_policy: str | UnsetType | None = UNSET
    overlap_short_ack_ms: int | UnsetType | None = UNSET
    overlap_barge_in_ms: int | UnsetType | None = UNSET
    overlap_silence_rms: float | UnsetType | None = UNSET
    acknowledgements: list[str] | UnsetType | None = UNSET
    playback_commit_policy: str | UnsetType | None = UNSET
    metadata: dict[str, str] | UnsetType | None = UNSET
    auto_response: bool | UnsetType | None = UNSET
    extra_body: Raw | UnsetType = UNSET


class ContentPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of an item's content (``input_text``, ``output_audio``, …) or of a response (``text``, ``audio``)."""

    type: str
    text: str | UnsetType | None = UNSET
    transcript: str | UnsetType | None = UNSET
    audio: str | UnsetType | None = UNSET
    image_url: str | UnsetType | None = UNSET


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation item."""

    type: str = "message"
    id: str | UnsetType | None = UNSET
    object: str | UnsetType | None = UNSET
    status: str | UnsetType | None = UNSET
    role: str | UnsetType | None = UNSET
    content: list[ContentPart] | UnsetType | None = UNSET
    call_id: str | UnsetType | None = UNSET
    name: str | UnsetType | None = UNSET
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
    output_modalities: list[str] | UnsetType | None = UNSET
    modalities: list[str] | UnsetType | None = UNSET
    metadata: dict[str, str] | UnsetType | None = UNSET
    max_output_tokens: int | str | UnsetType | None = UNSET
    conversation: str | UnsetType | None = UNSET
    input: list[Item] | UnsetType | None = UNSET
    audio: ResponseAudioParams | UnsetType | None = UNSET
    voice: str | Voice | UnsetType | None = UNSET
    tools: list[Tool] | UnsetType | None = UNSET
    tool_choice: str | ToolChoice | UnsetType | None = UNSET
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
