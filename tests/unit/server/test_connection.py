"""A connection's life: opening, commands, bad input, slow readers, and its end."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from duologue.audio.format import AudioFormat
from duologue.engine.duplex import commands, events, messages
from duologue.errors import ErrorCode, StageFault
from duologue.server.registry import ConnectionLimits
from tests.unit.server.driver import Client, World, asked, commands_of
from tests.unit.server.fake_engine import FakeEngine, answer, audio, created, done


def test_ga_opens_at_once_with_the_full_session() -> None:
    world = World()
    client = world.connect("/v1/realtime")
    assert client.types == ["session.created"]
    (opened,) = world.engine.asked
    assert isinstance(opened, messages.OpenSession)
    assert (opened.takes_output, opened.resumable) == (True, False)
    assert opened.config.model == "fake"


def test_duplex_waits_for_the_first_message() -> None:
    world = World()
    client = world.connect("/v1/realtime?duplex=1&model=fake&autostart=0")
    assert (client.types, asked(world)) == ([], [])
    client.send("session.update", session={"instructions": "Hm."})
    assert client.types == ["session.created", "session.updated"]
    assert client.frames[0]["session"]["instructions"] == "Hm."
    assert world.engine.only.resumable


def test_duplex_with_a_model_opens_at_once_and_answers_the_first_update_once() -> None:
    client = World().connect("/v1/duplex?model=fake")
    assert client.types == ["session.created"]
    client.send("session.update", session={})
    assert client.types == ["session.created", "session.updated"]


def test_another_first_message_opens_a_default_session_and_is_then_obeyed() -> None:
    client = World().connect("/v1/duplex")
    client.send("session.heartbeat")
    assert client.types == ["session.created", "session.heartbeat_ack"]


def test_a_refused_first_update_may_be_followed_by_a_better_one() -> None:
    client = World().connect("/v1/duplex")
    (error,) = client.send("session.update", event_id="E", session={"input_audio_format": "mp3"})
    assert (error["error"]["code"], error["error"]["event_id"]) == ("unsupported_audio_format", "E")
    client.send("session.update", session={})
    assert client.types[1:] == ["session.created", "session.updated"]


@pytest.mark.parametrize(("silent_s", "late"), [(9.9, False), (10.0, True), (10.1, True)])
def test_no_first_message_in_time_is_an_error_and_a_close(silent_s: float, late: bool) -> None:
    client = World().connect("/v1/duplex")
    client.pass_time(silent_s)
    assert [frame["error"]["code"] for frame in client.frames] == ["config_timeout"] * late
    assert (client.closed.code if client.closed is not None else None) == (1000 if late else None)


def test_what_arrives_while_the_session_opens_is_obeyed_in_order_afterwards() -> None:
    world = World()
    world.answers = False
    client = world.connect("/v1/realtime")
    client.send("session.update", session={"instructions": "a"})
    client.send("session.update", session={"instructions": "b"})
    assert client.types == []
    world.answer()
    assert client.types == ["session.created", "session.updated", "session.updated"]
    assert [frame["session"]["instructions"] for frame in client.frames] == ["", "a", "b"]


def test_reading_stops_while_too_much_waits_for_the_opening() -> None:
    world = World(limits=ConnectionLimits(max_early_events=3))
    world.answers = False
    client = world.connect("/v1/realtime")
    for _ in range(3):
        assert client.connection.full is None
        client.send("input_audio_buffer.clear")
    assert client.connection.full
    world.answer()
    assert client.connection.full is None


@pytest.mark.parametrize(("fault", "code"), [(ErrorCode.RESOURCE_EXHAUSTED, 1000), (ErrorCode.INTERNAL_ERROR, 1011)])
def test_a_refused_session_is_an_error_and_a_close(fault: ErrorCode, code: int) -> None:
    world = World()
    world.engine.fault = StageFault(fault, "No.")
    client = world.connect("/v1/realtime")
    assert [frame["error"]["code"] for frame in client.frames] == [fault.value]
    assert client.closed is not None and client.closed.code == code
    assert (world.hub.sessions, world.engine.subscriptions) == ((), 0)


def test_an_opening_with_unknown_outcome_is_closed_behind() -> None:
    world = World()
    world.engine.fault = StageFault(ErrorCode.TIMEOUT, "Too slow.")
    world.connect("/v1/realtime")
    assert asked(world) == ["OpenSession", "CloseSessionMessage"]


def test_an_unknown_model_is_named() -> None:
    client = World().connect("/v1/realtime?model=nothing")
    assert client.frames[0]["error"]["code"] == "model_not_found"
    assert "nothing" in client.frames[0]["error"]["message"]
    assert client.closed is not None


def test_a_key_has_so_many_sessions() -> None:
    world = World(limits=ConnectionLimits(sessions_per_key=1))
    first = world.connect("/v1/realtime", key_id="k")
    second = world.connect("/v1/realtime", key_id="k")
    other = world.connect("/v1/realtime", key_id="other")
    assert second.frames[0]["error"]["code"] == "rate_limited"
    assert other.types == ["session.created"]
    first.drop()
    assert world.connect("/v1/realtime", key_id="k").types == ["session.created"]


def test_append_reaches_the_engine_as_bytes() -> None:
    world = World()
    client = world.connect("/v1/realtime")
    client.send("input_audio_buffer.append", audio="AAEC", event_id="E")
    assert commands_of(world) == [commands.AppendAudio(event_id="E", audio=b"\x00\x01\x02")]


def test_a_commit_asks_for_an_answer_only_under_its_other_name() -> None:
    world = World()
    client = world.connect("/v1/duplex?model=fake")
    client.send("input_audio_buffer.commit")
    client.send("input_audio_buffer.commit", response_create=True)
    client.send("input.commit")
    assert [command.create_response for command in commands_of(world)] == [None, True, True]


def test_an_append_that_states_another_format_changes_the_session_first() -> None:
    world = World()
    client = world.connect("/v1/duplex?model=fake")
    client.send("input_audio_buffer.append", audio="AAEC", format="pcm16", sample_rate_hz=16_000)
    assert len(commands_of(world)) == 1
    for _ in range(2):
        client.send("input_audio_buffer.append", audio="AAEC", format="pcm_f32le", sample_rate_hz=24_000)
    kinds = [type(command).__name__ for command in commands_of(world)]
    assert kinds == ["AppendAudio", "UpdateSession", "AppendAudio", "AppendAudio"]
    assert world.engine.only.config.input_format == AudioFormat(encoding="float32", rate_hz=24_000)


def test_a_rejected_update_changes_nothing_of_how_audio_is_read() -> None:
    world = World()
    client = world.connect("/v1/duplex?model=fake")
    (error,) = client.send(
        "session.update", event_id="E", session={"model": "other", "input_audio_format": "pcm_f32le"}
    )
    assert error["error"]["event_id"] == "E"
    client.send("input_audio_buffer.append", audio="AAEC", format="pcm16")
    assert [type(command).__name__ for command in commands_of(world)] == ["AppendAudio"]


BAD = [
    ("{", "invalid_json", None),
    ("[]", "invalid_json", None),
    ('{"type":"x","event_id":"E"}', "unknown_event", "E"),
    ('{"type":"input_audio_buffer.append","audio":"***","event_id":"E"}', "bad_audio", "E"),
    ('{"type":"conversation.item.delete","item_id":"","event_id":"E"}', "missing_item_id", "E"),
    ('{"type":"session.update","session":{"type":"transcription"},"event_id":"E"}', "unsupported", "E"),
    ('{"type":"session.update","session":{"tools":[{"type":"mcp"}]},"event_id":"E"}', "unsupported", "E"),
    (
        '{"type":"session.update","session":{"turn_detection":{"type":"magic"}},"event_id":"E"}',
        "unsupported_turn_detection",
        "E",
    ),
    ('{"type":"conversation.item.truncate","item_id":"i","audio_end_ms":-4,"event_id":"E"}', "bad_event", "E"),
    ('{"type":"conversation.item.create","item":{"role":"user","content":[{"type":"input_image"}]},"event_id":"E"}',
     "invalid_item", "E"),
    ('{"type":"response.create","response":{"input":[{"type":"message"}]},"event_id":"E"}',
     "invalid_item", "E"),
]  # fmt: skip


@pytest.mark.parametrize(("frame", "code", "event_id"), BAD)
def test_bad_input_costs_an_error_and_nothing_else(frame: str, code: str, event_id: str | None) -> None:
    world = World()
    client = world.connect("/v1/realtime")
    other = world.connect("/v1/realtime")
    (error,) = client.raw(frame)
    assert (error["type"], error["error"]["code"], error["error"]["event_id"]) == ("error", code, event_id)
    assert client.send("input_audio_buffer.clear")[0]["type"] == "input_audio_buffer.cleared"
    assert (client.closed, other.types) == (None, ["session.created"])


@pytest.mark.parametrize(
    ("response", "param"),
    [
        ({"conversation": "nope"}, "response.conversation"),
        ({"conversation": ""}, "response.conversation"),
        ({"output_modalities": []}, "response.output_modalities"),
        ({"audio": {"output": {"format": {"type": "audio/pcm", "rate": 0}}}}, "response.audio.output.format"),
    ],
)
def test_an_option_of_one_response_that_means_nothing_is_refused(response: object, param: str) -> None:
    client = World().connect()
    (error,) = client.send("response.create", response=response, event_id="E")
    assert (error["error"]["param"], error["error"]["event_id"]) == (param, "E")
    assert commands_of(client.world) == []


def test_empty_instructions_and_no_limit_are_wishes_and_null_is_none() -> None:
    client = World().connect()
    client.send("response.create", response={"instructions": "", "max_output_tokens": "inf", "temperature": 0.5})
    client.send("response.create", response={"instructions": None, "max_output_tokens": None, "conversation": None})
    first, second = (command.options for command in commands_of(client.world))
    assert (first.instructions, first.max_output_tokens, first.temperature) == ("", None, 0.5)
    assert (second.instructions, second.max_output_tokens, second.temperature) == (None, UNSET, None)
    assert not second.out_of_band


@pytest.mark.parametrize("given", [{}, {"output": None}, {"content": [{"type": "output_text", "text": "21 C"}]}])
def test_a_result_without_its_output_is_refused_and_not_applied_empty(given: dict[str, object]) -> None:
    client = World().connect()
    item = {"type": "function_call_output", "call_id": "call_1", **given}
    (error,) = client.send("conversation.item.create", item=item, event_id="E")
    assert (error["error"]["code"], error["error"]["param"]) == ("invalid_item", "item.output")
    assert commands_of(client.world) == []


def test_a_binary_frame_is_a_typed_error() -> None:
    client = World().connect("/v1/realtime")
    client.apply(client.connection.receive_binary(12, client.world.now))
    client.pump()
    assert client.frames[-1]["error"]["code"] == "bad_event"
    assert "binary" in client.frames[-1]["error"]["message"]


def test_an_event_over_the_limit_is_a_typed_error() -> None:
    client = World(limits=ConnectionLimits(max_event_bytes=1_000)).connect("/v1/realtime")
    (error,) = client.send("input_audio_buffer.append", event_id="E", audio="A" * 1_000)
    assert (error["error"]["code"], error["error"]["event_id"]) == ("event_too_large", "E")


@given(st.lists(st.sampled_from([frame for frame, _, _ in BAD]) | st.text(max_size=20), max_size=8))
def test_no_sequence_of_garbage_raises_or_closes(frames: list[str]) -> None:
    client = World().connect("/v1/duplex?model=fake")
    for frame in frames:
        client.raw(frame)
    assert client.closed is None
    assert client.types.count("error") == len(frames)


def test_errors_that_a_client_does_not_read_stop_the_reading() -> None:
    client = World(limits=ConnectionLimits(max_local_frames=4)).connect("/v1/realtime")
    client.reading = False
    for _ in range(4):
        assert client.connection.full is None
        client.raw("{")
    assert client.connection.full
    client.reading = True
    client.pump()
    assert client.connection.full is None


# -- output


def test_an_event_is_taken_when_its_last_frame_was_handed_over() -> None:
    world = World()
    client = world.connect("/v1/realtime")
    assert world.engine.only.taken == 2
    client.reading = False
    client.say(*answer("r", "i"))
    client.reading = True
    client.pump(1)
    assert world.engine.only.taken == 2
    client.pump(1)
    assert world.engine.only.taken == 3  # response.created and rate_limits.updated are one event
    client.pump()
    assert world.engine.only.taken == 7


def test_nothing_of_a_cancelled_response_follows_its_terminal() -> None:
    """A client that stopped reading must not hear, later, what was cancelled meanwhile; others are not delayed."""
    world = World()
    slow, other = world.connect("/v1/realtime"), world.connect("/v1/realtime")
    slow.say(created("r", "i"), audio("r", "i", text="One "))
    slow.reading = False
    slow.say(*(audio("r", "i", start_ms=80 * n, text=f"{n} ") for n in range(1, 21)))
    other.say(*answer("q", "j"))
    assert other.types[-1] == "response.done"
    world.engine.invalidate(slow.session_id, "r")
    slow.say(done("r", "i", "One", status="cancelled", reason="client_cancelled"))
    before = len(slow.frames)
    slow.reading = True
    slow.pump()
    assert slow.types[before:] == [
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "response.output_item.done",
        "conversation.item.done",
        "response.done",
    ]
    assert slow.types.count("response.output_audio.delta") == 1


def test_a_cancel_between_the_frames_of_one_event_removes_its_content() -> None:
    world = World()
    client = world.connect("/v1/realtime")
    client.say(created("r", "i"))
    client.reading = False
    client.say(audio("r", "i", text="One "))
    client.reading = True
    client.pump(2)
    world.engine.invalidate(client.session_id, "r")
    client.say(done("r", "i", "", status="cancelled", reason="turn_detected"))
    assert "response.output_audio.delta" not in client.types
    assert client.types.count("response.content_part.added") == client.types.count("response.content_part.done") == 1


def test_the_end_that_a_resampler_holds_is_withdrawn_with_the_rest() -> None:
    """A finished answer may be cut off while its end waits for the socket: its terminal still says "completed"."""
    world = World()
    client = world.connect("/v1/realtime?duplex=1")
    client.send("session.update", session={"audio": {"output": {"format": {"type": "audio/pcm", "rate": 8000}}}})
    client.say(created("r", "i"), audio("r", "i", text="One "))
    client.reading = False
    client.say(audio("r", "i", start_ms=80, text="two"), done("r", "i", "One two"))
    world.engine.invalidate(client.session_id, "r")
    before = len(client.frames)
    client.reading = True
    client.pump()
    assert not [kind for kind in client.types[before:] if kind.endswith(".delta")]
    assert "response.done" in client.types[before:]


def test_a_cancel_before_any_content_leaves_only_created_and_done() -> None:
    world = World()
    client = world.connect("/v1/realtime")
    client.reading = False
    client.say(created("r", "i"), audio("r", "i", text="One "))
    world.engine.invalidate(client.session_id, "r")
    client.say(done("r", "i", "", status="cancelled", reason="turn_detected"))
    client.reading = True
    client.pump()
    assert client.types[1:] == ["response.created", "rate_limits.updated", "response.done"]


def test_another_responses_audio_survives_a_cancel() -> None:
    world = World()
    client = world.connect("/v1/realtime")
    client.reading = False
    client.say(created("r", "i"), audio("r", "i"), created("q", "j"), audio("q", "j"))
    world.engine.invalidate(client.session_id, "r")
    client.reading = True
    client.pump()
    deltas = [frame["response_id"] for frame in client.frames if frame["type"] == "response.output_audio.delta"]
    assert deltas == ["q"]


# -- ends


def test_a_lost_ga_socket_closes_its_session() -> None:
    world = World()
    client = world.connect("/v1/realtime")
    client.drop()
    assert asked(world)[-1] == "CloseSessionMessage"
    assert (world.engine.sessions, world.hub.sessions, world.engine.subscriptions) == ({}, (), 0)


def test_field_F27_late_output_of_a_lost_client_reaches_nobody() -> None:
    world = World()
    first = world.connect("/v1/realtime")
    session_id = first.session_id
    world.answers = False
    first.drop()
    second = world.connect("/v1/realtime")
    world.engine.say(session_id, *answer("r", "i"))
    while world.waiting:
        world.answer()
    assert second.types == ["session.created"]
    assert len(first.frames) == 1


def test_a_socket_lost_during_the_opening_closes_the_session() -> None:
    world = World()
    world.answers = False
    client = world.connect("/v1/realtime")
    client.drop()
    world.answer()
    world.answer()
    assert asked(world) == ["OpenSession", "CloseSessionMessage"]
    assert world.hub.sessions == ()


def test_a_client_that_closes_gets_its_terminal_then_the_close() -> None:
    world = World()
    client = world.connect("/v1/duplex?model=fake")
    client.send("session.close")
    assert client.types[-1] == "session.closed"
    assert client.closed is not None and (client.closed.code, client.closed.reason) == (1000, "client_close")
    client.drop()
    assert world.hub.sessions == ()


def test_nothing_is_read_after_the_terminal() -> None:
    world = World()
    client = world.connect("/v1/duplex?model=fake")
    client.send("session.close")
    count = len(world.engine.posted)
    client.raw('{"type":"session.heartbeat"}')
    assert len(world.engine.posted) == count


def test_a_terminal_that_the_client_does_not_read_ends_in_an_abort() -> None:
    world = World()
    client = world.connect("/v1/realtime")
    client.reading = False
    client.say(events.SessionClosed(reason="x"))
    client.pass_time(4.9)
    assert not client.aborted
    client.pass_time(0.2)
    assert client.aborted
    assert world.hub.sessions == ()


def test_a_shutdown_gives_the_terminal_and_closes_1001() -> None:
    world = World()
    live, waiting = world.connect("/v1/duplex?model=fake"), world.connect("/v1/duplex")
    world.hub.draining = True
    for client in (live, waiting):
        client.apply(client.connection.shutdown(world.now))
        client.pump()
        assert client.closed is not None and client.closed.code == 1001
    assert live.frames[-1]["type"] == "session.closed"
    assert waiting.frames[-1]["error"]["code"] == "shutting_down"


def test_a_session_that_opens_into_a_shutdown_is_closed() -> None:
    world = World()
    world.answers = False
    client = world.connect("/v1/realtime")
    world.hub.draining = True
    client.apply(client.connection.shutdown(world.now))
    while world.waiting:
        world.answer()
    assert client.types == ["session.created"]
    assert client.closed is not None and client.closed.code == 1001


def test_what_is_refused_is_counted() -> None:
    world = World()
    client = world.connect("/v1/realtime")
    client.raw("{")
    assert world.recorder.refusals == [ErrorCode.INVALID_JSON]


def test_an_engine_error_reaches_the_client_with_its_event_id_and_param() -> None:
    client = World(FakeEngine(input_limit_bytes=4)).connect("/v1/realtime")
    (error,) = client.send("conversation.item.delete", item_id="nobody", event_id="E1")
    assert (error["error"]["code"], error["error"]["event_id"], error["error"]["param"]) == (
        "item_not_found",
        "E1",
        "item_id",
    )
    (error,) = client.send("input_audio_buffer.append", audio="AAAAAAAA", event_id="E2")
    assert (error["error"]["code"], error["error"]["event_id"]) == ("input_backpressure", "E2")
    (error,) = client.send("input_audio_buffer.commit", event_id="E3")
    assert error["error"]["code"] == "input_audio_buffer_commit_empty"


def test_every_update_gets_one_reply_even_an_empty_one() -> None:
    client: Client = World().connect("/v1/realtime")
    for session in ({}, {"tracing": None}, {"type": "realtime", "tracing": "auto", "truncation": "auto"}):
        assert [frame["type"] for frame in client.send("session.update", session=session)] == ["session.updated"]
    assert json.dumps(client.frames[-1]["session"]) == json.dumps(client.frames[0]["session"])


def test_a_command_that_is_too_late_is_refused_before_the_terminal_and_not_behind_it() -> None:
    world = World()
    client = world.connect("/v1/realtime?duplex=1")
    client.send("session.update", session={})
    client.reading = False
    client.say(events.SessionClosed(reason="shutdown", slot_released=True))
    client.send("session.heartbeat", event_id="late")
    client.reading = True
    client.pump()
    assert client.types[-2:] == ["error", "session.closed"]
