"""Stages behind HTTP endpoints, over a real loopback socket: what is sent, what closes, and errors that leak nothing."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from duologue.audio.wav import parse_wav
from duologue.clock import AsyncioRuntime
from duologue.config.pipeline import StageConfig
from duologue.engine.assembly import replica_factory
from duologue.engine.stages.factory import make_stage
from duologue.errors import StageFault
from duologue.models.cascade.pipeline import cascade_pipeline
from duologue.outputs import ChatMessage, Options, SamplingParams, StagePrompt, StageRequest
from tests.integration.backends.endpoint import SPEECH_RATE_HZ, FakeEndpoint, fake_endpoint, speech_of
from tests.integration.backends.replica import PATIENCE_S, Replica

SECRET = "my secret words"
STAGES = "duologue.engine.stages.http"


@asynccontextmanager
async def running(stage: StageConfig) -> AsyncIterator[Replica]:
    """A replica as the configuration makes it."""
    runtime = AsyncioRuntime()
    one = Replica(replica_factory(stage, runtime)(0), runtime)
    await one.client.start(one.sink)
    try:
        yield one
    finally:
        await one.client.close()
        await runtime.aclose()


def configured(factory: str, fake: FakeEndpoint, **options: str | int) -> StageConfig:
    return StageConfig(
        name="remote", factory=f"{STAGES}:{factory}", backend="http", options={"base_url": fake.base_url, **options}
    )


def request(
    name: str,
    text: str = "",
    *,
    messages: tuple[ChatMessage, ...] = (),
    audio: bytes = b"",
    final: bool = True,
    options: Options | None = None,
    params: SamplingParams | None = None,
) -> StageRequest:
    prompt = StagePrompt(
        text=text,
        messages=messages,
        audio=audio,
        audio_rate_hz=16_000 if audio else 0,
        final=final,
        options=options or {},
    )
    return StageRequest(
        request_id=name,
        external_req_id=name,
        prompt=prompt,
        params=params or SamplingParams(),
        resumable=not final,
    )


def play(scenario: Callable[[FakeEndpoint], Coroutine[object, object, None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(PATIENCE_S), fake_endpoint() as fake:
            await scenario(fake)

    asyncio.run(whole())


def test_an_endpoint_that_filters_says_so() -> None:
    async def scenario(fake: FakeEndpoint) -> None:
        async with running(configured("ChatStage", fake, model="tiny")) as one:
            await one.client.submit(request("r", messages=(ChatMessage("user", "filter So far"),)))
            await one.sink.until(lambda: one.sink.ended("r"))
            assert one.sink.of("r")[-1].finish_reason == "content_filter"
            assert "".join(output.text for output in one.sink.of("r")) == "So far"

    play(scenario)


def test_a_chat_request_says_what_the_api_expects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", "key-123")

    async def scenario(fake: FakeEndpoint) -> None:
        async with running(configured("ChatStage", fake, model="tiny", api_key_variable="THE_KEY")) as one:
            messages = (ChatMessage("system", "Be brief."), ChatMessage("user", "count 2"))
            params = SamplingParams(max_tokens=7, temperature=0.0, seed=5, stop=(".",), top_p=0.9)
            await one.client.submit(request("r", messages=messages, params=params))
            await one.sink.until(lambda: one.sink.ended("r"))
            last = one.sink.of("r")[-1]
            assert last.finish_reason == "length"
            assert last.metadata == {"prompt_tokens": 9, "cached_tokens": 4, "generated_tokens": 2}
            (seen,) = fake.requests
            assert seen.headers["authorization"] == "Bearer key-123"
            assert seen.json == {
                "model": "tiny",
                "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "count 2"}],
                "max_tokens": 7,
                "temperature": 0.0,
                "top_p": 0.9,
                "seed": 5,
                "stop": ["."],
                "stream": True,
                "stream_options": {"include_usage": True},
            }

    play(scenario)


@pytest.mark.parametrize(("factory", "text"), [("ChatStage", "hang"), ("ChatStage", "flood"), ("SpeechStage", "hang")])
def test_an_abort_closes_the_connection(factory: str, text: str) -> None:
    async def scenario(fake: FakeEndpoint) -> None:
        async with running(configured(factory, fake)) as one:
            await one.client.submit(request("r", text))
            await fake.until(lambda: bool(fake.requests))
            await one.client.abort(["r"])
            await fake.until(lambda: fake.requests[0].hung_up)
            assert not one.sink.ended("r")

    play(scenario)


def test_an_answer_that_was_read_to_its_end_leaves_the_connection_for_the_next() -> None:
    async def scenario(fake: FakeEndpoint) -> None:
        async with running(configured("ChatStage", fake, model="tiny")) as one:
            for number in range(3):
                assert (await one.ask(f"r{number}", "echo x"))[-1].finished
            assert (len(fake.requests), fake.connections) == (3, 1)
            assert not any(seen.hung_up for seen in fake.requests)

    play(scenario)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("refuse 401", "answered 401 (no_luck): check the API key"),
        ("refuse 500", "answered 500 (no_luck): see the endpoint's own log"),
        ("raise overload", "the endpoint broke off: overload"),
        ("drop", "cannot read from"),
        ("garbage", "sent an event that is not a chat completion chunk"),
        ("trail", "the endpoint's stream ended before the answer did"),
    ],
)
def test_a_failure_is_named_by_address_status_and_code_and_quotes_nobody(text: str, expected: str) -> None:
    async def scenario(fake: FakeEndpoint) -> None:
        async with running(configured("ChatStage", fake)) as one:
            messages = (ChatMessage("assistant", SECRET), ChatMessage("user", text))
            await one.client.submit(request("r", messages=messages))
            await one.sink.until(lambda: one.sink.ended("r"))
            error = one.sink.of("r")[-1].error
            assert error is not None
            assert expected in error.message
            assert SECRET not in error.message
            assert "you said" not in error.message
            assert (await one.ask("next", "echo fine"))[0].text == "fine", "the replica lives"

    play(scenario)


def test_an_endpoint_that_is_not_there_fails_each_request_at_once() -> None:
    async def scenario(fake: FakeEndpoint) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        stage = StageConfig(
            name="remote",
            factory=f"{STAGES}:ChatStage",
            backend="http",
            options={"base_url": f"http://127.0.0.1:{port}/v1"},
        )
        async with running(stage) as one:
            error = (await one.ask("r", "echo x"))[-1].error
            assert error is not None
            assert "(ConnectError): is the server running?" in error.message

    play(scenario)


def test_an_address_that_is_none_is_refused_when_it_is_configured() -> None:
    with pytest.raises(ValueError, match=r"base_url 'localhost:8000' is not an http\(s\) URL"):
        make_stage(f"{STAGES}:ChatStage", {"base_url": "localhost:8000"})


def test_speech_comes_while_it_is_made_in_whole_samples_with_its_words() -> None:
    text = "One two three, four five six seven eight. "

    async def scenario(fake: FakeEndpoint) -> None:
        async with running(configured("SpeechStage", fake, voice="nova")) as one:
            await one.client.submit(request("r", text, params=SamplingParams(speed=1.25)))
            await one.sink.until(lambda: one.sink.ended("r"))
            outputs = one.sink.of("r")
            assert b"".join(output.audio for output in outputs) == speech_of(text)
            assert all(len(output.audio) % 2 == 0 for output in outputs)
            assert "".join(output.text for output in outputs) == text
            assert outputs[0].text == "One "
            assert 0.06 <= len(outputs[0].audio) / 2 / SPEECH_RATE_HZ < 0.1, "somebody waits for the first piece"
            assert len(outputs) > 2
            assert {output.audio_rate_hz for output in outputs if output.audio} == {SPEECH_RATE_HZ}
            assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
            assert fake.requests[0].json == {
                "model": "tts-1",
                "voice": "nova",
                "input": text,
                "response_format": "pcm",
                "speed": 1.25,
            }

    play(scenario)


def test_sentences_are_spoken_one_after_the_other_and_an_empty_end_costs_no_request() -> None:
    async def scenario(fake: FakeEndpoint) -> None:
        async with running(configured("SpeechStage", fake)) as one:
            await one.client.submit(request("r", "ab", final=False))
            await one.client.update(request("r", "cd", final=False))
            await one.client.update(request("r", ""))
            await one.sink.until(lambda: one.sink.ended("r"))
            assert b"".join(output.audio for output in one.sink.of("r")) == speech_of("abcd")
            assert sum(output.segment_finished for output in one.sink.of("r")) == 3
            assert [seen.json["input"] for seen in fake.requests] == ["ab", "cd"]

    play(scenario)


def test_a_file_instead_of_samples_is_refused() -> None:
    async def scenario(fake: FakeEndpoint) -> None:
        async with running(configured("SpeechStage", fake)) as one:
            error = (await one.ask("r", "file"))[-1].error
            assert error is not None
            assert "sent a file where raw PCM was asked for" in error.message

    play(scenario)


def test_a_recording_is_uploaded_once_it_is_complete() -> None:
    audio = [bytes([number]) * 640 for number in range(5)]

    async def scenario(fake: FakeEndpoint) -> None:
        async with running(configured("TranscriptionStage", fake, language="en")) as one:
            await one.client.submit(request("r", audio=audio[0], final=False))
            for piece in audio[1:-1]:
                await one.client.update(request("r", audio=piece, final=False))
            await one.client.update(request("r", audio=audio[-1]))
            await one.sink.until(lambda: one.sink.ended("r"))
            (seen,) = fake.requests
            (output,) = one.sink.of("r")
            assert output.text == f"{len(seen.body)} bytes"
            assert output.metadata == {"spoken": True}
            wav = seen.body[seen.body.index(b"RIFF") : seen.body.rindex(b"\r\n--")]
            assert parse_wav(wav) == (b"".join(audio), 16_000)
            for name, value in (("model", "whisper-1"), ("response_format", "json"), ("language", "en")):
                assert f'name="{name}"\r\n\r\n{value}\r\n'.encode() in seen.body

            silent = (await one.ask("silent", ""))[-1]
            assert (silent.text, silent.metadata) == ("", {"spoken": False})
            assert len(fake.requests) == 1

    play(scenario)


def test_the_cascade_asks_an_endpoint_what_it_would_ask_its_own_model() -> None:
    """By configuration alone: the persona and the conversation go out, sentences come back, hints cost nothing."""

    async def scenario(fake: FakeEndpoint) -> None:
        options = {"language_model": fake.base_url, "synthesiser": fake.base_url, "recogniser": fake.base_url}
        pipeline = cascade_pipeline(options)
        assert {stage.backend for stage in pipeline.stages} == {"http"}
        async with running(pipeline.stages[1]) as one:
            said = (ChatMessage("user", "echo Rome is a town. It is old. And large"),)
            ahead = {"instructions": "Be kind.", "deltas": False, "prefill": True}
            await one.client.submit(request("r", messages=said, final=False, options=ahead))
            await one.client.update(request("r", messages=said, options={"instructions": "Be kind.", "deltas": False}))
            await one.sink.until(lambda: one.sink.ended("r"))
            assert [output.text for output in one.sink.of("r")] == ["Rome is a town. ", "It is old. ", "And large"]
            assert all(output.segment_finished for output in one.sink.of("r"))
            (seen,) = fake.requests
            asked = seen.json["messages"]
            assert asked[0]["role"] == "system"
            assert asked[-2] == {"role": "system", "content": "Be kind."}
            assert asked[-1] == {"role": "user", "content": said[0].text}
            assert all(before != after for before, after in pairwise(asked))
            nothing = await one.ask("nothing", "")
            assert [(output.text, output.finished) for output in nothing] == [("", True)]
            assert len(fake.requests) == 1

    play(scenario)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"synthesiser": "localhost"}, "model.options.synthesiser must be the base URL"),
        ({"synthesiser_voice": "nova"}, "synthesiser_voice has no use without model.options.synthesiser"),
        ({"recogniser_model": "x"}, "recogniser_model has no use without model.options.recogniser"),
        ({"recogniser_modell": "x"}, "recogniser_modell is not an option of 'cascade'"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], expected: str) -> None:
    with pytest.raises(ValueError, match=r"model\.options") as wrong:
        cascade_pipeline(options)
    assert expected in str(wrong.value)


def test_blocking_stage_code_is_refused_by_the_http_backend() -> None:
    async def scenario() -> None:
        stage = StageConfig(name="a", factory="tests.integration.backends.stages:Blocking", backend="http")
        runtime = AsyncioRuntime()
        with pytest.raises(StageFault, match="runs asynchronous stage code only"):
            replica_factory(stage, runtime)(0)
        await runtime.aclose()

    asyncio.run(scenario())
