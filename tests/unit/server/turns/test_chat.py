"""Chat completions: written and spoken answers, whole and streamed, from text and from speech."""

from __future__ import annotations

import base64
import json

import pytest

from duologue.audio.wav import parse_wav, wav_header
from duologue.clock import Runtime
from duologue.models.scripted.script import Script
from duologue.models.scripted.sound import silence, tone
from duologue.sim.loop import virtual
from tests.unit.server.turns.world import b64, chat_body, world

WORDS = Script(transcripts=tuple(f"words {level}" for level in range(12)))
SPOKEN = {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "pcm16"}}


def wav(pcm16: bytes, rate_hz: int) -> bytes:
    return wav_header(rate_hz, len(pcm16)) + pcm16


@virtual(limit_s=60)
async def test_a_written_answer(runtime: Runtime) -> None:
    async with world(runtime) as place:
        answer = await place.chat("tea")
        assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
        assert answer.headers["x-request-id"].startswith("req_")
        body = answer.json
        assert body["object"] == "chat.completion"
        assert body["model"] == "scripted"
        (choice,) = body["choices"]
        assert choice["message"] == {
            "role": "assistant",
            "content": "Sentence 1 about tea. Sentence 2 about tea.",
            "refusal": None,
        }
        assert choice["finish_reason"] == "stop"
        assert set(body["usage"]) >= {"prompt_tokens", "completion_tokens", "total_tokens"}


@virtual(limit_s=60)
async def test_a_streamed_answer_comes_sentence_by_sentence(runtime: Runtime) -> None:
    async with world(runtime, Script(think_s=1.0)) as place:
        call = place.call("/v1/chat/completions", json.dumps(chat_body("tea", stream=True)).encode())
        begun = runtime.now()
        await call.until(lambda answer: b"Sentence 1" in answer.body)
        assert runtime.now() - begun == pytest.approx(1.0, abs=0.1)
        answer = await call.task
        assert answer.headers["content-type"].startswith("text/event-stream")
        *chunks, done = answer.events
        assert done == "[DONE]"
        assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
        assert len({chunk["id"] for chunk in chunks}) == 1
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        assert deltas[0]["role"] == "assistant"
        assert "".join(delta.get("content", "") for delta in deltas) == "Sentence 1 about tea. Sentence 2 about tea."
        assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
        assert all("usage" not in chunk for chunk in chunks)


@virtual(limit_s=60)
async def test_usage_is_the_last_chunk_if_it_was_asked_for(runtime: Runtime) -> None:
    async with world(runtime) as place:
        answer = await place.chat(stream=True, stream_options={"include_usage": True})
        *chunks, last, done = answer.events
        assert done == "[DONE]"
        assert last["choices"] == []
        assert last["usage"]["total_tokens"] >= 0
        assert all(chunk["usage"] is None for chunk in chunks)


@virtual(limit_s=60)
async def test_a_spoken_answer(runtime: Runtime) -> None:
    async with world(runtime, Script(sentences=2, sentence_ms=400)) as place:
        body = (await place.chat("tea", modalities=["text", "audio"], audio={"voice": "a", "format": "wav"})).json
        message = body["choices"][0]["message"]
        assert message["content"] is None
        assert message["audio"]["transcript"] == "Sentence 1 about tea. Sentence 2 about tea."
        assert message["audio"]["expires_at"] > runtime.wall()
        pcm16, rate_hz = parse_wav(base64.b64decode(message["audio"]["data"]))
        assert (len(pcm16), rate_hz) == (2 * 400 * 24 * 2, 24_000)


@virtual(limit_s=60)
async def test_a_streamed_spoken_answer_pairs_text_and_sound(runtime: Runtime) -> None:
    async with world(runtime, Script(sentences=2, sentence_ms=400)) as place:
        answer = await place.chat("tea", stream=True, **SPOKEN)
        *chunks, done = answer.events
        assert done == "[DONE]"
        audio = [chunk["choices"][0]["delta"].get("audio", {}) for chunk in chunks]
        assert "".join(part.get("transcript", "") for part in audio) == "Sentence 1 about tea. Sentence 2 about tea."
        sound = b"".join(base64.b64decode(part["data"]) for part in audio if "data" in part)
        assert len(sound) == 2 * 400 * 24 * 2
        kinds = [next((name for name in ("data", "transcript") if part.get(name)), "") for part in audio]
        first_sound, second_text = kinds.index("data"), len(kinds) - 1 - kinds[::-1].index("transcript")
        assert first_sound < second_text, "the second sentence's text comes after the sound of the first"
        assert len({part["id"] for part in audio if "id" in part}) == 1
        assert [part["expires_at"] for part in audio if "expires_at" in part] != []


@virtual(limit_s=60)
async def test_a_streamed_wav_begins_with_its_head(runtime: Runtime) -> None:
    async with world(runtime) as place:
        spoken = {"modalities": ["audio"], "audio": {"voice": {"id": "x"}, "format": "wav"}}
        answer = await place.chat(stream=True, **spoken)
        audio = [chunk["choices"][0]["delta"].get("audio", {}) for chunk in answer.events[:-1]]
        sound = b"".join(base64.b64decode(part["data"]) for part in audio if "data" in part)
        assert parse_wav(sound)[1] == 24_000


@virtual(limit_s=60)
async def test_an_earlier_spoken_answer_is_known_by_its_id(runtime: Runtime) -> None:
    async with world(runtime) as place:
        first = (await place.chat("tea", **SPOKEN)).json["choices"][0]["message"]["audio"]["id"]
        conversation = [
            {"role": "user", "content": "tea"},
            {"role": "assistant", "audio": {"id": first}},
            {"role": "user", "content": "more"},
        ]
        assert (await place.post("/v1/chat/completions", {"messages": conversation})).status == 200
        conversation[1] = {"role": "assistant", "audio": {"id": "audio_unknown"}}
        refused = await place.post("/v1/chat/completions", {"messages": conversation})
        assert refused.status == 404
        assert refused.error["param"] == "messages[1].audio.id"


def spoken(pcm16: bytes, rate_hz: int = 24_000) -> dict[str, object]:
    return {"type": "input_audio", "input_audio": {"data": b64(wav(pcm16, rate_hz)), "format": "wav"}}


@virtual(limit_s=60)
async def test_what_the_user_says_last_enters_at_recognition(runtime: Runtime) -> None:
    async with world(runtime, WORDS) as place:
        content = [{"type": "text", "text": "Listen:"}, spoken(tone(800, rate_hz=24_000, level=3))]
        answer = await place.post("/v1/chat/completions", {"messages": [{"role": "user", "content": content}]})
        assert answer.json["choices"][0]["message"]["content"].startswith("Sentence 1 about words 3.")


@virtual(limit_s=60)
async def test_bare_samples_and_a_file_say_the_same(runtime: Runtime) -> None:
    async with world(runtime, WORDS) as place:
        pcm16 = tone(800, rate_hz=24_000, level=5)
        part = {"type": "input_audio", "input_audio": {"data": b64(pcm16), "format": "pcm16"}}
        answer = await place.post("/v1/chat/completions", {"messages": [{"role": "user", "content": [part]}]})
        assert answer.json["choices"][0]["message"]["content"].startswith("Sentence 1 about words 5.")


@virtual(limit_s=60)
async def test_what_was_said_earlier_is_recognised_first(runtime: Runtime) -> None:
    async with world(runtime, WORDS) as place:
        messages = [
            {"role": "user", "content": [spoken(tone(800, rate_hz=24_000, level=2))]},
            {"role": "assistant", "content": "Really?"},
        ]
        answer = await place.post("/v1/chat/completions", {"messages": messages})
        # The scripted model answers the last thing that the user said.
        assert answer.json["choices"][0]["message"]["content"].startswith("Sentence 1 about words 2.")


@virtual(limit_s=60)
async def test_long_speech_is_recognised_in_pieces(runtime: Runtime) -> None:
    async with world(runtime, WORDS) as place:
        pcm16 = b"".join(
            tone(7_000, rate_hz=16_000, level=level) + silence(1_000, rate_hz=16_000) for level in (1, 2, 3)
        )
        answer = await place.post(
            "/v1/chat/completions", {"messages": [{"role": "user", "content": [spoken(pcm16, 16_000)]}]}
        )
        text = answer.json["choices"][0]["message"]["content"]
        assert text.startswith("Sentence 1 about words 1 words 2 words 3.")


@virtual(limit_s=60)
async def test_silence_gets_an_empty_answer(runtime: Runtime) -> None:
    async with world(runtime) as place:
        messages = [{"role": "user", "content": [spoken(silence(500, rate_hz=16_000), 16_000)]}]
        for extra in ({}, SPOKEN):
            answer = await place.post("/v1/chat/completions", {"messages": messages, **extra})
            message = answer.json["choices"][0]["message"]
            assert (message["content"] or message.get("audio", {}).get("transcript", "")) == ""


@virtual(limit_s=60)
async def test_what_is_not_offered_is_refused_by_name(runtime: Runtime) -> None:
    image = [{"type": "image_url", "image_url": {"url": "x"}}]
    mp3 = [{"type": "input_audio", "input_audio": {"data": "", "format": "mp3"}}]
    empty = [{"type": "input_audio", "input_audio": {"data": "", "format": "pcm16"}}]
    broken = [{"type": "input_audio", "input_audio": {"data": "*", "format": "wav"}}]
    cases: list[tuple[dict[str, object], str, str | None]] = [
        ({"n": 2}, "unsupported", "n"),
        ({"tools": [{"type": "function"}]}, "unsupported", "tools"),
        ({"response_format": {"type": "json_object"}}, "unsupported", "response_format"),
        ({"logprobs": True}, "unsupported", "logprobs"),
        ({"temperature": 3}, "request_invalid", "temperature"),
        ({"max_tokens": 0}, "request_invalid", "max_tokens"),
        ({"stop": ["x"] * 17}, "request_invalid", "stop"),
        ({"messages": []}, "request_invalid", "messages"),
        ({"messages": "x"}, "request_invalid", "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "request_invalid", "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "request_invalid", "messages[0].content"),
        ({"messages": [{"role": "user", "content": image}]}, "invalid_input_modality", "messages[0].content[0]"),
        (
            {"messages": [{"role": "user", "content": mp3}]},
            "unsupported_audio_format",
            "messages[0].content[0].input_audio.format",
        ),
        ({"messages": [{"role": "user", "content": empty}]}, "bad_audio", "messages[0].content[0].input_audio.data"),
        ({"messages": [{"role": "user", "content": broken}]}, "bad_audio", "messages[0].content[0].input_audio.data"),
        ({"messages": [{"role": "system", "content": mp3}]}, "invalid_input_modality", "messages[0].content[0]"),
        ({"modalities": ["text", "audio"]}, "request_invalid", "audio"),
        ({**SPOKEN, "audio": {"voice": "a", "format": "mp3"}}, "unsupported_audio_format", "audio.format"),
        ({**SPOKEN, "audio": {"voice": "refused", "format": "wav"}}, "invalid_duplex_runtime_config", "voice"),
    ]
    async with world(runtime) as place:
        for fields, code, param in cases:
            answer = await place.chat(**fields)
            assert (answer.status, answer.error["code"], answer.error["param"]) == (400, code, param), fields
            assert answer.error["type"] == "invalid_request_error"
            assert answer.headers["x-should-retry"] == "false"


@virtual(limit_s=60)
async def test_fields_that_change_nothing_are_read_over(runtime: Runtime) -> None:
    async with world(runtime) as place:
        answer = await place.chat(
            user="me", store=True, metadata={"a": "b"}, tools=[], n=1, logit_bias={}, service_tier="auto", seed=-5
        )
        assert answer.status == 200


@virtual
async def test_an_answer_that_was_not_finished_says_why(runtime: Runtime) -> None:
    async with world(runtime, Script(filtered="secret")) as place:
        ends = [
            (await place.chat(asked, **fields)).json["choices"][0]["finish_reason"]
            for asked, fields in [("hello", {}), ("hello", {"max_tokens": 3}), ("a secret", {})]
        ]
        assert ends == ["stop", "length", "content_filter"]
