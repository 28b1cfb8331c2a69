"""The port over an orchestrator: answers to operations, events to sinks, and what happens when the engine dies."""

from __future__ import annotations

import asyncio
import gc

import pytest

from duologue.config.session import SessionConfig
from duologue.engine.duplex.events import InputCleared, SessionClosed
from duologue.engine.duplex.messages import (
    CloseSessionMessage,
    OpenSession,
    OutputInvalidated,
    SessionEventMessage,
    TouchSession,
)
from duologue.engine.messages import EngineQueueMessage, ErrorMessage, ResultMessage
from duologue.errors import AdmissionFault, ClientFault, DuologueError, ErrorCode
from duologue.server.engine import EngineFront, EngineHealth, PoolHealth, SessionOutput
from duologue.server.models import ModelCard
from duologue.sim.loop import VirtualRuntime, virtual

CLOSE = CloseSessionMessage(session_id="s", control_id="1")


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


@virtual(limit_s=200)
async def test_silence_is_a_timeout(runtime: VirtualRuntime) -> None:
    front, posts = front_of(runtime)
    opening = OpenSession(session_id="s", control_id="1", config=SessionConfig())
    for message, tries, wait_s in ((opening, 1, 10.0), (CLOSE, 8, 102.5)):
        posts.messages.clear()
        started = runtime.now()
        with pytest.raises(DuologueError) as caught:
            await front.control(message)
        assert caught.value.code is ErrorCode.TIMEOUT
        assert runtime.now() - started == wait_s
        assert posts.messages == [message] * tries, "only what is idempotent is asked for again, and not for ever"
        front.results.put_nowait(ResultMessage(control_id=message.control_id))  # late: nobody waits, nothing happens


@virtual(limit_s=60)
async def test_an_answer_that_comes_late_is_one_and_who_waits_hears_of_the_death_at_once(
    runtime: VirtualRuntime,
) -> None:
    for ended in (False, True):
        front, posts = front_of(runtime)
        asked = asyncio.ensure_future(front.control(CLOSE))
        await asyncio.sleep(10.25)  # too late for the first try, and the second has not begun
        assert not asked.done() and len(posts.messages) == 1
        if ended:
            front.died()
        else:
            front.results.put_nowait(ResultMessage(control_id="1", value="late"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert asked.done()
        if ended:
            assert isinstance(fault := asked.exception(), DuologueError) and fault.code is ErrorCode.ENGINE_DEAD
        else:
            assert asked.result() == "late"


@virtual(limit_s=30)
async def test_who_stops_waiting_as_the_engine_dies_leaves_nothing_unheard(runtime: VirtualRuntime) -> None:
    front, _ = front_of(runtime)
    asked = asyncio.ensure_future(front.control(CLOSE))
    await asyncio.sleep(0)
    front.died()
    asked.cancel()
    await asyncio.wait([asked])
    assert asked.cancelled()
    gone = asyncio.ensure_future(front_of(runtime)[0].control(CLOSE))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait([gone])
    assert gone.cancelled()
    del asked, front
    gc.collect()  # what was raised and never heard would be reported here, and fail the test


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
