"""Limits of the shell around the sessions' cores, one below, at, and one above; and the book that is kept of all limits."""

from __future__ import annotations

import asyncio

import pytest

from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.commands import AppendAudio, CommitAudio, CreateItem, InputItem
from duologue.engine.duplex.events import ErrorRaised
from duologue.engine.duplex.session.control import SLICE_BYTES
from duologue.errors import ErrorCode
from duologue.models.scripted import ephemeral_pipeline
from duologue.server.metrics import ACTED, HELD
from duologue.sim.loop import VirtualRuntime, virtual
from tests.unit.session.desk import desk
from tests.unit.session.world import MANUAL, engine

AROUND = pytest.mark.parametrize("extra", [-1, 0, 1])
COMMAND_BYTES = 4096  # what each command that waits counts as, beside its text


@AROUND
@virtual
async def test_sessions(extra: int, runtime: VirtualRuntime) -> None:
    async with engine(runtime, ephemeral_pipeline(runtime), config=DuplexSessionRuntimeConfig(max_sessions=3)) as world:
        results = [world.try_open(MANUAL, session_id=f"s{number}") for number in range(3 + extra)]
        refused = [result for result in results if result.error_code is not None]
        assert [result.error_code for result in refused] == ["resource_exhausted"] * max(0, extra)
        assert world.engine.session_manager.health().free == max(0, -extra)
        for number in range(min(3, 3 + extra)):
            world.close(world.clients[f"s{number}"])
        for number in range(3, 3 + extra):
            del world.clients[f"s{number}"]


@AROUND
@virtual
async def test_waiting_commands(extra: int, runtime: VirtualRuntime) -> None:
    """Behind an append that is being decoded piece by piece."""
    there = desk(runtime, limits=DuplexSessionRuntimeConfig(max_pending_input_bytes_per_session=10 * SLICE_BYTES))
    there.runner.submit(AppendAudio(audio=bytes(2 * SLICE_BYTES)))
    waiting = there.runner.control.waiting_bytes
    room = 10 * SLICE_BYTES - waiting - COMMAND_BYTES
    there.runner.submit(CreateItem(item=InputItem(role="user", texts=("x" * (room + extra),))))
    assert [event.code for event in there.of(ErrorRaised)] == [ErrorCode.INPUT_BACKPRESSURE] * (extra > 0)
    assert there.runner.control.waiting_bytes == (waiting if extra > 0 else 10 * SLICE_BYTES + extra)


@virtual
async def test_what_is_held_is_added_up_and_what_has_acted_outlives_the_session(runtime: VirtualRuntime) -> None:
    config = DuplexSessionRuntimeConfig(max_pending_input_bytes_per_session=20_000)
    async with engine(runtime, ephemeral_pipeline(runtime), config=config) as world:
        manager = world.engine.session_manager
        one, two = world.open(MANUAL, session_id="s1"), world.open(MANUAL, session_id="s2")
        for client in (one, two):
            client.append(bytes(12_000))
            client.append(bytes(12_000))
        health = manager.health()
        assert health.held["input_bytes"] == 24_000 and health.acted["input"] == 2
        by_stages = {"pieces", "session_keys", "companions", "outbox_bytes", "sent_ahead"}
        assert set(health.held) | by_stages == set(HELD) and set(health.acted) <= set(ACTED)
        world.close(one)
        assert manager.health().held["input_bytes"] == 12_000 and manager.health().acted["input"] == 2
        two.send(CommitAudio())
        world.close(two)
        await asyncio.sleep(1)
        assert manager.health().acted["input"] == 2 and not any(manager.health().held.values())
