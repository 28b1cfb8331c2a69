"""The settings of one session, as the client sees and changes them.

Rules kept here:

* :class:`SessionConfig` is complete and immutable; a change is a :class:`SessionPatch`, whose absent fields are
  ``UNSET``, merged by :func:`merge` (deeply, all or nothing);
* ``None`` for turn detection means off, absent means unchanged;
* nothing here knows a wire dialect: the server turns events into patches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from duologue.audio.format import AudioFormat
from duologue.errors import ClientFault, ErrorCode
from duologue.outputs import NamedTool, Options, ToolChoice, ToolMenu
from duologue.outputs import ToolDefinition as ToolDefinition

Modality = Literal["text", "audio"]
Eagerness = Literal["low", "medium", "high", "auto"]
OverlapPolicy = Literal["listen_only", "barge_in_on_speech"]
PlaybackCommitPolicy = Literal["estimated", "ack_only", "commit_all_on_done"]


class ServerVad(msgspec.Struct, frozen=True, kw_only=True, tag="server_vad"):
    """Turn end by silence alone."""

    threshold: float = 0.5
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 500
    min_speech_ms: int = 96
    create_response: bool = True
    interrupt_response: bool = True
    idle_timeout_ms: int | None = None


class SemanticVad(msgspec.Struct, frozen=True, kw_only=True, tag="semantic_vad"):
    """Turn end by meaning: a candidate pause is judged by a classifier; see :func:`eagerness_of` for its bounds."""

    eagerness: Eagerness = "auto"
    threshold: float = 0.5
    prefix_padding_ms: int = 300
    candidate_ms: int = 192
    min_speech_ms: int = 96
    create_response: bool = True
    interrupt_response: bool = True


TurnDetection = ServerVad | SemanticVad


class EagernessBounds(msgspec.Struct, frozen=True):
    """``completion`` is the probability from which a pause counts as the end; ``max_silence_ms`` ends it in any case."""

    completion: float
    max_silence_ms: int


EAGERNESS: dict[Eagerness, EagernessBounds] = {
    "low": EagernessBounds(0.7, 8000),
    "medium": EagernessBounds(0.5, 4000),
    "auto": EagernessBounds(0.5, 4000),
    "high": EagernessBounds(0.3, 2000),
}


class SessionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a client may set. Times in milliseconds; ``voice`` ``None`` is the model's default voice."""

    model: str = ""
    output_modality: Modality = "audio"
    instructions: str = ""
    voice: str | None = None
    speed: float = 1.0
    temperature: float | None = None
    max_output_tokens: int | None = None
    input_format: AudioFormat = AudioFormat(encoding="pcm16", rate_hz=24000)
    output_format: AudioFormat = AudioFormat(encoding="pcm16", rate_hz=24000)
    turn_detection: TurnDetection | None = None
    transcription: bool = True
    language: str | None = None
    tools: tuple[ToolDefinition, ...] = ()
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    overlap_policy: OverlapPolicy | None = None  # None: follows turn detection
    overlap_short_ack_ms: int = 700
    overlap_barge_in_ms: int = 1200
    overlap_silence_rms: float = 0.003
    overlap_decide_ms: int = 250
    acknowledgements: tuple[str, ...] | None = None  # None: the words of the language
    playback_commit_policy: PlaybackCommitPolicy = "estimated"
    auto_response: bool = False
    metadata: Mapping[str, str] = {}
    extra: Options = {}

    @property
    def effective_overlap_policy(self) -> OverlapPolicy:
        """The policy in force: a detector that may interrupt implies barge-in, no detector implies listening only."""
        if self.overlap_policy is not None:
            return self.overlap_policy
        detection = self.turn_detection
        if detection is not None and detection.interrupt_response:
            return "barge_in_on_speech"
        return "listen_only"

    @property
    def menu(self) -> ToolMenu | None:
        """The functions that an answer may call; ``None``: none."""
        if not self.tools or self.tool_choice == "none":
            return None
        return ToolMenu(tools=self.tools, choice=self.tool_choice, parallel=self.parallel_tool_calls)


class TurnDetectionPatch(msgspec.Struct, frozen=True, kw_only=True):
    """A change to turn detection. ``type`` ``UNSET`` keeps the kind; another kind starts from that kind's defaults.

    ``None`` sets a field to its default, and means nothing where the kind has no such field.
    """

    type: Literal["server_vad", "semantic_vad"] | UnsetType = UNSET
    threshold: float | UnsetType | None = UNSET
    prefix_padding_ms: int | UnsetType | None = UNSET
    silence_duration_ms: int | UnsetType | None = UNSET
    eagerness: Eagerness | UnsetType | None = UNSET
    create_response: bool | UnsetType | None = UNSET
    interrupt_response: bool | UnsetType | None = UNSET
    idle_timeout_ms: int | UnsetType | None = UNSET


class SessionPatch(msgspec.Struct, frozen=True, kw_only=True):
    """A change to a :class:`SessionConfig`: ``UNSET`` leaves a field as it is."""

    model: str | UnsetType = UNSET
    output_modality: Modality | UnsetType = UNSET
    instructions: str | UnsetType = UNSET
    voice: str | UnsetType | None = UNSET
    speed: float | UnsetType = UNSET
    temperature: float | UnsetType | None = UNSET
    max_output_tokens: int | UnsetType | None = UNSET
    input_format: AudioFormat | UnsetType = UNSET
    output_format: AudioFormat | UnsetType = UNSET
    turn_detection: TurnDetectionPatch | UnsetType | None = UNSET
    transcription: bool | UnsetType = UNSET
    language: str | UnsetType | None = UNSET
    tools: tuple[ToolDefinition, ...] | UnsetType = UNSET
    tool_choice: ToolChoice | UnsetType = UNSET
    parallel_tool_calls: bool | UnsetType = UNSET
    overlap_policy: OverlapPolicy | UnsetType | None = UNSET
    overlap_short_ack_ms: int | UnsetType = UNSET
    overlap_barge_in_ms: int | UnsetType = UNSET
    overlap_silence_rms: float | UnsetType = UNSET
    acknowledgements: tuple[str, ...] | UnsetType | None = UNSET
    playback_commit_policy: PlaybackCommitPolicy | UnsetType = UNSET
    auto_response: bool | UnsetType = UNSET
    metadata: Mapping[str, str] | UnsetType = UNSET
    extra: Options | UnsetType = UNSET


def _merge_detection(current: TurnDetection | None, patch: TurnDetectionPatch | None) -> TurnDetection | None:
    if patch is None:
        return None
    given = {
        name: value
        for name in patch.__struct_fields__
        if name != "type" and (value := getattr(patch, name)) is not UNSET
    }
    kind: type[ServerVad] | type[SemanticVad]
    if patch.type is UNSET:
        kind = type(current) if current is not None else ServerVad
    else:
        kind = ServerVad if patch.type == "server_vad" else SemanticVad
    base = current if isinstance(current, kind) else kind()
    unknown = [name for name, value in given.items() if value is not None and name not in kind.__struct_fields__]
    if unknown:
        raise ClientFault(
            ErrorCode.UNSUPPORTED_TURN_DETECTION,
            f"turn_detection.{unknown[0]} does not belong to type {kind.__struct_config__.tag!r}.",
            param=f"session.audio.input.turn_detection.{unknown[0]}",
        )
    usual = kind()
    merged = msgspec.structs.replace(
        base,
        **{
            name: getattr(usual, name) if value is None else value
            for name, value in given.items()
            if name in kind.__struct_fields__
        },
    )
    check_detection(merged)
    return merged


def check_detection(detection: TurnDetection) -> None:
    """Raise :class:`ClientFault` (``unsupported_turn_detection``) when a value is out of range."""
    checks: list[tuple[str, float | None, float, float]] = [
        ("threshold", detection.threshold, 0.15, 1.0),
        ("prefix_padding_ms", detection.prefix_padding_ms, 0, 5_000),
        ("min_speech_ms", detection.min_speech_ms, 32, 2_000),
    ]
    if isinstance(detection, ServerVad):
        checks.append(("silence_duration_ms", detection.silence_duration_ms, 32, 10_000))
        checks.append(("idle_timeout_ms", detection.idle_timeout_ms, 1_000, 600_000))
    else:
        checks.append(("candidate_ms", detection.candidate_ms, 32, 2_000))
    for name, value, low, high in checks:
        if value is not None and not low <= value <= high:
            raise ClientFault(
                ErrorCode.UNSUPPORTED_TURN_DETECTION,
                f"turn_detection.{name} must be between {low:g} and {high:g}, got {value:g}.",
                param=f"session.audio.input.turn_detection.{name}",
            )


def check_numbers(config: SessionConfig, where: str) -> None:
    """Raise :class:`ClientFault` (``invalid_session_config``) when a number is out of range."""
    checks: tuple[tuple[str, float | None, float, float], ...] = (
        ("speed", config.speed, 0.25, 4.0),
        ("temperature", config.temperature, 0.0, 2.0),
        ("max_output_tokens", config.max_output_tokens, 1, 65_536),
        ("overlap_short_ack_ms", config.overlap_short_ack_ms, 0, 60_000),
        ("overlap_barge_in_ms", config.overlap_barge_in_ms, 0, 60_000),
        ("overlap_silence_rms", config.overlap_silence_rms, 0.0, 1.0),
        ("overlap_decide_ms", config.overlap_decide_ms, 0, 60_000),
    )
    for name, value, low, high in checks:
        if value is not None and not low <= value <= high:
            raise ClientFault(
                ErrorCode.INVALID_SESSION_CONFIG,
                f"{name} must be between {low:g} and {high:g}, got {value:g}.",
                param=f"{where}.{name}",
            )


def _check_overlap(config: SessionConfig) -> None:
    if config.overlap_policy == "barge_in_on_speech" and config.turn_detection is None and not config.auto_response:
        raise ClientFault(
            ErrorCode.UNSUPPORTED_TURN_DETECTION,
            "overlap_policy 'barge_in_on_speech' needs turn detection; set turn_detection or use 'listen_only'.",
            param="session.overlap_policy",
        )


def merge(config: SessionConfig, patch: SessionPatch) -> SessionConfig:
    """Return ``config`` with ``patch`` applied. Raises :class:`ClientFault` and changes nothing if any field is invalid."""
    changes = {
        name: value
        for name in patch.__struct_fields__
        if name != "turn_detection" and (value := getattr(patch, name)) is not UNSET
    }
    if patch.turn_detection is not UNSET:
        changes["turn_detection"] = _merge_detection(config.turn_detection, patch.turn_detection)
    merged = msgspec.structs.replace(config, **changes) if changes else config
    check_numbers(merged, "session")
    _check_overlap(merged)
    check_tools(merged, "session")
    return merged


def check_tools(config: SessionConfig, where: str) -> None:
    """Raise :class:`ClientFault` for a function that is offered twice, or that must be called and is not offered."""
    names = [tool.name for tool in config.tools]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise ClientFault(
                ErrorCode.INVALID_SESSION_CONFIG,
                f"Two functions are called {name!r}; every tool needs a name of its own.",
                param=f"{where}.tools[{index}].name",
            )
    if config.tool_choice == "required" and not names:
        raise ClientFault(
            ErrorCode.INVALID_SESSION_CONFIG,
            "tool_choice is 'required', but there are no tools to choose from; offer one, or use 'auto'.",
            param=f"{where}.tool_choice",
        )
    if isinstance(config.tool_choice, NamedTool) and config.tool_choice.name not in names:
        raise ClientFault(
            ErrorCode.INVALID_SESSION_CONFIG,
            f"tool_choice names {config.tool_choice.name!r}, which is not among the tools.",
            param=f"{where}.tool_choice",
        )
