"""Client commands as the engine sees them, free of any dialect.

``event_id`` is the client's own id of the event, echoed in an error. Audio in :class:`AppendAudio` is raw bytes in the
session's negotiated input format.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from duologue.audio.format import AudioFormat
from duologue.config.session import Modality, SessionPatch
from duologue.engine.duplex.events import ItemRole
from duologue.engine.duplex.plugin import HistoryEntry
from duologue.outputs import Image, ToolCall, ToolChoice, ToolDefinition

OverlapHint = Literal[
    "barge_in",
    "interrupt",
    "cancel",
    "listen",
    "continue",
    "continue_output",
    "ack",
    "drop",
    "ignore",
    "silence",
]


class _Command(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    event_id: str | None = None


class UpdateSession(_Command, frozen=True, kw_only=True):
    """Change settings: all of the patch or nothing."""

    patch: SessionPatch


class AppendAudio(_Command, frozen=True, kw_only=True):
    """Audio in the negotiated input format; any length, split anywhere. Hints are those of the duplex dialect."""

    audio: bytes
    overlap_hint: OverlapHint | None = None
    force_listen: bool = False
    force_barge_in: bool = False
    is_speech: bool | None = None


class CommitAudio(_Command, frozen=True, kw_only=True):
    """End the user's turn here. ``create_response`` ``None``: the dialect's default (no answer by itself)."""

    create_response: bool | None = None


class ClearAudio(_Command, frozen=True, kw_only=True):
    """Forget the input that is not yet committed."""


class ClearOutput(_Command, frozen=True, kw_only=True):
    """Stop what is playing, finished or not. ``response_id`` of an older response: acknowledged, nothing else."""

    response_id: str | None = None


class CallOutput(msgspec.Struct, frozen=True):
    """A function's result."""

    call_id: str
    output: str


class InputItem(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A conversation item as a client creates it. Text only, or text beside audio that was transcribed elsewhere.

    ``call``: a function call of the past (role ``assistant``). ``output``: a result (role ``tool``).
    """

    item_id: str | None = None
    role: ItemRole
    texts: tuple[str, ...] = ()
    images: tuple[Image, ...] = ()
    call: ToolCall | None = None
    output: CallOutput | None = None


class ItemReference(msgspec.Struct, frozen=True, tag=True):
    """An item of the conversation."""

    item_id: str


class ResponseOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What one ``response.create`` may override.

    ``max_output_tokens``: ``UNSET`` is the session's, ``None`` is no limit. ``input``: what is read instead of the
    conversation, oldest first; the core keeps what it found in ``context``.
    """

    instructions: str | None = None
    modality: Modality | None = None
    metadata: Mapping[str, str] = {}
    max_output_tokens: int | UnsetType | None = UNSET
    temperature: float | None = None
    out_of_band: bool = False
    tools: tuple[ToolDefinition, ...] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    voice: str | None = None
    output_format: AudioFormat | None = None
    input: tuple[InputItem | ItemReference, ...] | None = None
    context: tuple[HistoryEntry, ...] | None = None


class CreateResponse(_Command, frozen=True, kw_only=True):
    options: ResponseOptions = ResponseOptions()


class CancelResponse(_Command, frozen=True, kw_only=True):
    """Stop generating. ``None``: the response in progress."""

    response_id: str | None = None


class CreateItem(_Command, frozen=True, kw_only=True):
    """``previous_item_id`` ``None`` appends, ``"root"`` puts it first."""

    item: InputItem
    previous_item_id: str | None = None


class DeleteItem(_Command, frozen=True, kw_only=True):
    item_id: str


class RetrieveItem(_Command, frozen=True, kw_only=True):
    item_id: str


class TruncateItem(_Command, frozen=True, kw_only=True):
    item_id: str
    content_index: int = 0
    audio_end_ms: int = 0


class AckPlayback(_Command, frozen=True, kw_only=True):
    """``played_ms`` of the response have been heard (cumulative)."""

    played_ms: int
    response_id: str | None = None
    item_id: str | None = None
    truncate: bool = False


class Heartbeat(_Command, frozen=True, kw_only=True):
    pass


class BargeIn(_Command, frozen=True, kw_only=True):
    """The client says that the user interrupts: stops everything and clears the input."""


class CancelInput(_Command, frozen=True, kw_only=True):
    """Forget all input, cancel what it started; always answered by exactly one cleared event."""


class CloseSession(_Command, frozen=True, kw_only=True):
    reason: str = "client_close"


class SignalTurn(_Command, frozen=True, kw_only=True):
    """A turn signal of the duplex dialect: cancel names act as that cancel, others are echoed."""

    name: str


class AppendText(_Command, frozen=True, kw_only=True):
    text: str


DuplexCommand = (
    UpdateSession
    | AppendAudio
    | CommitAudio
    | ClearAudio
    | ClearOutput
    | CreateResponse
    | CancelResponse
    | CreateItem
    | DeleteItem
    | RetrieveItem
    | TruncateItem
    | AckPlayback
    | Heartbeat
    | BargeIn
    | CancelInput
    | CloseSession
    | SignalTurn
    | AppendText
)
