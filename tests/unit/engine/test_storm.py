"""Everything at once, in an order given by a seed: every request still ends exactly once, and nothing is left."""

from __future__ import annotations

import asyncio
import gc
import random
import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st

from duologue.engine.messages import AbortRequest, StreamingUpdate
from duologue.engine.stages.edge import NOTHING, Edge, EdgeInput, EdgeResult, pass_on
from duologue.engine.stages.supervisor import RestartPolicy
from duologue.outputs import RequestOutput, StagePrompt, StageRequest
from duologue.sim.loop import VirtualRuntime, run
from tests.unit.engine.rig import Rig, Script, StageSpec, running, said

REQUESTS = 25


def moody(chance: random.Random) -> Script:
    """A stage that mostly repeats in pieces, and sometimes fails, says nothing, or takes long."""

    def script(request: StageRequest) -> list[RequestOutput | float]:
        mood = chance.random()
        if mood < 0.06:
            raise RuntimeError("mood")
        if mood < 0.12:
            return [said(request, finished=request.prompt.final)]
        steps: list[RequestOutput | float] = []
        for number in range(chance.randrange(4)):
            steps += [chance.random() / 4, said(request, f"{number}", segment_finished=chance.random() < 0.5)]
        return [*steps, said(request, "end", finished=request.prompt.final)]

    return script


def moody_edge(chance: random.Random) -> Edge:
    def edge(source: EdgeInput) -> EdgeResult:
        mood = chance.random()
        if mood < 0.04:
            raise LookupError("edge")
        return NOTHING if mood < 0.1 else None if mood < 0.16 else pass_on(source)

    return Edge(source=0, target=1, processor=edge, prewarm=chance.random() < 0.5)


async def disturb(rig: Rig, chance: random.Random) -> None:
    """Abort, pause, release, update and kill at random."""
    name = f"r{chance.randrange(REQUESTS)}"
    match chance.randrange(5):
        case 0:
            rig.orchestrator.post(AbortRequest(request_ids=(name,), control_id=chance.choice([None, "c"])))
        case 1:
            rig.orchestrator.set_paused(name, True)
        case 2:
            rig.orchestrator.set_paused(name, False)
        case 3:
            prompt = StagePrompt(text="more", final=chance.random() < 0.5)
            rig.orchestrator.post(StreamingUpdate(request_id=name, prompt=prompt))
        case _:
            live = [client for spec in rig.stages for client in spec.clients if client.healthy]
            if live and chance.random() < 0.3:
                chance.choice(live).die(ConnectionError("storm"))


@settings(max_examples=30)
@given(seed=st.integers(0, 100_000))
def test_every_request_ends_once_and_nothing_is_left(seed: int) -> None:
    async def scenario(runtime: VirtualRuntime) -> None:
        chance = random.Random(seed)
        stages = [
            StageSpec(
                moody(chance),
                replicas=chance.randint(1, 3),
                blocking=chance.random() < 0.5,
                final_output=chance.random() < 0.3,
                restart=RestartPolicy(first_s=0.1),
            )
            for _ in range(3)
        ]
        edges = [moody_edge(chance), Edge(source=1, target=2, processor=pass_on)]
        async with running(Rig(runtime, stages, edges=edges, async_chunk=True)) as rig:
            for number in range(REQUESTS):
                resumable = chance.random() < 0.3
                rig.add(
                    f"r{number}",
                    "x",
                    resumable=resumable,
                    final=not resumable,
                    prompt={"session_key": f"s{number % 4}"},
                )
                for _ in range(chance.randrange(4)):
                    await disturb(rig, chance)
                    await asyncio.sleep(chance.choice([0.0, 0.0, 0.05, 0.3]))
            for number in range(REQUESTS):
                rig.orchestrator.set_paused(f"r{number}", False)
                last = StagePrompt(final=True)
                rig.orchestrator.post(StreamingUpdate(request_id=f"r{number}", prompt=last))
            await asyncio.sleep(60)
            assert rig.endings() == dict.fromkeys((f"r{number}" for number in range(REQUESTS)), 1)
            for key in range(4):
                rig.orchestrator.release_session_key(f"s{key}")
            assert rig.leftovers() == {}

    run(scenario, seed=seed, shuffle=True, limit_s=600)


def test_the_second_thousand_needs_no_more_memory_than_the_first() -> None:
    async def scenario(runtime: VirtualRuntime) -> None:
        async with running(Rig(runtime, [StageSpec(), StageSpec(), StageSpec()])) as rig:

            async def thousand() -> tuple[int, int]:
                """Bytes held afterwards, and at most meanwhile."""
                tracemalloc.reset_peak()
                for number in range(1_000):
                    rig.add(f"r{number}", "x")
                assert len(rig.orchestrator.request_states) == 1_000, "all of them at once"
                await asyncio.sleep(1)
                peak = tracemalloc.get_traced_memory()[1]
                assert rig.endings() == dict.fromkeys((f"r{number}" for number in range(1_000)), 1)
                assert rig.leftovers() == {}
                rig.outbox.messages.clear()
                for spec in rig.stages:
                    spec.ledger.pieces.clear()
                gc.collect()
                return tracemalloc.get_traced_memory()[0], peak

            await thousand()  # what is kept once for all: caches, grown tables
            held, peak = await thousand()
            held_again, peak_again = await thousand()
            assert held_again - held < 20_000, "20 bytes for each request would already be a leak"
            assert peak_again < 1.02 * peak

    tracemalloc.start()
    try:
        run(scenario)
    finally:
        tracemalloc.stop()
