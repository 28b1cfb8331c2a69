"""Server events as the client hands them out: the typed ones of `duologue.wire`, and one for all it does not know.

Rule kept here: no frame from a server raises; what cannot be read becomes an :class:`UnknownEvent`.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from duologue.wire.decoder import decode_server_event
from duologue.wire.server_events import ServerEvent


class UnknownEvent(ServerEvent, frozen=True, kw_only=True, tag="unknown"):
    """An event of a type that this version does not know, or a frame that is no event (``name`` empty).

    ``raw`` is the frame as it arrived.
    """

    name: str
    raw: bytes


class _Head(msgspec.Struct, frozen=True):
    type: str = ""
    event_id: str = ""
    server_event_seq: int | UnsetType = UNSET
    session_id: str | UnsetType = UNSET


def read_event(frame: bytes) -> ServerEvent:
    """The event in `frame`; never raises."""
    try:
        event = decode_server_event(frame)
    except (ValueError, RecursionError):
        event = None
    return _unknown(frame) if event is None else event


def _unknown(frame: bytes) -> UnknownEvent:
    try:
        head = msgspec.json.decode(frame, type=_Head)
    except (ValueError, RecursionError):
        head = _Head()
    return UnknownEvent(
        event_id=head.event_id,
        server_event_seq=head.server_event_seq,
        session_id=head.session_id,
        name=head.type,
        raw=frame,
    )
