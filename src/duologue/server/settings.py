"""Session settings between the wire and the engine: objects to patches, and the effective state back to objects.

Rules kept here:

* an absent field is unchanged, ``null`` for turn detection and transcription means off, other ``null`` means default;
* a refused setting names itself in the client's terms; nothing of that update is used;
* what the server does not offer (tracing, truncation, prompts, noise reduction) is read over: stock clients always send
  some of it, and an error would end them. It is not echoed either, since the echo is the state in force.
"""

from __future__ import annotations

from typing import Final, TypeVar, get_args

import msgspec
from msgspec import UNSET, Raw, UnsetType

from duologue.audio.format import AudioFormat, AudioFormatError, Encoding
from duologue.config.session import (
    Eagerness,
    Modality,
    OverlapPolicy,
    PlaybackCommitPolicy,
    SessionConfig,
    SessionPatch,
    ToolDefinition,
    TurnDetectionPatch,
)
from duologue.errors import ClientFault, ErrorCode
from duologue.outputs import NamedTool, Options, Scalar, ToolChoice
from duologue.server.models import ModelNames
from duologue.wire import Dialect
from duologue.wire.objects import (
    LARGEST_INTEGER,
    AudioFormatParams,
    InputAudioParams,
    Name,
    OutputAudioParams,
    Session,
    Tool,
    TranscriptionParams,
    TurnDetectionParams,
    Voice,
)
from duologue.wire.objects import ToolChoice as WireToolChoice

MAX_INSTRUCTIONS_CHARS: Final = 256 * 1024
MAX_TOOLS_CHARS: Final = 256 * 1024
MAX_EXTRA_BYTES: Final = 16 * 1024
GA_RATE_HZ: Final = 24_000
DUPLEX_INPUT_RATE_HZ: Final = 16_000
DEFAULT_VOICE: Final = "default"

_ENCODINGS: Final[dict[str, Encoding]] = {
    "audio/pcm": "pcm16",
    "pcm": "pcm16",
    "pcm16": "pcm16",
    "pcm_s16le": "pcm16",
    "float32": "float32",
    "pcm_f32le": "float32",
    "audio/pcmu": "pcmu",
    "pcmu": "pcmu",
    "g711_ulaw": "pcmu",
    "audio/pcma": "pcma",
    "pcma": "pcma",
    "g711_alaw": "pcma",
}
_DETECTION_FIELDS: Final = (
    "type",
    "threshold",
    "prefix_padding_ms",
    "silence_duration_ms",
    "eagerness",
    "create_response",
    "interrupt_response",
    "idle_timeout_ms",
)
_T = TypeVar("_T")
_TYPES: Final[tuple[str, ...]] = ("realtime",)


def dialect_defaults(defaults: SessionConfig, dialect: Dialect) -> SessionConfig:
    """The settings that a session of this dialect starts from: the duplex dialect's input is PCM16 at 16 kHz."""
    if dialect == "ga":
        return defaults
    return msgspec.structs.replace(defaults, input_format=AudioFormat(encoding="pcm16", rate_hz=DUPLEX_INPUT_RATE_HZ))


def invalid(message: str, param: str, code: ErrorCode = ErrorCode.INVALID_SESSION_CONFIG) -> ClientFault:
    """A refused setting."""
    return ClientFault(code, message, param=param)


def audio_format(name: str, rate_hz: int | None, default_rate_hz: int, param: str) -> AudioFormat:
    """The format that a client names. Raises ``ClientFault`` (``unsupported_audio_format``)."""
    encoding = _ENCODINGS.get(name)
    if encoding is None:
        raise invalid(
            f"Audio format {name!r} is not supported; use one of {', '.join(_ENCODINGS)}.",
            param,
            ErrorCode.UNSUPPORTED_AUDIO_FORMAT,
        )
    rate = rate_hz if rate_hz is not None else 8_000 if encoding in ("pcmu", "pcma") else default_rate_hz
    try:
        return AudioFormat(encoding=encoding, rate_hz=rate)
    except AudioFormatError as fault:
        raise invalid(f"{fault}.", param, ErrorCode.UNSUPPORTED_AUDIO_FORMAT) from None


def append_format(name: str | None, rate_hz: int | None, current: AudioFormat) -> AudioFormat:
    """The format that one append states; what it leaves out is ``current``'s. Raises ``ClientFault``."""
    if name is None:
        return audio_format(current.encoding, rate_hz, current.rate_hz, "sample_rate_hz")
    return audio_format(name, rate_hz, current.rate_hz, "format")


class SettingsReader:
    """Turns session objects of one dialect into patches."""

    __slots__ = ("_dialect", "_names")

    def __init__(self, dialect: Dialect, names: ModelNames) -> None:
        self._dialect = dialect
        self._names = names

    def patch(self, session: Session, current: SessionConfig) -> SessionPatch:
        """The change that ``session`` asks for. ``current`` supplies what a half-given format leaves out.

        Raises :class:`ClientFault`; whether the values are in range is the engine's to judge.
        """
        if session.type is not UNSET and session.type not in _TYPES:
            raise invalid(
                f"session.type must be 'realtime', got {session.type!r}.", "session.type", ErrorCode.UNSUPPORTED
            )
        audio = session.audio or None
        source = (audio.input if audio else None) or InputAudioParams()
        sink = (audio.output if audio else None) or OutputAudioParams()
        patch = SessionPatch(
            model=UNSET if not session.model else self._names.resolve(session.model),
            output_modality=_modality(_given(session.output_modalities, session.modalities)),
            instructions=_instructions(session.instructions),
            voice=_voice(_given(sink.voice, session.voice)),
            speed=_or(_given(sink.speed, session.speed), 1.0),
            temperature=session.temperature,
            max_output_tokens=token_limit(
                _given(session.max_output_tokens, session.max_response_output_tokens), "session.max_output_tokens"
            ),
            input_format=self._input_format(session, source, current),
            output_format=self._output_format(session, sink, current),
            turn_detection=_turn_detection(_given(source.turn_detection, session.turn_detection)),
            transcription=_is_on(_given(source.transcription, session.input_audio_transcription)),
            language=_language(_given(source.transcription, session.input_audio_transcription)),
            tools=tools_of(session.tools, "session"),
            tool_choice=tool_choice_of(session.tool_choice, "session"),
            parallel_tool_calls=_or(session.parallel_tool_calls, True),
            metadata=UNSET if session.metadata is UNSET else (session.metadata or {}),
        )
        return patch if self._dialect == "ga" else _with_duplex(patch, session)

    def _input_format(
        self, session: Session, source: InputAudioParams, current: SessionConfig
    ) -> AudioFormat | UnsetType:
        default = GA_RATE_HZ if self._dialect == "ga" else DUPLEX_INPUT_RATE_HZ
        named = _given(source.format, session.input_audio_format)
        rate = _given(session.sample_rate_hz, source.sample_rate_hz)
        return _format(named, rate, default, current.input_format, "session.audio.input.format")

    def _output_format(
        self, session: Session, sink: OutputAudioParams, current: SessionConfig
    ) -> AudioFormat | UnsetType:
        named = _given(sink.format, session.output_audio_format)
        return _format(named, sink.sample_rate_hz, GA_RATE_HZ, current.output_format, "session.audio.output.format")


def _with_duplex(patch: SessionPatch, session: Session) -> SessionPatch:
    """``patch`` with the settings that only the duplex dialect has."""
    auto, extra = _extra_body(session)
    words = session.acknowledgements
    policy = _choice(session.playback_commit_policy, get_args(PlaybackCommitPolicy), "session.playback_commit_policy")
    return msgspec.structs.replace(
        patch,
        overlap_policy=_choice(session.overlap_policy, get_args(OverlapPolicy), "session.overlap_policy"),
        overlap_short_ack_ms=_or(session.overlap_short_ack_ms, 700),
        overlap_barge_in_ms=_or(session.overlap_barge_in_ms, 1200),
        overlap_silence_rms=_or(session.overlap_silence_rms, 0.003),
        acknowledgements=tuple(words) if isinstance(words, list) else words,
        playback_commit_policy=_or(policy, "estimated"),
        auto_response=_or(_given(session.auto_response, auto), False),
        extra=extra,
    )


def modality_of(names: list[str] | None, param: str) -> Modality:
    """The one modality that a list of them means: audio comes with its transcript, so audio wins."""
    if names == []:
        raise invalid("output_modalities is empty; use ['audio'] or ['text'], or leave it out.", param)
    for name in names or ():
        if name not in get_args(Modality):
            raise invalid(f"Modality {name!r} is not offered; use ['audio'] or ['text'].", param)
    return "text" if names is not None and "audio" not in names else "audio"


def instructions_of(text: str | UnsetType | None, param: str) -> str | UnsetType | None:
    """Instructions of a length that a prompt may have."""
    if isinstance(text, str) and len(text) > MAX_INSTRUCTIONS_CHARS:
        raise invalid(f"instructions may have {MAX_INSTRUCTIONS_CHARS} characters, got {len(text)}.", param)
    return text


def token_limit(value: int | str | UnsetType | None, param: str) -> int | UnsetType | None:
    """A limit of output tokens: ``"inf"`` and ``null`` mean none."""
    if isinstance(value, str):
        if value != "inf":
            raise invalid(f"max_output_tokens must be a number or 'inf', got {value!r}.", param)
        return None
    return value


def _given(first: _T | UnsetType, second: _T | UnsetType) -> _T | UnsetType:
    """The first of two spellings of a field that was on the wire."""
    return second if first is UNSET else first


def _or(value: _T | UnsetType | None, default: _T) -> _T | UnsetType:
    """``null`` on the wire as the default."""
    return default if value is None else value


def _modality(names: list[str] | UnsetType | None) -> Modality | UnsetType:
    return UNSET if names is UNSET else modality_of(names, "session.output_modalities")


def _instructions(text: str | UnsetType | None) -> str | UnsetType:
    return _or(instructions_of(text, "session.instructions"), "")


def _voice(voice: str | Voice | UnsetType | None) -> str | UnsetType | None:
    name = voice.id if isinstance(voice, Voice) else voice
    return None if name == DEFAULT_VOICE else name


def _format(
    named: AudioFormatParams | str | UnsetType | None,
    rate_hz: int | UnsetType | None,
    default_rate_hz: int,
    current: AudioFormat,
    param: str,
) -> AudioFormat | UnsetType:
    """A format from a name, a rate, either or neither."""
    rate = rate_hz if isinstance(rate_hz, int) else None
    if isinstance(named, AudioFormatParams):
        given = named.rate if isinstance(named.rate, int) else rate
        return audio_format(named.type, given, default_rate_hz, param)
    if isinstance(named, str):
        return audio_format(named, rate, default_rate_hz, param)
    if rate is None:
        return UNSET
    return audio_format(current.encoding, rate, default_rate_hz, param)


def _turn_detection(params: TurnDetectionParams | UnsetType | None) -> TurnDetectionPatch | UnsetType | None:
    if params is UNSET:
        return UNSET
    if params is None or params.type == "none":
        return None
    if params.type not in (UNSET, "server_vad", "semantic_vad"):
        raise invalid(
            f"turn_detection.type must be 'server_vad' or 'semantic_vad', got {params.type!r}.",
            "session.audio.input.turn_detection.type",
            ErrorCode.UNSUPPORTED_TURN_DETECTION,
        )
    eagerness = params.eagerness
    if eagerness is not UNSET and eagerness is not None and eagerness not in get_args(Eagerness):
        raise invalid(
            f"turn_detection.eagerness must be one of {', '.join(get_args(Eagerness))}, got {eagerness!r}.",
            "session.audio.input.turn_detection.eagerness",
            ErrorCode.UNSUPPORTED_TURN_DETECTION,
        )
    return TurnDetectionPatch(**{name: getattr(params, name) for name in _DETECTION_FIELDS})


def _is_on(params: TranscriptionParams | UnsetType | None) -> bool | UnsetType:
    return UNSET if params is UNSET else params is not None


def _language(params: TranscriptionParams | UnsetType | None) -> str | UnsetType | None:
    return UNSET if params is UNSET or params is None else params.language


def tools_of(tools: list[Tool] | UnsetType | None, where: str) -> tuple[ToolDefinition, ...] | UnsetType:
    """Functions that a client offers. Raises ``ClientFault``."""
    if tools is UNSET:
        return UNSET
    known = tuple(_tool(tool, f"{where}.tools[{index}]") for index, tool in enumerate(tools or ()))
    size = sum(len(tool.name) + len(tool.description) + len(tool.parameters) for tool in known)
    if size > MAX_TOOLS_CHARS:
        raise invalid(f"Tools may have {MAX_TOOLS_CHARS} characters altogether, got {size}.", f"{where}.tools")
    return known


def _tool(tool: Tool, param: str) -> ToolDefinition:
    if tool.type != "function":
        raise invalid(
            f"Tools of type {tool.type!r} are not offered; use 'function'.", f"{param}.type", ErrorCode.UNSUPPORTED
        )
    if not tool.name:
        raise invalid("A function tool needs a name.", f"{param}.name")
    parameters = "{}" if tool.parameters is UNSET else _schema(tool.parameters, f"{param}.parameters")
    return ToolDefinition(name=tool.name, description=tool.description or "", parameters=parameters)


def _schema(raw: Raw, param: str) -> str:
    """A JSON schema as it was written. The frame around it was read without a look inside: it may not even be UTF-8."""
    try:
        msgspec.json.decode(raw, type=dict[str, object] | None)
        return bytes(raw).decode()
    except (msgspec.DecodeError, ValueError, RecursionError) as fault:
        raise invalid(f"A tool's parameters must be a JSON schema: {fault}.", param) from None


def tool_choice_of(choice: str | WireToolChoice | UnsetType | None, where: str) -> ToolChoice | UnsetType:
    """Which function the model must or may call. Raises ``ClientFault``."""
    match choice:
        case UnsetType():
            return UNSET
        case None | "auto":
            return "auto"
        case "none" | "required":
            return choice
        case WireToolChoice(type="function", name=str(name)) if name:
            return NamedTool(name)
        case WireToolChoice():
            raise invalid(
                f"tool_choice of type {choice.type!r} is not offered; use 'auto', 'none', 'required' or a function's name.",
                f"{where}.tool_choice",
                ErrorCode.UNSUPPORTED,
            )
        case _:
            raise invalid(
                f"{where}.tool_choice must be one of 'auto', 'none', 'required', got {choice!r}.",
                f"{where}.tool_choice",
            )


def _choice(value: str | UnsetType | None, allowed: tuple[str, ...], param: str) -> str | UnsetType | None:
    if isinstance(value, str) and value not in allowed:
        raise invalid(f"{param} must be one of {', '.join(map(repr, allowed))}, got {value!r}.", param)
    return value


def _extra_body(session: Session) -> tuple[bool | UnsetType | None, Options | UnsetType]:
    """The duplex dialect's ``extra_body``: the one setting of ours in it, and the options for the model."""
    if session.extra_body is UNSET:
        return UNSET, UNSET
    if len(bytes(session.extra_body)) > MAX_EXTRA_BYTES:
        raise invalid(
            f"extra_body may have {MAX_EXTRA_BYTES} bytes, got {len(bytes(session.extra_body))}.", "session.extra_body"
        )
    try:
        fields = msgspec.json.decode(session.extra_body, type=dict[Name, object] | None) or {}
    except (msgspec.DecodeError, ValueError, RecursionError) as fault:
        raise invalid(f"extra_body must be an object: {fault}.", "session.extra_body") from None
    auto = fields.pop("auto_response", UNSET)
    if auto is not UNSET and auto is not None and not isinstance(auto, bool):
        raise invalid("extra_body.auto_response must be true or false.", "session.extra_body.auto_response")
    extra: dict[str, Scalar] = {}
    for name, value in fields.items():
        if not isinstance(value, str | int | float | bool | None):
            raise invalid(f"extra_body.{name} must be a single value.", f"session.extra_body.{name}")
        if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
            raise invalid(f"extra_body.{name} is too large a number.", f"session.extra_body.{name}")
        extra[name] = value
    return auto, extra
