"""The client against a scripted server, in virtual time."""

from __future__ import annotations

import asyncio
import gc

import pytest

from duologue.client import (
    ConnectError,
    RequestError,
    SessionEndedError,
    UnknownEvent,
)
from duologue.sim.loop import virtual
from duologue.wire.objects import Session
from duologue.wire.server_events import AudioDelta, SessionClosed
from tests.unit.client.scripted import (
    ScriptedServer,
    ScriptedSocket,
    accept,
    audio,
    background,
    closing,
    collect,
    joined,
    response_object,
    session_object,
)


@virtual
async def test_a_duplex_session_opens_with_its_settings_and_closes_in_order() -> None:
    server = ScriptedServer()
    task = background(accept(server))
    async with joined(server, api_key="k", session=Session(instructions="be brief"), model="m") as session:
        socket = await task
        assert session.session_id == "duplex-1"
        assert socket.url == "ws://h:1/v1/realtime?model=m&duplex=1&autostart=0"
        assert socket.headers == {"Authorization": "Bearer k"}
        assert socket.sent[0]["session"] == {"type": "realtime", "instructions": "be brief"}
        end = await closing(socket)
    await end
    assert session.ended is not None and session.ended.reason == "client_close"
    assert socket.types() == ["session.update", "session.close"]


@virtual
async def test_a_ga_session_sends_its_settings_after_creation_and_waits_for_them() -> None:
    server = ScriptedServer()

    async def serve() -> ScriptedSocket:
        socket = await server.socket(0)
        socket.tell("session.created", session=session_object())
        await socket.until("session.update")
        socket.tell("session.updated", session=session_object(instructions="x"))
        return socket

    task = background(serve())
    async with joined(server, dialect="ga", session=Session(instructions="x")) as session:
        socket = await task
        assert socket.url == "ws://h:1/v1/realtime"
        assert session.settings.instructions == "x"
        await session.append(b"\1\2")
    assert socket.types() == ["session.update", "input_audio_buffer.append"]


@virtual
async def test_a_refused_session_says_what_the_server_said() -> None:
    server = ScriptedServer()

    async def refuse() -> None:
        socket = await server.socket(0)
        await socket.until("session.update")
        socket.tell("error", error={"type": "rate_limit_error", "code": "resource_exhausted", "message": "Full."})
        socket.drop(1000)

    task = background(refuse())
    with pytest.raises(ConnectError, match=r"could not be opened: Full\.") as caught:
        async with joined(server):
            pass
    assert caught.value.code == "resource_exhausted"
    await task


@virtual
async def test_a_silent_server_is_given_up_after_thirty_seconds() -> None:
    loop = asyncio.get_running_loop()
    start_s = loop.time()
    with pytest.raises(ConnectError, match="opened no session within 30 s"):
        async with joined(ScriptedServer()):
            pass
    # The rest is the bounded wait for the terminal of a session that never was.
    assert loop.time() - start_s <= 36.0


@virtual
async def test_closing_is_bounded_when_the_server_says_nothing() -> None:
    server = ScriptedServer()
    task = background(accept(server))
    loop = asyncio.get_running_loop()
    async with joined(server) as session:
        socket = await task
        start_s = loop.time()
    assert loop.time() - start_s <= 5.0
    assert socket.types()[-1] == "session.close"
    assert session.ended is not None


@virtual
async def test_leaving_a_ga_session_in_mid_answer_is_an_orderly_end(caplog: pytest.LogCaptureFixture) -> None:
    """That dialect ends a session with its connection: no terminal is asked for, so none is missed."""
    server = ScriptedServer()

    async def speak() -> ScriptedSocket:
        socket = await server.socket(0)
        socket.tell("session.created", session=session_object())
        socket.tell("response.created", response=response_object("r"))
        socket.tell("response.output_audio.delta", **audio("r", 4800))
        return socket

    task = background(speak())
    async with joined(server, dialect="ga") as session:
        socket = await task
        async for event in session.events():
            if isinstance(event, AudioDelta):
                break
    assert socket.closed_by_client == 1000
    assert session.ended is not None and session.ended.reason == "client_close"
    assert [record.getMessage() for record in caplog.records if record.levelname != "DEBUG"] == []


@virtual
async def test_closing_is_bounded_when_the_socket_does_not_take_the_close() -> None:
    server = ScriptedServer()
    task = background(accept(server))
    loop = asyncio.get_running_loop()
    async with joined(server):
        socket = await task
        socket.stalled = asyncio.Event()
        start_s = loop.time()
    assert loop.time() - start_s <= 10.0


@virtual
async def test_unknown_and_broken_frames_are_events_not_exceptions() -> None:
    server = ScriptedServer()
    task = background(accept(server))
    async with joined(server) as session:
        socket = await task
        socket.tell("future.thing", server_event_seq=1, beauty=3)
        socket.tell_raw(b"{not json")
        socket.tell_raw(b'{"type": "response.created"}')
        _, future, broken, incomplete = await collect(session, 4)
        assert isinstance(future, UnknownEvent) and future.name == "future.thing" and b"beauty" in future.raw
        assert isinstance(broken, UnknownEvent) and broken.name == ""
        assert isinstance(incomplete, UnknownEvent) and incomplete.name == "response.created"
        assert (await socket.until("session.event_ack"))["server_event_seq"] == 1
        await closing(socket)


@virtual
async def test_a_response_is_followed_through_its_streams() -> None:
    server = ScriptedServer()
    task = background(accept(server))
    async with joined(server) as session:
        socket = await task
        socket.tell("response.created", response=response_object("r1"))
        for text in ("Hello", " you"):
            socket.tell("response.output_audio.delta", **audio("r1", 4), sample_rate_hz=24_000)
            socket.tell(
                "response.output_audio_transcript.delta", response_id="r1", item_id="i1", delta=text, output_index=0
            )
        socket.tell("response.output_audio.done", response_id="r1", item_id="i1", output_index=0)
        socket.tell("response.done", response=response_object("r1", "completed"))
        async for response in session.responses():
            assert [chunk async for chunk in response.audio()] == [bytes(4), bytes(4)]
            assert [piece async for piece in response.text()] == ["Hello", " you"]
            assert (await response.done()).response.status == "completed"
            assert response.audio_rate_hz == 24_000
            break
        await closing(socket)


@virtual
async def test_field_F10_a_response_that_nobody_reads_stops_nothing_else() -> None:
    server = ScriptedServer()
    task = background(accept(server, token=None))
    async with joined(server) as session:
        socket = await task
        responses = session.responses()
        socket.tell("response.created", response=response_object("r1"))
        for seq in range(1, 12_001):
            socket.tell("response.output_audio.delta", **audio("r1", 960, seq))
        unread = await anext(responses)
        assert (await socket.until("session.event_ack"))["server_event_seq"] >= 1
        socket.tell("response.created", response=response_object("r2"), server_event_seq=12_001)
        socket.tell("response.output_audio.delta", **audio("r2", 6, 12_002))
        socket.tell("response.done", response=response_object("r2", "completed"), server_event_seq=12_003)
        second = await anext(responses)
        assert [chunk async for chunk in second.audio()] == [bytes(6)]
        await second.done()
        await asyncio.sleep(1.0)
        acks = [event["server_event_seq"] for event in socket.sent if event["type"] == "session.event_ack"]
        assert acks[-1] == 12_003
        assert unread.dropped_audio_bytes > 0
        assert session.dropped_events > 0
        socket.tell("response.done", response=response_object("r1", "completed"), server_event_seq=12_004)
        await unread.done()
        kept = [chunk async for chunk in unread.audio()]
        assert len(kept) * 960 + unread.dropped_audio_bytes == 12_000 * 960
        await closing(socket)


@virtual
async def test_events_lose_audio_before_anything_else() -> None:
    server = ScriptedServer()
    task = background(accept(server))
    async with joined(server) as session:
        socket = await task
        for number in range(2_000):
            socket.tell("response.output_audio.delta", **audio("r1", 4))
            if number % 10 == 0:
                socket.tell("turn.event", event=str(number))
        socket.tell("turn.event", event="last")
        names = []
        await asyncio.sleep(0.1)
        async for event in session.events():
            if hasattr(event, "event"):
                names.append(event.event)
                if event.event == "last":
                    break
        assert names == [*(str(number) for number in range(0, 2_000, 10)), "last"]
        await closing(socket)


@virtual
async def test_duplicates_are_dropped_and_the_newest_number_is_acknowledged() -> None:
    server = ScriptedServer()
    task = background(accept(server))
    async with joined(server) as session:
        socket = await task
        for seq in (1, 2, 2, 1, 3):
            socket.tell("turn.event", event=str(seq), server_event_seq=seq)
        events = await collect(session, 4)
        assert [getattr(event, "event", None) for event in events[1:]] == ["1", "2", "3"]
        assert (await socket.until("session.event_ack"))["server_event_seq"] == 3
        assert session.last_event_seq == 3
        await closing(socket)


@virtual
async def test_the_servers_terminal_is_delivered_before_the_end() -> None:
    server = ScriptedServer()
    task = background(accept(server))
    async with joined(server) as session:
        socket = await task
        socket.tell("session.closed", reason="fault", slot_released=True, error_code="replica_unavailable")
        socket.drop(1011)
        events = []
        with pytest.raises(SessionEndedError) as caught:
            async for event in session.events():
                events.append(event)
        assert isinstance(events[-1], SessionClosed)
        assert (caught.value.reason, caught.value.code) == ("fault", "replica_unavailable")


@virtual
async def test_a_failed_send_does_not_hide_the_terminal_that_was_still_to_be_read() -> None:
    server = ScriptedServer()
    task = background(accept(server, token=None))
    async with joined(server) as session:
        socket = await task
        socket.tell("session.closed", reason="shutdown", slot_released=True)
        socket.drop(1001)
        await session.append(b"\0\0")
        with pytest.raises(SessionEndedError) as caught:
            await session.commit()
        assert caught.value.reason == "shutdown"


@virtual
async def test_a_request_that_is_still_being_sent_when_the_session_ends_fails_once() -> None:
    server = ScriptedServer()
    task = background(accept(server, token=None))
    async with joined(server) as session:
        socket = await task
        socket.stalled = asyncio.Event()
        update = background(session.update(Session(instructions="z")))
        await asyncio.sleep(0)
        socket.drop(1011, "engine_dead")
        await asyncio.sleep(1)  # the session is over; the request hears of it now, and nobody else has to
        socket.stalled.set()
        await asyncio.wait([update])
        assert isinstance(update.exception(), SessionEndedError)
    del session, server, socket, task, update
    gc.collect()  # what was raised and never heard would be reported here, and fail the test
    await asyncio.sleep(0)


@virtual
async def test_heartbeats_are_sent_while_connected() -> None:
    server = ScriptedServer()
    task = background(accept(server))
    async with joined(server, heartbeat_period_s=10.0):
        socket = await task
        await asyncio.sleep(35)
        assert socket.types().count("session.heartbeat") == 3
        await closing(socket)


@virtual
async def test_commands_with_an_answer_return_it_or_raise_what_the_server_said() -> None:
    server = ScriptedServer()
    task = background(accept(server))
    async with joined(server) as session:
        socket = await task
        retrieval = background(session.retrieve("i1"))
        await socket.until("conversation.item.retrieve")
        socket.tell(
            "conversation.item.retrieved",
            item={
                "type": "message",
                "id": "i1",
                "role": "assistant",
                "content": [{"type": "output_audio", "transcript": "hi"}],
            },
        )
        item = await retrieval
        assert isinstance(item.content, list) and item.content[0].transcript == "hi"

        update = background(session.update(Session(instructions="z")))
        sent = await socket.until("session.update", 2)
        body = {"type": "invalid_request_error", "code": "bad_event", "message": "No.", "event_id": sent["event_id"]}
        socket.tell("error", error=body)
        with pytest.raises(RequestError, match=r"No\."):
            await update

        with pytest.raises(RequestError, match="did not answer within 10 s"):
            await session.retrieve("i2")
        await closing(socket)


@virtual
async def test_every_command_has_its_wire_form() -> None:
    server = ScriptedServer()
    task = background(accept(server))
    async with joined(server) as session:
        socket = await task
        await session.append(b"")
        await session.commit(create_response=True)
        await session.clear()
        await session.clear_output("r1")
        await session.create_response()
        await session.cancel("r1")
        await session.barge_in()
        await session.cancel_input()
        await session.signal("turn.start")
        await session.say("hello")
        await session.delete_item("i1")
        await session.truncate("i1", 1500)
        await session.ack_playback(200, response_id="r1", item_id="i1")
        sent = [{key: value for key, value in event.items() if key != "event_id"} for event in socket.sent[1:]]
        assert sent == [
            {"type": "input_audio_buffer.commit", "response_create": True},
            {"type": "input_audio_buffer.clear"},
            {"type": "output_audio_buffer.clear", "response_id": "r1"},
            {"type": "response.create"},
            {"type": "response.cancel", "response_id": "r1"},
            {"type": "barge_in"},
            {"type": "input.cancel"},
            {"type": "turn.signal", "name": "turn.start"},
            {
                "type": "conversation.item.create",
                "item": {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]},
            },
            {"type": "conversation.item.delete", "item_id": "i1"},
            {"type": "conversation.item.truncate", "item_id": "i1", "audio_end_ms": 1500},
            {"type": "playback.ack", "played_ms": 200, "response_id": "r1", "item_id": "i1"},
        ]
        await closing(socket)


@virtual
async def test_long_audio_goes_in_several_appends() -> None:
    server = ScriptedServer()
    task = background(accept(server))
    async with joined(server) as session:
        socket = await task
        await session.append(bytes((1 << 21) + 2))
        assert socket.types().count("input_audio_buffer.append") == 3
        await closing(socket)


@virtual
async def test_the_tap_sees_both_directions() -> None:
    server = ScriptedServer()
    seen: list[tuple[str, bytes]] = []
    task = background(accept(server))
    async with joined(server, tap=lambda direction, frame: seen.append((direction, frame))) as session:
        socket = await task
        await session.append(b"\0\0")
        await closing(socket)
    assert [direction for direction, _ in seen] == ["out", "in", "out", "out", "in"]


@pytest.mark.parametrize("url", ["ftp://h", "ws://", "", "/v1/realtime"])
def test_an_address_that_cannot_be_one_is_refused(url: str) -> None:
    from duologue.client import realtime_url

    with pytest.raises(ConnectError, match="not a usable address"):
        realtime_url(url, dialect="ga")


@pytest.mark.parametrize(
    ("written", "full"),
    [
        ("localhost:8000", "ws://localhost:8000/v1/realtime"),
        ("http://h:1/", "ws://h:1/v1/realtime"),
        ("https://h/v1/realtime?model=a", "wss://h/v1/realtime?model=a"),
    ],
)
def test_an_address_may_be_written_as_people_do(written: str, full: str) -> None:
    from duologue.client import realtime_url

    assert realtime_url(written, dialect="ga") == full
