"""An OpenAI-compatible HTTP endpoint as its client sees it: requests, server-sent events, refusals.

Rules kept here: an answer is read as it arrives, and leaving it closes the connection, whether it is connecting, waiting or
reading; every wait has a bound; errors name the address, the status and the provider's error code, never the key or
anything that was said.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final, TypeVar

import httpx
import msgspec

from duologue.errors import ErrorCode, StageFault

CONNECT_TIMEOUT_S: Final = 10.0
SILENCE_TIMEOUT_S: Final = 60.0
"""Longest wait for the next byte, the first one included."""

_JSON: Final = {"Content-Type": "application/json"}
_DATA = "data:"
_DONE = "[DONE]"
_TAIL_S = 0.1
_HINTS = {
    401: "check the API key",
    403: "check the API key and what it may use",
    404: "check the base URL (it usually ends in /v1) and the model name",
    429: "the provider limits requests: wait, or use another model",
}
EventT = TypeVar("EventT")


class EndpointFault(StageFault):
    """The endpoint can't be reached, refused, or broke off."""


class _Fault(msgspec.Struct):
    code: str | int | None = None
    type: str | None = None


class _Refusal(msgspec.Struct):
    error: _Fault | str | None = None


class FunctionDelta(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class CallDelta(msgspec.Struct):
    """A piece of the call at ``index``: its name comes with the first, its arguments in pieces."""

    index: int = 0
    function: FunctionDelta = msgspec.field(default_factory=FunctionDelta)


class Delta(msgspec.Struct):
    content: str | None = None
    tool_calls: list[CallDelta] | None = None


class Choice(msgspec.Struct):
    delta: Delta = msgspec.field(default_factory=Delta)
    finish_reason: str | None = None


class Cached(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: Cached | None = None


class ChatChunk(msgspec.Struct):
    """The part of a streamed chat completion that is read; other fields are ignored."""

    choices: list[Choice] = msgspec.field(default_factory=list)
    usage: Usage | None = None
    error: _Fault | str | None = None


def endpoint_url(base_url: str, path: str) -> httpx.URL:
    """``path`` below what clients call the base URL. ``ValueError`` unless that is an http(s) URL."""
    url = httpx.URL(base_url.rstrip("/") + path)
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError(f"base_url {base_url!r} is not an http(s) URL such as http://127.0.0.1:8000/v1")
    return url


class Endpoint:
    """One endpoint and its connections. Used from one loop."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        connections: int = 64,
        silence_timeout_s: float = SILENCE_TIMEOUT_S,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """At most ``connections`` requests at a time; others wait, up to ``silence_timeout_s``. Connects to nothing yet."""
        endpoint_url(base_url, "")
        self._base_url = base_url
        self._client = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(silence_timeout_s, connect=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
            transport=transport,
        )

    @asynccontextmanager
    async def post(
        self,
        path: str,
        *,
        json: bytes | None = None,
        form: Mapping[str, str] | None = None,
        file: tuple[str, bytes, str] | None = None,
    ) -> AsyncIterator[httpx.Response]:
        """The answer to a request, to be read as it arrives. ``json``: the encoded body; ``file``: name, content, media
        type.

        Raises :class:`EndpointFault`, also for what goes wrong while the answer is read.
        """
        url = endpoint_url(self._base_url, path)
        files = {"file": file} if file is not None else None
        headers = _JSON if json is not None else None
        try:
            async with self._client.stream(
                "POST", url, content=json, data=form, files=files, headers=headers
            ) as response:
                if response.status_code != httpx.codes.OK:
                    raise refusal(url, response.status_code, await response.aread())
                yield response
        except httpx.HTTPError as error:
            raise unreachable(url, error) from error

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()


def api_key_from(variable: str) -> str | None:
    """The key that an environment variable holds, if it does. Configuration names variables, never keys."""
    return os.environ.get(variable) or None


async def chat_chunks(response: httpx.Response) -> AsyncIterator[ChatChunk]:
    """The events of a streamed chat completion up to its closing mark."""
    async for data in events(response):
        yield chat_chunk(data)


async def events(response: httpx.Response) -> AsyncIterator[str]:
    """The data of each server-sent event up to the closing mark; comments and other fields are passed over."""
    lines = response.aiter_lines()
    async for line in lines:
        if line.startswith(_DATA):
            data = line[len(_DATA) :].strip()
            if data == _DONE:
                await _read_to_end(lines)
                return
            if data:
                yield data


async def _read_to_end(lines: AsyncIterator[str]) -> None:
    """A connection that was read to its end is used again; one that goes on all the same is closed by whoever leaves it."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_TAIL_S):
            async for _ in lines:
                pass


def chat_chunk(data: str) -> ChatChunk:
    """One event. Raises :class:`EndpointFault` for another shape, and for an error in the middle of the answer."""
    try:
        chunk = msgspec.json.decode(data, type=ChatChunk)
    except msgspec.DecodeError as error:
        raise fault("the endpoint sent an event that is not a chat completion chunk") from error
    if chunk.error is not None:
        raise fault(f"the endpoint broke off: {_fault_name(chunk.error)}")
    return chunk


def unreachable(url: httpx.URL, error: httpx.HTTPError) -> EndpointFault:
    """What a failed connection is reported as."""
    return fault(f"cannot read from {url} ({type(error).__name__}): is the server running?")


def refusal(url: httpx.URL, status: int, body: bytes) -> EndpointFault:
    """What an answer other than 200 is reported as."""
    try:
        named = msgspec.json.decode(body, type=_Refusal).error
    except msgspec.DecodeError:
        named = None
    hint = _HINTS.get(status, "see the endpoint's own log")
    return fault(f"{url} answered {status} ({_fault_name(named)}): {hint}")


def fault(message: str) -> EndpointFault:
    """An :class:`EndpointFault` with the one code of a failed stage."""
    return EndpointFault(ErrorCode.RUNTIME_STREAM_FAILED, message)


def _fault_name(named: _Fault | str | None) -> str:
    # A provider's message may quote the conversation, so only its code is passed on.
    if isinstance(named, _Fault):
        return str(named.code or named.type or "no code")
    return "no code"
