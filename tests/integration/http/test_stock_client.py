"""OpenAI's own client against the server, with the scripted model."""

from __future__ import annotations

import asyncio
import base64
from contextlib import AsyncExitStack

import openai
import pytest

from duologue.audio.wav import parse_wav, wav_header
from duologue.client import ClientSession, ConnectError, connect
from duologue.config.turns import TurnLimits
from duologue.models.scripted.sound import tone
from duologue.wire.server_events import ResponseDone
from tests.integration.http.host import host, on_loop, plain_client, stock_client

FAST = {"recognise_s": 0.0, "think_s": 0.0, "speak_s": 0.0, "sentence_ms": 200}
WAV = wav_header(16_000, 32_000) + tone(1_000, rate_hz=16_000)
HEARD = "utterance 4 of 1000 ms"


@on_loop
async def test_chat() -> None:
    async with host(**FAST) as place, stock_client(place) as client:
        answer = await client.chat.completions.create(
            model="gpt-4o-audio-preview", messages=[{"role": "user", "content": "tea"}]
        )
        assert answer.choices[0].message.content == "Sentence 1 about tea. Sentence 2 about tea."
        assert answer.choices[0].finish_reason == "stop"
        assert answer._request_id is not None
        stream = await client.chat.completions.create(
            model="scripted",
            messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "tea"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == answer.choices[0].message.content
        assert chunks[-1].usage is not None


@on_loop
async def test_a_spoken_chat() -> None:
    async with host(**FAST) as place, stock_client(place) as client:
        question = base64.b64encode(WAV).decode()
        stream = await client.chat.completions.create(
            model="gpt-audio",
            modalities=["text", "audio"],
            audio={"voice": "alloy", "format": "pcm16"},
            messages=[
                {
                    "role": "user",
                    "content": [{"type": "input_audio", "input_audio": {"data": question, "format": "wav"}}],
                }
            ],
            stream=True,
        )
        parts = [chunk.choices[0].delta.audio async for chunk in stream]
        heard = "".join(part.transcript or "" for part in parts if part is not None)
        sound = b"".join(base64.b64decode(part.data) for part in parts if part is not None and part.data)
        assert heard == f"Sentence 1 about {HEARD}. Sentence 2 about {HEARD}."
        assert len(sound) == 2 * 200 * 48
        whole = await client.chat.completions.create(
            model="gpt-audio",
            modalities=["text", "audio"],
            audio={"voice": "alloy", "format": "wav"},
            messages=[{"role": "user", "content": "tea"}],
        )
        audio = whole.choices[0].message.audio
        assert audio is not None
        assert parse_wav(base64.b64decode(audio.data))[1] == 24_000
        again = await client.chat.completions.create(
            model="gpt-audio",
            messages=[
                {"role": "user", "content": "tea"},
                {"role": "assistant", "audio": {"id": audio.id}},
                {"role": "user", "content": "more"},
            ],
        )
        assert again.choices[0].message.content is not None


@on_loop
async def test_speech() -> None:
    async with host(**FAST) as place, stock_client(place) as client:
        whole = await client.audio.speech.create(model="tts-1", voice="alloy", input="One. Two.", response_format="wav")
        assert len(parse_wav(whole.content)[0]) == 2 * 200 * 48
        streaming = client.audio.speech.with_streaming_response.create(
            model="tts-1", voice="alloy", input="One. Two.", response_format="pcm", speed=1.5
        )
        async with streaming as response:
            assert b"".join([piece async for piece in response.iter_bytes()]) == parse_wav(whole.content)[0]


@on_loop
async def test_transcriptions() -> None:
    async with host(**FAST) as place, stock_client(place) as client:
        plain = await client.audio.transcriptions.create(model="whisper-1", file=("a.wav", WAV))
        assert plain.text == HEARD
        text = await client.audio.transcriptions.create(model="whisper-1", file=("a.wav", WAV), response_format="text")
        assert text == f"{HEARD}\n"
        verbose = await client.audio.transcriptions.create(
            model="whisper-1",
            file=("a.wav", WAV),
            response_format="verbose_json",
            timestamp_granularities=["segment"],
            language="en",
        )
        assert verbose.segments is not None
        assert (verbose.duration, verbose.segments[0].end, verbose.language) == (1.0, 1.0, "english")
        stream = await client.audio.transcriptions.create(model="gpt-4o-transcribe", file=("a.wav", WAV), stream=True)
        events = [event async for event in stream]
        assert [event.type for event in events] == ["transcript.text.delta", "transcript.text.done"]


@on_loop
async def test_errors_are_the_client_s_own_exceptions() -> None:
    async with host(keys=("secret",), limits=TurnLimits(max_body_bytes=2_000_000), **FAST) as place:
        async with stock_client(place, max_retries=0) as client:
            with pytest.raises(openai.NotFoundError, match="not served"):
                await client.chat.completions.create(model="gpt-5", messages=[{"role": "user", "content": "x"}])
            with pytest.raises(openai.BadRequestError) as refused:
                await client.chat.completions.create(model="scripted", messages=[], n=3)
            assert (refused.value.code, refused.value.param) == ("unsupported", "n")
            with pytest.raises(openai.APIStatusError) as large:
                await client.audio.transcriptions.create(model="whisper-1", file=("a.wav", bytes(6_000_000)))
            assert large.value.status_code == 413
            models = await client.models.list()
            assert [model.id for model in models.data] == ["scripted"]
        async with stock_client(place, max_retries=0) as client:
            client.api_key = "wrong"
            with pytest.raises(openai.AuthenticationError):
                await client.audio.speech.create(model="tts-1", voice="alloy", input="x")


@on_loop
async def test_whatever_was_read_to_its_end_counts_as_answered() -> None:
    async with host(**FAST) as place, stock_client(place) as client, plain_client(place) as plain:
        for stream in (False, True):
            answer = await client.chat.completions.create(
                model="scripted", messages=[{"role": "user", "content": "tea"}], stream=stream
            )
            if isinstance(answer, openai.AsyncStream):
                assert [chunk async for chunk in answer]
        async with client.audio.speech.with_streaming_response.create(
            model="scripted", voice="alloy", input="Hello.", response_format="pcm"
        ) as speech:
            assert await speech.read()
        await place.at_rest()
        counted = [line for line in (await plain.get("/metrics")).text.splitlines() if "http_requests_total{" in line]
    assert sorted(counted) == [
        'duologue_http_requests_total{endpoint="chat",status="200"} 2.0',
        'duologue_http_requests_total{endpoint="speech",status="200"} 1.0',
    ]


@on_loop
async def test_while_every_slot_is_taken_and_talked_on() -> None:
    async with host(**FAST) as place, stock_client(place) as client, AsyncExitStack() as stack:
        alone = await everything(client)
        sessions = [await stack.enter_async_context(connect(place.url, dialect="ga")) for _ in range(4)]
        with pytest.raises(ConnectError, match="slots"):
            async with connect(place.url, dialect="ga"):
                pass
        talking = [asyncio.create_task(talk(session)) for session in sessions]
        beside = await asyncio.gather(everything(client), everything(client))
        assert beside == [alone, alone]
        assert await asyncio.gather(*talking) == ["completed"] * 4


async def everything(client: openai.AsyncOpenAI) -> tuple[object, ...]:
    """What each endpoint answers."""
    asked = [{"role": "user", "content": "tea"}]
    stream = await client.chat.completions.create(model="scripted", messages=asked, stream=True)  # type: ignore[call-overload]
    written = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    spoken = await client.chat.completions.create(
        model="gpt-audio",
        modalities=["text", "audio"],
        audio={"voice": "alloy", "format": "wav"},
        messages=asked,  # type: ignore[arg-type]
    )
    speech = client.audio.speech.with_streaming_response.create(
        model="tts-1", voice="alloy", input="One. Two.", response_format="pcm"
    )
    async with speech as response:
        sound = b"".join([piece async for piece in response.iter_bytes()])
    heard = await client.audio.transcriptions.create(model="whisper-1", file=("a.wav", WAV))
    models = [model.id async for model in client.models.list()]
    audio = spoken.choices[0].message.audio
    assert written and sound and audio is not None
    return written, audio.data, audio.transcript, sound, heard.text, models


async def talk(session: ClientSession) -> str:
    """Say something, and hear the answer to its end."""
    await session.append(tone(1_000, rate_hz=24_000) + bytes(2 * 24_000))
    async for event in session.events():
        if isinstance(event, ResponseDone):
            return event.response.status
    raise AssertionError("the session ended")
