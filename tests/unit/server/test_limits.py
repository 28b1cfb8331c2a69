"""Every limit of connections and their sessions one below, at, and one above; and the metrics that tell of limits."""

from __future__ import annotations

import json

import pytest
from prometheus_client.parser import text_string_to_metric_families

from duologue.engine.duplex.events import SessionClosed, SessionQueued
from duologue.engine.duplex.messages import SessionEventMessage
from duologue.errors import ErrorCode
from duologue.server.attachment import MAX_LATE_ERRORS
from duologue.server.engine import EngineHealth
from duologue.server.journal import Gap, Journal
from duologue.server.metrics import ACTED, HELD, ServerMetrics
from duologue.server.registry import ConnectionLimits
from duologue.server.settings import MAX_EXTRA_BYTES, MAX_INSTRUCTIONS_CHARS, MAX_TOOLS_CHARS
from duologue.wire import WireFault, decode_client_event
from duologue.wire.decoder import MAX_COMMAND_BYTES
from duologue.wire.objects import LONGEST_NAME
from tests.unit.server.driver import World

AROUND = pytest.mark.parametrize("extra", [-1, 0, 1])


def codes(frames: list[dict[str, object]]) -> list[object]:
    return [frame["error"]["code"] for frame in frames if frame["type"] == "error"]  # type: ignore[index]


@AROUND
def test_journal_bytes(extra: int) -> None:
    journal = Journal(max_bytes=1_000, ttl_s=10.0)
    for size in (400, 600 + extra):
        journal.record(b"x" * size, 0.0)
    assert journal.held_bytes == (600 + extra if extra > 0 else 1_000 + extra)
    assert journal.after(0, 0.0) == (Gap("journal_overflow") if extra > 0 else [b"x" * 400, b"x" * (600 + extra)])
    assert journal.dropped == (extra > 0)


@AROUND
def test_journal_age(extra: int) -> None:
    journal = Journal(max_bytes=1_000, ttl_s=10.0)
    journal.record(b"x", 0.0)
    now = 10.0 + extra / 1_000
    assert journal.after(0, now) == (Gap("journal_gap") if extra > 0 else [b"x"])
    assert journal.dropped == 0


@AROUND
def test_early_events(extra: int) -> None:
    world = World(limits=ConnectionLimits(max_early_events=8))
    world.answers = False
    client = world.connect("/v1/realtime")
    for _ in range(8 + extra):  # a shell stops reading before the last of them
        client.send("input_audio_buffer.clear")
    assert client.connection.full == (None if extra < 0 else "max_early_events")
    world.answer()
    assert client.connection.full is None and client.closed is None


@AROUND
def test_early_bytes(extra: int) -> None:
    world = World(limits=ConnectionLimits(max_early_bytes=1_000))
    world.answers = False
    client = world.connect("/v1/realtime")
    head, tail = '{"type":"input_audio_buffer.clear","pad":"', '"}'
    client.raw(head + "x" * (1_000 + extra - len(head) - len(tail)) + tail)
    assert client.connection.full == (None if extra < 0 else "max_early_bytes")
    world.answer()
    assert client.connection.full is None and client.closed is None


@AROUND
def test_local_frames(extra: int) -> None:
    client = World(limits=ConnectionLimits(max_local_frames=6)).connect("/v1/realtime")
    client.reading = False
    for _ in range(6 + extra):
        client.raw("{")
    assert client.connection.full == (None if extra < 0 else "max_local_frames")
    client.reading = True
    client.pump()
    assert client.connection.full is None and client.types.count("error") == 6 + extra


@pytest.mark.parametrize("named", [True, False])
def test_errors_ahead_of_a_terminal_that_waits(named: bool) -> None:
    """Whoever answers each error with an event that is too late has another one from it, but not for ever."""
    world = World()
    client = world.connect("/v1/realtime?duplex=1&model=fake")
    client.reading = False
    client.say(SessionClosed(reason="shutdown", slot_released=True))
    late = {"event_id": "late"} if named else {}
    errors = 0
    for turn in range(MAX_LATE_ERRORS + 10):
        client.reading = False
        client.raw("{" if turn % 2 and not named else json.dumps({"type": "session.heartbeat", **late}))
        client.reading = True
        client.pump(1)
        if client.types[-1] == "session.closed":
            break
        assert client.types[-1] == "error"
        errors += 1
    assert client.types[-1] == "session.closed" and errors == (MAX_LATE_ERRORS if named else 1)


@AROUND
def test_sessions_per_key(extra: int) -> None:
    world = World(limits=ConnectionLimits(sessions_per_key=3))
    clients = [world.connect("/v1/realtime", key_id="k") for _ in range(3 + extra)]
    other = world.connect("/v1/realtime", key_id="another")
    refused = [client for client in clients if codes(client.frames)]
    assert len(refused) == max(0, extra) and not codes(other.frames)
    assert world.recorder.refusals.count(ErrorCode.RATE_LIMITED) == len(refused)


@AROUND
@pytest.mark.parametrize(
    ("limit", "session"),
    [
        (MAX_INSTRUCTIONS_CHARS, lambda size: {"instructions": "x" * size}),
        (
            MAX_TOOLS_CHARS,
            lambda size: {
                "tools": [
                    {"type": "function", "name": "f", "description": "x" * (size - 3), "parameters": {}},
                ]
            },
        ),
    ],
    ids=["instructions", "tools"],
)
def test_settings_chars(limit: int, session: object, extra: int) -> None:
    client = World().connect("/v1/realtime")
    frames = client.send("session.update", session=session(limit + extra))  # type: ignore[operator]
    assert bool(codes(frames)) == (extra > 0)


@AROUND
def test_extra_bytes(extra: int) -> None:
    client = World().connect("/v1/duplex")
    size = MAX_EXTRA_BYTES + extra - len(json.dumps({"k": ""}))
    frame = '{"type":"session.update","session":{"extra_body":' + json.dumps({"k": "x" * size}) + "}}"
    assert bool(codes(client.raw(frame))) == (extra > 0)


@AROUND
def test_command_bytes(extra: int) -> None:
    head, tail = '{"type":"response.cancel","event_id":"E","pad":"', '"}'
    frame = head + "x" * (MAX_COMMAND_BYTES + extra - len(head) - len(tail)) + tail
    try:
        decode_client_event(frame, "ga")
    except WireFault as fault:
        assert extra > 0 and (fault.code, fault.event_id) == (ErrorCode.EVENT_TOO_LARGE, "E")
    else:
        assert extra <= 0


@AROUND
def test_name_chars(extra: int) -> None:
    frame = json.dumps({"type": "response.cancel", "event_id": "n" * (LONGEST_NAME + extra)})
    try:
        event = decode_client_event(frame, "ga")
    except WireFault as fault:
        assert extra > 0 and fault.event_id is None
    else:
        assert extra <= 0 and event.event_id is not None


def test_what_is_held_and_what_has_acted_is_shown() -> None:
    health = EngineHealth(
        alive=True,
        held={name: number for number, name in enumerate(HELD, 1)},
        acted={name: number for number, name in enumerate(ACTED, 1)},
    )
    text = ServerMetrics().render(World().hub, health).decode()
    shown = {
        (family.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert [shown["duologue_held", name] for name in HELD] == list(range(1, len(HELD) + 1))
    assert [shown["duologue_limit_acted", name] for name in ACTED] == list(range(1, len(ACTED) + 1))
    assert shown["duologue_journal_dropped_frames",] == 0


@pytest.mark.parametrize("queued", [True, False])
def test_errors_that_nobody_takes_stop_the_reading_while_the_session_opens(queued: bool) -> None:
    world = World(limits=ConnectionLimits(max_local_frames=8))
    world.answers = False
    client = world.connect("/v1/duplex?model=fake")
    client.reading = False
    if queued:
        (attachment,) = world.hub.sessions
        for place in range(50, 0, -1):
            attachment.deliver(
                SessionEventMessage(session_id=attachment.session_id, number=0, event=SessionQueued(position=place))
            )
    for number in range(8):
        assert client.connection.full is None, number
        client.raw("no event")
    assert client.connection.full
    client.reading = True
    client.pump()
    assert client.connection.full is None
    assert client.types == ["session.queued"] * queued + ["error"] * 8, "of the places only the newest"
