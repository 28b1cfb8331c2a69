"""The projection of session events to OpenAI's Realtime dialect (GA).

Rules kept here: only event types that OpenAI's clients know; the session's end is an ``error`` if a fault caused it,
and otherwise nothing but the close of the socket.
"""

from __future__ import annotations

from typing import assert_never

from duologue.config.session import SessionConfig
from duologue.engine.duplex import events
from duologue.errors import ERRORS, ErrorCode
from duologue.server.projection import (
    GA_STYLE,
    Frames,
    ResponseProjection,
    Style,
    TranscriptProjection,
    error_frame,
    item_frames,
)
from duologue.server.views import item_object, session_object
from duologue.wire import server_events as wire
from duologue.wire.objects import Session


class GaDialect:
    """One session's events as GA frames. Stateful: events must come in their order, each once."""

    style: Style = GA_STYLE

    def __init__(self, session_id: str, config: SessionConfig) -> None:
        self.session_id = session_id
        self.config = config
        self._responses = ResponseProjection(self.style, session_id)
        self._transcripts = TranscriptProjection(self.style)

    def error(
        self, code: ErrorCode, message: str, *, event_id: str | None = None, param: str | None = None
    ) -> wire.ServerEvent:
        """An error that the server itself raises."""
        return error_frame(self.style, code, message, event_id=event_id, param=param)

    def project(self, event: events.SessionEvent) -> Frames:
        """The frames of one event, in order; none if the dialect does not show it."""
        match event:
            case events.ResponseAudio():  # first, since nearly every event is one
                return self._responses.audio(event)
            case events.SessionCreated():
                return self._created(event)
            case events.SessionUpdated():
                return self._updated(event)
            case events.ErrorRaised():
                return self._error(event)
            case events.SpeechStarted():
                return [wire.SpeechStarted(item_id=event.item_id, audio_start_ms=event.audio_start_ms)]
            case events.SpeechStopped():
                return [wire.SpeechStopped(item_id=event.item_id, audio_end_ms=event.audio_end_ms)]
            case events.InputCommitted():
                return self._committed(event)
            case events.InputCleared():
                return [wire.InputCleared()]
            case events.InputTimedOut():
                return [
                    wire.InputTimedOut(
                        item_id=event.item_id, audio_start_ms=event.audio_start_ms, audio_end_ms=event.audio_end_ms
                    )
                ]
            case events.ItemAdded():
                return item_frames(self.style, item_object(event.item), event.previous_item_id, done=True)
            case events.ItemDeleted():
                return self._deleted(event)
            case events.ItemRetrieved():
                return [wire.ItemRetrieved(item=item_object(event.item))]
            case events.ItemTruncated():
                return [
                    wire.ItemTruncated(
                        item_id=event.item_id, content_index=event.content_index, audio_end_ms=event.audio_end_ms
                    )
                ]
            case events.InputTranscribed():
                return self._transcripts.project(event)
            case events.ResponseCreated():
                return self._responses.created(event, self.config)
            case events.ResponseText():
                return self._responses.text(event)
            case events.FunctionCalled():
                return self._responses.called(event)
            case events.ResponseDone():
                return self._responses.done(event)
            case _:
                return self._own(event)

    def withdraw(self, response_id: str) -> None:
        """What was not sent of a response is void, even if its end is still to be shown."""
        self._responses.withdraw(response_id)

    def _own(self, event: DialectsOwn) -> Frames:
        """Events that each dialect shows in its own way, or not at all."""
        match event:
            case events.OutputCleared():
                return [wire.OutputCleared(response_id=event.response_id)]
            case events.SessionClosed():
                return self._closed(event)
            case events.SessionExpired():
                return self._responses.abandon(ErrorCode.INTERNAL_ERROR)
            case (
                events.ResponseSpeak()
                | events.ResponseListen()
                | events.OverlapDecided()
                | events.PlaybackAcknowledged()
                | events.HeartbeatAcknowledged()
                | events.TurnSignalled()
                | events.SessionRecovered()
                | events.SessionQueued()
                | events.StopMeasured()
            ):
                return []
            case _:
                assert_never(event)

    def _created(self, event: events.SessionCreated) -> Frames:
        self.config = event.config
        return [wire.SessionCreated(session=self.session())]

    def _updated(self, event: events.SessionUpdated) -> Frames:
        self.config = event.config
        return [wire.SessionUpdated(session=self.session())]

    def session(self) -> Session:
        """The session object as it stands."""
        return session_object(self.config, self.session_id, self.style.dialect)

    def _error(self, event: events.ErrorRaised) -> Frames:
        return [
            error_frame(
                self.style,
                event.code,
                event.message,
                event_id=event.event_id,
                param=event.param,
                response_id=event.response_id,
            )
        ]

    def _committed(self, event: events.InputCommitted) -> Frames:
        own = self.style.own_fields
        committed = wire.InputCommitted(item_id=event.item.item_id, previous_item_id=event.previous_item_id)
        if own and event.deferred:
            committed = wire.InputCommitted(
                item_id=event.item.item_id, previous_item_id=event.previous_item_id, overlap_deferred=True
            )
        return [
            committed,
            *item_frames(self.style, item_object(event.item), event.previous_item_id, done=True),
        ]

    def _deleted(self, event: events.ItemDeleted) -> Frames:
        self._transcripts.forget(event.item_id)
        return [wire.ItemDeleted(item_id=event.item_id)]

    def _closed(self, event: events.SessionClosed) -> Frames:
        frames = self._responses.abandon(event.fault or ErrorCode.INTERNAL_ERROR)
        if event.fault is None:
            return frames
        summary = ERRORS[event.fault].summary
        return [*frames, error_frame(self.style, event.fault, f"The session has ended. {summary}")]


DialectsOwn = (
    events.ResponseSpeak
    | events.ResponseListen
    | events.OutputCleared
    | events.OverlapDecided
    | events.PlaybackAcknowledged
    | events.HeartbeatAcknowledged
    | events.TurnSignalled
    | events.SessionRecovered
    | events.SessionQueued
    | events.StopMeasured
    | events.SessionClosed
    | events.SessionExpired
)
