"""Settings of one response are judged by the model as the session's are: before anything is made for it."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs

from duologue.config.session import SessionConfig, SessionPatch
from duologue.engine.duplex.commands import (
    CommitAudio,
    CreateItem,
    CreateResponse,
    InputItem,
    ResponseOptions,
    UpdateSession,
)
from duologue.engine.duplex.events import ErrorRaised, ResponseCreated, ResponseDone
from duologue.errors import ErrorCode
from duologue.models.scripted import ephemeral_pipeline, tone
from duologue.models.scripted.plugin import REFUSED_VOICE
from duologue.sim.loop import VirtualRuntime, virtual
from tests.unit.session.world import MANUAL, RATE_HZ, engine

REFUSED = ResponseOptions(voice=REFUSED_VOICE)


@pytest.mark.parametrize("beside", [False, True])
@virtual
async def test_a_response_that_the_model_cannot_serve_is_refused_whole(runtime: VirtualRuntime, beside: bool) -> None:
    """``beside``: outside the conversation."""
    async with engine(runtime, ephemeral_pipeline(runtime)) as world:
        client = world.open(MANUAL)
        client.send(CreateItem(item=InputItem(role="user", texts=("Hello.",))))
        client.send(CreateResponse(options=structs.replace(REFUSED, out_of_band=beside), event_id="e1"))
        error = client.of(ErrorRaised)[-1]
        assert (error.code, error.event_id) == (ErrorCode.INVALID_RUNTIME_CONFIG, "e1")
        assert error.param == "response.audio.output.voice" and not client.of(ResponseCreated)
        client.send(CreateResponse(options=ResponseOptions(voice="other", out_of_band=beside)))
        assert (await client.until(ResponseDone)).status == "completed" and len(client.of(ErrorRaised)) == 1


@virtual
async def test_the_model_judges_what_differs_and_sees_what_its_plan_will_hold(runtime: VirtualRuntime) -> None:
    pipeline = ephemeral_pipeline(runtime)
    seen: list[SessionConfig] = []
    async with engine(runtime, pipeline) as world:
        client = world.open(structs.replace(MANUAL, instructions="The session's.", voice="one"))
        pipeline.plugin.validate_config = seen.append  # type: ignore[method-assign]
        client.send(CreateItem(item=InputItem(role="user", texts=("Hello.",))))
        client.send(CreateResponse(options=ResponseOptions(voice="two", temperature=0.3, modality="text")))
        (config,) = seen
        assert (config.voice, config.temperature, config.output_modality) == ("two", 0.3, "text")
        await client.until(ResponseDone)
        client.send(CreateResponse(options=ResponseOptions(voice="one", instructions="Its own.", metadata={"a": "b"})))
        await client.until(ResponseDone, 2)
        assert len(seen) == 1
        client.send(CreateResponse(options=ResponseOptions(temperature=99.0), event_id="hot"))
        assert client.of(ErrorRaised)[-1].event_id == "hot" and len(seen) == 1, "nothing impossible reaches the plugin"


@virtual
async def test_a_plugin_that_cannot_judge_a_response_refuses_it(runtime: VirtualRuntime) -> None:
    pipeline = ephemeral_pipeline(runtime)

    def broken(config: SessionConfig) -> None:
        raise RuntimeError(config.voice)

    async with engine(runtime, pipeline) as world:
        client = world.open(MANUAL)
        pipeline.plugin.validate_config = broken  # type: ignore[method-assign]
        client.send(CreateItem(item=InputItem(role="user", texts=("Hello.",))))
        client.send(CreateResponse(options=ResponseOptions(voice="two"), event_id="e1"))
        error = client.of(ErrorRaised)[-1]
        assert (error.code, error.event_id) == (ErrorCode.RUNTIME_PLUGIN_FAILED, "e1")
        client.send(CreateResponse())
        assert (await client.until(ResponseDone)).status == "completed"


@virtual
async def test_the_judge_sees_the_settings_that_are_in_force_when_its_turn_comes(runtime: VirtualRuntime) -> None:
    """A ``response.create`` that waits behind a change of settings is judged over what that left."""
    pipeline = ephemeral_pipeline(runtime)
    seen: list[SessionConfig] = []
    async with engine(runtime, pipeline) as world:
        client = world.open(MANUAL)
        pipeline.plugin.validate_config = seen.append  # type: ignore[method-assign]
        client.append(tone(400, rate_hz=RATE_HZ))
        client.send(CommitAudio())
        client.send(UpdateSession(patch=SessionPatch(voice="new")))
        client.send(CreateResponse(options=ResponseOptions(temperature=0.3)))
        await client.until(ResponseDone)
        await asyncio.sleep(1)
        assert [(config.voice, config.temperature) for config in seen] == [("new", None), ("new", 0.3)]
