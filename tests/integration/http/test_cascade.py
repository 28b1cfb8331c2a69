"""Ordinary requests with the embedded models: what is spoken is understood, and what is asked is answered."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

import pytest
from openai import AsyncOpenAI

from duologue.audio.wav import parse_wav, wav_header
from tests.integration.cascade.recording import word_error_rate
from tests.integration.cascade.test_engines import _TWO_CITIES as TWO_CITIES
from tests.integration.http.host import host, on_loop, plain_client, stock_client
from tests.integration.http.live import QUESTION, SPOKEN_RATE_HZ, chat, talk

pytestmark = pytest.mark.weights

TEXT = (
    "The weather was fine when we left the harbour in the morning. Nobody on the ship knew how long the journey would "
    "take. We had food for seven days, and water for nine. In the evening the wind became stronger, and the captain told "
    "us to go below. I wrote a letter to my sister by the light of a small lamp."
)


@on_loop
async def test_with_the_embedded_models(models_dir: Path) -> None:
    # One server for all of it: loading the models takes longer than using them.
    async with host(plugin="cascade", models_dir=str(models_dir)) as place, stock_client(place) as client:
        await what_is_spoken_is_understood(client)
        await a_recording_of_a_human_voice_is_understood(client, (models_dir / "two_cities.wav").read_bytes())
        await what_is_asked_is_answered(client)
        await a_spoken_question_gets_a_spoken_answer(client)


async def what_is_spoken_is_understood(client: AsyncOpenAI) -> None:
    speech = await client.audio.speech.create(model="tts-1", voice="alloy", input=TEXT, response_format="wav")
    pcm16, rate_hz = parse_wav(speech.content)
    seconds = len(pcm16) / 2 / rate_hz
    assert 12 < seconds < 40
    verbose = await client.audio.transcriptions.create(
        model="whisper-1", file=("speech.wav", speech.content), response_format="verbose_json"
    )
    assert word_error_rate(TEXT, verbose.text) < 0.08
    assert verbose.segments is not None
    assert len(verbose.segments) >= 2, "a long recording is recognised in pieces"
    faster = await client.audio.speech.create(
        model="tts-1", voice="alloy", input=TEXT, response_format="pcm", speed=1.5
    )
    assert len(faster.content) / 2 / 24_000 < 0.8 * seconds


async def a_recording_of_a_human_voice_is_understood(client: AsyncOpenAI, recording: bytes) -> None:
    stream = await client.audio.transcriptions.create(
        model="whisper-1", file=("two_cities.wav", recording), stream=True
    )
    *deltas, done = [event async for event in stream]
    assert done.type == "transcript.text.done"
    assert len(deltas) >= 3
    assert word_error_rate(TWO_CITIES, done.text) < 0.12


async def what_is_asked_is_answered(client: AsyncOpenAI) -> None:
    written = await chat(client)
    assert "Paris" in (written.choices[0].message.content or "")
    assert written.usage is not None
    assert written.usage.prompt_tokens > written.usage.completion_tokens > 0
    cut = await chat(client, "Tell me a long story.", max_tokens=3)
    assert cut.choices[0].finish_reason == "length"
    leaving = await client.chat.completions.create(
        model="cascade", messages=[{"role": "user", "content": "Count to a hundred."}], stream=True
    )
    await anext(aiter(leaving))
    await leaving.close()
    several = await asyncio.gather(*(chat(client) for _ in range(4)))
    assert all("Paris" in (answer.choices[0].message.content or "") for answer in several)


async def a_spoken_question_gets_a_spoken_answer(client: AsyncOpenAI) -> None:
    asked = await client.audio.speech.create(model="tts-1", voice="alloy", input=QUESTION, response_format="wav")
    sound = base64.b64encode(asked.content).decode()
    stream = await client.chat.completions.create(
        model="gpt-audio",
        modalities=["text", "audio"],
        audio={"voice": "alloy", "format": "pcm16"},
        messages=[
            {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": sound, "format": "wav"}}]}
        ],
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    parts = [chunk.choices[0].delta.audio for chunk in chunks if chunk.choices]
    transcript = "".join(part.transcript or "" for part in parts if part is not None)
    answered = b"".join(base64.b64decode(part.data) for part in parts if part is not None and part.data)
    assert "Paris" in transcript
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 0
    heard = await client.audio.transcriptions.create(
        model="whisper-1", file=("answer.wav", wav_header(24_000, len(answered)) + answered)
    )
    assert word_error_rate(transcript, heard.text) < 0.2


@on_loop
async def test_with_the_language_model_behind_http(models_dir: Path) -> None:
    """By configuration alone; the endpoint is a Duologue with a scripted model, which says what it was asked."""
    async with (
        host(recognise_s=0.0, think_s=0.0, speak_s=0.0, sentences=1) as endpoint,
        host(
            plugin="cascade",
            models_dir=str(models_dir),
            language_model=f"{endpoint.url}/v1",
            endpoint_model="scripted",
        ) as place,
        stock_client(place) as client,
    ):
        assert [stage.name for stage in place.orchestrator.health()] == ["recognise", "respond", "speak"]
        turn = await talk(place, client)
        assert turn.status == "completed"
        assert word_error_rate(QUESTION, turn.heard) == 0
        assert turn.text.strip() == f"Sentence 1 about {turn.heard}."
        assert turn.audio_bytes > SPOKEN_RATE_HZ, "it is spoken by the embedded voice"
        written = await chat(client, "tea")
        assert written.choices[0].message.content == "Sentence 1 about tea."
        async with plain_client(endpoint) as plain:
            seen = (await plain.get("/metrics")).text
        assert 'duologue_http_requests_total{endpoint="chat",status="200"}' in seen
