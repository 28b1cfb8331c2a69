"""Leases, and clients that leave, come back or do not read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.commands import CancelResponse, Heartbeat
from duologue.engine.duplex.events import (
    ErrorRaised,
    ResponseAudio,
    ResponseDone,
    SessionClosed,
    SessionExpired,
)
from duologue.engine.duplex.messages import (
    CloseSessionMessage,
    DetachSession,
    OutputTaken,
    ResumeSession,
    TouchSession,
)
from duologue.errors import ErrorCode
from duologue.models.scripted import (
    Script,
    ScriptedPipeline,
    ephemeral_pipeline,
    resident_pipeline,
    tone,
)
from duologue.sim.loop import VirtualRuntime, run, virtual
from tests.unit.session.world import RATE_HZ, engine

LONG = Script(sentences=20, sentence_ms=1_000, think_s=0.3, answer_units=40)
Build = Callable[[VirtualRuntime, Script], ScriptedPipeline]
FAMILIES = pytest.mark.parametrize("build", [ephemeral_pipeline, resident_pipeline])


def limits(**changes: object) -> DuplexSessionRuntimeConfig:
    return msgspec.structs.replace(DuplexSessionRuntimeConfig(), **changes)


# Leases


@virtual
async def test_a_silent_session_expires_after_its_idle_time(runtime: VirtualRuntime) -> None:
    config = limits(idle_ttl_s=10.0, reaper_interval_s=1.0)
    async with engine(runtime, ephemeral_pipeline(runtime), config=config) as world:
        client = world.open()
        began = runtime.now()
        await client.hear(tone(4_000, rate_hz=RATE_HZ))
        expired = await client.until(SessionExpired)
        assert expired.reason == "idle_ttl_expired"
        # The answer to it is activity too, and follows the starvation watchdog's second.
        assert 14.0 <= runtime.now() - began <= 18.0


@virtual
async def test_a_detached_session_waits_for_its_grace_and_no_longer(runtime: VirtualRuntime) -> None:
    config = limits(disconnect_grace_s=3.0, reaper_interval_s=1.0)
    async with engine(runtime, ephemeral_pipeline(runtime), config=config) as world:
        client = world.open(resumable=True)
        world.engine.post(DetachSession(session_id="s1", control_id="d1"))
        assert world.results["d1"].error_code is None
        began = runtime.now()
        expired = await client.until(SessionExpired)
        assert expired.reason == "disconnect_grace_expired"
        assert 3.0 <= runtime.now() - began <= 4.1


@virtual
async def test_a_session_that_cannot_be_resumed_ends_with_its_connection(runtime: VirtualRuntime) -> None:
    async with engine(runtime, ephemeral_pipeline(runtime), config=limits(max_sessions=1)) as world:
        client = world.open(resumable=False)
        world.engine.post(DetachSession(session_id="s1", control_id="d1"))
        assert client.of(SessionClosed)[0].reason == "disconnected"
        world.open(session_id="next")


@virtual
async def test_behaviour_05_resume_of_two_that_race_one_wins_and_the_loser_detaches_nobody(
    runtime: VirtualRuntime,
) -> None:
    async with engine(runtime, ephemeral_pipeline(runtime), config=limits(disconnect_grace_s=2.0)) as world:
        client = world.open(resumable=True)
        post = world.engine.post
        post(DetachSession(session_id="s1", control_id="d1", expected_generation=0))
        post(ResumeSession(session_id="s1", control_id="r1", expected_generation=0))
        post(ResumeSession(session_id="s1", control_id="r2", expected_generation=0))
        post(ResumeSession(session_id="s1", control_id="r1-again", expected_generation=0))
        post(DetachSession(session_id="s1", control_id="d2", expected_generation=0))
        results = world.results
        assert results["r1"].value == 1
        assert results["r2"].error_code == ErrorCode.SESSION_RESUME_CONFLICT
        assert results["r1-again"].error_code == ErrorCode.SESSION_RESUME_CONFLICT
        assert results["d2"].error_code == ErrorCode.SESSION_RESUME_CONFLICT
        await asyncio.sleep(20.0)
        assert client.terminals == []


@virtual
async def test_behaviour_05_resume_that_is_repeated_gets_the_same_answer(runtime: VirtualRuntime) -> None:
    async with engine(runtime, ephemeral_pipeline(runtime)) as world:
        world.open(resumable=True)
        message = ResumeSession(session_id="s1", control_id="r1", expected_generation=0)
        world.engine.post(message)
        first = world.results.pop("r1")
        world.engine.post(message)
        assert first.value == world.results["r1"].value == 1


@virtual
async def test_operations_behind_a_close_wait_for_its_end(runtime: VirtualRuntime) -> None:
    async with engine(runtime, ephemeral_pipeline(runtime, LONG)) as world:
        client = world.open(resumable=True)
        await client.say()
        await client.until(ResponseAudio)
        post = world.engine.post
        post(CloseSessionMessage(session_id="s1", control_id="c1"))
        post(ResumeSession(session_id="s1", control_id="r1", expected_generation=0))
        post(TouchSession(session_id="s1", control_id="t1"))
        post(CloseSessionMessage(session_id="s1", control_id="c2"))
        assert not world.results.keys() & {"c1", "r1", "t1", "c2"}
        await client.until(SessionClosed)
        assert list(world.results)[-4:] == ["c1", "r1", "t1", "c2"]
        assert world.results["r1"].error_code == ErrorCode.SESSION_RESUME_EXPIRED
        assert world.results["t1"].error_code == ErrorCode.UNKNOWN_SESSION
        assert world.results["c2"].error_code is None


# Clients that leave or do not read


@FAMILIES
def test_field_F55_a_client_that_hangs_up_in_mid_answer_leaves_nothing(build: Build) -> None:
    async def main(runtime: VirtualRuntime) -> None:
        async with engine(runtime, build(runtime, LONG), config=limits(max_sessions=1)) as world:
            client = world.open()
            await client.say()
            await client.until(ResponseAudio, 5)
            world.engine.post(DetachSession(session_id="s1", control_id="d1", expected_generation=0))
            await asyncio.sleep(0.001)
            assert client.kinds[-1] == "SessionClosed"
            assert world.everything() == {}
            assert runtime.tasks == world.idle_tasks

    run(main)


@virtual
async def test_a_client_that_reads_nothing_is_ended_with_a_reason(runtime: VirtualRuntime) -> None:
    config = limits(max_pending_output_events_per_session=40)
    async with engine(runtime, ephemeral_pipeline(runtime, LONG), config=config) as world:
        client = world.open(takes_output=True)
        other = world.open(session_id="other")
        await asyncio.gather(client.say(), other.say())
        for _ in range(60):
            client.send(Heartbeat())
        await asyncio.sleep(0.01)
        assert client.of(ErrorRaised)[0].code == ErrorCode.OUTPUT_BACKPRESSURE
        assert client.of(ResponseDone)[0].status == "failed"
        closed = client.of(SessionClosed)[0]
        assert (closed.fault, closed.slot_released) == (ErrorCode.OUTPUT_BACKPRESSURE, True)
        assert (await other.until(ResponseDone)).status == "completed"


@virtual
async def test_a_consumer_that_reports_gets_the_whole_answer(runtime: VirtualRuntime) -> None:
    async with engine(runtime, ephemeral_pipeline(runtime)) as world:
        client = world.open(takes_output=True)
        await client.say()
        assert client.of(ResponseDone) == []
        for _ in range(100):
            world.engine.post(OutputTaken(session_id="s1", number=client.numbers[-1]))
            await asyncio.sleep(0.05)
        assert client.of(ResponseDone)[0].status == "completed"


@virtual
async def test_stages_are_not_fed_while_too_much_waits_to_be_played(runtime: VirtualRuntime) -> None:
    script = Script(sentences=30, sentence_ms=1_000, think_s=0.2, speak_s=0.001)
    pipeline = ephemeral_pipeline(runtime, script)
    speaker, answerer = pipeline.stages[2], pipeline.stages[1]
    async with engine(runtime, pipeline, config=limits(max_backlog_ms=5_000)) as world:
        client = world.open()
        await client.say()
        await client.until(ResponseAudio)
        await asyncio.sleep(1.5)
        spoken = speaker.chunks  # type: ignore[attr-defined]
        thought = answerer.sentences  # type: ignore[attr-defined]
        await asyncio.sleep(1.0)
        assert speaker.chunks == spoken  # type: ignore[attr-defined]
        assert answerer.sentences > thought  # type: ignore[attr-defined]
        done = await client.until(ResponseDone, limit_s=60.0)
        assert (done.status, done.audio_ms) == ("completed", 30_000)


@virtual
async def test_what_no_socket_has_taken_is_taken_back_by_a_cancel(runtime: VirtualRuntime) -> None:
    async with engine(runtime, ephemeral_pipeline(runtime, LONG)) as world:
        client = world.open(takes_output=True)
        await client.say()
        await client.until(ResponseAudio, 2)
        world.engine.post(OutputTaken(session_id="s1", number=client.numbers[-2]))
        client.send(CancelResponse())
        done = await client.until(ResponseDone)
        assert client.invalidated == [done.response_id]
        assert done.item is not None
        assert done.item.parts[0].duration_ms <= 100  # type: ignore[union-attr]
