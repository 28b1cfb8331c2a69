"""What the server sends reads back as the same event; clients are not broken by types that they do not know."""

from __future__ import annotations

import json

import msgspec
import pytest

from duologue.wire import decode_server_event, encode, server_events
from duologue.wire.objects import ErrorBody, Session


def test_audio_is_base64_on_the_wire_and_bytes_on_both_sides() -> None:
    delta = server_events.AudioDelta(event_id="event_1", response_id="r", item_id="i", delta=b"\x00\xff\x10")
    data = encode(delta)
    assert json.loads(data)["delta"] == "AP8Q"
    assert decode_server_event(data) == delta


def test_unset_fields_are_not_on_the_wire() -> None:
    shown = json.loads(encode(server_events.SessionUpdated(event_id="e", session=Session(type="realtime"))))
    assert shown == {"type": "session.updated", "event_id": "e", "session": {"type": "realtime"}}


def test_an_error_keeps_its_nulls() -> None:
    shown = json.loads(encode(server_events.Error(error=ErrorBody(type="t", message="m"))))
    assert shown["error"] == {"type": "t", "message": "m", "code": None, "param": None, "event_id": None}


def test_an_unknown_type_is_none_and_a_bad_known_one_raises() -> None:
    assert decode_server_event(b'{"type":"response.mcp_call.failed","event_id":"e"}') is None
    with pytest.raises(msgspec.ValidationError):
        decode_server_event(b'{"type":"response.speak"}')
    with pytest.raises(ValueError):
        decode_server_event(b"not json")


@pytest.mark.parametrize("opening", ['{"type":', '{"no such field":', '{"type":"error","error":'])
def test_a_frame_that_is_nested_too_deeply_is_no_event(opening: str) -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        decode_server_event((opening + "[" * 3_000).encode())
