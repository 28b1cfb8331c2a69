"""A client whose connection is lost, against a scripted server in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from duologue.client import ReconnectPolicy, SessionEndedError
from duologue.sim.loop import virtual
from duologue.wire.server_events import ResyncRequired
from tests.unit.client.scripted import (
    ScriptedServer,
    ScriptedSocket,
    accept,
    background,
    closing,
    collect,
    joined,
    response_object,
    session_object,
)


async def resumed(server: ScriptedServer, number: int, token: str = "t2") -> ScriptedSocket:
    socket = await server.socket(number)
    await socket.until("session.resume")
    socket.tell("session.resumed", session=session_object(), resume_token=token, generation=1, last_server_event_seq=9)
    return socket


@virtual
async def test_a_lost_connection_is_taken_up_again_and_nothing_is_told_twice() -> None:
    server = ScriptedServer()
    task = background(accept(server))
    loop = asyncio.get_running_loop()
    async with joined(server) as session:
        first = await task
        first.tell("turn.event", event="1", server_event_seq=1)
        await collect(session, 2)
        server.refusals = 2
        lost_s = loop.time()
        first.drop()
        await asyncio.sleep(0.01)
        assert not session.connected
        await session.append(b"\1\1")
        await session.append(b"\2\2")
        waiting = background(session.commit())
        second = await resumed(server, 1)
        assert second.url == "ws://h:1/v1/realtime?duplex=1&autostart=0&resume=1"
        resume = second.sent[0]
        assert (resume["session_id"], resume["resume_token"]) == ("duplex-1", "t1")
        assert resume["last_received_server_event_seq"] == 1
        second.tell("turn.event", event="1", server_event_seq=1)
        second.tell("turn.event", event="2", server_event_seq=2)
        events = await collect(session, 2)
        assert [getattr(event, "event", "resumed") for event in events] == ["resumed", "2"]
        await waiting
        kept = ["input_audio_buffer.append", "input_audio_buffer.append", "input_audio_buffer.commit"]
        assert [type for type in second.types() if type.startswith("input")] == kept
        assert [second.sent[1]["audio"], second.sent[2]["audio"]] == ["AQE=", "AgI="]
        # waits of 0.25, 0.5 and 1 s before the three attempts
        assert [at - lost_s for at in server.refused_at] == pytest.approx([0.25, 0.75])
        assert session.reconnects == 1 and session.connected
        # the new token is used next time
        second.drop()
        third = await resumed(server, 2)
        assert third.sent[0]["resume_token"] == "t2"
        await asyncio.sleep(0.01)
        await closing(third)


@virtual
async def test_audio_kept_during_a_loss_is_bounded_and_the_oldest_goes() -> None:
    server = ScriptedServer()
    task = background(accept(server))
    async with joined(server, reconnect=ReconnectPolicy(kept_audio_bytes=1000)) as session:
        first = await task
        first.drop()
        await asyncio.sleep(0.01)
        for number in range(20):
            await session.append(bytes([number]) * 100)
        second = await resumed(server, 1)
        await asyncio.sleep(0.01)
        await session.append(b"zz")
        appends = [event["audio"] for event in second.sent if event["type"] == "input_audio_buffer.append"]
        assert 2 < len(appends) < 12
        assert appends[-1] == "eno=" and appends[-2].startswith("ExMT")
        assert session.dropped_audio_bytes > 0
        await closing(second)


@virtual
async def test_it_gives_up_after_five_tries_and_says_so_everywhere() -> None:
    server = ScriptedServer()
    task = background(accept(server))
    async with joined(server) as session:
        socket = await task
        socket.tell("response.created", response=response_object("r1"))
        response = await anext(session.responses())
        server.refusals = 99
        socket.drop()
        with pytest.raises(SessionEndedError) as caught:
            await response.done()
        assert caught.value.reason == "connection_lost"
        assert len(server.refused_at) == 5
        with pytest.raises(SessionEndedError, match="connection to the server was lost"):
            await session.append(b"\0\0")
        with pytest.raises(SessionEndedError):
            await session.commit()
        with pytest.raises(SessionEndedError):
            async for _ in session.events():
                pass


@virtual
async def test_a_refused_resumption_ends_the_session_at_once() -> None:
    server = ScriptedServer()
    task = background(accept(server))
    async with joined(server) as session:
        first = await task
        first.drop()
        second = await server.socket(1)
        await second.until("session.resume")
        body = {"type": "invalid_request_error", "code": "session_resume_expired", "message": "Gone."}
        second.tell("error", error=body)
        with pytest.raises(SessionEndedError, match=r"could not be resumed: Gone\.") as caught:
            async for _ in session.events():
                pass
        assert caught.value.code == "session_resume_expired"
        assert len(server.sockets) == 2


@virtual
async def test_a_gap_in_the_replay_is_an_event_and_counting_goes_on_after_it() -> None:
    server = ScriptedServer()
    task = background(accept(server))
    async with joined(server) as session:
        first = await task
        first.drop()
        second = await resumed(server, 1)
        second.tell(
            "session.resync_required",
            reason="journal_gap",
            last_received_server_event_seq=0,
            next_server_event_seq=50,
        )
        second.tell("turn.event", event="49", server_event_seq=49)
        second.tell("turn.event", event="50", server_event_seq=50)
        events = await collect(session, 4)
        assert isinstance(events[2], ResyncRequired)
        assert getattr(events[3], "event", None) == "50"
        await closing(second)


@virtual
async def test_a_replaced_connection_does_not_fight_for_the_session() -> None:
    server = ScriptedServer()
    task = background(accept(server))
    async with joined(server) as session:
        socket = await task
        socket.tell("session.replaced", generation=1)
        socket.drop(1000)
        with pytest.raises(SessionEndedError, match="took this session over"):
            async for _ in session.events():
                pass
        await asyncio.sleep(30)
        assert len(server.sockets) == 1


@virtual
async def test_leaving_while_a_connection_is_taken_up_again_closes_it() -> None:
    server = ScriptedServer()
    task = background(accept(server))
    async with joined(server):
        (await task).drop()
        second = await server.socket(1)
        await second.until("session.resume")
    assert second.closed_by_client == 1000
