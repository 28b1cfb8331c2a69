"""Turn-based requests through pipelines: what goes in, what comes out, and what is refused."""

from __future__ import annotations

import asyncio
import random

import pytest

from duologue.engine.messages import AddCompanionRequest, OutputMessage, StreamingUpdate
from duologue.engine.stages.edge import Edge, pass_on
from duologue.outputs import RequestOutput, SamplingParams, StagePrompt, StageRequest
from duologue.sim.loop import VirtualRuntime, virtual
from tests.unit.engine.rig import Rig, StageSpec, echo, running, said


@virtual
async def test_one_stage_answers_and_the_last_output_says_so(runtime: VirtualRuntime) -> None:
    def words(request: StageRequest) -> list[RequestOutput | float]:
        return [said(request, "a "), 0.1, said(request, "b "), 0.1, said(request, "c", finished=True)]

    async with running(Rig(runtime, [StageSpec(words)])) as rig:
        rig.add("r", "go")
        await asyncio.sleep(1)
        assert [message.finished for message in rig.outputs("r")] == [False, False, True]
        assert rig.text("r") == "a b c"


@pytest.mark.parametrize("blocking", [False, True])
def test_three_stages_pass_text_on(blocking: bool) -> None:
    @virtual
    async def scenario(runtime: VirtualRuntime) -> None:
        def mark(name: str) -> StageSpec:
            def script(request: StageRequest) -> list[RequestOutput | float]:
                return [said(request, f"{request.prompt.text}{name}", finished=True)]

            return StageSpec(script, blocking=blocking)

        async with running(Rig(runtime, [mark("a"), mark("b"), mark("c")])) as rig:
            rig.add("r", "-")
            await asyncio.sleep(1)
            assert rig.text("r") == "-abc"
            assert rig.leftovers() == {}

    scenario()


@virtual
async def test_each_stage_gets_its_own_sampling(runtime: VirtualRuntime) -> None:
    stages = [StageSpec(), StageSpec()]
    async with running(Rig(runtime, stages)) as rig:
        rig.add("own", "x", sampling_params=(SamplingParams(max_tokens=1), SamplingParams(max_tokens=2)))
        rig.add("default", "x")
        await asyncio.sleep(1)
    got = [{piece.request_id: piece.params.max_tokens for piece in spec.ledger.pieces} for spec in stages]
    assert got == [{"own": 1, "default": 256}, {"own": 2, "default": 256}]


@virtual
async def test_entry_and_final_stage_bound_the_path(runtime: VirtualRuntime) -> None:
    stages = [StageSpec(), StageSpec(), StageSpec()]
    async with running(Rig(runtime, stages)) as rig:
        rig.add("late", "x", entry_stage_id=1)
        rig.add("early", "x", final_stage_id=1)
        await asyncio.sleep(1)
        assert [sorted(spec.ledger.opened) for spec in stages] == [["early"], ["early", "late"], ["late"]]
        assert rig.endings() == {"late": 1, "early": 1}
        assert rig.outputs("early")[-1].stage_id == 1


@virtual
async def test_every_final_output_stage_is_shown_and_the_request_ends_after_all(runtime: VirtualRuntime) -> None:
    async with running(Rig(runtime, [StageSpec(final_output=True), StageSpec(), StageSpec()])) as rig:
        rig.add("r", "x")
        await asyncio.sleep(1)
        assert [(message.stage_id, message.finished) for message in rig.outputs("r")] == [(0, False), (2, True)]


@virtual
async def test_one_stage_may_feed_two(runtime: VirtualRuntime) -> None:
    edges = [Edge(source=0, target=1, processor=pass_on), Edge(source=0, target=2, processor=pass_on)]
    async with running(Rig(runtime, [StageSpec(), StageSpec(final_output=True), StageSpec()], edges=edges)) as rig:
        rig.add("r", "x")
        await asyncio.sleep(1)
        assert sorted(message.stage_id for message in rig.outputs("r")) == [1, 2]
        assert rig.endings() == {"r": 1}


@virtual
async def test_streaming_updates_reach_the_entry_stage_in_order(runtime: VirtualRuntime) -> None:
    stages = [StageSpec(), StageSpec()]
    async with running(Rig(runtime, stages)) as rig:
        rig.add("r", "a", resumable=True, final=False)
        for text in "bcd":
            rig.orchestrator.post(StreamingUpdate(request_id="r", prompt=StagePrompt(text=text, final=text == "d")))
        rig.orchestrator.post(StreamingUpdate(request_id="ghost", prompt=StagePrompt(text="x")))
        await asyncio.sleep(1)
        for spec in stages:
            assert spec.ledger.texts("r") == ["a", "b", "c", "d"]
            assert spec.ledger.finals("r") == [False, False, False, True]
            assert "ghost" not in spec.ledger.opened
        assert rig.endings() == {"r": 1}


@virtual
async def test_an_update_of_a_request_that_takes_none_fails_it(runtime: VirtualRuntime) -> None:
    async with running(Rig(runtime, [StageSpec(lambda request: [5.0, *echo(request)])])) as rig:
        rig.add("r", "a")
        rig.orchestrator.post(StreamingUpdate(request_id="r", prompt=StagePrompt(text="b")))
        await asyncio.sleep(1)
        assert [error.code for error in rig.errors("r")] == ["request_invalid"]


@virtual
async def test_requests_that_do_not_fit_are_refused_by_name_and_value(runtime: VirtualRuntime) -> None:
    edges = [Edge(source=0, target=1, processor=pass_on)]
    async with running(Rig(runtime, [StageSpec(), StageSpec(), StageSpec()], edges=edges)) as rig:
        rig.add("entry", entry_stage_id=3)
        rig.add("unreachable", final_stage_id=2)
        rig.add("backwards", entry_stage_id=1, final_stage_id=0)
        rig.add("sampling", final_stage_id=1, sampling_params=(SamplingParams(),))
        rig.orchestrator.post(AddCompanionRequest(request_id="c", parent_id="p", role="n", prompt=StagePrompt()))
        await asyncio.sleep(0.1)
        refused = {error.request_id: error for message in rig.endings() for error in rig.errors(message)}
        assert {name: error.http_status for name, error in refused.items()} == dict.fromkeys(
            ["entry", "unreachable", "backwards", "sampling", "c"], 400
        )
        assert "entry_stage_id must be between 0 and 2, got 3" in refused["entry"].message
        assert "no request 'p'" in refused["c"].message


@virtual
async def test_an_id_that_runs_is_not_added_again(runtime: VirtualRuntime) -> None:
    async with running(Rig(runtime, [StageSpec(lambda request: [1.0, *echo(request)])])) as rig:
        rig.add("r", "first")
        rig.add("r", "second")
        await asyncio.sleep(5)
        assert rig.text("r") == "first"
        assert rig.endings() == {"r": 1}
        rig.add("r", "third")
        await asyncio.sleep(5)
        assert rig.text("r") == "firstthird"


@virtual(shuffle=True, seed=7)
async def test_thousands_at_once_lose_nothing_and_double_nothing(runtime: VirtualRuntime) -> None:
    chance = random.Random(7)

    def late(request: StageRequest) -> list[RequestOutput | float]:
        words = request.prompt.text.split()
        steps: list[RequestOutput | float] = []
        for word in words:
            steps += [chance.random(), said(request, f"{word} ")]
        return [*steps, said(request, finished=True)]

    stages = [StageSpec(late, replicas=3), StageSpec(late, replicas=2), StageSpec(late, replicas=4)]
    async with running(Rig(runtime, stages)) as rig:
        for number in range(2_000):
            rig.add(f"r{number}", f"a{number} b{number}")
            if number % 100 == 0:
                await asyncio.sleep(0.05)
        await asyncio.sleep(60)
        assert rig.endings() == {f"r{number}": 1 for number in range(2_000)}
        texts: dict[str, list[str]] = {}
        for message in rig.outbox.messages:
            if isinstance(message, OutputMessage):
                texts.setdefault(message.request_id, []).append(message.output.text)
        assert all("".join(texts[f"r{n}"]).split() == [f"a{n}", f"b{n}"] for n in range(2_000))
        assert rig.leftovers() == {}


@virtual
async def test_statistics_are_kept_per_stage(runtime: VirtualRuntime) -> None:
    seen: dict[int, float | None] = {}

    def speak(request: StageRequest) -> list[RequestOutput | float]:
        return [0.25, said(request, "x", audio=bytes(3_200), audio_rate_hz=16_000, token_ids=(1, 2), finished=True)]

    async with running(Rig(runtime, [StageSpec(lambda request: [0.5, *echo(request)]), StageSpec(speak)])) as rig:
        rig.add("r", "x")
        await asyncio.sleep(0.1)
        state = rig.orchestrator.request_states["r"]
        await asyncio.sleep(5)
        seen = {stage_id: stats.first_output_s for stage_id, stats in state.stage_stats.items()}
        assert seen == {0: pytest.approx(0.5), 1: pytest.approx(0.25)}
        assert (state.stats(1).output_tokens, state.stats(1).audio_s) == (2, pytest.approx(0.1))
