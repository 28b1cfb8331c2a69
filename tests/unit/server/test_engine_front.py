"""The port over an orchestrator: answers to operations, events to sinks, and what happens when the engine dies."""

from __future__ import annotations

import asyncio

import pytest

from duologue.engine.duplex.events import InputCleared, SessionClosed
from duologue.engine.duplex.messages import (
    OutputInvalidated,
    SessionEventMessage,
    TouchSession,
)
from duologue.engine.messages import EngineQueueMessage, ErrorMessage, ResultMessage
from duologue.errors import AdmissionFault, ClientFault, DuologueError, ErrorCode
from duologue.server.engine import EngineFront, EngineHealth, PoolHealth, SessionOutput
from duologue.server.models import ModelCard
from duologue.sim.loop import VirtualRuntime, virtual


class Posts:
    """An orchestrator that remembers."""

    def __init__(self) -> None:
        self.messages: list[EngineQueueMessage] = []

    def post(self, message: EngineQueueMessage) -> None:
        self.messages.append(message)


def front_of(runtime: VirtualRuntime) -> tuple[EngineFront, Posts]:
    pools = (PoolHealth(name="a", replicas=2, available=1),)
    front = EngineFront(
        runtime=runtime, models=[ModelCard(id="m")], health=lambda: EngineHealth(alive=True, pools=pools)
    )
    posts = Posts()
    front.attach(posts)
    return front, posts


def event(number: int, session_id: str = "s") -> SessionEventMessage:
    return SessionEventMessage(session_id=session_id, number=number, event=InputCleared())


@virtual(limit_s=30)
async def test_an_operation_is_answered_by_its_own_result(runtime: VirtualRuntime) -> None:
    front, posts = front_of(runtime)
    one = asyncio.ensure_future(front.control(TouchSession(session_id="s", control_id="1")))
    two = asyncio.ensure_future(front.control(TouchSession(session_id="s", control_id="2")))
    await asyncio.sleep(0)
    assert len(posts.messages) == 2
    front.results.put_nowait(ResultMessage(control_id="2", value="b"))
    front.results.put_nowait(ResultMessage(control_id="nobody", value="x"))
    front.results.put_nowait(ResultMessage(control_id="1", value="a"))
    front.results.put_nowait(ResultMessage(control_id="1", value="again"))
    assert (await one, await two) == ("a", "b")


@virtual(limit_s=30)
async def test_a_refusal_is_the_error_of_its_code(runtime: VirtualRuntime) -> None:
    front, _ = front_of(runtime)
    for code, kind in (
        ("resource_exhausted", AdmissionFault),
        ("stale", DuologueError),
        ("item_not_found", ClientFault),
    ):
        asked = asyncio.ensure_future(front.control(TouchSession(session_id="s", control_id="1")))
        await asyncio.sleep(0)
        front.results.put_nowait(ResultMessage(control_id="1", error_code=code, error_message="No."))
        with pytest.raises(kind, match="No"):
            await asked


@virtual(limit_s=30)
async def test_silence_is_a_timeout(runtime: VirtualRuntime) -> None:
    front, _ = front_of(runtime)
    started = runtime.now()
    with pytest.raises(DuologueError) as caught:
        await front.control(TouchSession(session_id="s", control_id="1"))
    assert caught.value.code is ErrorCode.TIMEOUT
    assert runtime.now() - started == 10.0
    front.results.put_nowait(ResultMessage(control_id="1"))  # late: nobody waits, nothing happens


@virtual(limit_s=30)
async def test_events_go_to_their_sink_at_once_and_in_order(runtime: VirtualRuntime) -> None:
    front, _ = front_of(runtime)
    got: list[SessionOutput] = []
    front.subscribe("s", got.append)
    said = [event(1), event(1, "other"), OutputInvalidated(session_id="s", response_id="r"), event(2)]
    for message in [*said, ErrorMessage(request_id="q", code="x", message="of another path")]:
        front.outputs.put_nowait(message)
    assert got == [said[0], said[2], said[3]]
    front.unsubscribe("s")
    front.outputs.put_nowait(event(3))
    assert len(got) == 3


@virtual(limit_s=30)
async def test_a_dead_engine_ends_its_sessions_and_refuses_everything(runtime: VirtualRuntime) -> None:
    front, posts = front_of(runtime)
    got: list[SessionOutput] = []
    front.subscribe("s", got.append)
    front.outputs.put_nowait(event(7))
    asked = asyncio.ensure_future(front.control(TouchSession(session_id="s", control_id="1")))
    await asyncio.sleep(0)
    front.died()
    last = got[-1]
    assert isinstance(last, SessionEventMessage) and isinstance(last.event, SessionClosed)
    assert (last.number, last.event.fault) == (8, ErrorCode.ENGINE_DEAD)
    for waiting in (asked, front.control(TouchSession(session_id="s", control_id="2"))):
        with pytest.raises(DuologueError) as caught:
            await waiting
        assert caught.value.code is ErrorCode.ENGINE_DEAD
    count = len(posts.messages)
    front.post(TouchSession(session_id="s", control_id="3"))
    assert len(posts.messages) == count
    assert not front.health().alive


def test_readiness_needs_a_replica_of_every_stage() -> None:
    up, down = PoolHealth(name="a", replicas=1, available=1), PoolHealth(name="b", replicas=1, available=0)
    assert EngineHealth(alive=True, pools=(up,)).ready
    assert not EngineHealth(alive=True, pools=(up, down)).ready
    assert not EngineHealth(alive=False, pools=(up,)).ready
