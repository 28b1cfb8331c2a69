"""Spoken responses outside the conversation in a whole engine: spoken by its stages, beside the conversation's answer."""

from __future__ import annotations

import asyncio

import pytest

from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.commands import (
    BargeIn,
    CancelResponse,
    CloseSession,
    CreateItem,
    CreateResponse,
    InputItem,
    ResponseOptions,
)
from duologue.engine.duplex.events import ResponseAudio, ResponseCreated, ResponseDone, SessionClosed
from duologue.models.scripted import Script, ephemeral_pipeline
from duologue.sim.loop import VirtualRuntime, run
from tests.unit.session.world import MANUAL, Client, World, engine

CONFIG = DuplexSessionRuntimeConfig(send_ahead_ms=300)
SCRIPT = Script(sentences=4, sentence_ms=500)
BESIDE = ResponseOptions(out_of_band=True, modality="audio", input=(InputItem(role="user", texts=("label it",)),))


async def both(world: World) -> Client:
    """A session in which an answer and a response outside the conversation are being spoken."""
    client = world.open(MANUAL)
    client.send(CreateItem(item=InputItem(role="user", texts=("tea",))))
    client.send(CreateResponse())
    client.send(CreateResponse(options=BESIDE))
    await asyncio.sleep(0.5)
    assert len({event.response_id for event in client.of(ResponseAudio)}) == 2 and not client.of(ResponseDone)
    return client


def sound(client: Client, created: ResponseCreated) -> list[tuple[float, ResponseAudio]]:
    heard = zip(client.times, client.events, strict=True)
    return [(at, e) for at, e in heard if isinstance(e, ResponseAudio) and e.response_id == created.response_id]


@pytest.mark.parametrize("interrupts", [False, True])
def test_both_are_spoken_at_the_same_time_each_at_its_own_pace(interrupts: bool) -> None:
    async def scenario(runtime: VirtualRuntime) -> None:
        async with engine(runtime, ephemeral_pipeline(runtime, SCRIPT), config=CONFIG) as world:
            client = await both(world)
            if interrupts:
                client.send(BargeIn())
            await client.until(ResponseDone, 2)
            answer, beside = client.of(ResponseCreated)
            assert (answer.out_of_band, beside.out_of_band) == (False, True)
            done = {event.response_id: event for event in client.of(ResponseDone)}
            assert done[answer.response_id].status == ("cancelled" if interrupts else "completed")
            assert done[beside.response_id].status == "completed"
            assert done[beside.response_id].full_text.startswith("Sentence 1 about label it.")
            pieces = sound(client, beside)
            assert sum(len(event.audio) * 500 / event.rate_hz for _, event in pieces) == pytest.approx(2_000, abs=1)
            begun = pieces[0][0]
            for at, event in pieces:
                assert event.start_ms + event.duration_ms <= (at - begun) * 1000 + 300 + 1

    run(scenario, limit_s=60)


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_what_is_stopped_says_no_more_and_leaves_nothing_behind(how: str) -> None:
    async def scenario(runtime: VirtualRuntime) -> None:
        async with engine(runtime, ephemeral_pipeline(runtime, SCRIPT), config=CONFIG) as world:
            client = await both(world)
            _, beside = client.of(ResponseCreated)
            client.send(CancelResponse(response_id=beside.response_id) if how == "cancel" else CloseSession())
            await client.until(ResponseDone, 2)
            ends = [event.status for event in client.of(ResponseDone) if event.response_id == beside.response_id]
            assert ends == ["cancelled"]
            if how == "cancel":
                assert client.of(ResponseDone)[-1].status == "completed"
                client.send(CloseSession())
            await client.until(SessionClosed)
            last = max(i for i, e in enumerate(client.events) if getattr(e, "response_id", "") == beside.response_id)
            assert isinstance(client.events[last], ResponseDone)
            await asyncio.sleep(1.0)
            assert world.everything() == {}

    run(scenario, limit_s=60)
