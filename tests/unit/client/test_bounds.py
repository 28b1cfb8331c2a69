"""What a client keeps for an application that does not take it: one below each bound, at it, and one above."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.client.buffer import Buffer
from duologue.client.playback import _KEPT_RESPONSES, PlaybackTracker
from duologue.client.response import MAX_AUDIO_BYTES, MAX_DELTAS, ResponseStream
from duologue.client.session import MAX_EVENT_AUDIO_BYTES, MAX_EVENTS, MAX_WAITING_RESPONSES, ClientSession
from duologue.sim.loop import virtual
from duologue.wire.objects import Response
from duologue.wire.server_events import SessionClosed
from tests.unit.client.scripted import (
    ScriptedServer,
    ScriptedSocket,
    accept,
    audio,
    background,
    closing,
    joined,
    response_object,
)

OVER = (-1, 0, 1)


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[ClientSession, ScriptedSocket]]:
    """A session and the server's end of its socket, closed in order."""
    server = ScriptedServer()
    task = background(accept(server))
    async with joined(server) as session:
        socket = await task
        yield session, socket
        await closing(socket)


@given(st.lists(st.integers(0, 5), max_size=40), st.integers(1, 6), st.integers(0, 9))
def test_a_buffer_keeps_the_newest_within_both_bounds_and_counts_the_rest(
    weights: list[int], entries: int, heaviest: int
) -> None:
    buffer: Buffer[tuple[int, int]] = Buffer(max_entries=entries, max_weight=heaviest, weight=lambda entry: entry[1])
    gone = [entry for numbered in enumerate(weights) for entry in buffer.put(numbered)]
    kept = weights[len(gone) :]
    assert [number for number, _ in gone] == list(range(len(gone)))
    assert len(buffer) == len(kept) <= entries
    assert not heaviest or sum(kept) <= heaviest or len(kept) == 1
    assert (buffer.dropped, buffer.dropped_weight) == (len(gone), sum(weight for _, weight in gone))
    if gone:  # nothing went that could have stayed
        last = gone[-1][1]
        assert len(kept) == entries or (heaviest and sum(kept) + last > heaviest) or len(kept) == 1


@pytest.mark.parametrize("over", OVER)
@virtual
async def test_the_audio_of_a_response_is_bounded_in_bytes(over: int) -> None:
    stream = ResponseStream(Response(id="r1", status="in_progress"))
    stream.feed_audio("i1", bytes(MAX_AUDIO_BYTES // 2), None)
    stream.feed_audio("i1", bytes(MAX_AUDIO_BYTES // 2 + over), None)
    stream.end_audio()
    assert stream.dropped_audio_bytes == (MAX_AUDIO_BYTES // 2 if over > 0 else 0)
    kept = sum([len(chunk) async for chunk in stream.audio()])
    assert kept + stream.dropped_audio_bytes == MAX_AUDIO_BYTES + over


@pytest.mark.parametrize("over", OVER)
@virtual
async def test_the_deltas_of_a_response_are_bounded_in_number(over: int) -> None:
    stream = ResponseStream(Response(id="r1", status="in_progress"))
    for number in range(MAX_DELTAS + over):
        stream.feed_text("i1", str(number))
        stream.feed_audio("i1", bytes(2), None)
    stream.end_audio()
    lost = max(0, over)
    assert (stream.dropped_text_deltas, stream.dropped_audio_bytes) == (lost, 2 * lost)
    pieces = stream.text()
    assert await anext(pieces) == str(lost)
    assert len([chunk async for chunk in stream.audio()]) == MAX_DELTAS + min(0, over)


@pytest.mark.parametrize("over", OVER)
@virtual
async def test_events_that_nobody_takes_are_bounded_in_number(over: int) -> None:
    async with connected() as (session, socket):
        stream = session.events()
        await anext(stream)  # session.created
        for number in range(MAX_EVENTS + over - 1):  # and the terminal
            socket.tell("turn.event", event=str(number))
    assert session.dropped_events == max(0, over)
    names = [event.event async for event in stream if not isinstance(event, SessionClosed)]
    assert names[0] == str(max(0, over)) and names[-1] == str(MAX_EVENTS + over - 2)


@pytest.mark.parametrize("over", OVER)
@virtual
async def test_audio_in_events_that_nobody_takes_is_bounded_in_bytes(over: int) -> None:
    pieces = 8
    size = MAX_EVENT_AUDIO_BYTES // pieces
    async with connected() as (session, socket):
        for number in range(pieces):
            socket.tell("response.output_audio.delta", **audio("r1", size + (over if number == pieces - 1 else 0)))
    assert session.dropped_events == max(0, over)


@pytest.mark.parametrize("over", OVER)
@virtual
async def test_responses_that_nobody_takes_are_bounded_in_number(over: int) -> None:
    async with connected() as (session, socket):
        for number in range(MAX_WAITING_RESPONSES + over):
            socket.tell("response.created", response=response_object(f"r{number}"))
            socket.tell("response.done", response=response_object(f"r{number}", "completed"))
    kept = [response.response_id async for response in session.responses()]
    assert kept == [f"r{number}" for number in range(max(0, over), MAX_WAITING_RESPONSES + over)]


@pytest.mark.parametrize("over", OVER)
def test_the_player_remembers_so_many_responses(over: int) -> None:
    player = PlaybackTracker(now=lambda: 0.0, rate_hz=1000)
    for number in range(_KEPT_RESPONSES + over):
        player.add(f"r{number}", f"i{number}", 10)
    forgotten = [number for number in range(_KEPT_RESPONSES + over) if player.heard(f"r{number}") is None]
    assert forgotten == list(range(max(0, over)))
