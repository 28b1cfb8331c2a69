"""The session manager's methods about the requests of sessions, one by one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from duologue.engine.duplex.events import SessionExpired
from duologue.engine.duplex.session.manager import DuplexSessionManager
from duologue.models.scripted import resident_pipeline, tone
from duologue.sim.loop import VirtualRuntime, virtual
from tests.unit.session.world import RATE_HZ, Client, World, engine


@asynccontextmanager
async def asked(runtime: VirtualRuntime) -> AsyncIterator[tuple[World, DuplexSessionManager, Client, str]]:
    """A resident session whose model has one request."""
    async with engine(runtime, resident_pipeline(runtime)) as world:
        client = world.open()
        client.append(tone(400, rate_hz=RATE_HZ))
        (request_id,) = world.engine.request_states
        yield world, world.engine.session_manager, client, request_id


@virtual
async def test_a_request_belongs_to_the_session_that_registered_it(runtime: VirtualRuntime) -> None:
    async with asked(runtime) as (_, manager, client, request_id):
        runner = manager.runner(client.session_id)
        assert runner is not None and manager.runner_for_request_id(request_id) is runner
        manager.register_request("another", client.session_id)
        manager.register_request("nobody's", "no such session")
        assert manager.runner_for_request_id("another") is runner
        assert manager.runner_for_request_id("nobody's") is None
        for _ in range(2):
            manager.unregister_request("another")
            assert manager.runner_for_request_id("another") is None
        assert manager.runner_for_request_id(request_id) is runner


@virtual
async def test_sessions_whose_requests_go_are_closed_and_say_what_else_has_to_go(runtime: VirtualRuntime) -> None:
    async with asked(runtime) as (_, manager, client, request_id):
        manager.register_request("beside", client.session_id)
        closed = manager.close_sessions_for_request_ids([request_id, request_id, "unknown"], cleanup_in_progress=True)
        assert {name: set(ids) for name, ids in closed.items()} == {client.session_id: {request_id, "beside"}}
        assert manager.health().closing == 1 and client.terminals == []
        await asyncio.sleep(1.0)
        assert client.terminals == [], "who cleans has not said that it is done"
        manager.finalize_closed_sessions(["unknown", client.session_id])
        await asyncio.sleep(0)
        (expired,) = client.of(SessionExpired)
        assert (expired.reason, expired.slot_released) == ("request_cleanup", True)


@virtual
async def test_a_cleanup_that_is_deferred_is_the_sessions_own_again(runtime: VirtualRuntime) -> None:
    async with asked(runtime) as (world, manager, client, request_id):
        manager.close_sessions_for_request_ids([request_id], cleanup_in_progress=True)
        manager.defer_request_cleanups(["unknown", client.session_id])
        assert client.terminals == []
        assert (await client.until(SessionExpired, limit_s=60.0)).reason == "request_cleanup"
        await asyncio.sleep(60.0)  # the reaper's turn
        assert world.everything() == {}
