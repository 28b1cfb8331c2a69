"""The endpoint client over a transport in memory: streaming, cancel in every phase, refusals, and no leaked words."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import httpx
import pytest

from duologue.models.cascade.chat import ChatMessage, FinishReason, GenerationError, Role
from duologue.models.cascade.chat_endpoint import ChatEndpoint

_SECRET = "my secret words"
_ASK = [ChatMessage(Role.SYSTEM, "Be brief."), ChatMessage(Role.USER, _SECRET)]
Handler = Callable[[httpx.Request], Awaitable[httpx.Response]]
Open = Callable[[Handler], ChatEndpoint]


class _Lines(httpx.AsyncByteStream):
    """Server-sent lines; with `hang`, the stream never ends and says when it was closed."""

    def __init__(self, lines: list[str], *, hang: bool = False) -> None:
        self._lines = lines
        self._hang = hang
        self.reading = threading.Event()
        self.closed = threading.Event()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for line in self._lines:
            yield (line + "\n").encode()
        self.reading.set()
        if self._hang:
            await asyncio.Event().wait()

    async def aclose(self) -> None:
        self.closed.set()


def _text(content: str | None, finish: str | None = None) -> str:
    return "data: " + json.dumps({"choices": [{"delta": {"content": content}, "finish_reason": finish}]})


def _answering(lines: list[str] | _Lines, status: int = 200) -> Handler:
    async def handle(request: httpx.Request) -> httpx.Response:
        stream = lines if isinstance(lines, _Lines) else _Lines(lines)
        return httpx.Response(status, stream=stream)

    return handle


@pytest.fixture
def endpoint() -> Iterator[Open]:
    opened: list[ChatEndpoint] = []

    def open_endpoint(handler: Handler) -> ChatEndpoint:
        transport = httpx.MockTransport(handler)
        opened.append(ChatEndpoint("http://127.0.0.1:1/v1/", "tiny", api_key="key-123", transport=transport))
        return opened[-1]

    yield open_endpoint
    for one in opened:
        one.close()
        one.close()


def test_text_arrives_piece_by_piece_with_its_usage(endpoint: Open) -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
    lines = [
        ": hello",
        'data: {"choices":[{"delta":{"role":"assistant"}}]}',
        "",
        _text("Par"),
        _text("is 😀"),
        _text(None, "stop"),
        "data: " + json.dumps({"choices": [], "usage": usage}),
        "data: [DONE]",
        "data: not json, but after the end",
    ]
    pieces: list[str] = []
    completion = endpoint(_answering(lines)).generate(0, _ASK, on_text=lambda text: bool(pieces.append(text)))
    assert pieces == ["Par", "is 😀"]
    assert completion.text == "Paris 😀"
    assert completion.finish_reason is FinishReason.STOP
    assert (completion.prompt_tokens, completion.cached_tokens, completion.generated_tokens) == (9, 4, 2)
    assert completion.first_token_s is not None


def test_the_request_is_what_the_api_expects(endpoint: Open) -> None:
    seen: list[httpx.Request] = []

    async def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, stream=_Lines([_text("a", "length")]))

    completion = endpoint(handle).generate(
        3, _ASK, on_text=lambda _: False, max_tokens=7, temperature=0.0, seed=5, stop=["."]
    )
    assert completion.finish_reason is FinishReason.LENGTH
    (request,) = seen
    assert str(request.url) == "http://127.0.0.1:1/v1/chat/completions"
    assert request.headers["authorization"] == "Bearer key-123"
    assert json.loads(request.content) == {
        "model": "tiny",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": _SECRET}],
        "max_tokens": 7,
        "temperature": 0.0,
        "seed": 5,
        "stream": True,
        "stop": ["."],
        "stream_options": {"include_usage": True},
    }


def test_a_cancel_from_on_text_closes_the_stream(endpoint: Open) -> None:
    stream = _Lines([_text("a"), _text("b"), _text("c")], hang=True)
    pieces: list[str] = []
    completion = endpoint(_answering(stream)).generate(0, _ASK, on_text=lambda text: pieces.append(text) or text == "b")
    assert completion.finish_reason is FinishReason.CANCELLED
    assert completion.text == "ab"
    assert pieces == ["a", "b"]
    assert stream.closed.wait(10)


def test_a_cancel_while_waiting_for_text_closes_the_stream(endpoint: Open) -> None:
    stream = _Lines([_text("a")], hang=True)
    completion = endpoint(_answering(stream)).generate(
        0, _ASK, on_text=lambda _: False, cancelled=stream.reading.is_set
    )
    assert completion.finish_reason is FinishReason.CANCELLED
    assert stream.closed.wait(10)


def test_a_cancel_while_connecting_gives_up(endpoint: Open) -> None:
    connecting, abandoned = threading.Event(), threading.Event()

    async def handle(request: httpx.Request) -> httpx.Response:
        connecting.set()
        try:
            await asyncio.Event().wait()
        finally:
            abandoned.set()
        raise AssertionError("never reached")

    completion = endpoint(handle).generate(0, _ASK, on_text=lambda _: False, cancelled=connecting.is_set)
    assert completion.finish_reason is FinishReason.CANCELLED
    assert completion.first_token_s is None
    assert abandoned.wait(10)


def test_closing_breaks_off_an_answer(endpoint: Open) -> None:
    stream = _Lines([_text("a")], hang=True)
    opened = endpoint(_answering(stream))
    closer = threading.Thread(target=lambda: (stream.reading.wait(10), opened.close()))
    closer.start()
    with pytest.raises(GenerationError, match="closed"):
        opened.generate(0, _ASK, on_text=lambda _: False)
    closer.join()
    with pytest.raises(GenerationError, match="closed"):
        opened.generate(0, _ASK, on_text=lambda _: False)


def test_what_on_text_raises_comes_out_and_closes_the_stream(endpoint: Open) -> None:
    stream = _Lines([_text("a")], hang=True)

    def fail(text: str) -> bool:
        raise KeyError(text)

    with pytest.raises(KeyError):
        endpoint(_answering(stream)).generate(0, _ASK, on_text=fail)
    assert stream.closed.wait(10)


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (401, {"error": {"code": "invalid_api_key", "message": _SECRET}}, ["401", "invalid_api_key", "API key"]),
        (404, {"error": {"type": "not_found", "message": _SECRET}}, ["404", "not_found", "base URL"]),
        (500, {"error": _SECRET}, ["500", "log"]),
        (502, [_SECRET], ["502"]),
    ],
)
def test_a_refusal_says_what_to_do_and_repeats_nothing(
    endpoint: Open, status: int, body: object, words: list[str]
) -> None:
    async def handle(request: httpx.Request) -> httpx.Response:
        return httpx.Response(status, json=body)

    with pytest.raises(GenerationError) as caught:
        endpoint(handle).generate(0, _ASK, on_text=lambda _: False)
    message = str(caught.value)
    assert all(word in message for word in words)
    assert _SECRET not in message
    assert "key-123" not in message


@pytest.mark.parametrize(
    ("lines", "match"),
    [
        ([_text("a")], "ended before"),
        (["data: [DONE]"], "ended before"),
        (["data: {nonsense"], "not a chat completion"),
        (['data: {"error": {"code": "overloaded", "message": "my secret words"}}'], "overloaded"),
    ],
)
def test_a_broken_stream_is_an_error(endpoint: Open, lines: list[str], match: str) -> None:
    with pytest.raises(GenerationError, match=match):
        endpoint(_answering(lines)).generate(0, _ASK, on_text=lambda _: False)


def test_a_server_that_is_not_there_is_an_error(endpoint: Open) -> None:
    async def handle(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(GenerationError, match=r"ConnectError.*running"):
        endpoint(handle).generate(0, _ASK, on_text=lambda _: False)


def test_slots_are_checked_and_nothing_is_prefilled(endpoint: Open) -> None:
    opened = endpoint(_answering([]))
    assert opened.prefill(0, _ASK) == 0
    with pytest.raises(ValueError, match="slot 64"):
        opened.generate(64, _ASK, on_text=lambda _: False)


@pytest.mark.parametrize("url", ["localhost:8000/v1", "ftp://a/v1", "", "http:///v1"])
def test_a_url_that_is_none_is_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError, match="http"):
        ChatEndpoint(url, "tiny")
