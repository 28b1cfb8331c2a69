"""The shell in virtual time: the pump against a socket that stops, operations that outlive it, faults of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, MutableMapping
from typing import Any

import pytest

from duologue.engine.duplex import messages
from duologue.engine.duplex.events import SessionClosed
from duologue.errors import DuologueError, ErrorCode, StageFault
from duologue.server.connection import Connection
from duologue.server.hello import read_hello
from duologue.server.registry import ConnectionLimits, SessionHub
from duologue.server.shell import SocketShell, ask
from duologue.server.transport import SocketLostError
from duologue.sim.loop import VirtualRuntime, run, virtual
from tests.unit.server.driver import World
from tests.unit.server.fake_engine import FakeEngine, answer


class FakeSocket:
    """A transport that a test stops and starts, and the client's end of it."""

    def __init__(self) -> None:
        self.on_writable: Callable[[], None] = lambda: None
        self.inbox: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        self.frames: list[dict[str, Any]] = []
        self.closes: list[tuple[int, str]] = []
        self.aborted = False
        self.lost = False
        self.stuck_close = False
        self._writable = True

    @property
    def writable(self) -> bool:
        return self._writable

    def block(self) -> None:
        self._writable = False

    def unblock(self) -> None:
        self._writable = True
        self.on_writable()

    async def send(self, frame: bytes) -> None:
        if self.lost:
            raise SocketLostError
        assert self._writable, "a frame for a socket that cannot take it"
        self.frames.append(json.loads(frame))

    def abort(self) -> None:
        self.aborted = True
        self.inbox.put_nowait({"type": "websocket.disconnect", "code": 1006})

    async def close(self, code: int, reason: str) -> None:
        if self.stuck_close:
            await asyncio.Event().wait()
        self.closes.append((code, reason))
        self.inbox.put_nowait({"type": "websocket.disconnect", "code": code})

    def client_sends(self, type: str, **fields: object) -> None:
        self.inbox.put_nowait({"type": "websocket.receive", "text": json.dumps({"type": type, **fields})})

    def client_leaves(self) -> None:
        self.inbox.put_nowait({"type": "websocket.disconnect", "code": 1005})


class Bench:
    """One shell on the virtual loop."""

    def __init__(
        self,
        runtime: VirtualRuntime,
        url: str = "/v1/realtime",
        engine: FakeEngine | None = None,
        hub: SessionHub | None = None,
    ) -> None:
        self.engine = engine or FakeEngine()
        self.hub = hub or World(self.engine).hub
        self.socket = FakeSocket()
        self.limited: list[str] = []
        path, _, query = url.partition("?")
        self.shell = SocketShell(
            Connection(read_hello(path, query), self.hub),
            engine=self.engine,
            runtime=runtime,
            transport=self.socket,
            receive=self.socket.inbox.get,
            close=self.socket.close,
            limited=self.limited.append,
        )
        self.task = runtime.spawn(self.shell.run(), name="shell")

    @property
    def types(self) -> list[str]:
        return [frame["type"] for frame in self.socket.frames]

    async def leave(self) -> None:
        self.socket.client_leaves()
        await self.task


async def settle() -> None:
    """Let everything that is ready run, a good many turns of the loop."""
    await asyncio.sleep(0.001)


@virtual(limit_s=60)
async def test_frames_flow_and_nothing_is_left_after_the_client_leaves(runtime: VirtualRuntime) -> None:
    bench = Bench(runtime)
    await settle()
    bench.engine.say(bench.engine.only.session_id, *answer("r", "i"))
    await settle()
    assert bench.types[-1] == "response.done"
    assert bench.engine.only.taken == bench.engine.only.number
    await bench.leave()
    await settle()
    assert (bench.engine.sessions, bench.hub.sessions, len(runtime.tasks)) == ({}, (), 0)


@virtual(limit_s=60)
async def test_nothing_is_taken_while_the_socket_is_full(runtime: VirtualRuntime) -> None:
    bench = Bench(runtime)
    await settle()
    taken = bench.engine.only.taken
    bench.socket.block()
    bench.engine.say(bench.engine.only.session_id, *answer("r", "i"))
    await settle()
    assert bench.engine.only.taken == taken
    bench.socket.unblock()
    await settle()
    assert bench.types[-1] == "response.done"
    await bench.leave()


@virtual(limit_s=60)
async def test_reading_stops_for_a_client_that_does_not_read_its_errors(runtime: VirtualRuntime) -> None:
    bench = Bench(runtime)
    await settle()
    bench.socket.block()
    for number in range(200):
        bench.socket.client_sends(f"unknown.{number}")
    await settle()
    assert bench.socket.inbox.qsize() == 200 - bench.hub.limits.max_local_frames
    bench.socket.unblock()
    await settle()
    assert bench.types.count("error") == 200
    await bench.leave()


@virtual(limit_s=60)
async def test_a_client_that_leaves_while_reading_is_stopped_is_noticed(runtime: VirtualRuntime) -> None:
    bench = Bench(runtime)
    await settle()
    bench.socket.block()
    for number in range(100):
        bench.socket.client_sends(f"unknown.{number}")
    await settle()
    bench.socket.lost = True
    bench.socket.unblock()
    bench.socket.client_leaves()
    await bench.task
    await settle()
    assert bench.hub.sessions == ()


@virtual(limit_s=60)
async def test_a_terminal_closes_the_socket_in_order(runtime: VirtualRuntime) -> None:
    bench = Bench(runtime, "/v1/duplex?model=fake")
    await settle()
    bench.socket.client_sends("session.close")
    await bench.task
    assert bench.types[-1] == "session.closed"
    assert bench.socket.closes == [(1000, "client_close")]


@virtual(limit_s=60)
async def test_a_terminal_that_a_full_socket_cannot_take_is_dropped_in_time(runtime: VirtualRuntime) -> None:
    bench = Bench(runtime)
    await settle()
    bench.socket.block()
    started = runtime.now()
    bench.engine.say(bench.engine.only.session_id, SessionClosed(reason="output_backpressure"))
    await bench.task
    assert bench.socket.aborted
    assert runtime.now() - started <= bench.hub.limits.close_timeout_s + 0.1
    assert bench.hub.sessions == ()


@virtual(limit_s=60)
async def test_a_close_that_does_not_end_is_cut_off(runtime: VirtualRuntime) -> None:
    bench = Bench(runtime)
    await settle()
    bench.socket.stuck_close = True
    bench.engine.say(bench.engine.only.session_id, SessionClosed(reason="x"))
    await bench.task
    assert bench.socket.aborted


@virtual(limit_s=60)
async def test_no_first_message_ends_the_connection(runtime: VirtualRuntime) -> None:
    bench = Bench(runtime, "/v1/duplex")
    await bench.task
    assert bench.socket.frames[0]["error"]["code"] == "config_timeout"
    assert bench.socket.closes[0][0] == 1000


@virtual(limit_s=60)
async def test_a_socket_lost_during_the_opening_leaves_no_session(runtime: VirtualRuntime) -> None:
    engine = FakeEngine()
    engine.hold = asyncio.Event()
    bench = Bench(runtime, engine=engine)
    await settle()
    await bench.leave()
    engine.hold.set()
    await settle()
    assert (engine.sessions, bench.hub.sessions) == ({}, ())


@pytest.mark.parametrize("turns", [0, 1, 5])
def test_field_F52_a_pump_that_is_cancelled_drops_its_connection(turns: int) -> None:
    """Before its first step too: else a client waits, with its slot, for what nobody will send."""

    async def main(runtime: VirtualRuntime) -> None:
        bench = Bench(runtime)
        pumps: list[asyncio.Task[Any]] = []
        runtime.on_spawn.append(lambda task: pumps.append(task) if task.get_name() == "pump" else None)
        await asyncio.sleep(0)
        for _ in range(turns):
            await asyncio.sleep(0)
        pumps[0].cancel()
        await settle()
        assert bench.socket.aborted
        assert (bench.engine.sessions, bench.hub.sessions, len(runtime.tasks)) == ({}, (), 0)

    run(main, limit_s=60)


@virtual(limit_s=60)
async def test_an_abandoned_resume_is_resolved_by_its_answer(runtime: VirtualRuntime) -> None:
    engine = FakeEngine()
    first = Bench(runtime, "/v1/duplex?model=fake", engine)
    await settle()
    created = first.socket.frames[0]
    await first.leave()
    await settle()
    assert engine.only.detached
    engine.hold = asyncio.Event()
    second = Bench(runtime, "/v1/duplex", engine, first.hub)
    second.socket.client_sends("session.resume", session_id=created["session_id"], resume_token=created["resume_token"])
    await settle()
    await second.leave()
    engine.hold.set()
    engine.hold = None
    await settle()
    assert engine.only.generation == 1
    assert engine.only.detached


@virtual(limit_s=60)
async def test_a_fault_in_one_connection_ends_it_with_1011(runtime: VirtualRuntime) -> None:
    bench = Bench(runtime)
    await settle()

    def broken(frame: bytes | str, now: float) -> list[Any]:
        raise RuntimeError(f"broken at {now:.0f} by {len(frame)} characters")

    bench.shell.connection.receive = broken  # type: ignore[method-assign]
    bench.socket.client_sends("input_audio_buffer.clear")
    await bench.task
    await settle()
    assert bench.socket.closes == [(1011, "internal_error")]
    assert bench.hub.sessions == ()


@virtual(limit_s=60)
async def test_whatever_an_operation_ends_with_is_an_answer() -> None:
    engine = FakeEngine()
    detach = messages.DetachSession(session_id="s", control_id="d")
    assert await ask(engine, detach) is None
    for raised, code in (
        (StageFault(ErrorCode.TIMEOUT, "Too slow."), ErrorCode.TIMEOUT),
        (RuntimeError("a bug"), ErrorCode.INTERNAL_ERROR),
    ):
        engine.fault = raised
        answer = await ask(engine, detach)
        assert isinstance(answer, DuologueError) and answer.code is code


@virtual(limit_s=60)
async def test_field_F36_a_peer_that_has_sent_much_does_not_keep_the_others_waiting(runtime: VirtualRuntime) -> None:
    bench = Bench(runtime)
    await settle()

    def received() -> int:
        return sum(isinstance(message, messages.SessionCommand) for message in bench.engine.posted)

    for padding, at_once in ((0, 16), (40_000, 2)):
        for _ in range(500):
            bench.socket.client_sends("input_audio_buffer.clear", pad="x" * padding)
        before, last = received(), received() + 500
        while before < last:
            await asyncio.sleep(0)
            assert received() - before <= at_once
            before = received()
    await bench.leave()


@virtual(limit_s=60)
async def test_each_time_that_reading_stops_it_is_told_for_which_limit(runtime: VirtualRuntime) -> None:
    engine = FakeEngine()
    hub = World(engine, limits=ConnectionLimits(max_local_frames=6)).hub
    bench = Bench(runtime, engine=engine, hub=hub)
    await settle()
    bench.socket.block()
    for _ in range(20):
        bench.socket.client_sends("no.such.event")
    await settle()
    assert bench.limited == ["max_local_frames"]
    bench.socket.unblock()
    await settle()
    assert bench.types.count("error") == 20 and set(bench.limited) == {"max_local_frames"}
    told = len(bench.limited)
    bench.socket.inbox.put_nowait({"type": "websocket.disconnect", "code": 1009})
    await bench.task
    assert bench.limited[told:] == ["max_frame_bytes"]
