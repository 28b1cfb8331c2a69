"""Connections that wait for a slot: what each dialect is told, and what is left when one goes away."""

from __future__ import annotations

import asyncio

from duologue.config.service import DuologueConfig, ModelChoice
from duologue.config.session import SessionConfig
from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.sim.loop import VirtualRuntime, virtual
from tests.unit.native.server import host

CONFIG = DuologueConfig(
    model=ModelChoice(plugin="scripted"),
    session=SessionConfig(),
    sessions=DuplexSessionRuntimeConfig(max_sessions=1, max_waiting_sessions=2, max_wait_s=20.0),
)
DUPLEX = "duplex=1&model=scripted"


@virtual
async def test_a_duplex_client_hears_its_place_and_is_served_in_its_turn(runtime: VirtualRuntime) -> None:
    async with (
        host(runtime, CONFIG) as server,
        server.talker(DUPLEX) as first,
        server.talker(DUPLEX, opened=False) as second,
        server.talker(DUPLEX, opened=False) as third,
    ):
        assert (await second.until("session.queued"))["position"] == 1
        assert (await third.until("session.queued"))["position"] == 2
        await first.send("session.close")
        await second.until("session.created", limit_s=1.0)
        assert (await third.until("session.queued", 2))["position"] == 1
        assert "server_event_seq" not in third.frames[0] and third.kinds == ["session.queued"] * 2
        assert second.kinds[:2] == ["session.queued", "session.created"]


@virtual
async def test_a_ga_client_waits_without_a_word_and_is_served(runtime: VirtualRuntime) -> None:
    async with host(runtime, CONFIG) as server, server.talker() as first, server.talker(opened=False) as second:
        await asyncio.sleep(15.0)
        assert second.frames == []
        first.pipe.client.hang_up()
        await second.until("session.created", limit_s=1.0)


@virtual
async def test_who_hangs_up_gives_way_and_nothing_is_left(runtime: VirtualRuntime) -> None:
    async with host(runtime, CONFIG) as server, server.talker(DUPLEX):
        async with server.talker(DUPLEX, opened=False) as second:
            await second.until("session.queued")
            async with server.talker(DUPLEX, opened=False) as third:
                await third.until("session.queued")
                second.pipe.client.hang_up()
                assert (await third.until("session.queued", 2))["position"] == 1
        await asyncio.sleep(0.1)
        assert server.port.health().sessions_waiting == 0
        assert len(server.server.hub.sessions) == 1


@virtual
async def test_the_wait_ends_with_the_usual_refusal(runtime: VirtualRuntime) -> None:
    async with host(runtime, CONFIG) as server, server.talker(DUPLEX), server.talker(DUPLEX, opened=False) as second:
        error = await second.until("error")
        assert error["error"]["code"] == "resource_exhausted" and "20 s" in error["error"]["message"]


@virtual
async def test_a_drain_does_not_wait_for_those_who_wait(runtime: VirtualRuntime) -> None:
    async with host(runtime, CONFIG) as server, server.talker(DUPLEX), server.talker(DUPLEX, opened=False) as second:
        await second.until("session.queued")
        began = runtime.now()
        assert await server.server.drain(5.0)
        assert runtime.now() - began < 1.0
        assert [error["error"]["code"] for error in second.of("error")] == ["shutting_down"]
        assert second.pipe.down.ended == (1001, "shutdown")


@virtual
async def test_who_closes_while_it_waits_gives_way_at_once(runtime: VirtualRuntime) -> None:
    async with (
        host(runtime, CONFIG) as server,
        server.talker(DUPLEX),
        server.talker(DUPLEX, opened=False) as second,
        server.talker(DUPLEX, opened=False) as third,
    ):
        await third.until("session.queued")
        await second.send("session.close", event_id="bye")
        assert (await third.until("session.queued", 2, limit_s=1.0))["position"] == 1
        errors = [(error["error"]["code"], error["error"]["event_id"]) for error in second.of("error")]
        assert errors == [("session_closed", "bye")] and second.kinds == ["session.queued", "error"]


@virtual
async def test_who_streams_while_it_waits_is_told_what_is_not_kept_and_may_hang_up(runtime: VirtualRuntime) -> None:
    async with host(runtime, CONFIG) as server, server.talker(DUPLEX), server.talker(DUPLEX, opened=False) as second:
        await second.until("session.queued")
        for _ in range(200):
            await second.send("input_audio_buffer.append", audio="AAAA")
        await second.send("input_audio_buffer.clear", event_id="mine")
        await second.until("error", 2)
        refusals = [(error["error"]["code"], error["error"].get("event_id")) for error in second.of("error")]
        assert refusals == [("input_backpressure", None), ("input_backpressure", "mine")]
        second.pipe.client.hang_up()
        await asyncio.sleep(1.0)
        assert server.port.health().sessions_waiting == 0


@virtual
async def test_what_was_kept_while_it_waited_is_obeyed(runtime: VirtualRuntime) -> None:
    async with (
        host(runtime, CONFIG) as server,
        server.talker(DUPLEX) as first,
        server.talker(DUPLEX, opened=False) as second,
    ):
        await second.until("session.queued")
        await second.send("input_audio_buffer.clear")
        for _ in range(100):
            await second.send("input_audio_buffer.append", audio="AAAA")
        await second.until("error")
        await first.send("session.close")
        await second.until("input_audio_buffer.cleared")
        assert len(second.of("error")) == 1
