"""Decoding what clients send: every event type, aliases, and typed faults for everything else."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.errors import ErrorCode
from duologue.wire import MAX_EVENT_BYTES, Dialect, WireFault, client_events, decode_client_event, encode
from duologue.wire.decoder import DUPLEX_CLIENT_TYPES, GA_CLIENT_TYPES, MAX_COMMAND_BYTES

AUDIO = base64.b64encode(b"\x01\x02\x03\x04").decode()
VALID: dict[str, dict[str, object]] = {
    "session.update": {"session": {"type": "realtime", "audio": {"input": {"turn_detection": None}}}},
    "input_audio_buffer.append": {"audio": AUDIO},
    "input_audio_buffer.commit": {},
    "input_audio_buffer.clear": {},
    "output_audio_buffer.clear": {},
    "response.create": {"response": {"instructions": "Be brief.", "metadata": {"a": "b"}}},
    "response.cancel": {"response_id": "r"},
    "conversation.item.create": {
        "item": {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
        "previous_item_id": "root",
    },
    "conversation.item.delete": {"item_id": "i"},
    "conversation.item.retrieve": {"item_id": "i"},
    "conversation.item.truncate": {"item_id": "i", "content_index": 0, "audio_end_ms": 1200.5},
    "playback.ack": {"played_ms": 10, "response_id": "r"},
    "session.heartbeat": {},
    "session.close": {},
    "turn.signal": {"event": "barge_in"},
    "input.text.append": {"text": "Hello"},
    "input.cancel": {},
    "barge_in": {},
    "session.resume": {"session_id": "s", "resume_token": "t", "last_received_server_event_seq": 3},
    "session.event_ack": {"server_event_seq": 3},
    "input.commit": {},
    "audio.playback_ack": {"played_ms": 3},
    "close": {},
    "close_session": {},
    "signal_turn": {"name": "x"},
    "input_text.append": {"text": "x"},
    "push_text": {"text": "x"},
}


def frame(name: str, **fields: object) -> str:
    return json.dumps({"type": name, "event_id": "E1", **VALID.get(name, {}), **fields})


def fault_of(data: bytes | str, dialect: Dialect = "duplex") -> WireFault:
    with pytest.raises(WireFault) as caught:
        decode_client_event(data, dialect)
    return caught.value


def test_the_table_of_valid_events_is_complete() -> None:
    assert set(VALID) == set(DUPLEX_CLIENT_TYPES)


@pytest.mark.parametrize("name", sorted(VALID))
def test_every_event_type_is_read_with_unknown_fields(name: str) -> None:
    event = decode_client_event(frame(name, unknown={"deep": [1]}), "duplex")
    assert event.event_id == "E1"
    assert event.__struct_config__.tag == name


@pytest.mark.parametrize("name", sorted(set(VALID) - GA_CLIENT_TYPES))
def test_the_ga_dialect_does_not_know_the_extensions(name: str) -> None:
    fault = fault_of(frame(name), "ga")
    assert (fault.code, fault.event_id) == (ErrorCode.UNKNOWN_EVENT, "E1")
    assert "duplex=1" in fault.message


def test_aliases_are_the_events_that_they_mean() -> None:
    assert isinstance(decode_client_event(frame("input.commit"), "duplex"), client_events.AudioCommit)
    assert isinstance(decode_client_event(frame("close"), "duplex"), client_events.SessionClose)
    assert isinstance(decode_client_event(frame("push_text"), "duplex"), client_events.TextAppend)


@pytest.mark.parametrize(
    ("data", "code", "param"),
    [
        ('{"type":"nope","event_id":"E1"}', ErrorCode.UNKNOWN_EVENT, "type"),
        ('{"event_id":"E1"}', ErrorCode.BAD_EVENT, "type"),
        ('{"event_id":"E1","type":7}', ErrorCode.BAD_EVENT, "type"),
        ('{"type":"conversation.item.delete","event_id":"E1"}', ErrorCode.BAD_EVENT, "item_id"),
        ('{"type":"conversation.item.delete","item_id":4,"event_id":"E1"}', ErrorCode.BAD_EVENT, "item_id"),
        (
            '{"session":{"audio":{"input":{"format":7}}},"type":"session.update","event_id":"E1"}',
            ErrorCode.BAD_EVENT,
            "session.audio.input.format",
        ),
        ('{"type":"input_audio_buffer.append","event_id":"E1","audio":"****"}', ErrorCode.BAD_AUDIO, "audio"),
        ('{"type":"input_audio_buffer.append","event_id":"E1","audio":5}', ErrorCode.BAD_EVENT, "audio"),
        ('{"type":"input_audio_buffer.append","event_id":"E1"}', ErrorCode.BAD_EVENT, "audio"),
        ('{"type":"session.resume","event_id":"E1"}', ErrorCode.INVALID_SESSION_RESUME, "session_id"),
        (
            '{"type":"session.resume","event_id":"E1","session_id":"s","resume_token":5}',
            ErrorCode.INVALID_SESSION_RESUME,
            "resume_token",
        ),
        ('{"event_id":"E1","type":"close"', ErrorCode.INVALID_JSON, None),
        ('{"event_id":"E1", oops}', ErrorCode.INVALID_JSON, None),
    ],
)
def test_a_bad_event_is_a_typed_fault_with_the_clients_event_id(data: str, code: ErrorCode, param: str | None) -> None:
    fault = fault_of(data)
    assert (fault.code, fault.event_id, fault.param) == (code, "E1", param)
    assert fault.message.endswith(".")


@pytest.mark.parametrize("data", ["", "null", "[]", '"x"', "7", b"\xff\xfe", "{}x", '{"type":"\ud800"}'])
def test_what_is_not_an_object_is_invalid_json(data: bytes | str) -> None:
    assert fault_of(data).code is ErrorCode.INVALID_JSON


@pytest.mark.parametrize(
    ("event_id", "named"),
    [
        (r"a\ud800", True),
        (r"a\uDBFFb", True),
        (r"\udc00", True),
        (r"\ud83d\u0041", True),
        ("a\ud800", True),
        ("a\udfff", True),
        (r"\ud83d\ude00\x", False),
        (r"\\ud800\x", False),
    ],
)
def test_half_a_character_is_named_for_what_it_is(event_id: str, named: bool) -> None:
    fault = fault_of(f'{{"type":"close","event_id":"{event_id}"}}')
    assert fault.code is ErrorCode.INVALID_JSON
    assert ("surrogate" in fault.message and "half" in fault.message) == named and "truncated" not in fault.message


@pytest.mark.parametrize("opening", ['{"type":"close","x":' + "[" * 50_000, '{"type":' + '{"a":' * 50_000])
def test_deep_nesting_is_refused(opening: str) -> None:
    assert fault_of(opening).code in (ErrorCode.BAD_EVENT, ErrorCode.INVALID_JSON)


@pytest.mark.parametrize(
    "audio", [AUDIO[:4] + "\n" + AUDIO[4:], "data:audio/wav;base64," + AUDIO, " " + AUDIO + " \r\n"]
)
def test_unusual_base64_is_read_all_the_same(audio: str) -> None:
    event = decode_client_event(frame("input_audio_buffer.append", audio=audio, is_speech=True), "duplex")
    assert isinstance(event, client_events.AudioAppend)
    assert (event.audio, event.is_speech, event.event_id) == (b"\x01\x02\x03\x04", True, "E1")


@given(st.binary(max_size=400))
def test_base64_decodes_to_what_was_encoded(data: bytes) -> None:
    event = decode_client_event(frame("input_audio_buffer.append", audio=base64.b64encode(data).decode()), "ga")
    assert isinstance(event, client_events.AudioAppend)
    assert event.audio == data


@given(st.text(alphabet="ABab09+/=-_*\n ", max_size=24))
def test_base64_that_a_strict_decoder_refuses_is_a_fault_or_white_space(audio: str) -> None:
    bare = "".join(audio.split())
    try:
        expected: bytes | None = base64.b64decode(bare, validate=True)
    except ValueError:
        expected = None
    data = json.dumps({"type": "input_audio_buffer.append", "audio": audio})
    try:
        event = decode_client_event(data, "ga")
    except WireFault as fault:
        assert fault.code is ErrorCode.BAD_AUDIO
        # Excess padding is more than the strict decoder of Python 3.11 objects to.
        assert expected is None or bare.endswith("=")
    else:
        assert isinstance(event, client_events.AudioAppend)
        assert event.audio == expected


@pytest.mark.parametrize(("excess", "refused"), [(-2, False), (0, False), (1, True), (4, True)])
def test_the_limit_is_in_bytes_of_the_whole_event(excess: int, refused: bool) -> None:
    head, tail = '{"type":"input_audio_buffer.clear","pad":"', '","event_id":"E1"}'
    data = head + "x" * (2_000 - len(head) - len(tail) + excess) + tail
    if refused:
        with pytest.raises(WireFault) as caught:
            decode_client_event(data, "ga", max_bytes=2_000)
        assert (caught.value.code, caught.value.event_id) == (ErrorCode.EVENT_TOO_LARGE, "E1")
    else:
        assert decode_client_event(data, "ga", max_bytes=2_000).event_id == "E1"


def test_characters_beyond_ascii_count_as_their_bytes() -> None:
    data = json.dumps({"type": "input.text.append", "text": "€" * 700}, ensure_ascii=False)
    assert len(data) < 2_000 < len(data.encode())
    with pytest.raises(WireFault) as caught:
        decode_client_event(data, "duplex", max_bytes=2_000)
    assert caught.value.code is ErrorCode.EVENT_TOO_LARGE


def test_an_oversized_append_is_refused_before_it_is_decoded() -> None:
    data = '{"event_id":"E9","type":"input_audio_buffer.append","audio":"' + "A" * (MAX_EVENT_BYTES + 4) + '"}'
    fault = fault_of(data, "ga")
    assert (fault.code, fault.event_id) == (ErrorCode.EVENT_TOO_LARGE, "E9")


@given(st.binary(max_size=200) | st.text(max_size=200))
def test_nothing_but_the_documented_fault_leaves_the_decoder(data: bytes | str) -> None:
    try:
        decode_client_event(data, "duplex")
    except WireFault as fault:
        assert fault.message


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(st.data())
def test_a_valid_event_with_one_field_changed_decodes_or_keeps_its_event_id(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(VALID)))
    fields = {"type": name, **VALID[name]}
    field = data.draw(st.sampled_from(sorted(fields)))
    fields[field] = data.draw(json_values)
    fields["event_id"] = "E7"
    try:
        event = decode_client_event(json.dumps(fields), "duplex")
    except WireFault as fault:
        # JSON has no infinities or NaN, though Python writes them: such a frame is broken and only searched.
        assert fault.event_id == "E7"
    else:
        assert event.event_id == "E7"


@given(st.data())
def test_a_cut_or_flipped_frame_never_raises_anything_else(data: st.DataObject) -> None:
    original = frame(data.draw(st.sampled_from(sorted(VALID)))).encode()
    at = data.draw(st.integers(0, len(original) - 1))
    mutated = original[:at] + data.draw(st.binary(max_size=3)) + original[at + data.draw(st.integers(0, 4)) :]
    try:
        decode_client_event(mutated, "duplex")
    except WireFault as fault:
        assert fault.message


@pytest.mark.parametrize("name", sorted(VALID))
def test_what_a_client_encodes_decodes_to_the_same_event(name: str) -> None:
    event = decode_client_event(frame(name), "duplex")
    assert decode_client_event(encode(event), "duplex") == event


def test_only_audio_may_be_long() -> None:
    fields = ",".join(f'"k{number}":"v"' for number in range(200_000))
    for frame in (
        f'{{"type":"session.update","event_id":"E","session":{{"metadata":{{{fields}}}}}}}',
        f'{{"session":{{"metadata":{{{fields}}}}},"type":"session.update","event_id":"E"}}',
        f'{{"type":"response.cancel","event_id":"E",{fields}}}',
    ):
        with pytest.raises(WireFault) as caught:
            decode_client_event(frame.encode(), "ga")
        assert (caught.value.code, caught.value.event_id) == (ErrorCode.EVENT_TOO_LARGE, "E")
    audio = "AAAA" * (MAX_COMMAND_BYTES // 2)
    for text in (audio, audio + "\\r\\n", "data:audio/wav;base64," + audio):
        for frame in (
            f'{{"type":"input_audio_buffer.append","audio":"{text}"}}',
            f'{{"audio":"{text}","type":"input_audio_buffer.append"}}',
        ):
            event = decode_client_event(frame.encode(), "ga")
            assert isinstance(event, client_events.AudioAppend)
            assert len(event.audio) == len(audio) // 4 * 3


def test_audio_that_is_no_text_at_all_is_a_fault_as_well() -> None:
    frame = b'{"type":"input_audio_buffer.append","event_id":"e","audio":"AAAA\xdeAAA"}'
    for dialect in ("ga", "duplex"):
        with pytest.raises(WireFault) as caught:
            decode_client_event(frame, dialect)
        assert (caught.value.code, caught.value.event_id) == (ErrorCode.INVALID_JSON, "e")
