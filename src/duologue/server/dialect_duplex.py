"""The projection of session events to the resumable duplex dialect: GA's frames and the extensions.

Rules kept here: everything that the GA dialect says is said here with the same types, so that one client library reads
both; what GA cannot say (decisions to listen or speak, overlap, acknowledgements, terminals) has its own types.
"""

from __future__ import annotations

from typing import assert_never

from msgspec import UNSET

from duologue.engine.duplex import events
from duologue.errors import ErrorCode
from duologue.server.dialect_ga import DialectsOwn, GaDialect
from duologue.server.projection import DUPLEX_STYLE, Frames, Style
from duologue.wire import server_events as wire


class DuplexDialect(GaDialect):
    """One session's events as frames of the duplex dialect."""

    style: Style = DUPLEX_STYLE

    def _own(self, event: DialectsOwn) -> Frames:
        match event:
            case events.ResponseSpeak():
                return [*self._responses.announce(event.response_id), wire.Speak(response_id=event.response_id)]
            case events.ResponseListen():
                return [wire.Listen(reason=event.reason, response_id=event.response_id or UNSET)]
            case events.OutputCleared():
                return [wire.OutputCleared(response_id=event.response_id)]
            case events.OverlapDecided():
                return [_overlap(event)]
            case events.PlaybackAcknowledged():
                return [_acknowledged(event)]
            case events.HeartbeatAcknowledged():
                return [wire.HeartbeatAck()]
            case events.TurnSignalled():
                return [wire.TurnEvent(event=event.name)]
            case events.SessionQueued():
                return [_queued(event)]
            case events.SessionRecovered():
                return [wire.SessionRecovered(epoch=event.epoch, placement_generation=event.placement)]
            case events.SessionClosed():
                return self._closed(event)
            case events.SessionExpired():
                return self._expired(event)
            case events.StopMeasured():
                return []
            case _:
                assert_never(event)

    def _closed(self, event: events.SessionClosed) -> Frames:
        frames = self._responses.abandon(event.fault or ErrorCode.INTERNAL_ERROR)
        code = UNSET if event.fault is None else event.fault.value
        return [*frames, wire.SessionClosed(reason=event.reason, slot_released=event.slot_released, error_code=code)]

    def _expired(self, event: events.SessionExpired) -> Frames:
        frames = self._responses.abandon(ErrorCode.INTERNAL_ERROR)
        return [*frames, wire.SessionExpired(reason=event.reason, slot_released=event.slot_released)]


def _queued(event: events.SessionQueued) -> wire.SessionQueued:
    wait_s = UNSET if event.estimated_wait_s is None else event.estimated_wait_s
    return wire.SessionQueued(position=event.position, estimated_wait_s=wait_s)


def _overlap(event: events.OverlapDecided) -> wire.OverlapDecision:
    return wire.OverlapDecision(
        action=event.action,
        reason=event.reason,
        audio_start_ms=UNSET if event.audio_start_ms is None else event.audio_start_ms,
        response_id=event.response_id or UNSET,
    )


def _acknowledged(event: events.PlaybackAcknowledged) -> wire.PlaybackAcknowledged:
    return wire.PlaybackAcknowledged(
        response_id=event.response_id,
        item_id=event.item_id,
        played_ms=event.played_ms,
        history_committed=event.history_committed,
        note=event.note or UNSET,
    )
