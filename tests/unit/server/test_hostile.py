"""Events that are JSON and yet meant to hurt: each is one short error with the client's id, and the session lives."""

from __future__ import annotations

import json

import pytest

from duologue.wire.objects import LARGEST_INTEGER, LONGEST_NAME
from tests.unit.server.driver import World, commands_of

HUGE = "1" + "0" * 400  # an integer that no float holds
LONG = "x" * 100_000
SHORT_FRAME_BYTES = 4096


def _update(session: str) -> str:
    return f'{{"type":"session.update","event_id":"E","session":{session}}}'


def _tool(parameters: str) -> str:
    return _update(f'{{"tools":[{{"type":"function","name":"f","parameters":{parameters}}}]}}')


def _item(rest: str) -> str:
    return f'{{"type":"conversation.item.create","event_id":"E","item":{{"type":"message","role":"user",{rest}}}}}'


DETECTION = ("prefix_padding_ms", "silence_duration_ms", "idle_timeout_ms")
NUMBERS = [
    *(_update(f'{{"turn_detection":{{"type":"server_vad","{name}":{HUGE}}}}}') for name in DETECTION),
    *(_update(f'{{"{name}":{HUGE}}}') for name in ("max_output_tokens", "overlap_short_ack_ms", "sample_rate_hz")),
    _update(f'{{"max_output_tokens":{LARGEST_INTEGER + 1}}}'),
    _update(f'{{"audio":{{"input":{{"format":{{"type":"audio/pcm","rate":{HUGE}}}}}}}}}'),
    _update(f'{{"extra_body":{{"a":{HUGE}}}}}'),
    _update('{"extra_body":{"a":1e999}}'),
    f'{{"type":"response.create","event_id":"E","response":{{"max_output_tokens":{HUGE}}}}}',
    f'{{"type":"conversation.item.truncate","event_id":"E","item_id":"i","content_index":{HUGE}}}',
    f'{{"type":"playback.ack","event_id":"E","played_ms":{HUGE}}}',
    f'{{"type":"session.event_ack","event_id":"E","server_event_seq":{HUGE}}}',
]
STRINGS = [
    *(_update(f'{{"{name}":"{LONG}"}}') for name in ("voice", "model", "type", "tool_choice", "input_audio_format")),
    _update(f'{{"output_modalities":["{LONG}"]}}'),
    _update(f'{{"turn_detection":{{"type":"{LONG}"}}}}'),
    _update(f'{{"input_audio_transcription":{{"language":"{LONG}"}}}}'),
    _update(f'{{"metadata":{{"a":"{LONG}"}}}}'),
    _update(f'{{"metadata":{{"{LONG}":"a"}}}}'),
    _update(f'{{"acknowledgements":["{LONG}"]}}'),
    _update(f'{{"extra_body":{{"{"k" * 1000}":[]}}}}'),
    _update(f'{{"extra_body":{{"k":"{LONG}"}}}}'),
    _update(json.dumps({"tools": [{"name": f"f{n}", "description": LONG} for n in range(3)]})),
    _update(json.dumps({"tools": [{"name": f"f{n}"} for n in range(1000)]})),
    _update(json.dumps({"metadata": {f"k{n}": "v" for n in range(1000)}})),
    _update(json.dumps({"acknowledgements": ["w"] * 5000})),
    _item(f'"id":"{LONG}"'),
    _item('"id":"root"'),
    _item(json.dumps({"content": [{"type": "input_text", "text": "a"}] * 5000})[1:-1]),
    _item(f'"content":[{{"type":"{LONG}"}}]'),
    *(
        f'{{"type":"{type_}","event_id":"E","{field}":"{LONG}"}}'
        for type_, field in (
            ("response.cancel", "response_id"),
            ("output_audio_buffer.clear", "response_id"),
            ("conversation.item.delete", "item_id"),
            ("conversation.item.retrieve", "item_id"),
            ("turn.signal", "event"),
        )
    ),
    f'{{"type":"playback.ack","event_id":"E","played_ms":1,"response_id":"{LONG}"}}',
    f'{{"type":"input_audio_buffer.append","event_id":"E","audio":"","format":"{LONG}"}}',
    f'{{"type":"input_audio_buffer.append","event_id":"E","audio":"","overlap_action":"{LONG}"}}',
    f'{{"type":"{LONG}","type":"response.cancel","event_id":"E"}}',
    f'{{"type":"response.create","event_id":"E","response":{{"instructions":"{LONG * 3}"}}}}',
]
SCHEMAS = [_tool("5"), _tool("[]"), _tool('"x"'), _tool('{"a":"\\ud800"}')]


@pytest.mark.parametrize("frame", [*NUMBERS, *STRINGS, *SCHEMAS], ids=lambda frame: frame[:90])
def test_one_short_error_and_the_session_lives(frame: str) -> None:
    client = World().connect("/v1/realtime?duplex=1&model=fake")
    (error,) = client.raw(frame)
    assert (error["type"], error["error"]["event_id"]) == ("error", "E")
    assert error["error"]["type"] == "invalid_request_error"
    assert len(json.dumps(error)) < SHORT_FRAME_BYTES
    assert commands_of(client.world) == []
    client.send("input_audio_buffer.clear")
    assert len(commands_of(client.world)) == 1


def test_a_schema_that_is_not_utf8_is_one_error() -> None:
    client = World().connect()
    (error,) = client.raw(_tool('{"a":"?"}').encode().replace(b"?", b"\xff"))
    assert (error["error"]["event_id"], error["error"]["param"]) == ("E", "session.tools[0].parameters")


def test_an_event_id_that_is_too_long_is_refused_and_not_echoed() -> None:
    client = World().connect()
    (error,) = client.send("response.cancel", event_id="e" * (LONGEST_NAME + 1))
    assert (error["error"]["param"], error["error"]["event_id"]) == ("event_id", None)
    client.send("response.cancel", event_id="e" * LONGEST_NAME)
    assert len(commands_of(client.world)) == 1
