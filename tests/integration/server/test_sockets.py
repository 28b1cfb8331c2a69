"""The server over real sockets: handshakes, bad input, clients that misbehave, and the stop."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import random
import re
import socket

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from duologue.engine.duplex.events import SessionClosed, SessionEvent
from duologue.errors import ErrorCode, SessionFault
from duologue.server.registry import ConnectionLimits
from duologue.server.serve import ServeConfig
from duologue.server.transport import CLOSE_TIMEOUT_S
from tests.integration.server.loopback import FakeEngine, Server, eventually, http, on_loop, server
from tests.unit.server.fake_engine import answer, audio, created, done

KEYED = ServeConfig(api_keys=("secret",))
SMALL = ServeConfig(limits=ConnectionLimits(max_event_bytes=10_000), max_frame_bytes=20_000)


@on_loop
async def test_a_spoken_turn() -> None:
    engine = FakeEngine()
    engine.auto_answer = True
    async with server(engine) as host, host.client("/v1/realtime?model=gpt-realtime") as client:
        created_event = await client.next()
        assert created_event["type"] == "session.created"
        await client.send("session.update", session={"type": "realtime", "instructions": "Hi."})
        assert (await client.next())["session"]["instructions"] == "Hi."
        await client.send("input_audio_buffer.append", audio=base64.b64encode(bytes(4800)).decode())
        await client.send("input_audio_buffer.commit")
        await client.send("response.create")
        last = await client.until("response.done")
        assert last["response"]["status"] == "completed"
        await eventually(lambda: engine.only.taken == engine.only.number)


@on_loop
async def test_field_F58_every_server_frame_is_a_text_frame_of_json() -> None:
    engine = FakeEngine()
    engine.auto_answer = True
    async with server(engine) as host, host.client("/v1/realtime?duplex=1&model=fake") as client:
        await client.send("response.create")
        await client.until("rate_limits.updated")  # `next` refuses binary frames


@on_loop
async def test_bad_input_is_a_typed_error_and_the_session_lives() -> None:
    async with server() as host, host.client() as client, host.client() as other:
        await client.next()
        await other.next()
        pieces: list[str | bytes] = [
            "{",
            "null",
            '"x"',
            '{"type":"nope","event_id":"E"}',
            b"\x00\x01",
            '{"type":"session.update"}',
        ]
        codes = ["invalid_json", "invalid_json", "invalid_json", "unknown_event", "bad_event", "bad_event"]
        for piece, code in zip(pieces, codes, strict=True):
            await client.socket.send(piece)
            assert (await client.next())["error"]["code"] == code
        for text in ("AAA", "*", "data:audio/wav;base64,AA="):
            await client.send("input_audio_buffer.append", audio=text, event_id="E")
            error = (await client.next())["error"]
            assert (error["code"], error["event_id"]) == ("bad_audio", "E")
        for text in ("", "AA==", "AA\n==", "data:audio/wav;base64,AAAA"):
            await client.send("input_audio_buffer.append", audio=text)
        await client.send("response.cancel", event_id="E2")
        assert (await client.next())["error"]["event_id"] == "E2"
        await other.send("input_audio_buffer.clear")
        assert (await other.next())["type"] == "input_audio_buffer.cleared"


@on_loop
async def test_a_fragmented_frame_and_one_split_between_packets_are_read() -> None:
    async with server() as host, host.client() as client:
        await client.next()
        text = json.dumps({"type": "input_audio_buffer.clear", "event_id": "é"}, ensure_ascii=False)
        await client.socket.send([text[:5], text[5:20], text[20:]])
        assert (await client.next())["type"] == "input_audio_buffer.cleared"


@on_loop
async def test_an_event_over_the_limit_is_an_error_and_a_frame_over_the_cap_closes_1009() -> None:
    async with server(config=SMALL) as host:
        async with host.client() as client:
            await client.next()
            for size, fits in ((9_999, True), (10_000, True), (10_001, False), (19_999, False), (20_000, False)):
                head = '{"type":"input_audio_buffer.clear","event_id":"E","pad":"'
                await client.socket.send(head + "x" * (size - len(head) - 2) + '"}')
                frame = await client.next()
                if fits:
                    assert frame["type"] == "input_audio_buffer.cleared"
                else:
                    assert (frame["error"]["code"], frame["error"]["event_id"]) == ("event_too_large", "E")
            with pytest.raises(ConnectionClosed):
                await client.socket.send("x" * 20_001)
                await client.next()
            assert client.socket.close_code == 1009
        await eventually(lambda: host.engine.sessions == {})


@on_loop
async def test_a_text_frame_that_is_not_utf8_is_a_typed_error_too() -> None:
    async with server() as host, host.client() as client:
        await client.next()
        for data in (b"\xff\xfe", b'{"event_id":"E","type":"\xc3"}'):
            client.socket.protocol.send_text(data)
            client.socket.transport.write(b"".join(client.socket.protocol.data_to_send()))
            assert (await client.next())["error"]["code"] == "invalid_json"
        assert client.frames[-1]["error"]["event_id"] == "E"
        await client.send("input_audio_buffer.clear")
        assert (await client.next())["type"] == "input_audio_buffer.cleared"


@on_loop
async def test_keys() -> None:
    async with server(config=KEYED) as host:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            with pytest.raises(InvalidStatus) as caught:
                async with host.client(additional_headers=headers):
                    pass
            assert caught.value.response.status_code == 401
            body = json.loads(caught.value.response.body or b"")
            assert body["error"]["code"] == "invalid_api_key"
        async with host.client(additional_headers={"Authorization": "Bearer secret"}) as client:
            assert (await client.next())["type"] == "session.created"
        protocols = [Subprotocol("realtime"), Subprotocol("openai-insecure-api-key.secret"), Subprotocol("x.y")]
        async with host.client(subprotocols=protocols) as client:
            assert client.socket.subprotocol == "realtime"
            assert (await client.next())["type"] == "session.created"
        assert (await http(host, "/v1/models"))[0] == 401
        assert (await http(host, "/metrics"))[0] == 401
        assert (await http(host, "/v1/models", Authorization="Bearer secret"))[0] == 200
        assert (await http(host, "/health"))[0] == 200


@on_loop
async def test_who_is_refused_and_each_session_has_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with server(config=KEYED) as host:
        with pytest.raises(InvalidStatus):
            async with host.client():
                pass
        async with host.client(additional_headers={"Authorization": "Bearer secret"}) as client:
            assert (await client.next())["type"] == "session.created"
        await eventually(lambda: "session is over" in caplog.messages)
    told = [record for record in caplog.records if record.name.startswith(("duologue.server", "uvicorn"))]
    assert [record.getMessage() for record in told] == ["connection refused", "session begins", "session is over"]
    assert getattr(told[0], "code", None) == "invalid_api_key"
    assert getattr(told[1], "session_id", "begun") == getattr(told[2], "session_id", "over")


@on_loop
async def test_a_peer_that_sends_no_request_is_dropped() -> None:
    async with server(config=ServeConfig(handshake_timeout_s=0.2)) as host, host.client() as client:
        reader, writer = await asyncio.open_connection(host.listening.host, host.listening.port)
        writer.write(b"GET /v1/realtime HTTP/1.1\r\nHost: x\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        await client.next()
        await client.send("input_audio_buffer.clear")  # one that did is not
        await client.next()


@on_loop
async def test_a_peer_that_sends_its_second_request_forever_is_dropped_too() -> None:
    async with server(config=ServeConfig(handshake_timeout_s=0.2)) as host:
        reader, writer = await asyncio.open_connection(host.listening.host, host.listening.port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
        writer.write(b"GET /health HTTP/1.1\r\nX: ")  # how slowly it goes on is tests/unit/server/test_handshake.py's
        async with asyncio.timeout(20):
            with contextlib.suppress(ConnectionResetError):
                await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@on_loop
async def test_requests_one_after_the_other_are_all_answered() -> None:
    async with server(config=ServeConfig(handshake_timeout_s=0.2)) as host:
        reader, writer = await asyncio.open_connection(host.listening.host, host.listening.port)
        for _ in range(3):
            writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            assert head.startswith("HTTP/1.1 200")
            await reader.readexactly(int(head.split("content-length: ")[1].split("\r\n")[0]))
        writer.close()
        await writer.wait_closed()


@on_loop
async def test_foreign_pages_are_turned_away() -> None:
    async with server() as host:
        with pytest.raises(InvalidStatus) as caught:
            async with host.client(origin="https://evil.test"):
                pass
        assert caught.value.response.status_code == 403
        async with host.client(origin="http://localhost:3000") as client:
            assert (await client.next())["type"] == "session.created"


@on_loop
async def test_field_F51_pings_are_answered_and_the_close_handshake_is_quick() -> None:
    async with server() as host, host.client() as client:
        await client.next()
        async with asyncio.timeout(5):
            await (await client.socket.ping())
        async with asyncio.timeout(1):  # field case F51 asks for this bound; the client's own would be ten seconds
            await client.socket.close()
        # A server that sent no close frame would leave the client to its own timeout, with 1006.
        assert (client.socket.protocol.close_rcvd, client.socket.close_code) != (None, 1006)
        assert client.socket.close_code == 1000
        await eventually(lambda: host.realtime.connections == 0 and host.engine.sessions == {})


@on_loop
async def test_field_F51_a_close_that_is_never_answered_ends_in_an_abort() -> None:
    """The server says at once that it closes, waits for the answer within its bound, and drops the connection."""
    async with server() as host:
        reader, writer = await _raw_handshake(host.listening.port)
        await eventually(lambda: len(host.engine.sessions) == 1)
        (session_id,) = host.engine.sessions
        host.engine.say(session_id, SessionClosed(reason="shutdown", slot_released=True))
        data = b""
        async with asyncio.timeout(1):
            while not CLOSE_FRAME.search(data):
                data += await _piece(reader)
        # Nothing is answered, and this end stays open; the server ends it all the same.
        async with asyncio.timeout(CLOSE_TIMEOUT_S + 2):
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        await eventually(lambda: host.realtime.connections == 0 and host.realtime.hub.sessions == ())


@on_loop
async def test_a_session_that_ends_closes_its_socket() -> None:
    async with server() as host, host.client("/v1/duplex?model=fake") as client:
        await client.send("session.close")
        assert await client.closed() == 1000
        assert client.frames[-1]["type"] == "session.closed"
        await eventually(lambda: host.realtime.hub.sessions == ())


@on_loop
async def test_a_refused_session_is_told_why() -> None:
    async with server(FakeEngine(slots=1)) as host, host.client() as first, host.client() as second:
        await first.next()
        assert (await second.next())["error"]["code"] == "resource_exhausted"
        assert await second.closed() == 1000


def _stuffed(count: int) -> list[SessionEvent]:
    return [audio("r", "i", start_ms=80 * n, pcm=b"\x01\x00" * 24_000, text="x") for n in range(count)]


@on_loop
async def test_a_client_that_does_not_read_hears_nothing_of_what_was_cancelled() -> None:
    """Audio beyond what the sockets already hold is purged at the cancel, and others are not delayed."""
    async with server() as host, host.client() as other:
        await other.next()
        (other_id,) = host.engine.sessions
        async with connect(host.url + "/v1/realtime", compression=None, max_size=None, max_queue=1) as slow:
            await slow.recv()
            (slow_id,) = set(host.engine.sessions) - {other_id}
            attachment = host.realtime.hub.get(slow_id)
            assert attachment is not None
            host.engine.say(slow_id, created("r", "i"), *_stuffed(200))
            await eventually(lambda: 0 < attachment.backlog < 200)  # the rest waits for the socket
            host.engine.say(other_id, *answer("q", "j"))
            await other.until("response.done")
            host.engine.invalidate(slow_id, "r")
            host.engine.say(slow_id, done("r", "i", "", status="cancelled", reason="client_cancelled"))
            assert attachment.backlog < 5
            types: list[str] = []
            while not types or types[-1] != "response.done":
                async with asyncio.timeout(20):
                    types.append(json.loads(await slow.recv())["type"])
            sent = types.count("response.output_audio.delta")
            assert 0 < sent < 200
            assert host.engine.sessions[slow_id].taken == 204
    assert host.realtime.connections == 0


@on_loop
async def test_a_client_that_never_reads_its_terminal_is_dropped() -> None:
    limits = ConnectionLimits(close_timeout_s=0.2)
    async with server(config=ServeConfig(limits=limits)) as host:
        reader, writer = await _raw_handshake(host.listening.port)
        await eventually(lambda: len(host.engine.sessions) == 1)
        (session_id,) = host.engine.sessions
        await eventually(lambda: host.engine.sessions[session_id].taken == 2)
        attachment = host.realtime.hub.get(session_id)
        assert attachment is not None
        host.engine.say(session_id, created("r", "i"), *_stuffed(200))
        await eventually(lambda: 0 < attachment.backlog < 200)
        host.engine.say(session_id, SessionClosed(reason="output_backpressure", fault=ErrorCode.OUTPUT_BACKPRESSURE))
        await eventually(lambda: host.realtime.connections == 0 and host.realtime.hub.sessions == ())
        writer.close()
        del reader


CLOSE_FRAME = re.compile(rb"\x88[\x02-\x7d]\x03[\xe8\xe9]")  # unmasked, with code 1000 or 1001


async def _piece(reader: asyncio.StreamReader) -> bytes:
    data = await reader.read(1024)
    assert data, "the connection ended without a close frame"
    return data


async def _raw_handshake(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A WebSocket whose owner never reads."""
    raw = socket.create_connection(("127.0.0.1", port))
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=raw, limit=1024)
    writer.write(
        b"GET /v1/realtime HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    return reader, writer


async def _streaming(rounds: int, *, abrupt: bool) -> list[str]:
    """What a client reads that streams while others leave without a word, at random moments."""
    engine, chance = FakeEngine(slots=100), random.Random(56)
    async with server(engine) as host, host.client() as steady:
        await steady.next()
        (steady_id,) = engine.sessions
        for number in range(rounds):
            said = answer(f"r{number}", f"i{number}")
            cut = chance.randrange(len(said))
            engine.say(steady_id, *said[:cut])
            if abrupt:
                await _leave_abruptly(host, steady_id, chance)
            engine.say(steady_id, *said[cut:])
            await steady.send("input_audio_buffer.append", audio="AAAA")
            await steady.until("rate_limits.updated")
            await eventually(lambda: set(engine.sessions) == {steady_id})
        assert engine.subscriptions == 1
        await eventually(lambda: host.realtime.connections == 1)
        assert engine.only.input_bytes == 3 * rounds
        return [json.dumps(frame).replace(steady_id, "") for frame in steady.frames]


async def _leave_abruptly(host: Server, steady_id: str, chance: random.Random) -> None:
    moment = chance.choice(["at once", "opened", "in an answer", "in a frame"])
    async with host.client() as client:
        if moment != "at once":
            await client.next()
            (session_id,) = set(host.engine.sessions) - {steady_id}
        if moment == "in an answer":
            said = answer("r", "i")
            host.engine.say(session_id, *said[: chance.randrange(1, len(said))])
            for _ in range(chance.randrange(3)):
                await client.next()
        elif moment == "in a frame":
            client.socket.transport.write(b"\x81\xfe\x10\x00")  # a head that promises 4 KiB
            await asyncio.sleep(0)
        client.socket.transport.abort()
    if moment == "at once":
        await eventually(lambda: host.realtime.connections == 1)


@on_loop
async def test_field_F56_abrupt_exits_leave_nothing_behind_and_disturb_nobody() -> None:
    disturbed = await _streaming(100, abrupt=True)
    alone = await _streaming(100, abrupt=False)
    assert len(alone) > 1_000 and disturbed == alone


@on_loop
async def test_a_duplex_session_survives_its_socket() -> None:
    engine = FakeEngine()
    async with server(engine) as host:
        async with host.client("/v1/realtime?duplex=1&autostart=0&model=fake") as first:
            await first.send("session.update", session={})
            opened = await first.until("session.created")
            await first.next()
            session_id, token = opened["session"]["session_id"], opened["resume_token"]
            engine.say(session_id, *answer("r", "i"))
            await first.until("rate_limits.updated")
            first.socket.transport.abort()
        await eventually(lambda: engine.only.detached)
        async with host.client("/v1/realtime?duplex=1&resume=1") as second:
            await second.send(
                "session.resume", session_id=session_id, resume_token=token, last_received_server_event_seq=3
            )
            assert (await second.next())["type"] == "session.resumed"
            assert (await second.next())["server_event_seq"] == 4
            await second.until("rate_limits.updated")
            async with host.client("/v1/duplex") as third:
                await third.send(
                    "session.resume",
                    session_id=session_id,
                    resume_token=second.frames[0]["resume_token"],
                    last_received_server_event_seq=second.frames[-1]["server_event_seq"],
                )
                assert (await third.next())["generation"] == 2
                assert await second.closed() == 1000
                assert second.frames[-1]["type"] == "session.replaced"


@on_loop
async def test_an_engine_that_fails_to_open_is_a_server_fault() -> None:
    engine = FakeEngine()
    engine.fault = SessionFault(ErrorCode.ENGINE_DEAD, "The engine has stopped.")
    async with server(engine) as host, host.client() as client:
        assert (await client.next())["error"]["type"] == "server_error"
        assert await client.closed() == 1011


@on_loop
async def test_http_routes() -> None:
    engine = FakeEngine()
    async with server(engine) as host, host.client() as client:
        await client.next()
        status, body = await http(host, "/health")
        shown = json.loads(body)
        assert (status, shown["status"], shown["sessions"], shown["connections"]) == (200, "ok", 1, 1)
        assert shown["slots"] == {"limit": 4, "used": 1, "quarantined": 0}
        assert shown["pools"] == [{"name": "stage0", "replicas": 1, "available": 1}]
        assert (await http(host, "/ready"))[0] == 200
        assert json.loads((await http(host, "/v1/models"))[1])["data"][0]["id"] == "fake"
        assert json.loads((await http(host, "/v1/models/fake"))[1])["id"] == "fake"
        assert (await http(host, "/v1/models/other"))[0] == 404
        await client.send("response.cancel")
        await client.next()
        text = (await http(host, "/metrics"))[1].decode()
        assert 'duologue_errors_total{code="response_not_active"} 1.0' in text
        assert 'duologue_sessions{dialect="ga"} 1.0' in text
        status, body = await http(host, "/nothing")
        assert status == 404 and json.loads(body)["error"]["message"] == "The server does not offer GET /nothing."
        status, body = await http(host, "/v1/chat/completions")
        assert status == 405 and json.loads(body)["error"]["code"] == "unsupported"


@on_loop
async def test_the_stop_drains() -> None:
    engine = FakeEngine()
    async with server(engine) as host, host.client("/v1/duplex?model=fake") as duplex, host.client() as ga:
        await duplex.until("session.created")
        await ga.next()
        async with host.client("/v1/duplex?model=fake") as lost:
            await lost.until("session.created")
            lost.socket.transport.abort()
        await eventually(lambda: sum(session.detached for session in engine.sessions.values()) == 1)
        assert await host.realtime.drain(10.0)
        assert await duplex.closed() == 1001
        assert await ga.closed() == 1001
        assert duplex.frames[-1]["type"] == "session.closed"
        status, body = await http(host, "/ready")
        assert (status, json.loads(body)["status"]) == (503, "draining")
        assert (await http(host, "/health"))[0] == 200
        with pytest.raises(InvalidStatus) as caught:
            async with host.client():
                pass
        assert caught.value.response.status_code == 503
    assert (engine.sessions, engine.subscriptions) == ({}, 0)


@on_loop
async def test_a_drain_that_takes_too_long_drops_what_is_left() -> None:
    engine = FakeEngine()
    async with server(engine) as host, host.client() as client:
        await client.next()
        engine.hold = asyncio.Event()  # the engine answers nothing any more
        assert not await host.realtime.drain(0.05)
        assert await client.closed() in (1006, 1001)
        engine.hold.set()
