"""The forward rule: what reaches the next stage at a boundary, at the end, and when there is nothing to hand on."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import pytest

from duologue.engine.messages import AbortRequest
from duologue.engine.orchestrator import Orchestrator
from duologue.engine.requests import OrchestratorRequestState
from duologue.engine.stages.edge import NOTHING, Edge, EdgeInput, EdgeResult, Topology, pass_on
from duologue.engine.stages.inproc import InprocClient
from duologue.outputs import ChatMessage, RequestOutput, StagePrompt, StageRequest
from duologue.sim.loop import VirtualRuntime, virtual
from tests.unit.engine.rig import Rig, Script, StageSpec, echo, running, said


def sentences(request: StageRequest) -> list[RequestOutput | float]:
    """Two sentences in deltas, then the end."""
    return [
        said(request, "Hel", token_ids=(1,)),
        said(request, "lo.", token_ids=(2,), segment_finished=True),
        0.1,
        said(request, "By", token_ids=(3,)),
        said(request, "e.", token_ids=(4,), segment_finished=True),
        0.1,
        said(request, finished=True),
    ]


@virtual
async def test_segments_are_handed_on_as_they_end_and_the_end_is_a_terminal_update(runtime: VirtualRuntime) -> None:
    stages = [StageSpec(sentences), StageSpec()]
    async with running(Rig(runtime, stages)) as rig:
        rig.add("r", "x")
        await asyncio.sleep(0.05)
        assert stages[1].ledger.texts("r") == ["Hello."], "the first sentence must not wait for the second"
        await asyncio.sleep(1)
        assert stages[1].ledger.texts("r") == ["Hello.", "Bye.", ""]
        assert stages[1].ledger.finals("r") == [False, False, True]
        assert stages[1].ledger.opened["r"] == 1
        assert rig.text("r") == "Hello.Bye."
        assert rig.endings() == {"r": 1}


@virtual
async def test_without_segments_everything_is_handed_on_at_the_end(runtime: VirtualRuntime) -> None:
    def deltas(request: StageRequest) -> list[RequestOutput | float]:
        return [said(request, "a"), said(request, "b"), said(request, "c", finished=True)]

    stages = [StageSpec(deltas), StageSpec()]
    async with running(Rig(runtime, stages)) as rig:
        rig.add("r", "x")
        await asyncio.sleep(1)
        assert (stages[1].ledger.texts("r"), stages[1].ledger.finals("r")) == (["abc"], [True])


@virtual
async def test_an_edge_sees_what_came_since_the_boundary_and_the_entry_prompt(runtime: VirtualRuntime) -> None:
    seen: list[EdgeInput] = []

    def edge(source: EdgeInput) -> EdgeResult:
        seen.append(source)
        return pass_on(source)

    stages = [StageSpec(sentences), StageSpec()]
    async with running(Rig(runtime, stages, edges=[Edge(source=0, target=1, processor=edge)])) as rig:
        rig.add("r", "question", prompt={"session_key": "k"})
        await asyncio.sleep(1)
    assert [(one.text, one.token_ids, one.segment_index, one.final) for one in seen] == [
        ("Hello.", (1, 2), 0, False),
        ("Bye.", (3, 4), 1, False),
        ("", (), 2, True),
    ]
    assert {one.entry_prompt.text for one in seen} == {"question"}
    assert not seen[0].is_session
    assert stages[1].ledger.pieces[0].prompt.session_key == "k"


@virtual
async def test_none_keeps_a_segment_for_the_next_boundary_and_nothing_drops_it(runtime: VirtualRuntime) -> None:
    def keep_first(source: EdgeInput) -> EdgeResult:
        return None if source.segment_index == 0 else pass_on(source)

    def drop_first(source: EdgeInput) -> EdgeResult:
        return NOTHING if source.segment_index == 0 else pass_on(source)

    for edge, expected in ((keep_first, ["Hello.Bye.", ""]), (drop_first, ["Bye.", ""])):
        stages = [StageSpec(sentences), StageSpec()]
        async with running(Rig(runtime, stages, edges=[Edge(source=0, target=1, processor=edge)])) as rig:
            rig.add("r", "x")
            await asyncio.sleep(1)
            assert stages[1].ledger.texts("r") == expected


@virtual
async def test_nothing_to_say_ends_the_request_empty_without_touching_later_stages(runtime: VirtualRuntime) -> None:
    stages = [StageSpec(), StageSpec(), StageSpec()]
    edges = [
        Edge(source=0, target=1, processor=lambda source: NOTHING),
        Edge(source=1, target=2, processor=pass_on),
    ]
    async with running(Rig(runtime, stages, edges=edges)) as rig:
        rig.add("r", "x")
        await asyncio.sleep(1)
        (only,) = rig.outputs("r")
        assert (only.stage_id, only.finished, only.output.finish_reason, only.output.text) == (2, True, "stop", "")
        assert not stages[1].ledger.opened
        assert rig.errors("r") == []


@virtual
async def test_an_empty_handoff_is_an_error_of_that_request_alone(runtime: VirtualRuntime) -> None:
    def edge(source: EdgeInput) -> EdgeResult:
        return None if source.text == "bad" else pass_on(source)

    async with running(
        Rig(runtime, [StageSpec(), StageSpec()], edges=[Edge(source=0, target=1, processor=edge)])
    ) as rig:
        rig.add("bad", "bad")
        rig.add("good", "good")
        await asyncio.sleep(1)
        (error,) = rig.errors("bad")
        assert (error.code, error.stage_id) == ("empty_handoff", 1)
        assert "Return NOTHING" in error.message
        assert rig.text("good") == "good"
        assert rig.endings() == {"bad": 1, "good": 1}


@virtual
async def test_an_end_without_content_after_segments_only_ends_the_input(runtime: VirtualRuntime) -> None:
    def edge(source: EdgeInput) -> EdgeResult:
        return None if source.final else pass_on(source)

    stages = [StageSpec(sentences), StageSpec()]
    async with running(Rig(runtime, stages, edges=[Edge(source=0, target=1, processor=edge)])) as rig:
        rig.add("r", "x")
        await asyncio.sleep(1)
        assert stages[1].ledger.finals("r") == [False, False, True]
        assert rig.errors("r") == []


@virtual
async def test_a_stage_that_says_nothing_at_the_end_ends_all_the_same(runtime: VirtualRuntime) -> None:
    def mute(request: StageRequest) -> list[RequestOutput | float]:
        return [said(request, "x")]

    async with running(Rig(runtime, [StageSpec(mute)])) as rig:
        rig.add("r", "x")
        await asyncio.sleep(1)
        assert [message.output.finished for message in rig.outputs("r")] == [False, True]


@virtual
async def test_a_later_stage_opened_ahead_answers_while_the_first_still_works(runtime: VirtualRuntime) -> None:
    def slow(request: StageRequest) -> list[RequestOutput | float]:
        return [1.0, said(request, "one", segment_finished=True), 1.0, said(request, "two", finished=True)]

    def heavy(request: StageRequest) -> list[RequestOutput | float]:
        if request.prompt.options.get("prewarm"):
            return [0.9]  # what it takes to be ready
        return [said(request, request.prompt.text, finished=request.prompt.final)]

    stages = [StageSpec(slow), StageSpec(heavy)]
    edges = [Edge(source=0, target=1, processor=pass_on, prewarm=True)]
    async with running(Rig(runtime, stages, edges=edges, async_chunk=True)) as rig:
        rig.add("r", "x")
        await asyncio.sleep(0.5)
        assert stages[1].ledger.texts("r") == [""], "opened before there is input"
        await asyncio.sleep(0.6)
        assert rig.text("r") == "one"
        assert "r" in rig.orchestrator.request_states
        await asyncio.sleep(2)
        assert rig.text("r") == "onetwo"
        assert rig.endings() == {"r": 1}


@virtual
async def test_the_last_of_three_stages_speaks_while_the_first_still_generates(runtime: VirtualRuntime) -> None:
    def sentences(request: StageRequest) -> list[RequestOutput | float]:
        steps: list[RequestOutput | float] = []
        for number in range(4):
            steps += [1.0, said(request, f"s{number}", segment_finished=True)]
        return [*steps, said(request, finished=True)]

    def ready_after(work_s: float) -> Script:
        def script(request: StageRequest) -> list[RequestOutput | float]:
            if request.prompt.options.get("prewarm"):
                assert request.prompt.messages == (ChatMessage("user", "hello"),), "what is known already"
                return [0.9]
            return [work_s, *echo(request)]

        return script

    stages = [StageSpec(sentences, final_output=True), StageSpec(ready_after(0.1)), StageSpec(ready_after(0.1))]
    edges = [Edge(source=n, target=n + 1, processor=pass_on, prewarm=True) for n in range(2)]
    async with running(Rig(runtime, stages, edges=edges, async_chunk=True)) as rig:
        rig.add("r", prompt={"messages": (ChatMessage("user", "hello"),)})
        await asyncio.sleep(10)
        order = [(message.stage_id, message.output.text) for message in rig.outputs("r") if message.output.text]
        assert order.index((2, "s0")) < order.index((0, "s1")), "before the first stage has said its second sentence"
        assert [text for stage_id, text in order if stage_id == 2] == ["s0", "s1", "s2", "s3"]
        assert rig.endings() == {"r": 1}


@virtual
async def test_a_stage_opened_ahead_that_gets_nothing_is_told_so(runtime: VirtualRuntime) -> None:
    stages = [StageSpec(), StageSpec()]
    edges = [Edge(source=0, target=1, processor=lambda source: NOTHING, prewarm=True)]
    async with running(Rig(runtime, stages, edges=edges, async_chunk=True)) as rig:
        rig.add("r", "x")
        await asyncio.sleep(1)
        assert stages[1].ledger.finals("r") == [False, True]
        assert rig.endings() == {"r": 1}


@virtual
async def test_a_stage_opened_ahead_does_not_hide_an_empty_handoff(runtime: VirtualRuntime) -> None:
    edges = [Edge(source=0, target=1, processor=lambda source: None, prewarm=True)]
    async with running(Rig(runtime, [StageSpec(), StageSpec()], edges=edges, async_chunk=True)) as rig:
        rig.add("r", "x")
        await asyncio.sleep(1)
        assert [error.code for error in rig.errors("r")] == ["empty_handoff"]
        assert rig.leftovers() == {}


@virtual
async def test_a_last_stage_that_ends_early_stops_the_earlier_ones(runtime: VirtualRuntime) -> None:
    def endless(request: StageRequest) -> list[RequestOutput | float]:
        return [step for _ in range(100) for step in (0.1, said(request, "x", segment_finished=True))]

    def enough(request: StageRequest) -> list[RequestOutput | float]:
        return [said(request, "stop", finished=True)]

    stages = [StageSpec(endless), StageSpec(enough)]
    async with running(Rig(runtime, stages)) as rig:
        rig.add("r", "x")
        await asyncio.sleep(0.15)
        assert rig.endings() == {"r": 1}
        assert stages[0].ledger.closed["r"] == 1, "nobody is left to hear the first stage"
        assert rig.leftovers() == {}


class Congested(InprocClient):
    """A replica whose socket is full: handing it a piece takes a while."""

    async def submit(self, request: StageRequest) -> None:
        await super().submit(request)
        await asyncio.sleep(0.5)

    async def update(self, request: StageRequest) -> None:
        await super().update(request)
        await asyncio.sleep(0.5)


class Reporting(Orchestrator):
    """Remembers what it was told of submissions."""

    reported: ClassVar[list[str]] = []

    def _on_stage_submitted(
        self, stage_id: int, request_id: str, replica_id: int, req_state: OrchestratorRequestState
    ) -> None:
        self.reported.append(request_id)


def congested(rig: Rig, stage_id: int) -> None:
    spec = rig.stages[stage_id]
    rig.orchestrator.stage_pools[stage_id].replicas.make_client = lambda _id: Congested(
        spec.stage(), runtime=rig.runtime
    )


@virtual
async def test_pieces_keep_their_order_when_a_stage_takes_them_slowly(runtime: VirtualRuntime) -> None:
    def hurried(request: StageRequest) -> list[RequestOutput | float]:
        steps: list[RequestOutput | float] = []
        for number in range(12):
            steps += [0.1, said(request, f"{number} ", segment_finished=True)]
        return [*steps, said(request, finished=True)]

    rig = Rig(runtime, [StageSpec(hurried), StageSpec()])
    congested(rig, 1)
    async with running(rig):
        rig.add("r", "x")
        rig.add("other", "x")
        await asyncio.sleep(0.25)
        rig.orchestrator.set_paused("r", True)
        await asyncio.sleep(0.6)
        rig.orchestrator.set_paused("r", False)
        await asyncio.sleep(60)
        for name in ("r", "other"):
            assert rig.stages[1].ledger.texts(name) == [*(f"{number} " for number in range(12)), ""]
        assert rig.endings() == {"r": 1, "other": 1}


@virtual
async def test_a_submission_that_an_abort_overtook_is_not_reported(runtime: VirtualRuntime) -> None:
    Reporting.reported.clear()
    rig = Rig(runtime, [StageSpec(lambda request: [5.0])], kind=Reporting)
    congested(rig, 0)
    async with running(rig):
        rig.add("gone", "x")
        rig.add("here", "x")
        await asyncio.sleep(0.1)
        rig.orchestrator.post(AbortRequest(request_ids=("gone",)))
        await asyncio.sleep(1)
        assert Reporting.reported == ["here"]
        assert rig.stages[0].ledger.opened["gone"] == rig.stages[0].ledger.closed["gone"]
        assert rig.orchestrator.tables()["stage0.bindings"] == 1


def test_edges_lead_forward_and_feed_a_stage_once() -> None:
    def edge(source: int, target: int) -> Edge:
        return Edge(source=source, target=target, processor=pass_on)

    for edges, expected in (
        ([edge(1, 0)], "1 -> 0"),
        ([edge(0, 3)], "0 -> 3"),
        ([edge(0, 2), edge(1, 2)], "stage 2 is fed by two edges"),
    ):
        with pytest.raises(ValueError, match=expected):
            Topology(edges, 3)
    topology = Topology([edge(0, 1), edge(0, 3), edge(1, 2)], 4)
    assert topology.reachable(0, 3) == (0, 1, 2, 3)
    assert topology.reachable(0, 2) == (0, 1, 2)
    assert topology.reachable(1, 3) == (1, 2)
    assert [topology.feeds(stage, 2) for stage in range(4)] == [True, True, False, False]


def test_passing_on_keeps_audio_and_finds_nothing_in_nothing() -> None:
    def source(**fields: object) -> EdgeInput:
        content = {"text": "", "token_ids": (), "audio": b"", "audio_rate_hz": 0, **fields}
        return EdgeInput(  # type: ignore[call-arg]
            request_id="r",
            output=RequestOutput(request_id="r"),
            segment_index=0,
            entry_prompt=StagePrompt(session_key="k"),
            is_session=False,
            final=True,
            **content,  # type: ignore[arg-type]
        )

    assert pass_on(source()) is NOTHING
    passed = pass_on(source(audio=b"\1\2", audio_rate_hz=24_000))
    assert isinstance(passed, StagePrompt)
    assert (passed.audio, passed.audio_rate_hz, passed.session_key) == (b"\1\2", 24_000, "k")


@virtual
async def test_field_F47_a_new_segment_is_never_taken_for_a_replay_of_the_last(runtime: VirtualRuntime) -> None:
    """Two requests, three segments each that say the same, and a stage that is slow enough for them to overlap."""

    def segments(request: StageRequest) -> list[RequestOutput | float]:
        steps: list[RequestOutput | float] = []
        for _ in range(3):
            steps += [said(request, "0 "), said(request, "1 "), 0.01, said(request, segment_finished=True)]
        return [*steps, said(request, finished=True)]

    def slowly(request: StageRequest) -> list[RequestOutput | float]:
        return [0.05, *echo(request)]

    stages = [StageSpec(segments), StageSpec(slowly)]
    async with running(Rig(runtime, stages)) as rig:
        rig.add("a", "x")
        rig.add("b", "x")
        await asyncio.sleep(2)
        for name in ("a", "b"):
            assert stages[1].ledger.texts(name) == ["0 1 "] * 3 + [""]
            assert rig.text(name) == "0 1 " * 3
