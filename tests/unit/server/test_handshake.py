"""How long the head of an HTTP request may take, in virtual time and on uvicorn's own protocol."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from duologue.server.transport import HandshakeProtocol
from duologue.sim.loop import VirtualRuntime, virtual

PATIENCE_S = 3.0
REQUEST = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


class Wire(asyncio.Transport):
    """What uvicorn asks of a socket; the test holds the other end."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.loop = loop
        self.said = b""
        self.dropped_at: float | None = None
        self.protocol: asyncio.BaseProtocol | None = None

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self.protocol is not None
        return self.protocol

    def write(self, data: Any) -> None:
        self.said += data

    def is_closing(self) -> bool:
        return self.dropped_at is not None

    def abort(self) -> None:
        if self.dropped_at is None:
            self.dropped_at = self.loop.time()
            assert isinstance(self.protocol, asyncio.Protocol)
            self.protocol.connection_lost(None)

    close = abort

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading


async def healthy(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body"})


class _Hurried(HandshakeProtocol):
    handshake_timeout_s = PATIENCE_S


def connected(keep_alive_s: int = 1_000) -> tuple[HandshakeProtocol, Wire]:
    config = uvicorn.Config(healthy, lifespan="off", log_config=None, access_log=False, timeout_keep_alive=keep_alive_s)
    loop = asyncio.get_running_loop()
    wire = Wire(loop)
    wire.protocol = protocol = _Hurried(config, ServerState(), {}, loop)
    protocol.connection_made(wire)
    return protocol, wire


@pytest.mark.parametrize("answered", [0, 1, 3])
@pytest.mark.parametrize("every_s", [0.01, 0.5, 2.9])
@virtual
async def test_a_head_that_drips_gets_no_more_time_than_one_that_stops(
    every_s: float, answered: int, runtime: VirtualRuntime
) -> None:
    protocol, wire = connected()
    for number in range(answered):
        protocol.data_received(REQUEST)
        await asyncio.sleep(0.1)
        assert wire.said.count(b"200 OK") == number + 1
    begun_s = runtime.now()
    protocol.data_received(b"GET /health HTTP/1.1\r\nX: ")
    while not wire.is_closing():
        await asyncio.sleep(every_s)
        assert runtime.now() <= begun_s + 2 * PATIENCE_S, "each byte gave it more time"
        if not wire.is_closing():
            protocol.data_received(b"x")
    assert wire.dropped_at == pytest.approx(begun_s + PATIENCE_S)
    assert wire.said.count(b" 200 ") == answered and b" 400 " not in wire.said


@virtual
async def test_the_time_between_requests_is_not_the_time_of_a_head() -> None:
    protocol, wire = connected()
    for number in range(1, 6):
        protocol.data_received(REQUEST)
        await asyncio.sleep(0.7 * PATIENCE_S)  # none too long, but longer than one in all
        assert wire.said.count(b"200 OK") == number
    await asyncio.sleep(10 * PATIENCE_S)
    assert not wire.is_closing(), "between requests the bound is that of idle connections"
    protocol.data_received(REQUEST[:-1])
    await asyncio.sleep(0.9 * PATIENCE_S)
    protocol.data_received(REQUEST[-1:])
    await asyncio.sleep(10 * PATIENCE_S)
    assert wire.said.count(b"200 OK") == 6 and not wire.is_closing()
    wire.abort()


@virtual
async def test_a_peer_that_never_says_anything_is_dropped(runtime: VirtualRuntime) -> None:
    begun_s = runtime.now()
    _, wire = connected()
    await asyncio.sleep(10 * PATIENCE_S)
    assert (wire.dropped_at, wire.said) == (pytest.approx(begun_s + PATIENCE_S), b"")
