"""Functions of a resident model, over the whole engine in virtual time: results reach the request that is running."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from msgspec import structs

from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.commands import BargeIn, CallOutput, CreateItem, CreateResponse, InputItem, ResponseOptions
from duologue.engine.duplex.events import (
    CallPart,
    ErrorRaised,
    FunctionCalled,
    ItemAdded,
    ResponseCreated,
    ResponseDone,
)
from duologue.models.scripted import Script, ScriptedCall, ScriptedPipeline, resident_pipeline, silence, tone
from duologue.outputs import StageRequest, ToolDefinition
from duologue.sim.loop import VirtualRuntime, virtual
from tests.unit.session.world import MANUAL, RATE_HZ, Client, engine

TOOLS = structs.replace(MANUAL, tools=(ToolDefinition(name="weather"),))
CALLS = (ScriptedCall(when="answer 1", name="weather", says=1),)


def record(pipeline: ScriptedPipeline) -> list[tuple[str, str, int]]:
    """What the stage is given: request, results in it, bytes of audio."""
    fed: list[tuple[str, str, int]] = []
    stage = pipeline.stages[0]
    process = stage.process

    def listen(state: object, request: StageRequest, control: object) -> object:
        told = "".join(message.text for message in request.prompt.messages)
        fed.append((request.request_id, told, len(request.prompt.audio)))
        return process(state, request, control)

    stage.process = listen  # type: ignore[method-assign]
    return fed


def results(fed: list[tuple[str, str, int]]) -> list[tuple[str, int]]:
    return [(told, audio) for _, told, audio in fed if told]


async def ask(client: Client) -> str:
    """A question; the id of the call that the model makes in its answer."""
    await client.hear(tone(600, rate_hz=RATE_HZ) + silence(400, rate_hz=RATE_HZ), chunk_ms=100)
    call = (await client.until(FunctionCalled)).item.parts[0]
    assert isinstance(call, CallPart)
    return call.call_id


def give(client: Client, call_id: str, text: str = "sunny") -> None:
    client.send(CreateItem(item=InputItem(role="tool", output=CallOutput(call_id, text))))


@asynccontextmanager
async def answered(runtime: VirtualRuntime) -> AsyncIterator[tuple[Client, list[tuple[str, str, int]]]]:
    """The client gave the result of a call some time after the answer that made it; beside it what the stage is fed."""
    pipeline = resident_pipeline(runtime, Script(calls=CALLS))
    fed = record(pipeline)
    async with engine(runtime, pipeline) as world:
        client = world.open(TOOLS, session_id="s1")
        call_id = await ask(client)
        await client.until(ResponseDone)
        await asyncio.sleep(5)
        give(client, call_id)
        yield client, fed


@virtual
async def test_a_result_reaches_the_running_request_while_the_assistant_talks_on(runtime: VirtualRuntime) -> None:
    pipeline = resident_pipeline(runtime, Script(calls=CALLS))
    fed = record(pipeline)
    async with engine(runtime, pipeline) as world:
        client = world.open(TOOLS, session_id="s1")
        call_id = await ask(client)
        give(client, call_id)
        give(client, call_id, "stormy")  # once
        done = await client.until(ResponseDone)
        assert done.full_text.split(". ")[:-1] == [
            *(f"Unit {n} of answer 1" for n in range(1, 5)),
            "The result is sunny",
        ]
        assert results(fed) == [("sunny", 0)] and len({request for request, _, _ in fed}) == 1
        assert len(done.calls) == 1 and [error.code for error in client.of(ErrorRaised)] == ["tool_result_duplicate"]


@virtual
async def test_a_result_after_the_answer_makes_the_model_speak_without_any_audio(runtime: VirtualRuntime) -> None:
    async with answered(runtime) as (client, fed):
        done = await client.until(ResponseDone, 2)
        assert done.full_text == "The result is sunny. " and done.status == "completed"
        assert results(fed) == [("sunny", 0)]


@virtual
async def test_an_answer_to_a_result_may_be_asked_for(runtime: VirtualRuntime) -> None:
    """Clients that know turns alone do so after every result; the model answers it once."""
    async with answered(runtime) as (client, _):
        client.send(CreateResponse())
        done = await client.until(ResponseDone, 2)
        assert done.full_text == "The result is sunny. " and done.status == "completed"
        await asyncio.sleep(5)
        assert len(client.of(ResponseDone)) == 2 and not client.of(ErrorRaised)
        client.send(CreateResponse(event_id="more"))  # to what?
        assert [error.code for error in client.of(ErrorRaised)] == ["response_create_without_input"]


@virtual
async def test_an_answer_to_a_result_may_be_asked_for_when_the_model_has_said_it(runtime: VirtualRuntime) -> None:
    """The wish gets a response of its own, in which nothing is said a second time."""
    async with answered(runtime) as (client, fed):
        said = await client.until(ResponseDone, 2)
        units = len(fed)
        client.send(CreateResponse(options=ResponseOptions(metadata={"who": "me"})))
        done = await client.until(ResponseDone, 3)
        created = client.of(ResponseCreated)[-1]
        assert created.metadata == done.metadata == {"who": "me"} and created.response_id == done.response_id
        assert said.full_text == "The result is sunny. " and done.full_text == "" and done.status == "completed"
        await asyncio.sleep(5)
        assert len(fed) == units and len(client.of(ResponseDone)) == 3 and not client.of(ErrorRaised)
        client.send(CreateResponse(event_id="more"))  # to what?
        assert [error.code for error in client.of(ErrorRaised)] == ["response_create_without_input"]


@virtual
async def test_a_result_keeps_its_place_among_the_audio(runtime: VirtualRuntime) -> None:
    """Behind the two units that were sent before it, before the one that was sent after it."""
    pipeline = resident_pipeline(runtime, Script(calls=CALLS))
    fed = record(pipeline)
    async with engine(runtime, pipeline) as world:
        client = world.open(TOOLS, session_id="s1")
        call_id = await ask(client)
        await client.until(ResponseDone)
        before = len(fed)
        unit = silence(200, rate_hz=RATE_HZ)
        client.append(unit)
        client.append(unit)
        give(client, call_id)
        client.append(unit)
        await client.until(ResponseDone, 2)
        assert [bool(told) for _, told, _ in fed[before : before + 4]] == [False, False, True, False]


@virtual
async def test_a_result_of_an_epoch_that_ended_reaches_nobody(runtime: VirtualRuntime) -> None:
    pipeline = resident_pipeline(runtime, Script(calls=CALLS))
    fed = record(pipeline)
    async with engine(runtime, pipeline) as world:
        client = world.open(TOOLS, session_id="s1")
        call_id = await ask(client)
        client.send(BargeIn())
        await client.until(ResponseDone)
        give(client, call_id)
        await client.hear(silence(2_000, rate_hz=RATE_HZ), chunk_ms=100)
        assert [error.code for error in client.of(ErrorRaised)] == ["tool_call_cancelled"]
        assert "sunny" not in [told for told, _ in results(fed)]
        assert len({request for request, _, _ in fed}) == 2


@virtual
async def test_a_result_that_came_before_an_interruption_is_history_of_the_next_request(
    runtime: VirtualRuntime,
) -> None:
    pipeline = resident_pipeline(runtime, Script(calls=CALLS))
    fed = record(pipeline)
    async with engine(runtime, pipeline) as world:
        client = world.open(TOOLS, session_id="s1")
        call_id = await ask(client)
        give(client, call_id)
        await client.until(ItemAdded)
        client.send(BargeIn())
        await client.hear(silence(2_000, rate_hz=RATE_HZ), chunk_ms=100)
        told = {request: [text for other, text, _ in fed if other == request and text] for request, _, _ in fed}
        assert list(told.values())[-1] == ["sunny"] and all(len(texts) <= 1 for texts in told.values())


@virtual
async def test_a_model_is_told_that_no_result_will_come(runtime: VirtualRuntime) -> None:
    pipeline = resident_pipeline(runtime, Script(calls=CALLS))
    fed = record(pipeline)
    async with engine(runtime, pipeline, config=DuplexSessionRuntimeConfig(tool_result_timeout_s=3.0)) as world:
        client = world.open(TOOLS, session_id="s1")
        await ask(client)
        await client.until(ErrorRaised)
        await asyncio.sleep(1)
        assert results(fed) == [("No result: the function did not answer in time.", 0)]


@virtual
async def test_over_a_roll_over_a_result_is_said_once(runtime: VirtualRuntime) -> None:
    calls = tuple(ScriptedCall(when=f"answer {n}", name="weather", says=1) for n in range(1, 30))
    script = Script(calls=calls, context_units=60, compacts=True, rebuilds=True)
    pipeline = resident_pipeline(runtime, script)
    async with engine(runtime, pipeline) as world:
        client = world.open(TOOLS, session_id="s1")
        answered = 0
        for _ in range(20):
            await client.hear(tone(600, rate_hz=RATE_HZ) + silence(2_600, rate_hz=RATE_HZ), chunk_ms=100)
            for call in client.of(FunctionCalled)[answered:]:
                part = call.item.parts[0]
                assert isinstance(part, CallPart)
                give(client, part.call_id, f"weather {answered}")
                answered += 1
        await asyncio.sleep(3)
        runner = world.engine.session_manager.runner("s1")
        assert runner is not None and runner.session.acted()["context"] >= 2 and answered >= 15
        said = "".join(done.full_text for done in client.of(ResponseDone))
        assert [said.count(f"The result is weather {n}. ") for n in range(answered)] == [1] * answered
