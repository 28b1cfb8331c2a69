"""What goes into a stage and what comes out of it: the types every backend, stage and edge speaks.

All are frozen msgspec structs, so that they cross a process boundary as they are. Audio is raw PCM16 (little endian,
mono) in ``bytes``; it is never base64 inside the engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

Scalar = str | int | float | bool | None
Options = Mapping[str, Scalar]
Role = Literal["system", "user", "assistant", "tool"]


class ToolDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A function that a model may call. ``parameters`` is the JSON schema as JSON text."""

    name: str
    description: str = ""
    parameters: str = "{}"


class NamedTool(msgspec.Struct, frozen=True):
    """The choice of one function: the model must call it."""

    name: str


ToolChoice = Literal["auto", "none", "required"] | NamedTool


class ToolMenu(msgspec.Struct, frozen=True, kw_only=True):
    """The functions that a model may call in one answer. ``parallel`` false: at most one call in it."""

    tools: tuple[ToolDefinition, ...]
    choice: ToolChoice = "auto"
    parallel: bool = True


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A model asks for a function. ``arguments`` is what it wrote, meant to be JSON text.

    ``call_id`` is the session's: what a stage calls it is of no use to anybody else, and stages leave it empty.
    """

    name: str
    arguments: str = "{}"
    call_id: str = ""


class Image(msgspec.Struct, frozen=True):
    """A picture as a data URL (PNG, JPEG, WebP or GIF), as a client sent it."""

    url: str
    detail: str = "auto"


class ChatMessage(msgspec.Struct, frozen=True):
    """One message of a conversation as a language model reads it.

    ``calls``: what an assistant's message asks for. ``call_id``: which call a message of role ``tool`` answers.
    ``images``: what a user shows beside the text.
    """

    role: Role
    text: str
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    images: tuple[Image, ...] = ()


class AudioMark(msgspec.Struct, frozen=True):
    """``chars`` characters of the text have been spoken once ``end_ms`` of the audio has been played.

    Relative to the piece that carries the mark.
    """

    chars: int
    end_ms: int


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How a stage samples. A stage ignores what it has no use for."""

    temperature: float = 0.7
    top_p: float = 1.0
    max_tokens: int = 256
    seed: int | None = None
    stop: tuple[str, ...] = ()
    voice: str | None = None
    speed: float = 1.0
    options: Options = {}


class CompanionOutput(msgspec.Struct, frozen=True, kw_only=True):
    """All that a companion of a request produced where the request enters the pipeline (classifier-free guidance).

    ``role`` says which companion it was ("uncond", say); ``metadata`` is that of its last output.
    """

    role: str
    text: str = ""
    token_ids: tuple[int, ...] = ()
    audio: bytes = b""
    audio_rate_hz: int = 0
    metadata: Options = {}


class StagePrompt(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of input for a stage.

    A resumable request gets several pieces; ``final`` marks the last one. ``session_key`` is the affinity key under
    which a stage may keep a resident context (empty: none). ``companions``: what the request's companions produced.
    ``menu``: functions that the answer may call.
    """

    token_ids: tuple[int, ...] = ()
    text: str = ""
    messages: tuple[ChatMessage, ...] = ()
    audio: bytes = b""
    audio_rate_hz: int = 0
    final: bool = True
    session_key: str = ""
    options: Options = {}
    companions: tuple[CompanionOutput, ...] = ()
    menu: ToolMenu | None = None


class StageError(msgspec.Struct, frozen=True):
    """Why a stage gave up on one request. ``code`` is one of :class:`duologue.errors.ErrorCode`'s values."""

    code: str
    message: str


FinishReason = Literal["stop", "length", "content_filter", "abort", "error"]


class RequestOutput(msgspec.Struct, frozen=True, kw_only=True):
    """One output of one stage for one request. Text and audio are deltas.

    ``segment_finished`` marks the end of a segment of a streaming request (a sentence, a unit): what came since the last
    boundary may be forwarded. ``finished`` ends the request at this stage. ``text`` of a synthesis stage is the text that
    this audio begins to speak, so that text and audio stay paired. ``queue_s``, on the first output: how long the request
    had waited before the stage began to work on it (0 below a tenth of a millisecond). ``calls``: functions that the
    model asks for, each whole and once.
    """

    request_id: str
    finished: bool = False
    segment_finished: bool = False
    token_ids: tuple[int, ...] = ()
    text: str = ""
    audio: bytes = b""
    audio_rate_hz: int = 0
    marks: tuple[AudioMark, ...] = ()
    finish_reason: FinishReason | None = None
    error: StageError | None = None
    metadata: Options = {}
    queue_s: float = 0.0
    calls: tuple[ToolCall, ...] = ()


class StageRequest(msgspec.Struct, kw_only=True):
    """A request (or one more piece of a resumable one) on its way to a replica."""

    request_id: str
    external_req_id: str
    prompt: StagePrompt
    params: SamplingParams
    resumable: bool = False
