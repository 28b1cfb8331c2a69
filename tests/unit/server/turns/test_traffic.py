"""What happens to ordinary requests when something goes wrong or there are too many: always an end, never a leftover."""

from __future__ import annotations

import asyncio
import json

import pytest

from duologue.clock import Runtime
from duologue.config.turns import TurnLimits
from duologue.errors import ErrorCode, StageFault
from duologue.models.scripted.script import Script, ScriptedFault
from duologue.models.scripted.sound import tone
from duologue.sim.loop import virtual
from tests.unit.server.turns.world import World, chat_body, form, world

CHAT, SPEECH, TRANSCRIPTIONS = "/v1/chat/completions", "/v1/audio/speech", "/v1/audio/transcriptions"
SLOW = Script(recognise_s=5.0, think_s=5.0, speak_s=5.0)
SPOKEN = {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "pcm16"}}


def body(**fields: object) -> bytes:
    return json.dumps(chat_body(**fields)).encode()  # type: ignore[arg-type]


@virtual(limit_s=60)
async def test_who_may_ask_is_decided_first(runtime: Runtime) -> None:
    async with world(runtime, keys=("secret",)) as place:
        for headers in ({}, {"authorization": "Bearer wrong"}):
            answer = await place.call(CHAT, b"{", headers=headers).task
            assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
        page = {"authorization": "Bearer secret", "origin": "https://elsewhere.example"}
        assert (await place.call(CHAT, body(), headers=page).task).status == 403
        assert (await place.call(CHAT, body(), headers={"authorization": "Bearer secret"}).task).status == 200


@virtual(limit_s=60)
async def test_bad_bodies(runtime: Runtime) -> None:
    async with world(runtime) as place:
        for data, code, param in (
            (b"", "invalid_json", None),
            (b"{", "invalid_json", None),
            (b"\xff", "invalid_json", None),
            (b"[]", "request_invalid", None),
            (b"{}", "request_invalid", "messages"),
            (b"[" * 5000, "request_invalid", None),
        ):
            answer = await place.post(CHAT, data)
            assert (answer.status, answer.error["code"], answer.error["param"]) == (400, code, param), data[:10]


@virtual(limit_s=60)
async def test_the_served_model_has_many_names_but_not_every_one(runtime: Runtime) -> None:
    async with world(runtime) as place:
        for name in ("scripted", "gpt-4o-audio-preview", "gpt-audio", "gpt-realtime", None):
            answer = await place.chat(model=name)
            assert answer.json["model"] == "scripted"
        answer = await place.chat(model="gpt-5")
        assert (answer.status, answer.error["code"], answer.error["param"]) == (404, "model_not_found", "model")


@virtual(limit_s=60)
async def test_a_model_without_ordinary_requests_says_so(runtime: Runtime) -> None:
    async with world(runtime, resident=True) as place:
        answer = await place.chat()
        assert (answer.status, answer.error["code"]) == (400, "unsupported")


@virtual(limit_s=120)
async def test_a_body_beyond_the_limit_is_refused(runtime: Runtime) -> None:
    async with world(runtime, limits=TurnLimits(max_body_bytes=1_000, max_held_bytes=2_000)) as place:
        announced = await place.call(CHAT, b"x" * 1_001).task
        chunked = await place.call(CHAT, [b"x" * 600, b"x" * 600]).task
        lying = await place.call(CHAT, [b"x" * 600, b"x" * 600], headers={"content-length": "10"}).task
        for answer in (announced, chunked, lying):
            assert (answer.status, answer.error["code"]) == (413, "event_too_large")


@virtual(limit_s=120)
@pytest.mark.parametrize("extra", [-1, 0, 1])
async def test_a_body_is_taken_up_to_the_limit(runtime: Runtime, extra: int) -> None:
    text = body(text="x" * 500)
    limits = TurnLimits(max_body_bytes=len(text) - extra, max_held_bytes=2_000)
    async with world(runtime, limits=limits) as place:
        assert (await place.call(CHAT, text).task).status == (413 if extra > 0 else 200)


@virtual(limit_s=120)
@pytest.mark.parametrize("extra", [-1, 0, 1])
async def test_a_text_to_be_read_aloud_has_a_limit(runtime: Runtime, extra: int) -> None:
    async with world(runtime, limits=TurnLimits(max_speech_chars=20)) as place:
        answer = await place.call(SPEECH, json.dumps({"input": "x" * (20 + extra)}).encode()).task
        assert answer.status == (400 if extra > 0 else 200)


@virtual(limit_s=300)
async def test_a_body_that_does_not_arrive_is_not_waited_for(runtime: Runtime) -> None:
    async with world(runtime, limits=TurnLimits(body_timeout_s=3.0)) as place:
        begun = runtime.now()
        call = place.call(CHAT, [], headers={"content-length": "100"})
        answer = await call.task
        assert (answer.status, answer.error["code"]) == (408, "config_timeout")
        # Three seconds of waiting, and two more to let the client finish before it is refused.
        assert runtime.now() - begun == pytest.approx(5.0, abs=0.1)


@virtual(limit_s=300)
async def test_bodies_held_together_are_bounded(runtime: Runtime) -> None:
    limits = TurnLimits(max_body_bytes=1_000, max_held_bytes=1_500, max_running=1)
    async with world(runtime, SLOW, limits=limits) as place:
        first = place.call(CHAT, body(text="x" * 800))
        await asyncio.sleep(1)
        second = await place.call(CHAT, body(text="x" * 800)).task
        assert (second.status, second.error["code"]) == (429, "input_backpressure")
        assert second.headers["retry-after"] == "1"
        assert (await first.task).status == 200


@virtual(limit_s=600)
async def test_more_requests_than_places_are_refused_and_the_rest_is_served_in_order(runtime: Runtime) -> None:
    ended: list[str] = []

    async def one(place: World, name: str) -> int:
        answer = await place.chat(name)
        ended.append(name if answer.status == 200 else f"{name} refused")
        return answer.status

    async with world(runtime, SLOW, limits=TurnLimits(max_running=1, max_waiting=2)) as place:
        statuses = await asyncio.gather(*(one(place, name) for name in "abcde"))
        assert statuses == [200, 200, 200, 429, 429]
        assert ended == ["d refused", "e refused", "a", "b", "c"]


@virtual(limit_s=600)
@pytest.mark.parametrize("after_s", [0.0, 2.0, 7.0, 11.0, 12.0])
async def test_a_client_that_leaves_takes_everything_with_it(runtime: Runtime, after_s: float) -> None:
    upload, media_type = form(tone(1_000, rate_hz=16_000), stream="true")
    async with world(runtime, SLOW, limits=TurnLimits(max_running=2)) as place:
        calls = [
            place.call(CHAT, body(**SPOKEN)),
            place.call(CHAT, body(stream=True, **SPOKEN)),
            place.call(SPEECH, json.dumps({"input": "One. Two. Three."}).encode()),
            place.call(TRANSCRIPTIONS, upload, media_type=media_type),
        ]
        await asyncio.sleep(after_s)
        for call in calls:
            call.leave()
        await asyncio.sleep(0.5)
        assert place.busy() == {}
        for call in calls:
            assert not (await call.task).complete


@virtual(limit_s=600)
async def test_one_that_leaves_the_queue_holds_up_nobody(runtime: Runtime) -> None:
    async with world(runtime, SLOW, limits=TurnLimits(max_running=1)) as place:
        first, second, third = (place.call(CHAT, body(text=name)) for name in "abc")
        await asyncio.sleep(1)
        second.leave()
        begun = runtime.now()
        assert (await first.task).status == 200
        assert (await third.task).status == 200
        assert runtime.now() - begun == pytest.approx(19.0, abs=0.5)
        assert not (await second.task).complete


def failing(stage_id: int, kind: str) -> Script:
    return Script(faults=(ScriptedFault(stage_id=stage_id, kind=kind, when="bad"),))  # type: ignore[arg-type]


@virtual(limit_s=600)
@pytest.mark.parametrize("kind", ["raise", "error"])
async def test_a_stage_that_fails_is_an_error_with_its_status(runtime: Runtime, kind: str) -> None:
    async with world(runtime, failing(1, kind)) as place:
        for fields in ({}, {"stream": True}, SPOKEN):
            answer = await place.chat("bad", **fields)
            assert (answer.status, answer.error["code"]) == (500, "runtime_data_plane_stream_failed")
            assert answer.error["type"] == "server_error"
            assert (await place.chat("good", **fields)).status == 200


@virtual(limit_s=600)
async def test_a_failure_within_an_answer_is_its_last_event(runtime: Runtime) -> None:
    script = Script(faults=(ScriptedFault(stage_id=2, kind="error", when="Two"),))
    async with world(runtime, script) as place:
        events = (await place.speech("One. Two. Three.", stream_format="sse")).events
        assert [event["type"] for event in events[:-1]] == ["speech.audio.delta"] * (len(events) - 1)
        assert len(events) > 1
        assert events[-1]["error"]["code"] == "runtime_data_plane_stream_failed"
        plain = await place.speech("One. Two. Three.")
        assert plain.status == 200
        assert plain.cut
        assert not plain.complete


@virtual(limit_s=600)
async def test_a_stage_that_hangs_is_given_up(runtime: Runtime) -> None:
    async with world(runtime, failing(1, "hang"), limits=TurnLimits(output_timeout_s=20.0)) as place:
        begun = runtime.now()
        answer = await place.chat("bad")
        assert (answer.status, answer.error["code"]) == (504, "timeout")
        assert runtime.now() - begun == pytest.approx(20.0, abs=0.1)
        streamed = await place.chat("bad", stream=True)
        assert streamed.status == 200, "the head went out with the first comment"
        assert streamed.comments == 1
        assert streamed.events[-1]["error"]["code"] == "timeout"


@virtual(limit_s=600)
async def test_an_answer_that_takes_too_long_ends(runtime: Runtime) -> None:
    async with world(runtime, SLOW, limits=TurnLimits(request_timeout_s=7.0)) as place:
        assert (await place.chat()).status == 504
        streamed = await place.chat(stream=True)
        assert streamed.events[-1]["error"]["code"] == "timeout"
        assert "[DONE]" not in streamed.events


@virtual(limit_s=600)
async def test_a_silent_stream_carries_comments(runtime: Runtime) -> None:
    async with world(runtime, Script(think_s=25.0), limits=TurnLimits(keep_alive_s=10.0)) as place:
        answer = await place.chat(stream=True)
        assert answer.comments == 4  # two in each wait of 25 s
        assert answer.events[-1] == "[DONE]"


@virtual(limit_s=600)
async def test_no_replica_is_a_503(runtime: Runtime) -> None:
    async with world(runtime) as place:
        place.pipeline.clients[1][0].die(RuntimeError("killed"))
        answer = await place.chat()
        assert (answer.status, answer.error["code"]) == (503, "replica_unavailable")
        assert answer.headers["x-should-retry"] == "true"
        assert (await place.speech("One.")).status == 200, "other stages still serve"
        await asyncio.sleep(60)
        assert (await place.chat()).status == 200


@virtual(limit_s=600)
async def test_a_replica_that_dies_within_an_answer_fails_it(runtime: Runtime) -> None:
    async with world(runtime, SLOW) as place:
        call = place.call(CHAT, body(stream=True))
        await call.until(lambda answer: answer.body)
        place.pipeline.clients[1][0].die(RuntimeError("killed"))
        answer = await call.task
        assert answer.events[-1]["error"]["code"] == "replica_unavailable"
        await asyncio.sleep(60)


@virtual(limit_s=600)
async def test_a_dead_engine_answers_what_is_open_and_what_comes(runtime: Runtime) -> None:
    async with world(runtime, SLOW) as place:
        call = place.call(CHAT, body())
        await asyncio.sleep(1)
        place.front.died()
        answer = await call.task
        assert (answer.status, answer.error["code"]) == (503, "engine_dead")
        assert (await place.chat()).error["code"] == "engine_dead"
        place.orchestrator.post(_abort_all(place))


def _abort_all(place: World) -> object:
    from duologue.engine.messages import AbortRequest

    return AbortRequest(request_ids=tuple(place.orchestrator.request_states))


@virtual(limit_s=600)
async def test_an_abort_that_a_stage_refuses_is_repeated(runtime: Runtime) -> None:
    async with world(runtime, SLOW) as place:
        client = place.pipeline.clients[1][0]
        told: list[int] = []
        real = client.abort

        async def deaf(request_ids: object) -> None:
            told.append(1)
            if len(told) < 3:
                raise StageFault(ErrorCode.RUNTIME_ABORT_FAILED, "not now")
            await real(request_ids)  # type: ignore[arg-type]

        client.abort = deaf  # type: ignore[method-assign,assignment]
        call = place.call(CHAT, body())
        await asyncio.sleep(1)
        call.leave()
        await asyncio.sleep(15)
        assert len(told) >= 3  # by whoever asked, and by the engine, each until it is done
        assert place.busy() == {}


@virtual(limit_s=600)
async def test_an_abort_is_not_repeated_for_an_engine_that_is_dead(runtime: Runtime) -> None:
    async with world(runtime, SLOW) as place:

        async def refused(request_ids: object) -> None:
            raise StageFault(ErrorCode.RUNTIME_ABORT_FAILED, "not now")

        place.front.abort = refused  # type: ignore[method-assign,assignment]
        call = place.call(CHAT, body())
        await asyncio.sleep(1)
        call.leave()
        await asyncio.sleep(0.25)
        desk = place.front._turns
        assert desk is not None and desk._aborts  # type: ignore[attr-defined]
        place.front.died()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not desk._aborts  # type: ignore[attr-defined]
        place.orchestrator.post(_abort_all(place))


@virtual(limit_s=600)
async def test_the_drain_lets_requests_finish_and_takes_no_new_ones(runtime: Runtime) -> None:
    async with world(runtime, SLOW) as place:
        call = place.call(CHAT, body())
        await asyncio.sleep(1)
        drain = asyncio.ensure_future(place.server.drain(30.0))
        await asyncio.sleep(0)
        refused = await place.chat()
        assert (refused.status, refused.error["code"]) == (503, "shutting_down")
        assert await drain
        assert (await call.task).status == 200


@virtual(limit_s=600)
async def test_the_drain_ends_what_takes_longer(runtime: Runtime) -> None:
    async with world(runtime, SLOW) as place:
        calls = [place.call(CHAT, body()), place.call(CHAT, body(stream=True)), place.call(CHAT, body(text="waits"))]
        await asyncio.sleep(7)
        assert not await place.server.drain(1.0)
        plain, streamed, waiting = [await call.task for call in calls]
        assert (plain.status, waiting.status) == (503, 503)
        assert streamed.events[-1]["error"]["code"] == "shutting_down"


@virtual(limit_s=600)
async def test_a_slow_reader_holds_up_the_stages_not_the_memory(runtime: Runtime) -> None:
    script = Script(sentence_ms=2_000, chunk_ms=500, think_s=0.0, speak_s=0.0)
    limits = TurnLimits(pause_bytes=200_000, max_unread_bytes=2_000_000, write_timeout_s=1e6)
    text = "A sentence. " * 200  # 400 s of sound, 19 MB
    async with world(runtime, script, limits=limits) as place:
        call = place.call(SPEECH, json.dumps({"input": text}).encode(), stuck=True)
        await asyncio.sleep(60)
        desk = place.front._turns
        (stream,) = desk._streams.values()  # type: ignore[union-attr]
        assert stream.unread_bytes < limits.pause_bytes + 100_000, "one piece beyond the mark at most"
        said = place.pipeline.stages[2].chunks  # type: ignore[attr-defined]
        await asyncio.sleep(60)
        assert place.pipeline.stages[2].chunks == said, "the stage waits"  # type: ignore[attr-defined]
        call.moving.set()
        answer = await call.task
        assert len(answer.body) == 44 + 200 * 2_000 * 48
        assert max(map(len, answer.pieces)) <= 24_000


@virtual(limit_s=600)
async def test_a_spoken_answer_waits_for_its_reader_too(runtime: Runtime) -> None:
    script = Script(sentences=100, sentence_ms=2_000, chunk_ms=500, think_s=0.1, speak_s=0.001)
    limits = TurnLimits(pause_bytes=200_000, max_unread_bytes=2_000_000, write_timeout_s=1e6)
    async with world(runtime, script, limits=limits) as place:
        call = place.call(CHAT, body(stream=True, **SPOKEN), stuck=True)
        await asyncio.sleep(60)
        (stream,) = place.front._turns._streams.values()  # type: ignore[union-attr]
        assert stream.unread_bytes < limits.pause_bytes + 200_000
        call.moving.set()
        answer = await call.task
        assert answer.events[-1] == "[DONE]"
        texts = [event["choices"][0]["delta"].get("audio", {}).get("transcript", "") for event in answer.events[:-1]]
        assert "".join(texts).count("Sentence") == 100


@virtual(limit_s=600)
async def test_who_makes_more_than_is_read_is_stopped(runtime: Runtime) -> None:
    script = Script(sentence_ms=60_000, chunk_ms=500, speak_s=0.001)
    limits = TurnLimits(pause_bytes=100_000, max_unread_bytes=1_000_000, write_timeout_s=1e6)
    async with world(runtime, script, limits=limits) as place:
        call = place.call(SPEECH, json.dumps({"input": "One."}).encode(), stuck=True)
        await asyncio.sleep(30)
        assert place.pipeline.stages[2].chunks < 60, "the stage was stopped, half-way"  # type: ignore[attr-defined]
        call.moving.set()
        answer = await call.task
        assert answer.cut
        assert len(answer.body) < 1_200_000


@virtual(limit_s=600)
async def test_a_client_that_takes_nothing_is_dropped(runtime: Runtime) -> None:
    async with world(runtime, limits=TurnLimits(write_timeout_s=5.0)) as place:
        begun = runtime.now()
        call = place.call(CHAT, body(stream=True), stuck=True)
        assert not (await call.task).complete
        assert runtime.now() - begun == pytest.approx(5.0, abs=0.5)


@virtual(limit_s=600)
async def test_requests_are_counted(runtime: Runtime) -> None:
    async with world(runtime) as place:
        await place.chat()
        await place.chat(model="gpt-5")
        call = place.call(CHAT, body())
        call.leave()
        await call.task
        text = place.server.metrics.render(place.server.hub, place.front.health()).decode()
        for status in ("200", "404", "gone"):
            assert f'duologue_http_requests_total{{endpoint="chat",status="{status}"}} 1.0' in text


@virtual(limit_s=60)
async def test_a_plugin_that_raises_fails_its_request_only(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(runtime) as place:

        def raises(*_: object) -> None:
            raise KeyError("a mistake")

        with monkeypatch.context() as patch:
            patch.setattr(place.pipeline.plugin, "plan_turn", raises)
            answer = await place.chat()
        assert (answer.status, answer.error["code"]) == (500, "runtime_plugin_failed")
        assert "mistake" not in answer.error["message"]
        assert (await place.chat()).status == 200


@virtual(limit_s=60)
async def test_a_fault_of_the_server_is_one_and_says_nothing_more(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(runtime) as place:
        with monkeypatch.context() as patch:
            patch.setattr(place.front._turns, "request", lambda *_: 1 / 0)
            answer = await place.chat()
        assert (answer.status, answer.error["code"], answer.error["type"]) == (500, "internal_error", "server_error")
        assert "division" not in answer.error["message"]
