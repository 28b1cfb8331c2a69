"""The client over real sockets: opening, refusals, loss, closing. A bound is asserted by a time-out, never measured."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from duologue.client import ConnectError, ReconnectPolicy, SessionEndedError, connect
from duologue.wire.server_events import ItemDone, SessionResumed, TurnEvent
from tests.integration.client.served import scripted_server

PATIENCE_S = 30.0
QUICK = ReconnectPolicy(first_wait_s=0.01, longest_wait_s=0.02)

Handler = Callable[[ServerConnection, int, asyncio.Event], Awaitable[None]]


@asynccontextmanager
async def fake(handler: Handler) -> AsyncIterator[str]:
    """A WebSocket server whose `handler` gets each connection with its number, and an event for the test's end."""
    count = 0
    over = asyncio.Event()

    async def accept(socket: ServerConnection) -> None:
        nonlocal count
        count += 1
        with contextlib.suppress(Exception):
            await handler(socket, count - 1, over)

    async with serve(accept, "127.0.0.1", 0, compression=None, close_timeout=1) as server:
        try:
            yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            over.set()


async def tell(socket: ServerConnection, type: str, **fields: Any) -> None:
    await socket.send(json.dumps({"type": type, "event_id": "e", **fields}))


async def until(socket: ServerConnection, type: str) -> dict[str, Any]:
    async for frame in socket:
        event: dict[str, Any] = json.loads(frame)
        if event["type"] == type:
            return event
    raise AssertionError(f"the client closed before it sent {type}")


async def opened(socket: ServerConnection, token: str = "t") -> None:
    await until(socket, "session.update")
    await tell(socket, "session.created", session={"type": "realtime", "id": "s1"}, resume_token=token)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await test()

    asyncio.run(bounded())


def test_nobody_listens() -> None:
    async def test() -> None:
        with pytest.raises(ConnectError, match=r"cannot connect to 127\.0\.0\.1:1 .*is the server running"):
            async with connect("ws://127.0.0.1:1"):
                pass

    run(test)


@pytest.mark.parametrize(
    ("status", "hint"),
    [(401, "give the server's key"), (404, "/v1/realtime"), (503, "try again later"), (418, "HTTP 418")],
)
def test_a_refused_handshake_says_what_to_do(status: int, hint: str) -> None:
    async def test() -> None:
        def refuse(socket: ServerConnection, _: Request) -> Response:
            return socket.respond(HTTPStatus(status), "no\n")

        async def never(socket: ServerConnection) -> None:
            raise AssertionError("it was accepted")

        async with serve(never, "127.0.0.1", 0, process_request=refuse) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(ConnectError, match=hint) as caught:
                async with connect(f"ws://127.0.0.1:{port}"):
                    pass
            assert caught.value.status == status

    run(test)


def test_something_else_listens_there() -> None:
    async def test() -> None:
        async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"220 mail.example ready\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(babble, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(ConnectError, match="does not speak WebSocket"):
                async with connect(f"ws://127.0.0.1:{port}"):
                    pass

    run(test)


def test_a_connection_that_breaks_is_taken_up_again() -> None:
    async def handler(socket: ServerConnection, number: int, _: asyncio.Event) -> None:
        if number == 0:
            await opened(socket)
            await tell(socket, "turn.event", event="first", server_event_seq=1)
            await until(socket, "session.event_ack")
            socket.transport.abort()
            return
        resume = await until(socket, "session.resume")
        assert resume["last_received_server_event_seq"] == 1
        session = {"type": "realtime", "id": "s1"}
        await tell(socket, "session.resumed", session=session, resume_token="t2", generation=1, last_server_event_seq=2)
        await tell(socket, "turn.event", event="first", server_event_seq=1)
        await tell(socket, "turn.event", event="second", server_event_seq=2)
        await until(socket, "session.close")
        await tell(socket, "session.closed", reason="client_close", slot_released=True)

    async def test() -> None:
        async with fake(handler) as url, connect(url, reconnect=QUICK) as session:
            names = []
            async for event in session.events():
                if isinstance(event, TurnEvent):
                    names.append(event.event)
                if names[-1:] == ["second"]:
                    break
            assert names == ["first", "second"]
            assert session.reconnects == 1

    run(test)


def test_a_server_that_never_answers_the_close_is_left_anyway() -> None:
    async def handler(socket: ServerConnection, _: int, over: asyncio.Event) -> None:
        await opened(socket)
        socket.transport.pause_reading()  # neither session.close nor the close frame is ever seen
        await over.wait()
        socket.transport.abort()

    async def test() -> None:
        async with fake(handler) as url:
            async with connect(url, close_timeout_s=0.2) as session:
                pass
            assert session.ended is not None

    run(test)


def test_a_server_that_stops_reading_holds_up_nothing_but_the_sender() -> None:
    async def handler(socket: ServerConnection, _: int, over: asyncio.Event) -> None:
        await opened(socket)
        await tell(socket, "turn.event", event="here", server_event_seq=1)
        socket.transport.pause_reading()
        await over.wait()
        socket.transport.abort()

    async def test() -> None:
        async with fake(handler) as url, connect(url, close_timeout_s=0.2) as session:
            sender = asyncio.create_task(session.append(bytes(1 << 26)))
            async for event in session.events():
                if isinstance(event, TurnEvent):
                    break
            assert not sender.done()
            sender.cancel()

    run(test)


def test_a_server_that_goes_away_is_told_as_such() -> None:
    async def handler(socket: ServerConnection, number: int, _: asyncio.Event) -> None:
        if number == 0:
            await opened(socket, token="")
        await socket.close(1001, "bye")

    async def test() -> None:
        async with fake(handler) as url:
            with pytest.raises(SessionEndedError, match="closed with code 1001"):
                async with connect(url) as session:
                    async for _ in session.events():
                        pass

    run(test)


def test_a_session_with_the_real_server_in_both_dialects() -> None:
    async def talk(url: str, dialect: Any) -> str:
        async with connect(url, dialect=dialect) as session:
            await session.say("Hello.")
            await session.create_response()
            response = await anext(session.responses())
            audio = b"".join([chunk async for chunk in response.audio()])
            assert len(audio) > 24_000
            text = "".join([piece async for piece in response.text()])
            done = await response.done()
            assert response.item_id is not None
            item = await session.retrieve(response.item_id)
            assert isinstance(item.content, list) and item.content[0].transcript == text.strip()
            return done.response.status

    with scripted_server() as url:

        async def test() -> None:
            assert await talk(url, "duplex") == "completed"
            assert await talk(url, "ga") == "completed"

        run(test)


def test_the_real_server_resumes_a_session_whose_connection_broke() -> None:
    with scripted_server() as url:

        async def test() -> None:
            async with connect(url, reconnect=QUICK) as session:
                await session.say("Hello.")
                async for event in session.events():
                    if isinstance(event, ItemDone):
                        break
                socket: Any = session._link._socket
                socket._connection.transport.abort()
                async for event in session.events():
                    if isinstance(event, SessionResumed):
                        break
                await session.create_response()
                response = await anext(session.responses())
                assert (await response.done()).response.status == "completed"
                assert session.reconnects == 1

        run(test)


def test_the_real_server_refuses_a_wrong_key() -> None:
    with scripted_server(DUOLOGUE__SERVER__API_KEYS="[right]") as url:

        async def test() -> None:
            with pytest.raises(ConnectError, match="give the server's key") as caught:
                async with connect(url, api_key="wrong"):
                    pass
            assert caught.value.status == 401
            async with connect(url, api_key="right") as session:
                assert session.session_id

        run(test)
