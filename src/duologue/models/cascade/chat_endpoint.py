"""A language model behind any OpenAI-compatible `/chat/completions` endpoint, with the surface of the embedded one.

Rules kept here: text is handed on as it arrives; a cancel closes the stream at once, whether it is connecting, waiting
or reading; the endpoint keeps no slots, so a slot number is only checked. Errors name the endpoint, the status and the
provider's error code, never the key or anything that was said.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field

import httpx
import msgspec

from duologue.models.cascade.chat import (
    ChatMessage,
    Completion,
    FinishReason,
    GenerationError,
    OnText,
    never,
)

CONNECT_TIMEOUT_S = 10.0
SILENCE_TIMEOUT_S = 60.0  # longest wait for the next byte, first token included

_CANCEL_POLL_S = 0.02
_DATA = "data:"
_DONE = "[DONE]"
_HINTS = {
    401: "check the API key",
    403: "check the API key and what it may use",
    404: "check the base URL (it usually ends in /v1) and the model name",
    429: "the provider limits requests: wait, or use another model",
}


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)
    finish_reason: str | None = None


class _Cached(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Cached | None = None


class _Fault(msgspec.Struct):
    code: str | int | None = None
    type: str | None = None


class _Chunk(msgspec.Struct):
    """The part of a chunk (or of an error answer) that is read; other fields are ignored."""

    choices: list[_Choice] = msgspec.field(default_factory=list)
    usage: _Usage | None = None
    error: _Fault | str | None = None


@dataclass(slots=True)
class _Answer:
    """Collects one generation."""

    started_s: float
    first_s: float | None = None
    texts: list[str] = field(default_factory=list)
    finish: FinishReason | None = None
    usage: _Usage = field(default_factory=_Usage)

    def completion(self) -> Completion:
        if self.finish is None:
            raise GenerationError("the endpoint's stream ended before the answer did")
        details = self.usage.prompt_tokens_details
        return Completion(
            text="".join(self.texts),
            finish_reason=self.finish,
            prompt_tokens=self.usage.prompt_tokens,
            cached_tokens=details.cached_tokens if details else None,
            generated_tokens=self.usage.completion_tokens,
            first_token_s=self.first_s,
            total_s=time.monotonic() - self.started_s,
        )


class ChatEndpoint:
    """The endpoint. Calls may run in parallel from several threads and share connections."""

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        slots: int = 64,
        ask_usage: bool = True,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`base_url` is what clients call the base URL, `http://127.0.0.1:8000/v1` for instance.

        `ask_usage=False` is for servers that refuse `stream_options`. Nothing is connected before the first call.
        Raises ValueError if `base_url` is not an http(s) URL.
        """
        url = httpx.URL(base_url.rstrip("/") + "/chat/completions")
        if url.scheme not in ("http", "https") or not url.host:
            raise ValueError(f"base_url {base_url!r} is not an http(s) URL such as http://127.0.0.1:8000/v1")
        self.model = model
        self._url = url
        self._slots = slots
        self._ask_usage = ask_usage
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        timeout = httpx.Timeout(SILENCE_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        self._client = httpx.AsyncClient(headers=headers, timeout=timeout, transport=transport)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chat-endpoint", daemon=True)
        self._thread.start()

    @property
    def slots(self) -> int:
        return self._slots

    def generate(
        self,
        slot: int,
        messages: Sequence[ChatMessage],
        *,
        on_text: OnText,
        max_tokens: int = 160,
        temperature: float = 0.3,
        seed: int = 0,
        stop: Sequence[str] = (),
        cancelled: Callable[[], bool] = never,
    ) -> Completion:
        """Answer `messages`; blocks the calling thread until done. `on_text` and `cancelled` are called on it.

        A cancel takes effect within about 20 ms. What `on_text` raises closes the stream and comes out of here.
        Raises GenerationError when the endpoint cannot be reached, refuses, or breaks off; ValueError for a slot that
        does not exist.
        """
        if not 0 <= slot < self._slots:
            raise ValueError(f"slot {slot} does not exist: there are {self._slots}, counted from 0")
        if self._loop.is_closed():
            raise GenerationError("the chat endpoint is closed")
        request: dict[str, object] = {
            "model": self.model,
            "messages": [{"role": message.role.value, "content": message.content} for message in messages],
            "max_tokens": max_tokens,
            "temperature": temperature,
            "seed": seed,
            "stream": True,
        }
        if stop:
            request["stop"] = list(stop)
        if self._ask_usage:
            request["stream_options"] = {"include_usage": True}
        chunks: queue.SimpleQueue[_Chunk | None] = queue.SimpleQueue()
        answer = _Answer(time.monotonic())
        task = asyncio.run_coroutine_threadsafe(self._stream(request, chunks), self._loop)
        try:
            self._collect(answer, task, chunks, on_text, cancelled)
        finally:
            task.cancel()
        return answer.completion()

    def prefill(self, slot: int, messages: Sequence[ChatMessage], *, cancelled: Callable[[], bool] = never) -> int:
        """Nothing to do: the endpoint keeps what it likes. Always 0."""
        return 0

    def close(self) -> None:
        """Break off what is running, close all connections and end the thread. Safe to call twice."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _shut_down(self) -> None:
        current = asyncio.current_task()
        running = [task for task in asyncio.all_tasks() if task is not current]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._client.aclose()

    def _collect(
        self,
        answer: _Answer,
        task: Future[None],
        chunks: queue.SimpleQueue[_Chunk | None],
        on_text: OnText,
        cancelled: Callable[[], bool],
    ) -> None:
        """Hand text on until the stream ends, fails or is cancelled."""
        while True:
            if cancelled():
                answer.finish = FinishReason.CANCELLED
                return
            try:
                chunk = chunks.get(timeout=_CANCEL_POLL_S)
            except queue.Empty:
                if not task.done():
                    continue
                chunk = None  # cancelled before it ever ran
            if chunk is None:
                _raise_outcome(task)
                return
            if _take(answer, chunk, on_text):
                return

    async def _stream(self, request: dict[str, object], chunks: queue.SimpleQueue[_Chunk | None]) -> None:
        try:
            async with self._client.stream("POST", self._url, json=request) as response:
                if response.status_code != httpx.codes.OK:
                    raise _refusal(self._url, response.status_code, await response.aread())
                async for data in _events(response):
                    chunks.put(_decode(data))
        except httpx.HTTPError as error:
            kind = type(error).__name__
            raise GenerationError(f"cannot read from {self._url} ({kind}): is the server running?") from error
        finally:
            # Behind everything that was read; by the time the reader sees it the outcome is known or imminent.
            chunks.put(None)


def _raise_outcome(task: Future[None]) -> None:
    """Raise what ended the stream, if anything but its end did."""
    try:
        task.result()
    except CancelledError as error:
        raise GenerationError("the chat endpoint was closed during an answer") from error


def _take(answer: _Answer, chunk: _Chunk, on_text: OnText) -> bool:
    """Add one chunk to the answer; True when the caller wants no more."""
    if chunk.usage is not None:
        answer.usage = chunk.usage
    if not chunk.choices:
        return False
    choice = chunk.choices[0]
    if choice.finish_reason is not None:
        answer.finish = FinishReason.LENGTH if choice.finish_reason == "length" else FinishReason.STOP
    text = choice.delta.content
    if not text:
        return False
    if answer.first_s is None:
        answer.first_s = time.monotonic() - answer.started_s
    answer.texts.append(text)
    if on_text(text):
        answer.finish = FinishReason.CANCELLED
        return True
    return False


async def _events(response: httpx.Response) -> AsyncIterator[str]:
    """The data of each server-sent event up to the closing mark; comments and other fields are passed over."""
    async for line in response.aiter_lines():
        if line.startswith(_DATA):
            data = line[len(_DATA) :].strip()
            if data == _DONE:
                return
            if data:
                yield data


def _decode(data: str) -> _Chunk:
    try:
        chunk = msgspec.json.decode(data, type=_Chunk)
    except msgspec.DecodeError as error:
        raise GenerationError("the endpoint sent an event that is not a chat completion chunk") from error
    if chunk.error is not None:
        raise GenerationError(f"the endpoint broke off: {_fault_name(chunk.error)}")
    return chunk


def _refusal(url: httpx.URL, status: int, body: bytes) -> GenerationError:
    try:
        fault = msgspec.json.decode(body, type=_Chunk).error
    except msgspec.DecodeError:
        fault = None
    hint = _HINTS.get(status, "see the endpoint's own log")
    return GenerationError(f"{url} answered {status} ({_fault_name(fault)}): {hint}")


def _fault_name(fault: _Fault | str | None) -> str:
    # A provider's message may quote the conversation, so only its code is passed on.
    if isinstance(fault, _Fault):
        return str(fault.code or fault.type or "no code")
    return "no code"
