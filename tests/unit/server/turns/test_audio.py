"""Speech and transcriptions."""

from __future__ import annotations

import base64
import json

import pytest

from duologue.audio.wav import parse_wav, wav_header
from duologue.clock import Runtime
from duologue.config.turns import TurnLimits
from duologue.models.scripted.script import Script
from duologue.models.scripted.sound import silence, tone
from duologue.sim.loop import virtual
from tests.unit.server.turns.world import form, world

WORDS = Script(transcripts=tuple(f"words {level}" for level in range(12)))
SENTENCES = "One. Two! Three? Four"


def wav(pcm16: bytes, rate_hz: int) -> bytes:
    return wav_header(rate_hz, len(pcm16)) + pcm16


@virtual(limit_s=60)
async def test_speech_as_a_file_and_bare(runtime: Runtime) -> None:
    async with world(runtime, Script(sentence_ms=300)) as place:
        answer = await place.speech(SENTENCES, response_format="wav")
        assert (answer.status, answer.headers["content-type"]) == (200, "audio/wav")
        pcm16, rate_hz = parse_wav(bytes(answer.body))
        assert (len(pcm16), rate_hz) == (4 * 300 * 24 * 2, 24_000)
        bare = await place.speech(SENTENCES, response_format="pcm")
        assert (bare.headers["content-type"], bytes(bare.body)) == ("audio/pcm", pcm16)
        unnamed = await place.speech(SENTENCES)
        assert unnamed.body == answer.body


@virtual(limit_s=60)
async def test_speech_is_heard_while_the_rest_is_made(runtime: Runtime) -> None:
    async with world(runtime, Script(sentence_ms=300, chunk_ms=300, speak_s=1.0)) as place:
        begun = runtime.now()
        call = place.call("/v1/audio/speech", json.dumps({"input": SENTENCES}).encode())
        await call.until(lambda answer: answer.body)
        assert runtime.now() - begun == pytest.approx(1.0, abs=0.1)
        await call.task
        assert runtime.now() - begun == pytest.approx(4.0, abs=0.1)


@virtual(limit_s=60)
async def test_speech_as_events(runtime: Runtime) -> None:
    async with world(runtime, Script(sentence_ms=300)) as place:
        *deltas, done, end = (await place.speech(SENTENCES, response_format="pcm", stream_format="sse")).events
        assert (done["type"], end) == ("speech.audio.done", "[DONE]")
        assert {delta["type"] for delta in deltas} == {"speech.audio.delta"}
        sound = b"".join(base64.b64decode(delta["audio"]) for delta in deltas)
        assert len(sound) == 4 * 300 * 24 * 2


@virtual(limit_s=60)
async def test_speech_that_cannot_be_made_is_refused_by_name(runtime: Runtime) -> None:
    async with world(runtime, limits=TurnLimits(max_speech_chars=10)) as place:
        for fields, code, param in (
            ({"text": " "}, "request_invalid", "input"),
            ({"text": "x" * 11}, "request_invalid", "input"),
            ({"text": "x", "speed": 5}, "request_invalid", "speed"),
            ({"text": "x", "response_format": "mp3"}, "unsupported_audio_format", "response_format"),
            ({"text": "x", "stream_format": "smoke"}, "request_invalid", "stream_format"),
            ({"text": "x", "voice": "refused"}, "invalid_duplex_runtime_config", "voice"),
        ):
            answer = await place.speech(**fields)  # type: ignore[arg-type]
            assert (answer.status, answer.error["code"], answer.error["param"]) == (400, code, param)


@virtual(limit_s=60)
async def test_a_transcript_in_every_format(runtime: Runtime) -> None:
    async with world(runtime, WORDS) as place:
        recording = wav(tone(1_500, rate_hz=16_000, level=4), 16_000)
        plain = await place.transcribe(recording, model="whisper-1")
        assert plain.json == {"text": "words 4", "usage": {"type": "duration", "seconds": 1.5}}
        text = await place.transcribe(recording, response_format="text")
        assert (text.headers["content-type"], bytes(text.body)) == ("text/plain; charset=utf-8", b"words 4\n")
        verbose = (await place.transcribe(recording, response_format="verbose_json", language="de")).json
        assert (verbose["duration"], verbose["language"], verbose["text"]) == (1.5, "german", "words 4")
        (segment,) = verbose["segments"]
        assert (segment["start"], segment["end"], segment["text"]) == (0.0, 1.5, "words 4")
        srt = await place.transcribe(recording, response_format="srt")
        assert bytes(srt.body) == b"1\n00:00:00,000 --> 00:00:01,500\nwords 4\n"
        vtt = await place.transcribe(recording, response_format="vtt")
        assert bytes(vtt.body) == b"WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nwords 4\n"


@virtual(limit_s=60)
async def test_a_transcript_is_streamed_utterance_by_utterance(runtime: Runtime) -> None:
    async with world(runtime, WORDS) as place:
        levels = (1, 2, 3)
        pcm16 = b"".join(tone(7_000, rate_hz=16_000, level=level) + silence(1_000, rate_hz=16_000) for level in levels)
        *deltas, done, end = (await place.transcribe(wav(pcm16, 16_000), stream="true")).events
        assert [delta["type"] for delta in deltas] == ["transcript.text.delta"] * 3
        assert (done["type"], end) == ("transcript.text.done", "[DONE]")
        assert "".join(delta["delta"] for delta in deltas) == done["text"] == "words 1 words 2 words 3"
        whole = (await place.transcribe(wav(pcm16, 16_000), response_format="verbose_json")).json
        assert whole["text"] == done["text"]
        edges = [(segment["start"], segment["end"]) for segment in whole["segments"]]
        assert edges[0][0] == 0.0
        assert edges[-1][1] == 24.0
        assert all(7.0 <= cut <= 8.0 or 15.0 <= cut <= 16.0 for _, cut in edges[:-1]), "cut in the pauses"


@virtual(limit_s=60)
async def test_recordings_of_any_kind_say_the_same(runtime: Runtime) -> None:
    async with world(runtime, WORDS) as place:
        for rate_hz in (8_000, 16_000, 24_000, 44_100, 48_000):
            pcm16 = tone(1_000, rate_hz=rate_hz, level=6)
            assert (await place.transcribe(wav(pcm16, rate_hz))).json["text"] == "words 6"
        bare = tone(1_000, rate_hz=24_000, level=6)
        assert (await place.transcribe(bare, name="a.pcm")).json["text"] == "words 6"
        body, media_type = form(tone(1_000, rate_hz=8_000, level=6), "x", "audio/L16; rate=8000")
        answer = await place.post("/v1/audio/transcriptions", body, media_type=media_type)
        assert answer.json["text"] == "words 6"
        streamed = wav_header(16_000, None) + tone(1_000, rate_hz=16_000, level=6)
        assert (await place.transcribe(streamed)).json["text"] == "words 6"


@virtual(limit_s=60)
async def test_nothing_said_is_an_empty_transcript(runtime: Runtime) -> None:
    async with world(runtime) as place:
        for pcm16 in (b"", silence(400, rate_hz=16_000)):
            assert (await place.transcribe(wav(pcm16, 16_000))).json["text"] == ""
            assert (await place.transcribe(wav(pcm16, 16_000), stream="true")).events[-2]["text"] == ""


@virtual(limit_s=60)
async def test_recordings_that_cannot_be_read_are_refused_by_name(runtime: Runtime) -> None:
    good = wav(silence(100, rate_hz=16_000), 16_000)
    async with world(runtime, limits=TurnLimits(max_audio_s=1.0)) as place:
        for content, fields, status, code, param in (
            (b"ID3", {}, 400, "unsupported_audio_format", "file"),
            (wav(b"", 96_000), {}, 400, "unsupported_audio_format", "file"),
            (wav(silence(1_100, rate_hz=16_000), 16_000), {}, 413, "event_too_large", "file"),
            (good, {"response_format": "diarized_json"}, 400, "request_invalid", "response_format"),
            (good, {"response_format": "srt", "stream": "true"}, 400, "request_invalid", "response_format"),
            (good, {"timestamp_granularities[]": "word"}, 400, "unsupported", "timestamp_granularities"),
            (good, {"include[]": "logprobs"}, 400, "unsupported", "include"),
            (good, {"model": "nothing-like-it"}, 404, "model_not_found", "model"),
        ):
            answer = await place.transcribe(content, **fields)
            assert (answer.status, answer.error["code"], answer.error["param"]) == (status, code, param)


@virtual(limit_s=60)
async def test_a_form_that_is_none_is_refused(runtime: Runtime) -> None:
    whole, media_type = form(b"RIFF")
    async with world(runtime) as place:
        for body, kind, about in (
            (whole, "application/json", "multipart/form-data"),
            (whole, "multipart/form-data", "boundary"),
            (whole[:-10], media_type, "closing boundary"),
            (b"nonsense", media_type, "cannot be read"),
            (form(b"", x="y" * 70_000)[0], media_type, "longer than"),
            (form(b"", **{f"f{n}": "" for n in range(70)})[0], media_type, "parts"),
            (whole.replace(b'name="file"', b'name="other"'), media_type, "file"),
        ):
            answer = await place.post("/v1/audio/transcriptions", body, media_type=kind)
            assert answer.status == 400
            assert about in answer.error["message"]


@virtual(limit_s=60)
async def test_a_form_cut_anywhere_is_the_same_form(runtime: Runtime) -> None:
    body, media_type = form(wav(tone(300, rate_hz=16_000, level=7), 16_000), prompt="ä\r\n--x0x")
    async with world(runtime, WORDS) as place:
        for size in (1, 7, 61, 4096):
            pieces = [body[start : start + size] for start in range(0, len(body), size)]
            answer = await place.call("/v1/audio/transcriptions", pieces, media_type=media_type).task
            assert answer.json["text"] == "words 7"
