"""What a session says, in types: one event is one fact. A dialect (row 6) projects each to wire frames.

Events are coarse on purpose: `ResponseAudio` is one delta, and the frames that must surround the first or last delta
of a response on a given wire (item added, content part added, part done, item done) are the dialect's business.

Order that the core guarantees: `SessionCreated` first; `ResponseCreated` before anything of that response; exactly
one `ResponseDone` per `ResponseCreated`, last of that response; exactly one of `SessionClosed` / `SessionExpired`, last
of all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from duologue.audio.format import AudioFormat
from duologue.config.session import Modality, SessionConfig
from duologue.errors import ErrorCode

ResponseStatus = Literal["completed", "cancelled", "failed", "incomplete"]
CancelReason = Literal["turn_detected", "client_cancelled", "max_output_tokens", "content_filter"]
ItemRole = Literal["system", "user", "assistant", "tool"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class TextPart(msgspec.Struct, frozen=True, kw_only=True, tag="text"):
    text: str


class AudioPart(msgspec.Struct, frozen=True, kw_only=True, tag="audio"):
    """Audio in an item. The audio itself is not kept; ``transcript`` ``None``: not (yet) transcribed."""

    transcript: str | None = None
    duration_ms: int = 0


class CallPart(msgspec.Struct, frozen=True, kw_only=True, tag="call"):
    """The whole of an item by which the model asks for a function; the item's role is ``assistant``."""

    call_id: str
    name: str
    arguments: str


class CallOutputPart(msgspec.Struct, frozen=True, kw_only=True, tag="call_output"):
    """The whole of an item that answers a call; the item's role is ``tool``."""

    call_id: str
    output: str


class ImagePart(msgspec.Struct, frozen=True, kw_only=True, tag="image"):
    """A picture in a user's item. It is not shown again: events stay small."""

    detail: str = "auto"


ItemPart = TextPart | ImagePart | AudioPart | CallPart | CallOutputPart


def part_text(part: ItemPart) -> str:
    """What there is to read of a part."""
    match part:
        case TextPart():
            return part.text
        case ImagePart():
            return ""
        case AudioPart():
            return part.transcript or ""
        case CallPart():
            return part.arguments
        case CallOutputPart():
            return part.output


class ItemView(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation item as it stands."""

    item_id: str
    role: ItemRole
    status: ItemStatus
    parts: tuple[ItemPart, ...] = ()
    response_id: str | None = None


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a response cost. Tokens are those that stages counted; ``None``: none did."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    input_audio_ms: int = 0
    output_audio_ms: int = 0

    def plus(self, input_tokens: int, output_tokens: int, cached_tokens: int) -> Usage:
        """With what one more stage counted."""
        return msgspec.structs.replace(
            self,
            input_tokens=(self.input_tokens or 0) + input_tokens,
            output_tokens=(self.output_tokens or 0) + output_tokens,
            cached_tokens=(self.cached_tokens or 0) + cached_tokens,
        )


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    pass


class SessionCreated(_Event, frozen=True, kw_only=True):
    config: SessionConfig


class SessionUpdated(_Event, frozen=True, kw_only=True):
    config: SessionConfig


class ErrorRaised(_Event, frozen=True, kw_only=True):
    """``event_id`` is that of the client's event that caused it, if one did."""

    code: ErrorCode
    message: str
    event_id: str | None = None
    param: str | None = None
    response_id: str | None = None


class SpeechStarted(_Event, frozen=True, kw_only=True):
    item_id: str
    audio_start_ms: int


class SpeechStopped(_Event, frozen=True, kw_only=True):
    item_id: str
    audio_end_ms: int


class InputCommitted(_Event, frozen=True, kw_only=True):
    """The input became an item. ``deferred``: it is answered once the response in progress is over."""

    item: ItemView
    previous_item_id: str | None = None
    deferred: bool = False


class InputCleared(_Event, frozen=True, kw_only=True):
    pass


class InputTimedOut(_Event, frozen=True, kw_only=True):
    """Nobody spoke for ``idle_timeout_ms`` after the last answer had played; the empty turn is answered."""

    item_id: str
    audio_start_ms: int
    audio_end_ms: int


class ItemAdded(_Event, frozen=True, kw_only=True):
    item: ItemView
    previous_item_id: str | None = None


class ItemDeleted(_Event, frozen=True, kw_only=True):
    item_id: str


class ItemRetrieved(_Event, frozen=True, kw_only=True):
    item: ItemView


class ItemTruncated(_Event, frozen=True, kw_only=True):
    item_id: str
    content_index: int
    audio_end_ms: int


class InputTranscribed(_Event, frozen=True, kw_only=True):
    """``final`` false: ``text`` replaces what was guessed before; true: what the user said, once per item."""

    item_id: str
    text: str
    final: bool
    audio_ms: int = 0


class ResponseCreated(_Event, frozen=True, kw_only=True):
    response_id: str
    item_id: str
    epoch: int
    turn_id: int
    modality: Modality
    metadata: Mapping[str, str] = {}
    previous_item_id: str | None = None
    voice: str | None = None
    out_of_band: bool = False
    max_output_tokens: int | None = None
    output_format: AudioFormat | None = None


class ResponseSpeak(_Event, frozen=True, kw_only=True):
    """The model decided to speak (duplex dialect): once per response, with its first content."""

    response_id: str


class ResponseListen(_Event, frozen=True, kw_only=True):
    """The model decided to listen (duplex dialect). It goes on doing so until another event of the session."""

    reason: str
    response_id: str | None = None


class ResponseAudio(_Event, frozen=True, kw_only=True):
    """One delta of audio: PCM16 mono at ``rate_hz``, beginning ``start_ms`` into the response.

    ``text`` is the transcript that begins with it, often empty. ``epoch`` lets the last queue before the socket drop what
    was cancelled.
    """

    response_id: str
    item_id: str
    epoch: int
    audio: bytes
    rate_hz: int
    start_ms: int
    duration_ms: int
    text: str = ""


class ResponseText(_Event, frozen=True, kw_only=True):
    """One delta of text. Only in text modality; spoken text travels with its audio."""

    response_id: str
    item_id: str
    epoch: int
    text: str


class FunctionCalled(_Event, frozen=True, kw_only=True):
    """The model asks for a function: one whole item (a :class:`CallPart`) of the response.

    ``leads``: the response's message has no content yet; it is announced later, and stands before the call all the same.
    """

    response_id: str
    epoch: int
    item: ItemView
    previous_item_id: str | None = None
    leads: bool = False


class AnswerDelays(msgspec.Struct, frozen=True, kw_only=True):
    """When the parts of an answer to a spoken turn were there: milliseconds after the last audio that held speech arrived.

    In the order in which they usually happen: the verdict on the pause that ended the turn (``None``: silence alone ended
    it), the end of the turn, the user's words, the first of the model's answer, and the first of it that was sent.
    """

    judged_ms: int | None
    ended_ms: int
    understood_ms: int | None
    answered_ms: int | None
    sent_ms: int


class ResponseDone(_Event, frozen=True, kw_only=True):
    """The one end of a response. ``item`` is ``None`` if it never had content; its transcript is what may be heard.

    ``calls``: the items of its function calls, in order.
    """

    response_id: str
    epoch: int
    status: ResponseStatus
    reason: CancelReason | None = None
    error: ErrorCode | None = None
    error_message: str = ""
    modality: Modality = "audio"
    item: ItemView | None = None
    calls: tuple[ItemView, ...] = ()
    full_text: str = ""
    audio_ms: int = 0
    metadata: Mapping[str, str] = {}
    usage: Usage = Usage()
    delays: AnswerDelays | None = None  # none if it answers no spoken turn, or nothing of it was sent


class OutputCleared(_Event, frozen=True, kw_only=True):
    """Playback of this response was stopped; what was not heard is gone from history."""

    response_id: str


class OverlapDecided(_Event, frozen=True, kw_only=True):
    """What to do with speech during an answer (duplex dialect)."""

    action: Literal["barge_in", "listen", "drop", "pending"]
    reason: str
    audio_start_ms: int | None = None
    response_id: str | None = None


class PlaybackAcknowledged(_Event, frozen=True, kw_only=True):
    response_id: str
    item_id: str
    played_ms: int
    history_committed: bool
    note: str | None = None


class HeartbeatAcknowledged(_Event, frozen=True, kw_only=True):
    pass


class TurnSignalled(_Event, frozen=True, kw_only=True):
    name: str


class SessionQueued(_Event, frozen=True, kw_only=True):
    """No slot is free: the session waits, as number ``position``. ``estimated_wait_s`` ``None``: nobody can tell yet."""

    position: int
    estimated_wait_s: float | None = None


class SessionRecovered(_Event, frozen=True, kw_only=True):
    """A worker of the session was lost and the session goes on at another one. ``placement`` counts from 1."""

    epoch: int
    placement: int


class StopMeasured(_Event, frozen=True, kw_only=True):
    """How fast an interruption took effect, in seconds (metrics only; no dialect shows it).

    ``None``: no audio had been handed over.
    """

    response_id: str
    onset_to_last_audio_s: float | None
    decision_to_last_audio_s: float | None


class SessionClosed(_Event, frozen=True, kw_only=True):
    reason: str
    slot_released: bool = True
    fault: ErrorCode | None = None


class SessionExpired(_Event, frozen=True, kw_only=True):
    reason: str
    slot_released: bool = True


SessionEvent = (
    SessionCreated
    | SessionUpdated
    | ErrorRaised
    | SpeechStarted
    | SpeechStopped
    | InputCommitted
    | InputCleared
    | InputTimedOut
    | ItemAdded
    | ItemDeleted
    | ItemRetrieved
    | ItemTruncated
    | InputTranscribed
    | ResponseCreated
    | ResponseSpeak
    | ResponseListen
    | ResponseAudio
    | ResponseText
    | FunctionCalled
    | ResponseDone
    | OutputCleared
    | OverlapDecided
    | PlaybackAcknowledged
    | HeartbeatAcknowledged
    | TurnSignalled
    | SessionQueued
    | SessionRecovered
    | StopMeasured
    | SessionClosed
    | SessionExpired
)

SessionTerminal = SessionClosed | SessionExpired
