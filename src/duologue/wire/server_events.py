"""What the server sends: one struct per event type, one tagged union over both dialects.

Rules kept here:

* ``event_id`` (and, in the duplex dialect, ``server_event_seq`` and ``session_id``) are stamped when a frame is handed
  to the socket, never earlier: what is cancelled before that leaves no gap;
* audio is ``bytes``, written as base64 in the one encoding that a frame gets;
* fields of the duplex dialect are ``UNSET`` elsewhere, and what is ``UNSET`` is not on the wire.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from duologue.wire.objects import (
    ContentPart,
    DurationUsage,
    ErrorBody,
    Item,
    RateLimit,
    Response,
    Session,
)


class ServerEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of every server event."""

    event_id: str = ""
    server_event_seq: int | UnsetType = UNSET
    session_id: str | UnsetType = UNSET


class Error(ServerEvent, frozen=True, kw_only=True, tag="error"):
    error: ErrorBody
    response_id: str | UnsetType = UNSET


class SessionCreated(ServerEvent, frozen=True, kw_only=True, tag="session.created"):
    session: Session
    resume_token: str | UnsetType = UNSET
    generation: int | UnsetType = UNSET


class SessionUpdated(ServerEvent, frozen=True, kw_only=True, tag="session.updated"):
    session: Session


class SpeechStarted(ServerEvent, frozen=True, kw_only=True, tag="input_audio_buffer.speech_started"):
    item_id: str
    audio_start_ms: int


class SpeechStopped(ServerEvent, frozen=True, kw_only=True, tag="input_audio_buffer.speech_stopped"):
    item_id: str
    audio_end_ms: int


class InputCommitted(ServerEvent, frozen=True, kw_only=True, tag="input_audio_buffer.committed"):
    item_id: str
    previous_item_id: str | None = None
    overlap_deferred: bool | UnsetType = UNSET


class InputCleared(ServerEvent, frozen=True, kw_only=True, tag="input_audio_buffer.cleared"):
    pass


class InputTimedOut(ServerEvent, frozen=True, kw_only=True, tag="input_audio_buffer.timeout_triggered"):
    item_id: str
    audio_start_ms: int
    audio_end_ms: int


class OutputCleared(ServerEvent, frozen=True, kw_only=True, tag="output_audio_buffer.cleared"):
    response_id: str


class ItemAdded(ServerEvent, frozen=True, kw_only=True, tag="conversation.item.added"):
    item: Item
    previous_item_id: str | None = None


class ItemCreated(ServerEvent, frozen=True, kw_only=True, tag="conversation.item.created"):
    item: Item
    previous_item_id: str | None = None


class ItemDone(ServerEvent, frozen=True, kw_only=True, tag="conversation.item.done"):
    item: Item
    previous_item_id: str | None = None


class ItemDeleted(ServerEvent, frozen=True, kw_only=True, tag="conversation.item.deleted"):
    item_id: str


class ItemRetrieved(ServerEvent, frozen=True, kw_only=True, tag="conversation.item.retrieved"):
    item: Item


class ItemTruncated(ServerEvent, frozen=True, kw_only=True, tag="conversation.item.truncated"):
    item_id: str
    content_index: int
    audio_end_ms: int


class TranscriptionDelta(
    ServerEvent, frozen=True, kw_only=True, tag="conversation.item.input_audio_transcription.delta"
):
    item_id: str
    content_index: int = 0
    delta: str = ""
    transcript: str | UnsetType = UNSET


class TranscriptionCompleted(
    ServerEvent, frozen=True, kw_only=True, tag="conversation.item.input_audio_transcription.completed"
):
    item_id: str
    transcript: str
    content_index: int = 0
    usage: DurationUsage = DurationUsage()


class ResponseCreated(ServerEvent, frozen=True, kw_only=True, tag="response.created"):
    response: Response
    response_id: str | UnsetType = UNSET


class AnswerDelays(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When the parts of an answer were there: milliseconds after the last audio that held speech arrived at the server."""

    judged_ms: int | None = None
    ended_ms: int
    understood_ms: int | None = None
    answered_ms: int | None = None
    sent_ms: int


class ResponseDone(ServerEvent, frozen=True, kw_only=True, tag="response.done"):
    """``generated_*`` (duplex dialect): all that was made, also what a cancel kept from being sent. ``delays`` (duplex
    dialect): how the time before a spoken answer passed."""

    response: Response
    response_id: str | UnsetType = UNSET
    generated_audio_ms: int | UnsetType = UNSET
    generated_text: str | UnsetType = UNSET
    delays: AnswerDelays | UnsetType = UNSET


class _OutputEvent(ServerEvent, frozen=True, kw_only=True):
    response_id: str
    item_id: str
    output_index: int = 0


class OutputItemAdded(ServerEvent, frozen=True, kw_only=True, tag="response.output_item.added"):
    response_id: str
    output_index: int = 0
    item: Item


class OutputItemDone(ServerEvent, frozen=True, kw_only=True, tag="response.output_item.done"):
    response_id: str
    output_index: int = 0
    item: Item


class PartAdded(_OutputEvent, frozen=True, kw_only=True, tag="response.content_part.added"):
    content_index: int = 0
    part: ContentPart


class PartDone(_OutputEvent, frozen=True, kw_only=True, tag="response.content_part.done"):
    content_index: int = 0
    part: ContentPart


class AudioDelta(_OutputEvent, frozen=True, kw_only=True, tag="response.output_audio.delta"):
    content_index: int = 0
    delta: bytes
    sample_rate_hz: int | UnsetType = UNSET


class AudioDone(_OutputEvent, frozen=True, kw_only=True, tag="response.output_audio.done"):
    content_index: int = 0


class TranscriptDelta(_OutputEvent, frozen=True, kw_only=True, tag="response.output_audio_transcript.delta"):
    content_index: int = 0
    delta: str


class TranscriptDone(_OutputEvent, frozen=True, kw_only=True, tag="response.output_audio_transcript.done"):
    content_index: int = 0
    transcript: str


class TextDelta(_OutputEvent, frozen=True, kw_only=True, tag="response.output_text.delta"):
    content_index: int = 0
    delta: str


class TextDone(_OutputEvent, frozen=True, kw_only=True, tag="response.output_text.done"):
    content_index: int = 0
    text: str


class ArgumentsDelta(_OutputEvent, frozen=True, kw_only=True, tag="response.function_call_arguments.delta"):
    call_id: str
    delta: str


class ArgumentsDone(_OutputEvent, frozen=True, kw_only=True, tag="response.function_call_arguments.done"):
    call_id: str
    name: str
    arguments: str


class RateLimitsUpdated(ServerEvent, frozen=True, kw_only=True, tag="rate_limits.updated"):
    rate_limits: list[RateLimit] = []


# -- the duplex dialect


class Speak(ServerEvent, frozen=True, kw_only=True, tag="response.speak"):
    response_id: str


class Listen(ServerEvent, frozen=True, kw_only=True, tag="response.listen"):
    reason: str
    response_id: str | UnsetType = UNSET


class OverlapDecision(ServerEvent, frozen=True, kw_only=True, tag="overlap.decision"):
    action: str
    reason: str
    audio_start_ms: int | UnsetType = UNSET
    response_id: str | UnsetType = UNSET


class PlaybackAcknowledged(ServerEvent, frozen=True, kw_only=True, tag="playback.acknowledged"):
    response_id: str
    item_id: str
    played_ms: int
    history_committed: bool
    note: str | UnsetType = UNSET


class HeartbeatAck(ServerEvent, frozen=True, kw_only=True, tag="session.heartbeat_ack"):
    pass


class SessionQueued(ServerEvent, frozen=True, kw_only=True, tag="session.queued"):
    position: int
    estimated_wait_s: float | UnsetType = UNSET


class SessionRecovered(ServerEvent, frozen=True, kw_only=True, tag="session.recovered"):
    epoch: int
    placement_generation: int


class TurnEvent(ServerEvent, frozen=True, kw_only=True, tag="turn.event"):
    event: str


class SessionResumed(ServerEvent, frozen=True, kw_only=True, tag="session.resumed"):
    """The connection owns the session now; what it missed follows."""

    session: Session
    resume_token: str
    generation: int
    last_server_event_seq: int


class SessionReplaced(ServerEvent, frozen=True, kw_only=True, tag="session.replaced"):
    """Another connection owns the session; this one is closed."""

    generation: int


class ResyncRequired(ServerEvent, frozen=True, kw_only=True, tag="session.resync_required"):
    """Events after ``last_received_server_event_seq`` are gone; those from ``next_server_event_seq`` on follow."""

    reason: str
    last_received_server_event_seq: int
    next_server_event_seq: int


class SessionClosed(ServerEvent, frozen=True, kw_only=True, tag="session.closed"):
    reason: str
    slot_released: bool
    error_code: str | UnsetType = UNSET


class SessionExpired(ServerEvent, frozen=True, kw_only=True, tag="session.expired"):
    reason: str
    slot_released: bool


GaServerEvent = (
    Error
    | SessionCreated
    | SessionUpdated
    | SpeechStarted
    | SpeechStopped
    | InputCommitted
    | InputCleared
    | InputTimedOut
    | OutputCleared
    | ItemAdded
    | ItemDone
    | ItemDeleted
    | ItemRetrieved
    | ItemTruncated
    | TranscriptionDelta
    | TranscriptionCompleted
    | ResponseCreated
    | ResponseDone
    | OutputItemAdded
    | OutputItemDone
    | PartAdded
    | PartDone
    | AudioDelta
    | AudioDone
    | TranscriptDelta
    | TranscriptDone
    | TextDelta
    | TextDone
    | ArgumentsDelta
    | ArgumentsDone
    | RateLimitsUpdated
)

DuplexServerEvent = (
    GaServerEvent
    | ItemCreated
    | Speak
    | Listen
    | OverlapDecision
    | PlaybackAcknowledged
    | HeartbeatAck
    | TurnEvent
    | SessionQueued
    | SessionRecovered
    | SessionResumed
    | SessionReplaced
    | ResyncRequired
    | SessionClosed
    | SessionExpired
)
