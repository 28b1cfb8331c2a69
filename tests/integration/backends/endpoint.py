"""A small OpenAI-compatible server on a loopback socket, which does what the text of a request says.

Chat obeys the last user message: ``echo TEXT``, ``filter TEXT`` (the same, ended by a filter), ``count N``, ``flood``
(until the client goes), ``raise CODE``, ``mute``, ``hang``, ``refuse STATUS``, ``drop`` (the connection, in
mid-answer), ``garbage``, ``trail`` (off without an end), ``call NAME ARGUMENTS`` (until a result has come). Speech
makes 10 ms of audio per character; a transcription tells what was uploaded. All that is known of a connection is
kept, so that a test can ask whether it was closed.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

SPEECH_RATE_HZ = 24_000
SAMPLES_PER_CHAR = SPEECH_RATE_HZ // 100
PATIENCE_S = 30.0  # only ever used up by a test that fails


@dataclass(eq=False)
class Seen:
    """One request as the server saw it."""

    path: str
    headers: dict[str, str]
    body: bytes
    answered: bool = False
    hung_up: bool = False

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


@dataclass
class FakeEndpoint:
    """The server's side."""

    base_url: str = ""
    requests: list[Seen] = field(default_factory=list)
    connections: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def note(self) -> None:
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def fake_endpoint() -> AsyncIterator[FakeEndpoint]:
    fake = FakeEndpoint()
    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        fake.connections += 1
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while await _exchange(fake, reader, writer):
                    pass
        finally:
            serving.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    fake.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield fake
    finally:
        server.close()
        for task in list(serving):
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


async def _exchange(fake: FakeEndpoint, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """One request and its answer. False ends the connection."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:]) if name}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    seen = Seen(head[0].split(" ")[1], headers, body)
    fake.requests.append(seen)
    fake.note()
    answer = asyncio.ensure_future(_answer(seen, writer))
    # Nothing may come while an answer is under way: what is read now is the end of the connection.
    gone = asyncio.ensure_future(reader.read(1))
    try:
        await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        if gone.done() and not answer.done():
            seen.hung_up = True
            return False
        return await answer and not gone.done()
    except ConnectionError:
        seen.hung_up = True
        return False
    finally:
        for task in (answer, gone):
            task.cancel()
        await asyncio.gather(answer, gone, return_exceptions=True)
        seen.answered = not seen.hung_up
        fake.note()


async def _answer(seen: Seen, writer: asyncio.StreamWriter) -> bool:
    """Write the answer; False if the connection is to be dropped."""
    match seen.path:
        case "/v1/chat/completions":
            return await _chat(seen, writer)
        case "/v1/audio/speech":
            return await _speech(seen, writer)
        case "/v1/audio/transcriptions":
            return await _plain(writer, 200, {"text": f" {len(seen.body)} bytes "})
        case _:
            return await _plain(writer, 404, {"error": {"code": "no_such_path"}})


_ENDS = {"count": "length", "filter": "content_filter"}


async def _chat(seen: Seen, writer: asyncio.StreamWriter) -> bool:
    asked = [message["content"] for message in seen.json["messages"] if message["role"] == "user"]
    verb, _, rest = asked[-1].partition(" ")
    if verb == "refuse":
        return await _plain(writer, int(rest), {"error": {"code": "no_luck", "message": f"you said {asked[-1]}"}})
    await _head(writer, "text/event-stream")
    if verb in ("drop", "trail", "hang", "garbage"):
        return await _misbehave(verb, writer)
    if verb == "call":
        await _call(seen, writer, *rest.split(" ", 1))
    for text in _script(verb, rest, len(asked)):
        await _event(writer, _delta(text))
        await asyncio.sleep(0)
    if verb == "raise":
        await _event(writer, {"error": {"code": rest, "message": f"you said {asked[-1]}"}})
    await _event(writer, {"choices": [{"delta": {}, "finish_reason": _ENDS.get(verb, "stop")}]})
    usage = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
    await _event(writer, {"choices": [], "usage": usage})
    await _chunk(writer, b"data: [DONE]\n\n")
    await _chunk(writer, b"")
    return True


async def _call(seen: Seen, writer: asyncio.StreamWriter, name: str, arguments: str) -> None:
    """Ask for a function, its arguments in two pieces; or say what it gave."""
    last = seen.json["messages"][-1]
    if last["role"] == "tool":
        await _event(writer, _delta(f"It gave {last['content']}."))
        return
    assert name in [tool["function"]["name"] for tool in seen.json["tools"]]
    half = len(arguments) // 2
    begun = {"index": 0, "id": "call_0", "type": "function", "function": {"name": name, "arguments": arguments[:half]}}
    await _event(writer, {"choices": [{"delta": {"tool_calls": [begun]}}]})
    rest = {"index": 0, "function": {"arguments": arguments[half:]}}
    await _event(writer, {"choices": [{"delta": {"tool_calls": [rest]}}]})


def _script(verb: str, rest: str, turn: int) -> Iterator[str]:
    """The deltas of an answer."""
    match verb:
        case "echo" | "filter":
            yield rest
        case "count":
            yield from (f"{turn}.{number}" for number in range(int(rest)))
        case "flood":
            yield from itertools.repeat("drop")
        case "raise":
            yield "before"
        case _:
            pass


async def _misbehave(verb: str, writer: asyncio.StreamWriter) -> bool:
    await _event(writer, _delta("before"))
    match verb:
        case "hang":
            await asyncio.Event().wait()
        case "garbage":
            await _chunk(writer, b": a comment\n\ndata: what?\n\n")
        case "trail":
            await _chunk(writer, b"data: [DONE]\n\n")
            await _chunk(writer, b"")
            return True
        case _:
            pass
    return False


async def _speech(seen: Seen, writer: asyncio.StreamWriter) -> bool:
    asked = seen.json
    text = str(asked["input"])
    if text == "file":
        await _head(writer, "audio/wav")
        await _chunk(writer, b"RIFF" + bytes(8000))
    elif text == "hang":
        await _head(writer, "audio/pcm")
        await _chunk(writer, bytes(SPEECH_RATE_HZ))
        await asyncio.Event().wait()
    else:
        await _head(writer, "audio/pcm")
        audio = speech_of(text)
        for start in range(0, len(audio), 1001):  # samples are cut in the middle, too
            await _chunk(writer, audio[start : start + 1001])
    await _chunk(writer, b"")
    return True


def speech_of(text: str) -> bytes:
    """What the fake says for ``text``."""
    return b"".join(ord(char).to_bytes(2, "little") * SAMPLES_PER_CHAR for char in text)


def _delta(text: str) -> dict[str, object]:
    return {"choices": [{"delta": {"content": text}, "finish_reason": None}]}


async def _event(writer: asyncio.StreamWriter, event: dict[str, object]) -> None:
    await _chunk(writer, b"data: " + json.dumps(event).encode() + b"\n\n")


async def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))
    await writer.drain()


async def _head(writer: asyncio.StreamWriter, media_type: str) -> None:
    writer.write(f"HTTP/1.1 200 OK\r\ncontent-type: {media_type}\r\ntransfer-encoding: chunked\r\n\r\n".encode())
    await writer.drain()


async def _plain(writer: asyncio.StreamWriter, status: int, body: dict[str, object]) -> bool:
    data = json.dumps(body).encode()
    writer.write(
        f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n".encode()
    )
    writer.write(data)
    await writer.drain()
    return True
