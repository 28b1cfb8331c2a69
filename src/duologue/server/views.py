"""Engine values as the objects that wire events show: sessions, items, usage, responses.

Rules kept here: what is shown is the state in force, whole; audio is never part of an object; ``turn_detection`` that
is off is ``null``, never a type of its own.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from duologue.audio.format import AudioFormat, Encoding
from duologue.config.session import Modality, ServerVad, SessionConfig, ToolDefinition
from duologue.engine.duplex.events import (
    AudioPart,
    CallOutputPart,
    CallPart,
    ImagePart,
    ItemPart,
    ItemView,
    ResponseCreated,
    ResponseDone,
    Usage,
    part_text,
)
from duologue.errors import ERRORS
from duologue.outputs import NamedTool, ToolChoice
from duologue.server.settings import DEFAULT_VOICE
from duologue.wire import Dialect
from duologue.wire.objects import (
    AudioFormatParams,
    AudioParams,
    ContentPart,
    InputAudioParams,
    InputTokens,
    Item,
    OutputAudioParams,
    OutputTokens,
    Response,
    ResponseAudioParams,
    ResponseUsage,
    Session,
    StatusDetails,
    StatusError,
    Tool,
    TranscriptionParams,
    TurnDetectionParams,
)
from duologue.wire.objects import ToolChoice as WireToolChoice

TRANSCRIPTION_MODEL: Final = "default"
_GA_TYPES: Final[dict[Encoding, str]] = {
    "pcm16": "audio/pcm",
    "float32": "audio/pcm-f32",
    "pcmu": "audio/pcmu",
    "pcma": "audio/pcma",
}
_FLAT_TYPES: Final[dict[Encoding, str]] = {
    "pcm16": "pcm16",
    "float32": "pcm_f32le",
    "pcmu": "g711_ulaw",
    "pcma": "g711_alaw",
}


def session_object(config: SessionConfig, session_id: str, dialect: Dialect) -> Session:
    """The whole effective state of a session, as the dialect shows it."""
    source, sink = config.input_format, config.output_format
    shown = Session(
        type="realtime",
        object="realtime.session",
        id=session_id,
        model=config.model,
        output_modalities=[config.output_modality],
        instructions=config.instructions,
        max_output_tokens=config.max_output_tokens if config.max_output_tokens is not None else "inf",
        tools=[_tool_object(tool) for tool in config.tools],
        tool_choice=_tool_choice(config.tool_choice),
        parallel_tool_calls=config.parallel_tool_calls,
        audio=AudioParams(
            input=InputAudioParams(
                format=format_object(source),
                turn_detection=_detection_object(config),
                transcription=_transcription_object(config),
            ),
            output=OutputAudioParams(
                format=format_object(sink), voice=config.voice or DEFAULT_VOICE, speed=config.speed
            ),
        ),
    )
    if dialect == "ga":
        return shown
    return msgspec.structs.replace(
        shown,
        session_id=session_id,
        modalities=["audio", "text"] if config.output_modality == "audio" else ["text"],
        voice=config.voice or DEFAULT_VOICE,
        input_audio_format=_FLAT_TYPES[source.encoding],
        output_audio_format=_FLAT_TYPES[sink.encoding],
        sample_rate_hz=source.rate_hz,
        turn_detection=_detection_object(config),
        temperature=config.temperature,
        overlap_policy=config.effective_overlap_policy,
        overlap_short_ack_ms=config.overlap_short_ack_ms,
        overlap_barge_in_ms=config.overlap_barge_in_ms,
        overlap_silence_rms=config.overlap_silence_rms,
        playback_commit_policy=config.playback_commit_policy,
        auto_response=config.auto_response,
        metadata=dict(config.metadata),
    )


def _detection_object(config: SessionConfig) -> TurnDetectionParams | None:
    detection = config.turn_detection
    if detection is None:
        return None
    if isinstance(detection, ServerVad):
        return TurnDetectionParams(
            type="server_vad",
            threshold=detection.threshold,
            prefix_padding_ms=detection.prefix_padding_ms,
            silence_duration_ms=detection.silence_duration_ms,
            idle_timeout_ms=detection.idle_timeout_ms,
            create_response=detection.create_response,
            interrupt_response=detection.interrupt_response,
        )
    return TurnDetectionParams(
        type="semantic_vad",
        eagerness=detection.eagerness,
        create_response=detection.create_response,
        interrupt_response=detection.interrupt_response,
    )


def _transcription_object(config: SessionConfig) -> TranscriptionParams | None:
    if not config.transcription:
        return None
    return TranscriptionParams(model=TRANSCRIPTION_MODEL, language=config.language or UNSET)


def _tool_object(tool: ToolDefinition) -> Tool:
    return Tool(name=tool.name, description=tool.description, parameters=msgspec.Raw(tool.parameters.encode()))


def _tool_choice(choice: ToolChoice) -> str | WireToolChoice:
    return WireToolChoice(type="function", name=choice.name) if isinstance(choice, NamedTool) else choice


def format_object(audio: AudioFormat) -> AudioFormatParams:
    """A format in the GA spelling; only PCM states its rate."""
    name = _GA_TYPES[audio.encoding]
    return AudioFormatParams(type=name, rate=UNSET if audio.encoding in ("pcmu", "pcma") else audio.rate_hz)


def item_object(item: ItemView) -> Item:
    """A conversation item; the content types follow its role."""
    match item.parts:
        case (CallPart() as call,):
            return Item(
                id=item.item_id,
                object="realtime.item",
                type="function_call",
                status=item.status,
                call_id=call.call_id,
                name=call.name,
                arguments=call.arguments,
            )
        case (CallOutputPart() as result,):
            return Item(
                id=item.item_id,
                object="realtime.item",
                type="function_call_output",
                status=item.status,
                call_id=result.call_id,
                output=result.output,
            )
    return Item(
        id=item.item_id,
        object="realtime.item",
        type="message",
        status=item.status,
        role=item.role,
        content=[_content(part, item.role) for part in item.parts],
    )


def empty_item(item_id: str) -> Item:
    """The assistant's item as it is announced, before any content."""
    return Item(id=item_id, object="realtime.item", type="message", status="in_progress", role="assistant", content=[])


def output_part(modality: Modality, text: str) -> ContentPart:
    """The one content part of an answer, as part events show it."""
    if modality == "text":
        return ContentPart(type="text", text=text)
    return ContentPart(type="audio", transcript=text)


def _content(part: ItemPart, role: str) -> ContentPart:
    side = "output" if role == "assistant" else "input"
    if isinstance(part, ImagePart):
        return ContentPart(type="input_image", detail=part.detail)
    if isinstance(part, AudioPart):
        return ContentPart(type=f"{side}_audio", transcript=part.transcript)
    return ContentPart(type=f"{side}_text", text=part_text(part))


def created_response(event: ResponseCreated, config: SessionConfig, session_id: str) -> Response:
    """A response that has just begun."""
    return Response(
        id=event.response_id,
        status="in_progress",
        conversation_id=None if event.out_of_band else f"conv_{session_id}",
        output_modalities=[event.modality],
        max_output_tokens=config.max_output_tokens if config.max_output_tokens is not None else "inf",
        audio=_response_audio(event, config),
        metadata=dict(event.metadata) or None,
    )


def done_response(
    event: ResponseDone, created: ResponseCreated, config: SessionConfig, session_id: str, output: list[Item]
) -> Response:
    """A response that is over."""
    return Response(
        id=event.response_id,
        status=event.status,
        status_details=_status_details(event),
        output=output,
        conversation_id=None if created.out_of_band else f"conv_{session_id}",
        output_modalities=[event.modality],
        max_output_tokens=config.max_output_tokens if config.max_output_tokens is not None else "inf",
        audio=_response_audio(created, config),
        usage=_usage(event.usage),
        metadata=dict(event.metadata or created.metadata) or None,
    )


def _response_audio(event: ResponseCreated, config: SessionConfig) -> ResponseAudioParams:
    voice = event.voice or config.voice or DEFAULT_VOICE
    return ResponseAudioParams(output=OutputAudioParams(format=format_object(config.output_format), voice=voice))


def _status_details(event: ResponseDone) -> StatusDetails | None:
    match event.status:
        case "completed":
            return None
        case "failed":
            return StatusDetails(type="failed", error=_status_error(event))
        case "cancelled" | "incomplete":
            return StatusDetails(type=event.status, reason=event.reason or UNSET)


def _status_error(event: ResponseDone) -> StatusError | UnsetType:
    if event.error is None:
        return UNSET
    spec = ERRORS[event.error]
    return StatusError(
        type=spec.wire_type, code=spec.ga_code or event.error.value, message=event.error_message or spec.summary
    )


def _usage(usage: Usage) -> ResponseUsage | None:
    """Tokens that stages counted, ``null`` if none did: audio is not counted in tokens here, so all of them are text."""
    if usage.input_tokens is None or usage.output_tokens is None:
        return None
    return ResponseUsage(
        total_tokens=usage.input_tokens + usage.output_tokens,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        input_token_details=InputTokens(text_tokens=usage.input_tokens, cached_tokens=usage.cached_tokens or 0),
        output_token_details=OutputTokens(text_tokens=usage.output_tokens),
    )
