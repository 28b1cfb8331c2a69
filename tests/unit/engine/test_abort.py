"""Aborts: they reach every stage under the id that the stage knows, at any moment, and leave nothing behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st

from duologue.engine.messages import AbortRequest
from duologue.engine.orchestration import STOP_AGAIN_S
from duologue.engine.stages.edge import Edge, pass_on
from duologue.engine.stages.inproc import InprocClient
from duologue.outputs import RequestOutput, StageRequest
from duologue.sim.loop import VirtualRuntime, run, virtual
from tests.unit.engine.rig import Rig, StageSpec, running, said


def slow_sentences(request: StageRequest) -> list[RequestOutput | float]:
    steps: list[RequestOutput | float] = []
    for number in range(5):
        steps += [0.1, said(request, f"{number}", segment_finished=True)]
    return [*steps, said(request, finished=True)]


def endless(request: StageRequest) -> list[RequestOutput | float]:
    return [1_000.0, said(request, finished=True)]


def slow_echo(request: StageRequest) -> list[RequestOutput | float]:
    return [0.05, said(request, request.prompt.text, segment_finished=True)]


ClientT = TypeVar("ClientT", bound=InprocClient)


def behind(kind: type[ClientT], runtime: VirtualRuntime, stages: list[StageSpec]) -> tuple[Rig, ClientT]:
    """A rig whose first stage is reached through a client of this kind, and that client."""
    rig = Rig(runtime, stages)
    client = kind(stages[0].stage(), runtime=runtime)
    rig.orchestrator.stage_pools[0].replicas.make_client = lambda _replica_id: client
    return rig, client


@virtual
async def test_an_abort_stops_every_stage_within_the_same_turn(runtime: VirtualRuntime) -> None:
    stages = [StageSpec(slow_sentences), StageSpec(slow_echo), StageSpec(slow_echo)]
    async with running(Rig(runtime, stages)) as rig:
        rig.add("r", "x")
        await asyncio.sleep(0.27)
        assert all(spec.ledger.opened["r"] == 1 for spec in stages)
        pieces = [len(spec.ledger.pieces) for spec in stages]
        rig.orchestrator.post(AbortRequest(request_ids=("r", "ghost"), control_id="abort-1"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert all(spec.ledger.closed["r"] == 1 for spec in stages), "the stages hold nothing of it any more"
        assert rig.leftovers() == {}
        said_before = rig.outputs("r")
        await asyncio.sleep(2)
        assert rig.outputs("r") == said_before
        assert [len(spec.ledger.pieces) for spec in stages] == pieces
        last = said_before[-1]
        assert (last.finished, last.output.finish_reason) == (True, "abort")
        (answer,) = rig.answers()
        assert (answer.control_id, answer.error_code) == ("abort-1", None)
        assert [output.request_id for output in answer.value] == ["r"]


@virtual
async def test_a_request_that_is_stopped_while_a_stage_is_opened_ahead_is_not_opened_at_the_next(
    runtime: VirtualRuntime,
) -> None:
    class Slow(InprocClient):
        async def submit(self, request: StageRequest) -> None:
            await asyncio.sleep(0.5)
            await super().submit(request)

    stages = [StageSpec(endless), StageSpec(slow_echo), StageSpec(slow_echo)]
    edges = [Edge(source=n, target=n + 1, processor=pass_on, prewarm=True) for n in range(2)]
    rig = Rig(runtime, stages, edges=edges, async_chunk=True)
    client = Slow(stages[1].stage(), runtime=runtime)
    rig.orchestrator.stage_pools[1].replicas.make_client = lambda _replica_id: client
    async with running(rig):
        rig.add("r", "x")
        await asyncio.sleep(0.1)
        rig.orchestrator.post(AbortRequest(request_ids=("r",), control_id="abort-1"))
        await asyncio.sleep(1.0)
        assert stages[2].ledger.opened["r"] == 0
        assert stages[1].ledger.balanced()
        assert rig.leftovers() == {}


@settings(max_examples=40)
@given(seed=st.integers(0, 10_000))
def test_aborts_at_random_moments_leave_nothing_and_touch_nobody_else(seed: int) -> None:
    async def scenario(runtime: VirtualRuntime) -> None:
        chance = random.Random(seed)
        blocking = chance.random() < 0.5
        stages = [
            StageSpec(slow_sentences, blocking=blocking),
            StageSpec(slow_echo, replicas=2),
            StageSpec(slow_echo, blocking=blocking),
        ]
        names = [f"r{number}" for number in range(12)]
        doomed = chance.sample(names, 6)
        async with running(Rig(runtime, stages)) as rig:
            for name in names:
                rig.add(name, name)

            async def abort(name: str, after_s: float) -> None:
                await asyncio.sleep(after_s)
                rig.orchestrator.post(AbortRequest(request_ids=(name,)))
                seen = len(rig.outputs(name))
                await asyncio.sleep(3)
                assert len(rig.outputs(name)) == seen, "nothing after the abort"

            await asyncio.gather(*(abort(name, chance.choice([0.0, chance.random()])) for name in doomed))
            await asyncio.sleep(5)
            assert rig.endings() == dict.fromkeys(names, 1)
            assert all(rig.text(name) == "01234" for name in names if name not in doomed)
            assert rig.leftovers() == {}

    run(scenario, seed=seed, shuffle=True)


@virtual
async def test_an_id_can_be_used_again_at_once(runtime: VirtualRuntime) -> None:
    stages = [StageSpec(slow_sentences), StageSpec(slow_echo)]
    async with running(Rig(runtime, stages)) as rig:
        for _ in range(5):
            rig.add("r", "x")
            await asyncio.sleep(0.22)
            rig.orchestrator.post(AbortRequest(request_ids=("r",)))
        rig.add("r", "x")
        before = len(rig.outputs("r"))
        await asyncio.sleep(5)
        fresh = rig.outputs("r")[before:]
        assert "".join(message.output.text for message in fresh) == "01234"


class Hanging(InprocClient):
    """A replica that takes no abort."""

    async def abort(self, request_ids: Sequence[str]) -> None:
        del request_ids
        await asyncio.get_running_loop().create_future()


@virtual
async def test_an_abort_that_hangs_is_answered_when_the_engine_stops(runtime: VirtualRuntime) -> None:
    rig, _ = behind(Hanging, runtime, [StageSpec(slow_sentences), StageSpec(slow_echo)])
    async with running(rig):
        rig.add("r", "x")
        await asyncio.sleep(0.17)
        rig.orchestrator.post(AbortRequest(request_ids=("r",), control_id="1"))
        await asyncio.sleep(0.1)
        assert not rig.answers()
    assert [answer.error_code for answer in rig.answers()] == ["shutting_down"]
    assert rig.endings() == {"r": 1}


class Deaf(InprocClient):
    """A replica whose aborts fail until it is told to listen."""

    deaf = True

    async def abort(self, request_ids: Sequence[str]) -> None:
        if self.deaf:
            raise ConnectionError("no answer")
        await super().abort(request_ids)


@virtual
async def test_an_abort_that_a_stage_did_not_get_can_be_repeated(runtime: VirtualRuntime) -> None:
    rig, deaf = behind(Deaf, runtime, [StageSpec(slow_sentences), StageSpec(slow_echo)])
    async with running(rig):
        rig.add("r", "x")
        await asyncio.sleep(0.17)
        rig.orchestrator.post(AbortRequest(request_ids=("r",), control_id="1"))
        await asyncio.sleep(0)
        assert "r" not in rig.orchestrator.request_states, "the engine is done with it whatever the stage does"
        assert rig.stages[1].ledger.closed["r"] == 1, "a deaf stage does not shield the others"
        assert rig.leftovers() == {"stage0.bindings": 1, "tasks": 1}
        deaf.deaf = False
        rig.orchestrator.post(AbortRequest(request_ids=("r",), control_id="2"))
        await asyncio.sleep(0)
        assert rig.leftovers() == {"tasks": 1}
        await asyncio.sleep(STOP_AGAIN_S + 0.1)
        assert rig.leftovers() == {}
        assert [answer.error_code for answer in rig.answers()] == ["runtime_abort_failed", None]
        assert rig.endings() == {"r": 1}


@virtual
async def test_a_stage_that_did_not_get_an_abort_is_told_again(runtime: VirtualRuntime) -> None:
    """Nobody asks twice for a request that is over for its client: without this it would run for ever."""
    rig, deaf = behind(Deaf, runtime, [StageSpec(endless), StageSpec(slow_echo)])
    async with running(rig):
        rig.add("r", "x")
        await asyncio.sleep(0.01)
        rig.orchestrator.post(AbortRequest(request_ids=("r",)))
        await asyncio.sleep(2.5 * STOP_AGAIN_S)
        assert rig.leftovers() == {"stage0.bindings": 1, "tasks": 1}
        assert rig.stages[0].ledger.closed.get("r", 0) == 0
        deaf.deaf = False
        await asyncio.sleep(STOP_AGAIN_S + 0.1)
        assert rig.leftovers() == {}
        assert rig.stages[0].ledger.closed["r"] == 1


@virtual
async def test_a_new_request_of_that_name_is_not_stopped_for_the_old_one(runtime: VirtualRuntime) -> None:
    rig, deaf = behind(Deaf, runtime, [StageSpec(slow_sentences)])
    deaf.deaf = False
    async with running(rig):
        rig.add("r", "x")
        await asyncio.sleep(0.05)
        deaf.deaf = True
        rig.orchestrator.post(AbortRequest(request_ids=("r",)))
        await asyncio.sleep(1)
        deaf.deaf = False
        rig.orchestrator.post(AbortRequest(request_ids=("r",)))
        await asyncio.sleep(STOP_AGAIN_S - 1.2)
        rig.add("r", "x")
        await asyncio.sleep(5)
        assert rig.outputs("r")[-1].output.finish_reason != "abort"
        assert rig.leftovers() == {}


@virtual
async def test_a_request_that_was_stopped_on_its_way_is_stopped_again_until_its_stage_has_heard_it(
    runtime: VirtualRuntime,
) -> None:
    class Far(InprocClient):
        aborts = 0

        async def submit(self, request: StageRequest) -> None:
            await asyncio.sleep(0.5)
            await super().submit(request)

        async def abort(self, request_ids: Sequence[str]) -> None:
            self.aborts += 1
            if self.aborts in (2, 3):
                raise OSError("not heard")
            await super().abort(request_ids)

    stages = [StageSpec(slow_echo), StageSpec(endless)]
    rig = Rig(runtime, stages)
    far = Far(stages[1].stage(), runtime=runtime)
    rig.orchestrator.stage_pools[1].replicas.make_client = lambda _replica_id: far
    async with running(rig):
        rig.add("r", "x")
        await asyncio.sleep(0.1)
        rig.orchestrator.post(AbortRequest(request_ids=("r",)))
        await asyncio.sleep(1.0)
        assert (far.aborts, rig.leftovers()) == (2, {"stage1.bindings": 1, "tasks": 1})
        await asyncio.sleep(2 * STOP_AGAIN_S)
        assert (far.aborts, rig.leftovers()) == (4, {})
        assert stages[1].ledger.balanced()
