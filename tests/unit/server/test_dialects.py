"""The order and shape of frames that session events become, in both dialects."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable

import msgspec
import pytest

from duologue.engine.duplex import events
from duologue.errors import ErrorCode
from tests.unit.server.driver import Client, Frame, World
from tests.unit.server.fake_engine import FakeEngine, answer, audio, created, done, user_item

GA_ANSWER = [
    "response.created",
    "rate_limits.updated",
    "conversation.item.added",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_audio.delta",
    "response.output_audio_transcript.delta",
    "response.output_audio.delta",
    "response.output_audio_transcript.delta",
    "response.output_audio.done",
    "response.output_audio_transcript.done",
    "response.content_part.done",
    "response.output_item.done",
    "conversation.item.done",
    "response.done",
]
DUPLEX_ANSWER = [
    "response.created",
    "conversation.item.added",
    "conversation.item.created",
    "response.output_item.added",
    "response.content_part.added",
    "response.speak",
    *GA_ANSWER[5:],
    "rate_limits.updated",
]
# Fields that OpenAI's own models require, beside `type` and `event_id`.
REQUIRED = {
    "conversation.item.added": {"item"},
    "conversation.item.done": {"item"},
    "conversation.item.input_audio_transcription.completed": {"content_index", "item_id", "transcript", "usage"},
    "conversation.item.input_audio_transcription.delta": {"content_index", "item_id", "delta"},
    "input_audio_buffer.committed": {"item_id"},
    "rate_limits.updated": {"rate_limits"},
    "response.content_part.added": {"content_index", "item_id", "output_index", "part", "response_id"},
    "response.content_part.done": {"content_index", "item_id", "output_index", "part", "response_id"},
    "response.created": {"response"},
    "response.done": {"response"},
    "response.output_audio.delta": {"content_index", "delta", "item_id", "output_index", "response_id"},
    "response.output_audio.done": {"content_index", "item_id", "output_index", "response_id"},
    "response.output_audio_transcript.delta": {"content_index", "delta", "item_id", "output_index", "response_id"},
    "response.output_audio_transcript.done": {"content_index", "transcript", "item_id", "output_index", "response_id"},
    "response.output_item.added": {"item", "output_index", "response_id"},
    "response.output_item.done": {"item", "output_index", "response_id"},
    "response.output_text.delta": {"content_index", "delta", "item_id", "output_index", "response_id"},
    "response.output_text.done": {"content_index", "text", "item_id", "output_index", "response_id"},
    "session.created": {"session"},
}


def ga() -> Client:
    return World().connect("/v1/realtime?model=gpt-realtime")


def duplex() -> Client:
    client = World().connect("/v1/realtime?duplex=1")
    client.send("session.update", session={})
    return client


def types(frames: list[Frame]) -> list[str]:
    return [frame["type"] for frame in frames]


def by_type(frames: list[Frame], name: str) -> Frame:
    (found,) = [frame for frame in frames if frame["type"] == name]
    return found


def test_a_spoken_answer_has_the_ga_order() -> None:
    assert types(ga().say(*answer("r", "i"))) == GA_ANSWER


def test_a_spoken_answer_has_the_duplex_order() -> None:
    assert types(duplex().say(*answer("r", "i"))) == DUPLEX_ANSWER


@pytest.mark.parametrize("connect", [ga, duplex])
def test_every_frame_has_its_own_id_and_what_clients_require(connect: Callable[[], Client]) -> None:
    client = connect()
    client.say(*answer("r", "i"), events.InputTranscribed(item_id="u", text="hi", final=True, audio_ms=900))
    ids = [frame["event_id"] for frame in client.frames]
    assert len(set(ids)) == len(ids)
    for frame in client.frames:
        assert REQUIRED.get(frame["type"], set()) <= set(frame), frame["type"]


def test_decision_29_ga_frames_hold_nothing_of_the_duplex_dialect() -> None:
    client = ga()
    client.say(*answer("r", "i"))
    for frame in client.frames:
        assert not {"server_event_seq", "session_id", "sample_rate_hz", "retryable"} & set(frame)


def test_the_closing_frames_hold_the_text_and_no_audio() -> None:
    frames = ga().say(*answer("r", "i", metadata={"client_event_id": "q"}))
    response = by_type(frames, "response.done")["response"]
    assert response["status"] == "completed"
    assert response["status_details"] is None
    assert response["metadata"] == {"client_event_id": "q"}
    (item,) = response["output"]
    assert item["content"] == [{"type": "output_audio", "transcript": "Good morning."}]
    assert by_type(frames, "response.content_part.added")["part"] == {"type": "audio", "transcript": ""}
    assert by_type(frames, "response.content_part.done")["part"] == {"type": "audio", "transcript": "Good morning."}
    deltas = [frame["delta"] for frame in frames if frame["type"] == "response.output_audio_transcript.delta"]
    assert "".join(deltas) == by_type(frames, "response.output_audio_transcript.done")["transcript"]


def test_created_echoes_metadata_at_once() -> None:
    (first, _) = ga().say(created("r", "i", metadata={"k": "v"}))
    assert first["response"]["metadata"] == {"k": "v"}
    assert first["response"]["status"] == "in_progress"


def test_text_has_text_parts_and_output_text_events() -> None:
    item = events.ItemView(item_id="i", role="assistant", status="completed", parts=(events.TextPart(text="Good day"),))
    frames = ga().say(
        events.ResponseCreated(response_id="r", item_id="i", epoch=0, turn_id=0, modality="text"),
        events.ResponseText(response_id="r", item_id="i", epoch=0, text="Good "),
        events.ResponseText(response_id="r", item_id="i", epoch=0, text="day"),
        events.ResponseDone(response_id="r", epoch=0, status="completed", modality="text", item=item),
    )
    assert types(frames)[5:10] == [
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ]
    assert by_type(frames, "response.output_text.done")["text"] == "Good day"
    assert by_type(frames, "response.content_part.done")["part"] == {"type": "text", "text": "Good day"}
    assert by_type(frames, "response.output_item.done")["item"]["content"] == [
        {"type": "output_text", "text": "Good day"}
    ]


def test_a_cut_answer_shows_what_may_have_been_heard() -> None:
    frames = ga().say(
        created("r", "i"),
        audio("r", "i", text="Good morning to you."),
        done("r", "i", "Good", status="cancelled", reason="turn_detected"),
    )
    response = by_type(frames, "response.done")["response"]
    assert response["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
    assert response["output"][0]["status"] == "incomplete"
    assert by_type(frames, "response.output_audio_transcript.done")["transcript"] == "Good"


def test_a_failed_answer_without_content_is_created_and_done() -> None:
    frames = ga().say(
        created("r", "i"),
        events.ResponseDone(
            response_id="r", epoch=0, status="failed", error=ErrorCode.RUNTIME_STREAM_FAILED, error_message="gone"
        ),
    )
    assert types(frames) == ["response.created", "rate_limits.updated", "response.done"]
    details = frames[-1]["response"]["status_details"]
    assert details["error"] == {
        "type": "server_error",
        "code": "runtime_data_plane_stream_failed",
        "message": "gone",
    }


def test_spoken_beside_an_answer_each_has_its_order_and_its_own_sound() -> None:
    beside = msgspec.structs.replace(created("b", "j"), out_of_band=True)
    one, other = bytes(range(0, 200, 2)) * 48, bytes(range(1, 201, 2)) * 48
    frames = ga().say(
        created("r", "i"),
        audio("r", "i", pcm=one, text="Good "),
        beside,
        audio("b", "j", pcm=other, text="Beside."),
        audio("r", "i", pcm=one, text="morning."),
        done("b", "j", "Beside."),
        audio("r", "i", pcm=one),
        done("r", "i", "Good morning."),
    )
    for response_id, sent in (("r", one * 3), ("b", other)):
        mine = [f for f in frames if response_id in (f.get("response_id"), f.get("response", {}).get("id"))]
        names = list(dict.fromkeys(types(mine)))
        assert names == [name for name in dict.fromkeys(GA_ANSWER) if name in names] and names[-1] == "response.done"
        deltas = [frame["delta"] for frame in mine if frame["type"] == "response.output_audio.delta"]
        assert b"".join(base64.b64decode(delta) for delta in deltas) == sent
    assert [f["item"]["id"] for f in frames if f["type"].startswith("conversation.item.")] == ["i", "i"]


def test_an_answer_out_of_band_joins_no_conversation() -> None:
    frames = ga().say(
        events.ResponseCreated(response_id="r", item_id="i", epoch=0, turn_id=0, modality="audio", out_of_band=True),
        audio("r", "i", text="Aside."),
        done("r", "i", "Aside."),
    )
    assert not [name for name in types(frames) if name.startswith("conversation.")]
    assert frames[0]["response"]["conversation_id"] is None


def test_duplex_tells_how_the_time_before_an_answer_passed_and_ga_does_not() -> None:
    delays = events.AnswerDelays(judged_ms=None, ended_ms=500, understood_ms=520, answered_ms=None, sent_ms=700)
    end = msgspec.structs.replace(done("r", "i", "Good"), delays=delays)
    said = (created("r", "i"), audio("r", "i", text="Good"), end)
    assert by_type(duplex().say(*said), "response.done")["delays"] == {
        "ended_ms": 500,
        "understood_ms": 520,
        "sent_ms": 700,
    }
    assert "delays" not in by_type(ga().say(*said), "response.done")


def test_a_large_delta_is_cut_below_a_mebibyte() -> None:
    client = ga()
    pcm = bytes(range(256)) * 8_000
    client.say(created("r", "i"), audio("r", "i", pcm=pcm, text="x" * 400_000))
    sizes = [len(json.dumps(frame)) for frame in client.frames]
    assert max(sizes) < 1024 * 1024
    deltas = [frame["delta"] for frame in client.frames if frame["type"] == "response.output_audio.delta"]
    assert b"".join(base64.b64decode(delta) for delta in deltas) == pcm


def test_audio_is_converted_to_the_sessions_format_and_flushed_before_its_done() -> None:
    client = ga()
    client.send("session.update", session={"audio": {"output": {"format": {"type": "audio/pcmu"}}}})
    frames = client.say(*answer("r", "i"))
    deltas = [base64.b64decode(frame["delta"]) for frame in frames if frame["type"] == "response.output_audio.delta"]
    assert len(b"".join(deltas)) == 2 * 640  # 160 ms at 8 kHz, one byte each, the filter's tail included
    assert types(frames).index("response.output_audio.done") > max(
        index for index, name in enumerate(types(frames)) if name == "response.output_audio.delta"
    )


def test_a_cut_answer_is_not_flushed() -> None:
    client = ga()
    client.send("session.update", session={"audio": {"output": {"format": {"type": "audio/pcmu"}}}})
    client.say(created("r", "i"), audio("r", "i"))
    frames = client.say(done("r", "i", "", status="cancelled", reason="client_cancelled"))
    assert "response.output_audio.delta" not in types(frames)


def test_a_response_keeps_the_format_that_it_began_with() -> None:
    client = ga()
    client.say(created("r", "i"))
    client.send("session.update", session={"audio": {"output": {"format": {"type": "audio/pcmu"}}}})
    frames = client.say(audio("r", "i"))
    assert len(base64.b64decode(by_type(frames, "response.output_audio.delta")["delta"])) == 3840


def test_two_responses_do_not_share_an_encoder() -> None:
    client = ga()
    client.send("session.update", session={"audio": {"output": {"format": {"type": "audio/pcma"}}}})
    first = client.say(*answer("r1", "i1"))
    second = client.say(*answer("r2", "i2"))
    same = [frame["delta"] for frame in first if frame["type"] == "response.output_audio.delta"]
    assert same == [frame["delta"] for frame in second if frame["type"] == "response.output_audio.delta"]


def test_a_users_turn_is_committed_added_and_done() -> None:
    turn = (
        events.SpeechStarted(item_id="u", audio_start_ms=100),
        events.SpeechStopped(item_id="u", audio_end_ms=900),
        events.InputCommitted(item=user_item("u"), previous_item_id="p"),
    )
    frames = ga().say(*turn)
    assert types(frames) == [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
    ]
    assert "audio_end_ms" not in frames[0]
    assert frames[2]["previous_item_id"] == "p"
    assert frames[3]["item"]["content"] == [{"type": "input_audio", "transcript": None}]
    assert types(duplex().say(*turn))[3:] == [
        "conversation.item.added",
        "conversation.item.created",
        "conversation.item.done",
    ]


def test_transcripts_grow_by_whole_agreed_words_and_complete_once() -> None:
    client = ga()
    guesses = ["I", "I want", "I want to", "I won the", "I won the race"]
    frames = [
        frame
        for guess in guesses
        for frame in client.say(events.InputTranscribed(item_id="u", text=guess, final=False))
    ]
    assert "".join(frame["delta"] for frame in frames) == "I want"
    (last,) = client.say(events.InputTranscribed(item_id="u", text="I won the race.", final=True, audio_ms=1500))
    assert last["type"] == "conversation.item.input_audio_transcription.completed"
    assert (last["transcript"], last["usage"]) == ("I won the race.", {"type": "duration", "seconds": 1.5})


def test_a_transcript_that_was_guessed_right_is_completed_by_its_deltas() -> None:
    client = ga()
    for guess in ("I", "I want", "I want to go"):
        client.say(events.InputTranscribed(item_id="u", text=guess, final=False))
    client.say(events.InputTranscribed(item_id="u", text="I want to go home.", final=True))
    deltas = [f["delta"] for f in client.frames if f["type"].endswith("transcription.delta")]
    assert "".join(deltas) == "I want to go home."


def test_decision_26_ga_errors_use_openais_codes_and_the_benign_race_says_so() -> None:
    (error,) = ga().send("response.cancel", event_id="E1")
    assert error["error"]["code"] == "response_cancel_not_active"
    assert error["error"]["message"].startswith("Cancellation failed")
    assert error["error"]["event_id"] == "E1"
    (error,) = duplex().send("response.cancel", event_id="E1")
    assert error["error"]["code"] == "response_not_active"
    assert error["error"]["retryable"] is False


def test_duplex_shows_decisions_and_ga_does_not() -> None:
    said = (
        events.OverlapDecided(action="listen", reason="acknowledgement", audio_start_ms=40, response_id="r"),
        events.ResponseListen(reason="silence_or_noise"),
        events.PlaybackAcknowledged(response_id="r", item_id="i", played_ms=10, history_committed=True),
        events.HeartbeatAcknowledged(),
        events.TurnSignalled(name="thinking"),
        events.SessionRecovered(epoch=2, placement=1),
        events.SessionQueued(position=2, estimated_wait_s=1.5),
        events.StopMeasured(response_id="r", onset_to_last_audio_s=0.2, decision_to_last_audio_s=None),
    )
    assert ga().say(*said) == []
    frames = duplex().say(*said)
    assert types(frames) == [
        "overlap.decision",
        "response.listen",
        "playback.acknowledged",
        "session.heartbeat_ack",
        "turn.event",
        "session.recovered",
    ]
    assert "response_id" not in frames[1]


def test_duplex_deltas_state_their_rate_and_responses_their_id() -> None:
    frames = duplex().say(*answer("r", "i"))
    assert by_type(frames, "response.created")["response_id"] == "r"
    assert by_type(frames, "response.done")["response_id"] == "r"
    rates = {f["sample_rate_hz"] for f in frames if f["type"] == "response.output_audio.delta"}
    assert rates == {24_000}


@pytest.mark.parametrize(
    ("fault", "code"), [(None, 1000), (ErrorCode.RUNTIME_PLUGIN_FAILED, 1011), (ErrorCode.OUTPUT_BACKPRESSURE, 1000)]
)
def test_a_ga_session_ends_with_an_error_only_if_a_fault_ended_it(fault: ErrorCode | None, code: int) -> None:
    client = ga()
    frames = client.say(events.SessionClosed(reason="x", fault=fault))
    assert types(frames) == ([] if fault is None else ["error"])
    assert client.closed is not None and client.closed.code == code


def test_a_duplex_session_ends_with_its_terminal() -> None:
    client = duplex()
    (frame,) = client.say(events.SessionExpired(reason="idle_ttl_expired", slot_released=False))
    assert (frame["type"], frame["reason"], frame["slot_released"]) == ("session.expired", "idle_ttl_expired", False)
    assert client.closed is not None and client.closed.code == 1000


@pytest.mark.parametrize("connect", [ga, duplex])
def test_a_response_that_the_engine_left_open_is_seen_to_end(connect: Callable[[], Client]) -> None:
    client = connect()
    client.say(created("r", "i"), audio("r", "i"))
    frames = client.say(events.SessionClosed(reason="engine_dead", fault=ErrorCode.ENGINE_DEAD))
    assert by_type(frames, "response.done")["response"]["status"] == "failed"
    assert types(frames)[-1] in ("error", "session.closed")


def test_the_session_is_echoed_whole() -> None:
    client = World(FakeEngine(model="m1")).connect("/v1/realtime?model=gpt-realtime")
    (shown,) = client.send(
        "session.update", session={"instructions": "Be kind.", "audio": {"output": {"voice": "ash"}}}
    )
    session = shown["session"]
    assert shown["type"] == "session.updated"
    assert session["type"] == "realtime"
    assert session["model"] == "m1"
    assert session["instructions"] == "Be kind."
    assert session["audio"]["input"]["format"] == {"type": "audio/pcm", "rate": 24000}
    assert session["audio"]["output"]["voice"] == "ash"
    assert session["tool_choice"] == "auto"
    assert session["max_output_tokens"] == "inf"
