"""How sessions end: slots, terminals, failures of stages, and that nothing is left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from duologue.config.session import SessionPatch
from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.commands import (
    AppendAudio,
    CancelResponse,
    CloseSession,
    CommitAudio,
    CreateResponse,
    Heartbeat,
    UpdateSession,
)
from duologue.engine.duplex.events import (
    ErrorRaised,
    ResponseAudio,
    ResponseCreated,
    ResponseDone,
    ResponseListen,
    SessionClosed,
    SessionCreated,
    SessionExpired,
)
from duologue.engine.duplex.messages import (
    CloseSessionMessage,
    OpenSession,
    SessionCommand,
)
from duologue.engine.duplex.session.control import SLICE_BYTES
from duologue.engine.messages import Shutdown
from duologue.errors import ErrorCode
from duologue.models.scripted import (
    Script,
    ScriptedFault,
    ScriptedPipeline,
    ephemeral_pipeline,
    resident_pipeline,
    tone,
)
from duologue.sim.loop import VirtualRuntime, run, virtual
from tests.unit.session.world import MANUAL, RATE_HZ, VAD, World, engine

OPEN_AGAIN = OpenSession(session_id="s1", control_id="again", config=VAD)
COMMIT_AND_ANSWER = CommitAudio(create_response=True)
LONG = Script(sentences=20, sentence_ms=1_000, think_s=0.3, answer_units=40)
Build = Callable[[VirtualRuntime, Script], ScriptedPipeline]
FAMILIES = pytest.mark.parametrize("build", [ephemeral_pipeline, resident_pipeline])


def limits(**changes: object) -> DuplexSessionRuntimeConfig:
    return msgspec.structs.replace(DuplexSessionRuntimeConfig(), **changes)


# Closing


@FAMILIES
def test_behaviour_04_close_in_mid_answer_ends_the_answer_and_then_the_session(build: Build) -> None:
    async def main(runtime: VirtualRuntime) -> None:
        async with engine(runtime, build(runtime, LONG)) as world:
            client = world.open()
            await client.say()
            await client.until(ResponseAudio, 3)
            control_id = world.close(client, "bye")
            await asyncio.sleep(0.001)
            assert client.kinds[-1] == "SessionClosed"
            assert client.of(ResponseDone)[-1].status == "cancelled"
            closed = client.of(SessionClosed)[0]
            assert (closed.reason, closed.slot_released, closed.fault) == ("bye", True, None)
            assert world.results[control_id].error_code is None
            assert world.everything() == {}

    run(main)


@virtual
async def test_behaviour_04_close_of_an_unknown_session_succeeds(runtime: VirtualRuntime) -> None:
    async with engine(runtime, ephemeral_pipeline(runtime)) as world:
        world.engine.post(CloseSessionMessage(session_id="nobody", control_id="c1"))
        assert world.results["c1"].error_code is None


@virtual
async def test_a_command_for_an_unknown_session_is_answered(runtime: VirtualRuntime) -> None:
    async with engine(runtime, ephemeral_pipeline(runtime)) as world:
        world.engine.post(SessionCommand(session_id="nobody", command=Heartbeat(event_id="e1")))
        (event,) = world.clients.pop("nobody").refusals
        assert isinstance(event, ErrorRaised)
        assert (event.code, event.event_id) == (ErrorCode.UNKNOWN_SESSION, "e1")


@virtual
async def test_what_follows_a_close_in_the_same_turn_is_refused(runtime: VirtualRuntime) -> None:
    async with engine(runtime, ephemeral_pipeline(runtime, LONG)) as world:
        client = world.open()
        await client.say()
        await client.until(ResponseAudio)
        for index in range(100):
            client.send(CloseSession())
            client.append(tone(20, rate_hz=RATE_HZ))
            client.send(Heartbeat(event_id=f"e{index}"))
        await client.until(SessionClosed)
        refused = [event for event in client.of(ErrorRaised) if event.code == ErrorCode.SESSION_CLOSED]
        assert {event.event_id for event in refused} >= {f"e{index}" for index in range(100)}
        assert len(client.of(ResponseDone)) == 1


@pytest.mark.parametrize("by", ["client", "manager"])
def test_what_waits_when_the_session_closes_is_answered_once_behind_the_response_and_before_the_terminal(
    by: str,
) -> None:
    """What waits in the session, then what waits before its decoder; in the order in which it was sent."""

    async def main(runtime: VirtualRuntime) -> None:
        pipeline = ephemeral_pipeline(runtime, LONG)
        async with engine(runtime, pipeline) as world:
            client = world.open(config=MANUAL)

            async def stuck(request: object) -> None:
                del request
                await asyncio.sleep(60.0)

            pipeline.clients[0][0].submit = stuck  # type: ignore[method-assign]
            client.append(tone(200, rate_hz=RATE_HZ))
            client.send(COMMIT_AND_ANSWER)
            await client.until(ResponseCreated)
            client.append(tone(200, rate_hz=RATE_HZ))
            client.send(UpdateSession(patch=SessionPatch(instructions="new"), event_id="update"))
            client.send(CommitAudio(event_id="commit"))
            client.append(tone(200, rate_hz=RATE_HZ))
            client.send(AppendAudio(audio=tone(200, rate_hz=RATE_HZ), event_id="append"))
            client.send(CreateResponse(event_id="create"))
            client.send(CreateResponse())
            if by == "client":
                client.send(CloseSession())
            else:
                world.close(client)
            await client.until(SessionClosed)
            await asyncio.sleep(1.0)
            named = [(error.code, error.event_id) for error in client.of(ErrorRaised) if error.event_id is not None]
            assert named == [
                (ErrorCode.SESSION_CLOSED, event_id) for event_id in ("update", "commit", "append", "create")
            ]
            kinds = client.kinds
            assert kinds.index("ResponseDone") < kinds.index("ErrorRaised")
            assert kinds[-1] == "SessionClosed" and kinds.count("SessionClosed") == 1
            assert world.everything() == {}

    run(main)


@pytest.mark.parametrize("slices", [1, 3])
@virtual
async def test_of_a_long_append_the_rest_is_no_append_of_its_own_when_the_session_closes(
    runtime: VirtualRuntime, slices: int
) -> None:
    """It was accepted as one; what waits behind it was not, and is told so if it has a name."""
    async with engine(runtime, ephemeral_pipeline(runtime, LONG)) as world:
        client = world.open(config=MANUAL)
        client.send(AppendAudio(audio=bytes(slices * SLICE_BYTES), event_id="long"))
        client.send(AppendAudio(audio=bytes(3 * SLICE_BYTES), event_id="next"))
        client.send(AppendAudio(audio=bytes(100)))
        client.send(CloseSession())
        await client.until(SessionClosed)
        refused = [error.event_id for error in client.of(ErrorRaised)]
        assert refused == (["next"] if slices > 1 else [])


@pytest.mark.parametrize("cause", [ErrorCode.CONTEXT_FULL, ErrorCode.RUNTIME_PLUGIN_FAILED])
@virtual
async def test_of_a_long_append_nothing_is_kept_when_its_beginning_ends_the_session(
    runtime: VirtualRuntime, cause: ErrorCode
) -> None:
    """The session may be over at once, or wait until the stages are clean: nobody is told of the rest, nor waits for it."""
    full = cause is ErrorCode.CONTEXT_FULL
    pipeline = resident_pipeline(runtime, Script(unit_ms=1_000, context_units=1) if full else Script())
    if not full:

        def fail(state: object, request: object) -> None:
            raise RuntimeError("it cannot plan")

        pipeline.plugin.plan_append = fail  # type: ignore[method-assign, assignment]
    async with engine(runtime, pipeline) as world:
        runtime.loop.stall_turns = 10_000
        client = world.open(config=MANUAL)
        client.send(AppendAudio(audio=bytes(3 * SLICE_BYTES), event_id="long"))
        await client.until(SessionExpired)
        await asyncio.sleep(1.0)
        assert [error.code for error in client.of(ErrorRaised)] == [cause]
        assert len(client.terminals) == 1 and client.kinds[-1] == type(client.terminals[0]).__name__
        assert world.everything() == {}


@virtual
async def test_a_close_while_an_append_waits_ends_the_session_once(runtime: VirtualRuntime) -> None:
    """The stage errors while the append is being withdrawn: there must still be one terminal, from one owner."""
    pipeline = ephemeral_pipeline(runtime, LONG)
    async with engine(runtime, pipeline) as world:
        client = world.open()

        async def stuck(request: object) -> None:
            del request
            try:
                await asyncio.sleep(60.0)
            except asyncio.CancelledError:
                raise RuntimeError("the stage fails while it is being cancelled") from None

        submit = pipeline.clients[0][0].submit
        pipeline.clients[0][0].submit = stuck  # type: ignore[method-assign]
        speaking = runtime.spawn(client.say(), name="speaking")
        await client.until(ResponseCreated)
        assert world.engine.session_manager.runner("s1").model.idle is False  # type: ignore[union-attr]
        world.close(client)
        await client.until(SessionClosed)
        pipeline.clients[0][0].submit = submit  # type: ignore[method-assign]
        await speaking
        assert len(client.terminals) == 1
        assert world.everything() == {}


# Slots


@virtual
async def test_behaviour_04_close_a_replacement_that_follows_the_terminal_is_admitted(runtime: VirtualRuntime) -> None:
    config = limits(max_sessions=1)
    async with engine(runtime, ephemeral_pipeline(runtime, LONG), config=config) as world:
        for index in range(20):
            client = world.open(session_id=f"s{index}")
            speaking = runtime.spawn(client.say(200), name="speaking")
            assert world.try_open(session_id="late").error_code == ErrorCode.RESOURCE_EXHAUSTED
            del world.clients["late"]
            await asyncio.sleep(0.1 * index)
            client.send(CloseSession())
            await client.until(SessionClosed)
            # In the very loop turn in which the terminal is seen.
            del speaking
            assert world.engine.session_manager.health().free == 1
        await asyncio.sleep(1.0)


@virtual
async def test_behaviour_04_open_a_second_session_of_the_same_id_is_refused(runtime: VirtualRuntime) -> None:
    async with engine(runtime, ephemeral_pipeline(runtime)) as world:
        client = world.open()
        world.engine.post(OPEN_AGAIN)
        assert world.results["again"].error_code == ErrorCode.SESSION_EXISTS
        world.close(client)
        world.clients["s1"] = client
        await client.until(SessionClosed)


def test_behaviour_04_open_no_session_is_admitted_without_a_replica_and_the_slot_is_free_again() -> None:
    async def main(runtime: VirtualRuntime) -> None:
        pipeline = ephemeral_pipeline(runtime)
        async with engine(runtime, pipeline, config=limits(max_sessions=1)) as world:
            pipeline.clients[1][0].die(RuntimeError("crashed"))
            assert world.try_open().error_code == ErrorCode.REPLICA_UNAVAILABLE
            del world.clients["s1"]
            await asyncio.sleep(10.0)
            client = world.open()
            assert client.of(SessionCreated)

    run(main)


async def _break_aborts(pipeline: ScriptedPipeline, stage_id: int) -> Callable[[], None]:
    """Make the stage refuse every abort; returns how to mend it."""
    replica = pipeline.clients[stage_id][0]
    abort = replica.abort

    async def broken(request_ids: object) -> None:
        del request_ids
        raise RuntimeError("the stage does not listen")

    replica.abort = broken  # type: ignore[method-assign,assignment]

    def mend() -> None:
        replica.abort = abort  # type: ignore[method-assign]

    return mend


@virtual
async def test_behaviour_04_slot_of_stages_that_are_not_clean_is_kept_in_quarantine(runtime: VirtualRuntime) -> None:
    pipeline = ephemeral_pipeline(runtime, LONG)
    config = limits(max_sessions=1, close_timeout_s=5.0, reaper_interval_s=2.0)
    async with engine(runtime, pipeline, config=config) as world:
        client = world.open()
        await client.say()
        await client.until(ResponseAudio)
        mend = await _break_aborts(pipeline, 1)
        began = runtime.now()
        world.close(client)
        assert world.engine.session_manager.health().closing == 1
        closed = await client.until(SessionClosed)
        assert closed.slot_released is False
        assert runtime.now() - began == pytest.approx(5.0, abs=0.01)
        assert world.engine.session_manager.health().quarantined == 1
        assert world.try_open(session_id="next").error_code == ErrorCode.RESOURCE_EXHAUSTED
        mend()
        await asyncio.sleep(2.1)
        assert world.engine.session_manager.health().free == 1
        world.open(session_id="next")
        assert len(client.terminals) == 1


@virtual
async def test_an_abort_that_fails_is_repeated_while_the_session_lives(runtime: VirtualRuntime) -> None:
    pipeline = ephemeral_pipeline(runtime, LONG)
    async with engine(runtime, pipeline, config=limits(reaper_interval_s=2.0)) as world:
        client = world.open()
        await client.say()
        await client.until(ResponseAudio)
        mend = await _break_aborts(pipeline, 1)
        client.send(CancelResponse())
        await client.until(ResponseDone)
        await asyncio.sleep(1.0)
        assert world.engine.session_manager.health().unclean_requests == 1
        mend()
        await asyncio.sleep(2.1)
        assert world.engine.session_manager.health().unclean_requests == 0
        assert pipeline.open_states == 0


# Shutdown


@FAMILIES
def test_every_session_gets_its_terminal_when_the_engine_stops(build: Build) -> None:
    async def main(runtime: VirtualRuntime) -> None:
        async with engine(runtime, build(runtime, LONG)) as world:
            clients = [world.open(session_id=f"s{index}") for index in range(3)]
            await asyncio.gather(*(client.say(300 + 100 * index) for index, client in enumerate(clients)))
            await clients[2].until(ResponseAudio)
            world.engine.post(Shutdown())
            await asyncio.sleep(0.01)
            for client in clients:
                assert client.of(SessionClosed)[0].reason == "shutdown"
                assert len(client.of(ResponseCreated)) == len(client.of(ResponseDone)) == 1

    run(main)


@virtual
async def test_a_stage_that_does_not_listen_cannot_hold_up_a_shutdown(runtime: VirtualRuntime) -> None:
    pipeline = ephemeral_pipeline(runtime, LONG)
    async with engine(runtime, pipeline) as world:  # when the stages are closed nothing is left in quarantine either
        client = world.open()
        await client.say()
        await client.until(ResponseAudio)
        await _break_aborts(pipeline, 1)
        began = runtime.now()
    assert client.of(SessionClosed)[0].slot_released is False
    assert runtime.now() - began < 6.0


# Failures of stages


async def _two_sessions(world: World, during: Callable[[], Awaitable[None] | None]) -> None:
    first, second = world.open(session_id="first"), world.open(session_id="second")
    await asyncio.gather(first.say(), second.say())
    await asyncio.gather(first.until(ResponseAudio), second.until(ResponseAudio))
    during()
    await asyncio.sleep(0.01)


@virtual
async def test_a_dead_replica_fails_the_answers_of_ephemeral_sessions_which_go_on(runtime: VirtualRuntime) -> None:
    pipeline = ephemeral_pipeline(runtime, Script(sentences=3, sentence_ms=800))
    async with engine(runtime, pipeline) as world:
        await _two_sessions(world, lambda: pipeline.clients[2][0].die(RuntimeError("killed")))
        for client in world.clients.values():
            assert client.kinds[-2:] == ["ErrorRaised", "ResponseDone"]
            assert client.of(ErrorRaised)[-1].code == ErrorCode.REPLICA_UNAVAILABLE
            assert client.of(ResponseDone)[-1].status == "failed"
        assert world.engine.request_states == {}
        await asyncio.sleep(5.0)
        client = world.clients["first"]
        await client.say()
        assert (await client.until(ResponseDone, 2)).status == "completed"


@virtual
async def test_a_dead_replica_ends_resident_sessions_in_order(runtime: VirtualRuntime) -> None:
    pipeline = resident_pipeline(runtime, LONG)
    async with engine(runtime, pipeline) as world:
        await _two_sessions(world, lambda: pipeline.clients[0][0].die(RuntimeError("killed")))
        for client in world.clients.values():
            assert client.kinds[-3:] == ["ErrorRaised", "ResponseDone", "SessionExpired"]
            assert client.of(SessionExpired)[0].reason == "request_cleanup"
        assert world.everything() == {}
        await asyncio.sleep(5.0)
        client = world.open(session_id="third")
        await client.say()
        await client.until(ResponseAudio)


@pytest.mark.parametrize("stage_id", [0, 1, 2])
@pytest.mark.parametrize("kind", ["raise", "error"])
def test_behaviour_14_a_stage_that_fails_costs_one_answer(stage_id: int, kind: str) -> None:
    async def main(runtime: VirtualRuntime) -> None:
        script = Script(
            transcripts=("good", "bad"),
            faults=(ScriptedFault(stage_id=stage_id, kind=kind, when="bad"),),  # type: ignore[arg-type]
        )
        async with engine(runtime, ephemeral_pipeline(runtime, script)) as world:
            client = world.open()
            await client.say(level=1)
            failed = await client.until(ResponseDone)
            assert failed.status == "failed"
            assert len(client.of(ErrorRaised)) == 1
            await client.say(level=0)
            assert (await client.until(ResponseDone, 2)).status == "completed"
            assert world.engine.request_states == {}

    run(main)


@virtual
async def test_behaviour_14_a_resident_stage_that_fails_ends_its_session(runtime: VirtualRuntime) -> None:
    script = Script(faults=(ScriptedFault(stage_id=0, kind="error"),))
    async with engine(runtime, resident_pipeline(runtime, script)) as world:
        client = world.open()
        speaking = runtime.spawn(client.say(), name="speaking")
        await client.until(SessionExpired)
        assert client.kinds[-2:] == ["ErrorRaised", "SessionExpired"]
        assert world.everything() == {}
        await speaking


@virtual
async def test_field_F11_a_resident_model_that_only_listens_disturbs_no_answer(runtime: VirtualRuntime) -> None:
    async with engine(runtime, resident_pipeline(runtime)) as world:
        speaker, quiet = world.open(MANUAL, session_id="speaker"), world.open(MANUAL, session_id="quiet")
        saying = runtime.spawn(speaker.say(), name="saying")
        await speaker.until(ResponseAudio)
        await quiet.hear(bytes(2 * RATE_HZ))  # a second of nothing, while the other is in mid-answer
        assert (await speaker.until(ResponseDone)).status == "completed"
        assert len(quiet.of(ResponseListen)) == 1 and not quiet.of(ResponseCreated)  # not one for each unit of 200 ms
        assert speaker.of(ErrorRaised) == quiet.of(ErrorRaised) == []
        assert speaker.terminals == quiet.terminals == []
        await saying


@virtual
async def test_field_F11_nothing_said_is_answered_with_nothing_and_fails_nobody(runtime: VirtualRuntime) -> None:
    async with engine(runtime, ephemeral_pipeline(runtime)) as world:
        client = world.open(MANUAL)
        client.append(bytes(RATE_HZ))
        client.send(COMMIT_AND_ANSWER)
        done = await client.until(ResponseDone)
        assert (done.status, done.full_text) == ("completed", "")
        assert client.of(ErrorRaised) == []
        await asyncio.sleep(0.001)
        assert world.engine.request_states == {}
