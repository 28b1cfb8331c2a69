"""A server in memory, scripted by the test: it hands out sockets and keeps what clients sent."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from duologue.client import ClientSession, connect
from duologue.client.fault import ConnectError
from duologue.client.socket import Socket, SocketClosed
from duologue.wire.server_events import ServerEvent


@dataclass
class ScriptedSocket:
    """One connection: `tell` sends to the client, `sent` is what came from it."""

    url: str
    headers: Mapping[str, str]
    sent: list[dict[str, Any]] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    stalled: asyncio.Event | None = None  # while set and unset inside, sending blocks
    closed_by_client: int | None = None
    answers_close: bool = True
    _frames: asyncio.Queue[bytes | SocketClosed] = field(default_factory=asyncio.Queue)
    _closed: SocketClosed | None = None

    def tell(self, type: str, **fields: Any) -> None:
        self._frames.put_nowait(json.dumps({"type": type, "event_id": "e", **fields}).encode())

    def tell_raw(self, frame: bytes) -> None:
        self._frames.put_nowait(frame)

    def drop(self, code: int = 1006, reason: str = "") -> None:
        """The connection breaks, after what was told before has been read."""
        self._closed = SocketClosed(code, reason)
        self._frames.put_nowait(self._closed)

    def types(self) -> list[str]:
        return [event["type"] for event in self.sent]

    async def until(self, type: str, count: int = 1) -> dict[str, Any]:
        """The `count`-th event of this type from the client."""
        while True:
            found = [event for event in self.sent if event["type"] == type]
            if len(found) >= count:
                return found[count - 1]
            self.arrived.clear()
            await self.arrived.wait()

    # -- the client's side

    async def send(self, frame: bytes) -> None:
        if self.stalled is not None:
            await self.stalled.wait()
        if self._closed is not None:
            raise self._closed
        self.sent.append(json.loads(frame))
        self.arrived.set()

    async def receive(self) -> bytes:
        frame = await self._frames.get()
        if isinstance(frame, SocketClosed):
            self._frames.put_nowait(frame)
            raise frame
        return frame

    async def close(self, code: int = 1000) -> None:
        if self.closed_by_client is None:
            self.closed_by_client = code
        self.drop(code)


@dataclass
class ScriptedServer:
    """Opens sockets, or refuses while `refusals` last."""

    sockets: list[ScriptedSocket] = field(default_factory=list)
    refusals: int = 0
    refused_at: list[float] = field(default_factory=list)
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    async def open(self, url: str, headers: Mapping[str, str]) -> Socket:
        if self.refusals > 0:
            self.refusals -= 1
            self.refused_at.append(asyncio.get_running_loop().time())
            raise ConnectError("refused")
        socket = ScriptedSocket(url=url, headers=headers)
        self.sockets.append(socket)
        self.opened.set()
        return socket

    async def socket(self, number: int) -> ScriptedSocket:
        """The connection with this number, from 0, once the client has opened it."""
        while len(self.sockets) <= number:
            self.opened.clear()
            await self.opened.wait()
        return self.sockets[number]


def session_object(**fields: Any) -> dict[str, Any]:
    return {"type": "realtime", "id": "duplex-1", "model": "m", **fields}


def response_object(response_id: str, status: str = "in_progress") -> dict[str, Any]:
    return {"id": response_id, "status": status}


async def accept(server: ScriptedServer, *, token: str | None = "t1") -> ScriptedSocket:
    """Answer the first connection of a duplex client as the server does."""
    socket = await server.socket(0)
    await socket.until("session.update")
    extra = {} if token is None else {"resume_token": token, "generation": 0}
    socket.tell("session.created", session=session_object(), **extra)
    return socket


async def answer_close(socket: ScriptedSocket) -> None:
    await socket.until("session.close")
    socket.tell("session.closed", reason="client_close", slot_released=True)
    socket.drop(1000)


def audio(response_id: str, size: int, seq: int | None = None) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "response_id": response_id,
        "item_id": f"item_{response_id}",
        "output_index": 0,
        "content_index": 0,
        "delta": base64.b64encode(bytes(size)).decode(),
    }
    return fields if seq is None else {**fields, "server_event_seq": seq}


def joined(server: ScriptedServer, **options: Any) -> Any:
    return connect("ws://h:1", opener=server.open, jitter=lambda: 1.0, **options)


def background(coro: Any) -> asyncio.Task[Any]:
    return asyncio.create_task(coro)


async def closing(socket: ScriptedSocket) -> asyncio.Task[None]:
    return background(answer_close(socket))


async def collect(session: ClientSession, count: int) -> list[ServerEvent]:
    events: list[ServerEvent] = []
    async for event in session.events():
        events.append(event)
        if len(events) == count:
            break
    return events
