"""Idle, grace and starvation time-outs as a client meets them: through the connection, with the whole engine behind it."""

from __future__ import annotations

import asyncio

from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.sim.loop import VirtualRuntime, virtual
from tests.unit.server.test_hour import served
from tests.unit.server.test_turn_taking import Caller, calling, server_vad

SHORT = DuplexSessionRuntimeConfig(idle_ttl_s=10.0, disconnect_grace_s=5.0, reaper_interval_s=0.5)


@virtual(limit_s=300)
async def test_a_client_that_does_nothing_is_told_that_its_session_expired(runtime: VirtualRuntime) -> None:
    async with served(runtime, "ephemeral", config=SHORT) as there:
        caller = Caller(there, there.connect("model=m&duplex=1"), 16_000)
        reading = runtime.spawn(caller.read(), name="reader")
        await asyncio.sleep(9)
        assert caller.of("session.expired") == []
        await reading
        (expired,) = caller.of("session.expired")
        assert caller.frames[-1][1] is expired and expired["reason"] == "idle_ttl_expired"
        assert there.engine.session_manager.health().open == 0


@virtual(limit_s=300)
async def test_a_session_without_a_client_lasts_for_its_grace(runtime: VirtualRuntime) -> None:
    async with served(runtime, "ephemeral", config=SHORT) as there:
        pipe = there.connect("model=m&duplex=1")
        await asyncio.sleep(1)
        pipe.client.hang_up()
        await asyncio.sleep(4.5)
        assert there.engine.session_manager.health().open == 1
        await asyncio.sleep(1.5)
        assert there.engine.session_manager.health().open == 0 and there.hub.sessions == ()


@virtual(limit_s=300)
async def test_a_turn_whose_audio_stops_in_mid_speech_ends(runtime: VirtualRuntime) -> None:
    async with calling(runtime, server_vad()) as caller:
        await caller.speak(600)
        assert caller.of("input_audio_buffer.speech_stopped") == []
        await asyncio.sleep(5)
        assert len(caller.of("input_audio_buffer.speech_stopped")) == len(caller.of("response.done")) == 1
