"""The documented rules of the duplex orchestrator, one by one."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from duologue.config.session import SessionPatch
from duologue.engine.duplex.commands import CancelResponse, CommitAudio, UpdateSession
from duologue.engine.duplex.contracts import (
    DuplexFence,
    DuplexStageRequestContext,
    DuplexStageSubmission,
)
from duologue.engine.duplex.events import ErrorRaised, ResponseAudio, ResponseDone, SessionExpired
from duologue.engine.duplex_orchestrator import DuplexOrchestratorRequestState
from duologue.engine.messages import AddRequest, EngineQueueMessage, OutputMessage
from duologue.engine.orchestrator import OrchestratorRequestState
from duologue.models.scripted import Script, ephemeral_pipeline, resident_pipeline, tone
from duologue.outputs import RequestOutput, SamplingParams, StagePrompt
from duologue.sim.loop import VirtualRuntime, virtual
from tests.unit.session.world import MANUAL, RATE_HZ, Client, World, engine

LONG = Script(sentences=20, sentence_ms=1_000, think_s=0.3)


def context(request_id: str, **changes: object) -> DuplexStageRequestContext:
    base = DuplexStageRequestContext(
        request_id=request_id,
        session_id="s1",
        fence=DuplexFence("s1", 0, 1),
        stage_id=0,
        final_stage_id=2,
        sampling_params=(SamplingParams(), SamplingParams(), SamplingParams()),
        stage_sampling_params=SamplingParams(),
        session_config={"voice": "a"},
        runtime_config={},
        config_generation=1,
    )
    return msgspec.structs.replace(base, **changes)


def state_of(world: World, request_id: str) -> DuplexOrchestratorRequestState:
    state = world.engine.request_states[request_id]
    assert isinstance(state, DuplexOrchestratorRequestState)
    return state


def bridge(world: World, request_id: str) -> dict[str, object]:
    record = state_of(world, request_id).streaming.bridge_states["duplex"]
    assert isinstance(record, dict)
    return record


async def answering(world: World) -> tuple[Client, str]:
    """A session in mid-answer, and its request."""
    client = world.open(MANUAL)
    client.append(tone(500, rate_hz=RATE_HZ))
    client.send(CommitAudio(create_response=True))
    await client.until(ResponseAudio)
    (request_id,) = world.engine.request_states
    return client, request_id


# Port


@virtual
async def test_a_new_request_is_registered_before_anything_is_submitted(runtime: VirtualRuntime) -> None:
    async with engine(runtime, ephemeral_pipeline(runtime)) as world:
        world.open(MANUAL)
        given = context("r1")
        world.engine.ensure_request(given)
        state = state_of(world, "r1")
        assert (state.prompt, state.session_owned, state.streaming.enabled) == (None, True, True)
        assert state.sampling_params_list == list(given.sampling_params)
        assert state.sampling_params_list is not given.sampling_params
        assert (state.session_id, state.fence, state.config_generation) == ("s1", given.fence, 1)
        assert world.engine.session_manager.runner_for_request_id("r1") is world.engine.session_manager.runner("s1")
        await world.engine.cleanup(["r1"])
        assert world.engine.session_manager.runner_for_request_id("r1") is None


@virtual
async def test_sampling_is_replaced_only_with_the_configuration(runtime: VirtualRuntime) -> None:
    async with engine(runtime, ephemeral_pipeline(runtime)) as world:
        world.engine.ensure_request(context("r1"))
        other = (SamplingParams(temperature=0.1),) * 3
        fence = DuplexFence("s1", 2, 5)
        world.engine.ensure_request(context("r1", sampling_params=other, fence=fence))
        state = state_of(world, "r1")
        assert state.sampling_params_list[0].temperature == SamplingParams().temperature
        assert state.fence == fence
        world.engine.ensure_request(context("r1", sampling_params=other, config_generation=2))
        assert state.sampling_params_list == list(other)
        await world.engine.cleanup(["r1"])


@virtual
async def test_an_id_of_a_turn_request_is_refused(runtime: VirtualRuntime) -> None:
    async with engine(runtime, ephemeral_pipeline(runtime)) as world:
        world.engine.request_states["r1"] = OrchestratorRequestState(
            request_id="r1", prompt=None, sampling_params_list=[], final_stage_id=2
        )
        with pytest.raises(RuntimeError, match="r1 is not session-owned"):
            world.engine.ensure_request(context("r1"))
        del world.engine.request_states["r1"]


@pytest.mark.parametrize(
    ("before", "fence", "turn"),
    [
        (None, (0, 1), 1),
        ("not a mapping", (0, 1), 1),
        ({"epoch": 0, "model_turn_id": 7}, (0, 3), 7),
        ({"epoch": 0, "model_turn_id": 2}, (0, 3), 3),
        ({"epoch": 1, "model_turn_id": 7}, (2, 3), 3),
        ({"epoch": 0, "model_turn_id": "7"}, (0, 3), 3),
    ],
)
def test_the_bridge_record_follows_the_fence(before: object, fence: tuple[int, int], turn: int) -> None:
    @virtual
    async def main(runtime: VirtualRuntime) -> None:
        async with engine(runtime, ephemeral_pipeline(runtime)) as world:
            world.engine.ensure_request(context("r1"))
            bridges = state_of(world, "r1").streaming.bridge_states
            if before is None:
                del bridges["duplex"]
            else:
                bridges["duplex"] = before
            config = {"voice": "a"}
            given = context("r1", fence=DuplexFence("s1", *fence), session_config=config)
            world.engine.ensure_request(given)
            record = bridge(world, "r1")
            assert record["model_turn_id"] == turn
            assert (record["epoch"], record["turn_id"], record["session_id"]) == (*fence, "s1")
            assert record["session_config"] == config
            assert record["session_config"] is not config
            await world.engine.cleanup(["r1"])

    main()


@virtual
async def test_a_submission_needs_a_registered_request(runtime: VirtualRuntime) -> None:
    async with engine(runtime, ephemeral_pipeline(runtime)) as world:
        submission = DuplexStageSubmission(context=context("r1"), prompt=StagePrompt(), already_submitted=False)
        with pytest.raises(RuntimeError, match="not preregistered: r1"):
            await world.engine.submit(submission)


@virtual
async def test_a_submission_says_where_it_went_and_under_which_fence(runtime: VirtualRuntime) -> None:
    async with engine(runtime, ephemeral_pipeline(runtime)) as world:
        world.open(MANUAL)
        piece = StagePrompt(audio=tone(100, rate_hz=RATE_HZ), audio_rate_hz=RATE_HZ, final=False)
        world.engine.ensure_request(context("r1"))
        first = await world.engine.submit(
            DuplexStageSubmission(context=context("r1"), prompt=piece, already_submitted=False)
        )
        assert (first.request_id, first.stage_id, first.replica_id) == ("r1", 0, 0)
        later = context("r1", fence=DuplexFence("s1", 0, 2))
        await world.engine.submit(DuplexStageSubmission(context=later, prompt=piece, already_submitted=True))
        state = state_of(world, "r1")
        assert state.stage_fences == {0: later.fence}
        assert state.stage_submit_ts[0] == runtime.now()
        assert world.engine.tables()["running_requests"] == 1
        await world.engine.cleanup(["r1"], abort=True)


@virtual
async def test_a_request_dropped_during_its_submission_leaves_nothing(runtime: VirtualRuntime) -> None:
    pipeline = ephemeral_pipeline(runtime, Script(recognise_s=3600.0))
    async with engine(runtime, pipeline) as world:
        replica = pipeline.clients[0][0]
        submit = replica.submit

        async def slow(request: object) -> None:
            await asyncio.sleep(1.0)
            await submit(request)  # type: ignore[arg-type]

        replica.submit = slow  # type: ignore[method-assign]
        world.engine.ensure_request(context("r1"))
        submission = DuplexStageSubmission(context=context("r1"), prompt=StagePrompt(), already_submitted=False)
        task = asyncio.ensure_future(world.engine.submit(submission))
        await asyncio.sleep(0.5)
        await world.engine.cleanup(["r1"])
        with pytest.raises(RuntimeError, match="dropped while it was being submitted"):
            await task
        assert world.engine.request_states == {}
        assert world.engine.tables()["running_requests"] == 0
        await asyncio.sleep(0.001)
        assert pipeline.open_states == 0, "the stage got it after it was told to stop"


@virtual
async def test_sampling_defaults_need_every_stage(runtime: VirtualRuntime) -> None:
    pipeline = ephemeral_pipeline(runtime)
    async with engine(runtime, pipeline) as world:
        assert world.engine.stage_count == 3
        assert len(world.engine.sampling_defaults()) == 3
        pipeline.clients[1][0].die(RuntimeError("crashed"))
        with pytest.raises(RuntimeError, match="stage 1 has no live replica"):
            world.engine.sampling_defaults()


@virtual
async def test_aborting_nothing_is_nothing_and_duplicates_are_one(runtime: VirtualRuntime) -> None:
    async with engine(runtime, ephemeral_pipeline(runtime)) as world:
        seen: list[list[str]] = []

        async def record(request_ids: list[str]) -> None:
            seen.append(request_ids)

        world.engine._abort_request_ids = record  # type: ignore[method-assign]
        await world.engine.abort_requests([])
        await world.engine.abort_requests(["b", "a", "b"])
        await world.engine.cleanup([])
        assert seen == [["b", "a"]]
        del world.engine._abort_request_ids


# Seams


@virtual
async def test_an_ordinary_request_is_served_beside_a_session(runtime: VirtualRuntime) -> None:
    async with engine(runtime, ephemeral_pipeline(runtime)) as world:
        client, _ = await answering(world)
        audio = tone(300, rate_hz=RATE_HZ, level=2)
        world.engine.post(AddRequest(request_id="plain", prompt=StagePrompt(audio=audio, audio_rate_hz=RATE_HZ)))
        await client.until(ResponseDone)
        await asyncio.sleep(2.0)
        outputs = [message for message in world.others if isinstance(message, OutputMessage)]
        assert {message.request_id for message in outputs} == {"plain"}
        assert outputs[-1].finished
        assert len(client.of(ResponseDone)) == 1


class Strange(EngineQueueMessage, frozen=True, kw_only=True):
    """Nobody's message."""


@virtual
async def test_who_handles_a_message(runtime: VirtualRuntime) -> None:
    async with engine(runtime, ephemeral_pipeline(runtime)) as world:
        assert await world.engine._dispatch_message(Strange()) is False
        assert world.engine.session_manager.accepts(Strange()) is False
        with pytest.raises(TypeError, match="Strange"):
            world.engine.session_manager.dispatch(Strange())


async def _intercept(world: World, request_id: str, state: OrchestratorRequestState) -> bool:
    output = RequestOutput(request_id=request_id, text="x", segment_finished=True)
    return await world.engine._intercept_stage_output(1, 0, output, state, None, None)


@virtual
async def test_what_the_interceptor_lets_pass(runtime: VirtualRuntime) -> None:
    async with engine(runtime, ephemeral_pipeline(runtime, LONG)) as world:
        client, request_id = await answering(world)
        state = state_of(world, request_id)
        plain = OrchestratorRequestState(request_id="p", prompt=None, sampling_params_list=[], final_stage_id=2)
        assert await _intercept(world, "p", plain) is False
        assert await _intercept(world, request_id, state) is False, "the plugin wants it forwarded"
        fence, state.fence = state.fence, None
        assert await _intercept(world, request_id, state) is False
        state.fence = fence
        client.send(CancelResponse())
        assert await _intercept(world, request_id, state) is True, "its session let go of it: swallowed"


@virtual
async def test_a_submission_that_a_cancel_overtook_is_bound_to_nobody(runtime: VirtualRuntime) -> None:
    async with engine(runtime, ephemeral_pipeline(runtime, LONG)) as world:
        client, request_id = await answering(world)
        state = state_of(world, request_id)
        state.stage_submit_ts.clear()
        stale = DuplexFence("s1", -1, 0)
        state.fence = stale
        world.engine._on_stage_submitted(1, request_id, 0, state)
        assert state.stage_fences[1] == stale
        assert state.stage_submit_ts == {}
        client.send(CancelResponse())
        fences = dict(state.stage_fences)
        world.engine._on_stage_submitted(2, request_id, 0, state)
        assert state.stage_fences == fences, "no session asks for it any more"


@virtual
async def test_a_failure_to_forward_is_told_before_the_request_is_cleaned(runtime: VirtualRuntime) -> None:
    async with engine(runtime, ephemeral_pipeline(runtime, LONG)) as world:
        client, request_id = await answering(world)
        state = state_of(world, request_id)
        assert await world.engine._handle_forward_failure(request_id, 2, state, ValueError("x")) is True
        assert client.kinds[-2:] == ["ErrorRaised", "ResponseDone"]
        assert request_id not in world.engine.request_states
        assert client.terminals == [], "an ephemeral session outlives its request"
        plain = OrchestratorRequestState(request_id="p", prompt=None, sampling_params_list=[], final_stage_id=2)
        assert await world.engine._handle_forward_failure("p", 1, plain, ValueError("x")) is False
        assert await world.engine._handle_forward_failure(request_id, 2, state, ValueError("x")) is True


@virtual
async def test_a_failed_request_that_its_ephemeral_session_does_not_know_ends_nobody(runtime: VirtualRuntime) -> None:
    async with engine(runtime, ephemeral_pipeline(runtime)) as world:
        client = world.open(MANUAL)
        world.engine.ensure_request(context("r1"))
        assert await world.engine._handle_forward_failure("r1", 0, state_of(world, "r1"), ValueError("x")) is True
        await asyncio.sleep(0.1)
        assert client.terminals == []
        assert world.engine.request_states == {}


@virtual
async def test_a_cleanup_with_owners_ends_their_sessions_once_it_is_done(runtime: VirtualRuntime) -> None:
    async with engine(runtime, resident_pipeline(runtime)) as world:
        client = world.open()
        client.append(tone(400, rate_hz=RATE_HZ))
        (request_id,) = world.engine.request_states
        await world.engine._cleanup_request_ids([request_id, request_id], abort=True, release_owners=True)
        expired = client.of(SessionExpired)[0]
        assert (expired.reason, expired.slot_released) == ("request_cleanup", True)
        assert world.everything() == {}


@virtual
async def test_a_failed_request_of_a_resident_session_takes_the_session_along(runtime: VirtualRuntime) -> None:
    async with engine(runtime, resident_pipeline(runtime)) as world:
        client = world.open()
        client.append(tone(400, rate_hz=RATE_HZ))
        (request_id,) = world.engine.request_states
        state = state_of(world, request_id)
        assert await world.engine._handle_forward_failure(request_id, 0, state, ValueError("x")) is True
        await asyncio.sleep(0.001)
        assert client.kinds[-2:] == ["ErrorRaised", "SessionExpired"]
        assert client.of(SessionExpired)[0].slot_released
        assert world.everything() == {}


@virtual
async def test_a_stale_failure_leaves_a_resident_session_alone(runtime: VirtualRuntime) -> None:
    async with engine(runtime, resident_pipeline(runtime, Script(answer_units=40))) as world:
        client = world.open()
        await client.say(600, pause_ms=600)
        await client.until(ResponseAudio)
        (request_id,) = world.engine.request_states
        state = state_of(world, request_id)
        client.send(CancelResponse())
        assert await world.engine._handle_forward_failure(request_id, 0, state, ValueError("late")) is True
        await asyncio.sleep(0.1)
        assert client.terminals == []
        assert client.of(ErrorRaised) == []


@virtual
async def test_a_cleanup_that_raises_leaves_the_end_to_the_reaper(runtime: VirtualRuntime) -> None:
    pipeline = resident_pipeline(runtime)
    async with engine(runtime, pipeline) as world:
        client = world.open()
        client.append(tone(400, rate_hz=RATE_HZ))
        (request_id,) = world.engine.request_states
        replica = pipeline.clients[0][0]
        abort = replica.abort

        async def refuse(request_ids: object) -> None:
            raise RuntimeError("not now")

        replica.abort = refuse  # type: ignore[method-assign,assignment]
        with pytest.raises(RuntimeError, match="not now"):
            await world.engine._cleanup_request_ids([request_id], abort=True, release_owners=True)
        assert world.engine.session_manager.health().closing == 1
        assert client.terminals == []
        replica.abort = abort  # type: ignore[method-assign]
        world.engine.session_manager.reap()
        await asyncio.sleep(0.001)
        assert client.of(SessionExpired)[0].slot_released
        assert world.everything() == {}


@virtual
async def test_new_settings_reach_the_sampling_of_the_next_append(runtime: VirtualRuntime) -> None:
    pipeline = ephemeral_pipeline(runtime)
    asked = []
    plugin = pipeline.plugin
    plugin.sampling_params = lambda defaults, config: (  # type: ignore[method-assign]
        asked.append(config.temperature) or (SamplingParams(temperature=config.temperature or 0.7),) * 3  # type: ignore[func-returns-value]
    )
    async with engine(runtime, pipeline) as world:
        client = world.open(MANUAL)
        for temperature in (0.2, 0.9):
            client.send(UpdateSession(patch=SessionPatch(temperature=temperature)))
            client.append(tone(300, rate_hz=RATE_HZ))
            client.send(CommitAudio(create_response=True))
            (state,) = world.engine.request_states.values()
            assert state.sampling_params_list[1].temperature == temperature
            await client.until(ResponseDone, 1 if temperature == 0.2 else 2)
            await asyncio.sleep(2.0)
        assert asked == [None, 0.2, 0.9], "asked once per configuration"
        assert client.of(ErrorRaised) == []
