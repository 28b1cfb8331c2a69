"""What clients send: one struct per event type, and one tagged union per dialect.

Rules kept here:

* audio is ``bytes``: clean base64 is decoded in the same pass as the JSON around it;
* another name for an event is a subclass with its own tag, so that nothing but the decoder knows of aliases;
* times are read as numbers of any kind, since clients send wall-clock arithmetic.
"""

from __future__ import annotations

import msgspec

from duologue.wire.objects import Item, Name, ResponseParams, Session, Whole


class ClientEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """Base of every client event. ``event_id`` is the client's own and is echoed in an error."""

    event_id: Name | None = None


class SessionUpdate(ClientEvent, frozen=True, kw_only=True, tag="session.update"):
    session: Session


class AudioAppend(ClientEvent, frozen=True, kw_only=True, tag="input_audio_buffer.append"):
    """Audio in the negotiated format, unless ``format`` or ``sample_rate_hz`` (duplex dialect) say otherwise."""

    audio: bytes
    format: Name | None = None
    sample_rate_hz: Whole | None = None
    is_speech: bool | None = None
    force_listen: bool = False
    force_barge_in: bool = False
    overlap_action: Name | None = None


class AudioCommit(ClientEvent, frozen=True, kw_only=True, tag="input_audio_buffer.commit"):
    """``response_create`` (duplex dialect) asks for an answer."""

    response_create: bool | None = None
    final: bool | None = None


class AudioClear(ClientEvent, frozen=True, kw_only=True, tag="input_audio_buffer.clear"):
    pass


class OutputClear(ClientEvent, frozen=True, kw_only=True, tag="output_audio_buffer.clear"):
    response_id: Name | None = None


class ResponseCreate(ClientEvent, frozen=True, kw_only=True, tag="response.create"):
    response: ResponseParams | None = None


class ResponseCancel(ClientEvent, frozen=True, kw_only=True, tag="response.cancel"):
    response_id: Name | None = None


class ItemCreate(ClientEvent, frozen=True, kw_only=True, tag="conversation.item.create"):
    item: Item
    previous_item_id: Name | None = None


class ItemDelete(ClientEvent, frozen=True, kw_only=True, tag="conversation.item.delete"):
    item_id: Name


class ItemRetrieve(ClientEvent, frozen=True, kw_only=True, tag="conversation.item.retrieve"):
    item_id: Name


class ItemTruncate(ClientEvent, frozen=True, kw_only=True, tag="conversation.item.truncate"):
    item_id: Name
    content_index: Whole = 0
    audio_end_ms: float = 0


# -- the duplex dialect


class PlaybackAck(ClientEvent, frozen=True, kw_only=True, tag="playback.ack"):
    """So much of the response has been heard, counted from its beginning."""

    played_ms: float | None = None
    committed_ms: float | None = None
    response_id: Name | None = None
    item_id: Name | None = None
    truncate: bool = False


class Heartbeat(ClientEvent, frozen=True, kw_only=True, tag="session.heartbeat"):
    pass


class SessionClose(ClientEvent, frozen=True, kw_only=True, tag="session.close"):
    reason: Name | None = None


class TurnSignal(ClientEvent, frozen=True, kw_only=True, tag="turn.signal"):
    event: Name | None = None
    signal: Name | None = None
    name: Name | None = None


class TextAppend(ClientEvent, frozen=True, kw_only=True, tag="input.text.append"):
    text: str


class InputCancel(ClientEvent, frozen=True, kw_only=True, tag="input.cancel"):
    pass


class BargeInSignal(ClientEvent, frozen=True, kw_only=True, tag="barge_in"):
    pass


class SessionResume(ClientEvent, frozen=True, kw_only=True, tag="session.resume"):
    """First message of a connection that takes a session over."""

    session_id: Name
    resume_token: Name
    last_received_server_event_seq: Whole = 0


class EventAck(ClientEvent, frozen=True, kw_only=True, tag="session.event_ack"):
    """Every event up to this number has arrived."""

    server_event_seq: Whole


class InputCommit(AudioCommit, frozen=True, kw_only=True, tag="input.commit"):
    """Commit that asks for an answer unless it says otherwise."""


class AudioPlaybackAck(PlaybackAck, frozen=True, kw_only=True, tag="audio.playback_ack"):
    pass


class CloseAlias(SessionClose, frozen=True, kw_only=True, tag="close"):
    pass


class CloseSessionAlias(SessionClose, frozen=True, kw_only=True, tag="close_session"):
    pass


class SignalTurnAlias(TurnSignal, frozen=True, kw_only=True, tag="signal_turn"):
    pass


class InputTextAppendAlias(TextAppend, frozen=True, kw_only=True, tag="input_text.append"):
    pass


class PushTextAlias(TextAppend, frozen=True, kw_only=True, tag="push_text"):
    pass


GaClientEvent = (
    SessionUpdate
    | AudioAppend
    | AudioCommit
    | AudioClear
    | OutputClear
    | ResponseCreate
    | ResponseCancel
    | ItemCreate
    | ItemDelete
    | ItemRetrieve
    | ItemTruncate
)

DuplexOnlyEvent = (
    PlaybackAck
    | Heartbeat
    | SessionClose
    | TurnSignal
    | TextAppend
    | InputCancel
    | BargeInSignal
    | SessionResume
    | EventAck
)

DuplexAlias = (
    InputCommit
    | AudioPlaybackAck
    | CloseAlias
    | CloseSessionAlias
    | SignalTurnAlias
    | InputTextAppendAlias
    | PushTextAlias
)

AnyClientEvent = GaClientEvent | DuplexOnlyEvent
