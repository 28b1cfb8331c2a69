"""Calls that outlast the context of a resident model, over the whole engine in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from duologue.engine.duplex.events import ErrorRaised, ResponseAudio, ResponseDone, SessionExpired
from duologue.models.scripted import Script, resident_pipeline, silence, tone
from duologue.sim.loop import VirtualRuntime, run, virtual
from tests.unit.session.world import MANUAL, RATE_HZ, Client, engine

SMALL = 60  # units of 200 ms: twelve seconds


async def talk(client: Client, turns: int) -> None:
    for _ in range(turns):
        await client.hear(tone(600, rate_hz=RATE_HZ) + silence(2_000, rate_hz=RATE_HZ), chunk_ms=100)


@virtual
async def test_a_model_that_compacts_talks_on_and_nobody_notices(runtime: VirtualRuntime) -> None:
    """The model raises if its context overflows, and answers are numbered by what it remembers."""
    script = Script(context_units=SMALL, compacts=True, rebuilds=True)
    async with engine(runtime, resident_pipeline(runtime, script)) as world:
        short, endless = world.open(MANUAL, session_id="short"), world.open(MANUAL, session_id="endless")
        await talk(endless, 40)
        runner = world.engine.session_manager.runner("endless")
        assert runner is not None and runner.session.acted()["context"] >= 5
        done = endless.of(ResponseDone)
        assert len(done) >= 39 and {response.status for response in done} == {"completed"}
        assert [response.full_text.split(". ")[0] for response in done] == [
            f"Unit 1 of answer {number}" for number in range(1, len(done) + 1)
        ]
        assert {response.audio_ms for response in done} == {800}
        assert not endless.of(ErrorRaised) and endless.terminals == [] and short.terminals == []


def test_a_roll_over_moves_no_audio() -> None:
    """What is said, and the instant at which each piece of it leaves, are those of a model whose context has no end."""

    async def main(runtime: VirtualRuntime, context_units: int) -> tuple[list[tuple[float, ResponseAudio]], int]:
        script = Script(context_units=context_units, compacts=True, rebuilds=True)
        async with engine(runtime, resident_pipeline(runtime, script)) as world:
            client = world.open(MANUAL)
            began = runtime.now()
            await talk(client, 40)
            runner = world.engine.session_manager.runner("s1")
            assert runner is not None
            pieces = [
                (round(at - began, 6), event)
                for at, event in zip(client.times, client.events, strict=True)
                if isinstance(event, ResponseAudio)
            ]
            return pieces, runner.session.acted().get("context", 0)

    rolled, times = run(lambda runtime: main(runtime, SMALL))
    whole, never = run(lambda runtime: main(runtime, 0))
    assert (times >= 5, never) == (True, 0)
    assert len(whole) >= 39 * 4 and rolled == whole


@virtual
async def test_a_model_that_does_not_ends_in_time_with_the_reason(runtime: VirtualRuntime) -> None:
    async with engine(runtime, resident_pipeline(runtime, Script(context_units=SMALL))) as world:
        client = world.open(MANUAL, session_id="s1")
        await talk(client, 10)
        expired = await client.until(SessionExpired)
        assert expired.reason == "context_full" and expired.slot_released
        assert [error.code for error in client.of(ErrorRaised)] == ["context_full"]
        assert {response.status for response in client.of(ResponseDone)} <= {"completed", "failed"}


@pytest.mark.parametrize("unit_s", [0.01, 0.15])
@pytest.mark.parametrize("turns", [2, 5, 30])
@virtual
async def test_a_burst_longer_than_the_context_is_answered_whole(
    turns: int, unit_s: float, runtime: VirtualRuntime
) -> None:
    """All that was said before the connection could send it arrives at once: each question is answered, and once."""
    script = Script(context_units=SMALL, compacts=True, rebuilds=True, unit_s=unit_s)
    said = (tone(600, rate_hz=RATE_HZ) + silence(2_000, rate_hz=RATE_HZ)) * turns
    async with engine(runtime, resident_pipeline(runtime, script)) as world:
        client = world.open(MANUAL, session_id="s1")
        client.append(said)
        await asyncio.sleep(120)
        done = client.of(ResponseDone)
        assert not client.of(ErrorRaised) and client.terminals == []
        assert [response.full_text.split(". ")[0] for response in done] == [
            f"Unit 1 of answer {number}" for number in range(1, turns + 1)
        ]
        assert {(response.status, response.audio_ms) for response in done} == {("completed", 800)}


@pytest.mark.parametrize("units", [SMALL - 1, SMALL, SMALL + 1, 4 * SMALL])
@virtual
async def test_a_burst_that_would_overflow_a_model_that_cannot_compact_ends_the_session_before(
    units: int, runtime: VirtualRuntime
) -> None:
    async with engine(runtime, resident_pipeline(runtime, Script(context_units=SMALL, unit_s=0.15))) as world:
        client = world.open(MANUAL, session_id="s1")
        client.append(silence(200 * units, rate_hz=RATE_HZ))
        expired = await client.until(SessionExpired)
        assert expired.reason == "context_full" and expired.slot_released
        assert [error.code for error in client.of(ErrorRaised)] == ["context_full"]
