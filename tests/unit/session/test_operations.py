"""Control operations: each is answered once, whatever hangs and whatever closes, and however often it is asked for."""

from __future__ import annotations

import asyncio

import pytest

from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.commands import CommitAudio
from duologue.engine.duplex.events import ResponseAudio
from duologue.engine.duplex.messages import (
    CloseSessionMessage,
    ControlMessage,
    DetachSession,
    OpenSession,
    ResumeSession,
    TouchSession,
)
from duologue.engine.messages import Shutdown
from duologue.models.scripted import Script, ephemeral_pipeline, tone
from duologue.sim.loop import VirtualRuntime, virtual
from tests.unit.session.world import RATE_HZ, VAD, Client, World, engine

SLOW = Script(sentences=9)


def every(session_id: str = "s1") -> list[ControlMessage]:
    """One of each; the close first, so that the others wait behind it."""
    return [
        CloseSessionMessage(session_id=session_id, control_id="close"),
        CloseSessionMessage(session_id=session_id, control_id="close again"),
        ResumeSession(session_id=session_id, control_id="resume", expected_generation=0),
        DetachSession(session_id=session_id, control_id="detach"),
        TouchSession(session_id=session_id, control_id="touch"),
    ]


async def in_mid_answer(world: World) -> Client:
    """A session whose requests no stage lets go of any more."""
    client = world.open()
    client.append(tone(400, rate_hz=RATE_HZ))
    client.send(CommitAudio(create_response=True))
    await client.until(ResponseAudio)

    async def hang(request_ids: list[str], *, abort: bool = False) -> None:
        del request_ids, abort
        await asyncio.get_running_loop().create_future()

    world.engine.cleanup = hang  # type: ignore[method-assign,assignment]
    return client


@pytest.mark.parametrize("shutdown_at", [None, 0.0, 0.5, 1.9])
@virtual
async def test_each_is_answered_once_when_a_stage_hangs(shutdown_at: float | None, runtime: VirtualRuntime) -> None:
    """Whoever asks loses patience and asks again under the same id; `World.take` counts the answers."""
    config = DuplexSessionRuntimeConfig(close_timeout_s=2.0)
    async with engine(runtime, ephemeral_pipeline(runtime, SLOW), config=config, empty=False) as world:
        client = await in_mid_answer(world)
        for message in every():
            world.engine.post(message)
        assert world.engine.session_manager.tables()["operations"] == 5
        if shutdown_at is not None:
            await asyncio.sleep(shutdown_at)
            world.engine.post(Shutdown())
        for message in every():
            world.engine.post(message)
        await asyncio.sleep(3.0)
        assert set(world.results) == {message.control_id for message in every()} | {"control-1"}
        assert len(client.terminals) == 1 and world.engine.session_manager.tables()["operations"] == 0


@virtual
async def test_who_waits_for_a_slot_and_asks_again_does_not_wait_twice(runtime: VirtualRuntime) -> None:
    config = DuplexSessionRuntimeConfig(max_sessions=1, max_waiting_sessions=4)
    async with engine(runtime, ephemeral_pipeline(runtime), config=config) as world:
        first = world.open()
        message = OpenSession(session_id="s2", control_id="open", config=VAD, seed="seed")
        world.engine.post(message)
        world.engine.post(message)
        assert "open" not in world.results
        world.close(first)
        await asyncio.sleep(0.1)
        assert world.results["open"].error_code is None
        world.close(world.clients["s2"])


@virtual
async def test_an_operation_that_was_answered_is_carried_out_again(runtime: VirtualRuntime) -> None:
    """The first answer came when nobody waited for it any more."""
    async with engine(runtime, ephemeral_pipeline(runtime)) as world:
        client = world.open()
        touch = TouchSession(session_id="s1", control_id="touch")
        world.engine.post(touch)
        assert world.results.pop("touch").error_code is None
        world.engine.post(touch)
        assert world.results.pop("touch").error_code is None
        world.close(client)
