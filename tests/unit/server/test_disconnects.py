"""A client that goes while something waits for it: every step of the clean-up is done, whichever task was cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from duologue.models.scripted import Script
from duologue.models.scripted.script import ScriptedFault
from duologue.sim.loop import VirtualRuntime, virtual
from duologue.sim.network import Pipe
from tests.unit.server.test_hour import Served, served

HANGS = Script(faults=(ScriptedFault(stage_id=1, kind="hang"),))
ASK = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}


def hang_up(pipe: Pipe) -> None:
    pipe.client.hang_up()


def cancel(pipe: Pipe) -> None:
    """What a server does with the task of a connection when it stops, or gives up on its peer."""
    assert pipe.task is not None
    pipe.task.cancel()


def used(there: Served) -> int:
    health = there.engine.session_manager.health()
    return health.admitting + health.open + health.closing + health.quarantined + health.requests


@pytest.mark.parametrize("go", [hang_up, cancel])
@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("after_s", [0.0, 0.001, 0.5])
@virtual(limit_s=600)
async def test_field_F52_a_disconnect_cleans_up_to_the_end(
    after_s: float, asks: bool, go: Callable[[Pipe], None], runtime: VirtualRuntime
) -> None:
    """Whether its tasks wait for the client, for the engine's queue, or for a stage that hangs."""
    async with served(runtime, "ephemeral", script=HANGS) as there:
        await asyncio.sleep(0.1)
        before = set(runtime.tasks)
        pipe = there.connect("model=m")
        if asks:
            pipe.up.put(msgspec.json.encode({"type": "conversation.item.create", "item": ASK}))
            pipe.up.put(msgspec.json.encode({"type": "response.create"}))
        await asyncio.sleep(after_s)
        if asks and after_s == 0.5:
            assert used(there) >= 2, "a slot, and a request that hangs"
        go(pipe)
        await asyncio.sleep(30)
        assert there.hub.sessions == (), "the connection's entry"
        assert there.server.connections == 0, "the server's count"
        assert used(there) == 0, "slot and stage requests"
        assert there.engine.request_states == {} and there.front._sinks == {}, "what the engine kept of it"
        assert set(runtime.tasks) - before == set(), "tasks"
        again = there.connect("model=m")
        await asyncio.sleep(1)
        assert len(there.hub.sessions) == 1, "and the next client is served"
        again.client.hang_up()
        await asyncio.sleep(10)
