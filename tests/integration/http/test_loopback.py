"""Ordinary requests over real sockets: clients that leave, that do not read, and the stop of the server."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import suppress
from typing import Any

import httpx
import pytest

from duologue.config.turns import TurnLimits
from tests.integration.http.host import PATIENCE_S, Host, host, on_loop, plain_client, stock_client

FAST = {"recognise_s": 0.0, "think_s": 0.0, "speak_s": 0.0, "sentence_ms": 200}
ENDLESS = {**FAST, "sentences": 1_000_000, "think_s": 0.001}
CHAT: dict[str, Any] = {"model": "scripted", "messages": [{"role": "user", "content": "tea"}]}


@on_loop
async def test_a_stock_client_that_stops_reading_ends_the_request_everywhere() -> None:
    async with host(**ENDLESS) as place, stock_client(place) as client:
        stream = await client.chat.completions.create(**CHAT, stream=True)
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        assert place.busy()
        await stream.close()
        await place.at_rest()


@on_loop
async def test_a_client_that_gives_up_waiting_ends_the_request_everywhere() -> None:
    async with host(**ENDLESS) as place, plain_client(place) as client:
        waiting = asyncio.ensure_future(client.post("/v1/chat/completions", json=CHAT))
        async with asyncio.timeout(PATIENCE_S):
            while not place.orchestrator.request_states:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        await place.at_rest()


async def connected(place: Host) -> socket.socket:
    """A socket with a small window, so that it fills soon."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    address = httpx.URL(place.url)
    await asyncio.get_running_loop().sock_connect(sock, (address.host, address.port))
    return sock


@on_loop
async def test_a_client_that_reads_nothing_is_dropped() -> None:
    limits = TurnLimits(write_timeout_s=0.5, pause_bytes=100_000)
    async with host(limits=limits, **{**FAST, "sentence_ms": 60_000}) as place:
        body = json.dumps({"input": "One. Two. Three.", "response_format": "pcm"}).encode()
        with await connected(place) as sock:
            head = f"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            await asyncio.get_running_loop().sock_sendall(sock, head + body)
            async with asyncio.timeout(PATIENCE_S):
                while not place.server.turns.active:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
            await place.at_rest()
            # The connection is gone too, not only the work, and what is left to read does not look whole.
            answer = bytearray()
            with suppress(ConnectionResetError):
                while piece := await asyncio.get_running_loop().sock_recv(sock, 65_536):
                    answer += piece
            assert answer.startswith(b"HTTP/1.1 200")
            assert not answer.endswith(b"0\r\n\r\n")


@on_loop
async def test_a_body_cut_short_leaves_nothing() -> None:
    async with host(**FAST) as place:
        with await connected(place) as sock:
            head = b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
            await asyncio.get_running_loop().sock_sendall(sock, head + bytes(1000))
            async with asyncio.timeout(PATIENCE_S):
                while not place.server.turns.active:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
        await place.at_rest()
        assert place.server.turns.gate.held_bytes == 0


@on_loop
async def test_an_answer_that_is_broken_off_does_not_look_whole() -> None:
    limits = TurnLimits(request_timeout_s=0.5)
    async with host(limits=limits, **{**ENDLESS, "speak_s": 0.01}) as place, plain_client(place) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post("/v1/audio/speech", json={"input": "One. " * 800, "response_format": "pcm"})


@on_loop
async def test_one_connection_serves_many_requests() -> None:
    async with host(**FAST) as place, plain_client(place) as client:
        for _ in range(5):
            assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200
            assert (await client.post("/v1/chat/completions", json={"model": "x"})).status_code == 400
            streamed = await client.post("/v1/chat/completions", json={**CHAT, "stream": True})
            assert streamed.text.endswith("data: [DONE]\n\n")


@on_loop
async def test_the_stop_ends_what_runs() -> None:
    async with host(**ENDLESS) as place, plain_client(place) as client:
        async with client.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as response:
            lines = response.aiter_lines()
            await anext(lines)
            assert not await place.server.drain(0.2)
            last = [line async for line in lines if line][-1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "shutting_down"
