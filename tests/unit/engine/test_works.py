"""Requests of asynchronous stage code: one task each, which waits between the pieces, whatever ends it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from duologue.engine.stages.contract import AsyncStage, StageControl
from duologue.engine.stages.works import Key, TaskWorks
from duologue.errors import ErrorCode
from duologue.outputs import RequestOutput, SamplingParams, StagePrompt, StageRequest
from duologue.sim.loop import VirtualRuntime, virtual
from tests.unit.engine.rig import Ledger, Script, Scripted, echo, said


class Desk:
    """One replica's requests, and what they delivered."""

    def __init__(self, runtime: VirtualRuntime, script: Script = echo, stage: AsyncStage[str] | None = None) -> None:
        self.runtime = runtime
        self.ledger = Ledger()
        self.out: list[RequestOutput] = []
        self.works = TaskWorks(
            stage or Scripted(self.ledger, script),
            self.push,
            lambda coro: runtime.spawn(coro, name="request"),
            runtime.now,
        )
        self.on_push = lambda: None

    def push(self, key: Key, output: RequestOutput) -> None:
        assert key == output.request_id
        self.out.append(output)
        self.on_push()

    def piece(self, text: str, *, final: bool = False, first: bool = False) -> None:
        request = StageRequest(
            request_id="r",
            external_req_id="r",
            prompt=StagePrompt(text=text, final=final),
            params=SamplingParams(),
            resumable=True,
        )
        (self.works.submit if first else self.works.update)("r", request)

    @property
    def texts(self) -> list[str]:
        return [output.text for output in self.out]


@virtual
async def test_pieces_of_a_request_share_a_task_and_keep_their_order(runtime: VirtualRuntime) -> None:
    desk = Desk(runtime, lambda request: [0.1, *echo(request)])
    desk.piece("a", first=True)
    desk.piece("b")
    await asyncio.sleep(1.0)
    tasks = list(runtime.tasks)
    desk.piece("c")
    await asyncio.sleep(1.0)
    assert len(tasks) == 1 and list(runtime.tasks) == tasks
    desk.piece("d", final=True)
    desk.piece("e")  # behind the last one: nobody will hear it
    await asyncio.sleep(1.0)
    assert desk.texts == desk.ledger.texts("r") == ["a", "b", "c", "d"]
    assert desk.ledger.balanced() and not runtime.tasks


@virtual
async def test_an_abort_between_two_pieces_closes_the_state_at_once(runtime: VirtualRuntime) -> None:
    desk = Desk(runtime)
    desk.piece("a", first=True)
    await asyncio.sleep(0.1)
    desk.works.abort(["r"])
    assert desk.ledger.balanced()
    desk.piece("b")
    await asyncio.sleep(0.1)
    assert desk.texts == ["a"] and not runtime.tasks


@virtual
async def test_an_abort_from_within_an_output_ends_the_piece_there(runtime: VirtualRuntime) -> None:
    desk = Desk(runtime, lambda request: [said(request, "one"), said(request, "two")])
    desk.on_push = lambda: desk.works.abort(["r"])
    desk.piece("a", first=True)
    await asyncio.sleep(0.1)
    assert desk.texts == ["one"] and desk.ledger.balanced() and not runtime.tasks


@virtual
async def test_a_piece_may_be_added_from_within_an_output(runtime: VirtualRuntime) -> None:
    desk = Desk(runtime)
    more = iter(["b", "c"])

    def go_on() -> None:
        text = next(more, None)
        if text is not None:
            desk.piece(text, final=text == "c")

    desk.on_push = go_on
    desk.piece("a", first=True)
    await asyncio.sleep(0.1)
    assert desk.texts == ["a", "b", "c"] and desk.ledger.balanced() and not runtime.tasks


@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.5])  # before its first step, in a piece, between two
@virtual
async def test_a_request_whose_task_is_cancelled_fails_once(runtime: VirtualRuntime, after_s: float) -> None:
    desk = Desk(runtime, lambda request: [0.1, *echo(request)])
    desk.piece("a", first=True)
    if after_s:
        await asyncio.sleep(after_s)
    next(iter(runtime.tasks)).cancel()
    await asyncio.sleep(0.5)
    desk.piece("b")
    await asyncio.sleep(0.5)
    errors = [output.error for output in desk.out if output.error is not None]
    assert [error.code for error in errors] == [ErrorCode.RUNTIME_STREAM_FAILED.value]
    assert desk.texts == (["a", ""] if after_s == 0.5 else [""])
    assert desk.ledger.balanced() and not runtime.tasks


class Failing(AsyncStage[str]):
    """Raises in its second piece, and, when told, as it is closed."""

    def __init__(self) -> None:
        self.pieces = self.closed = 0

    def open(self, request: StageRequest) -> str:
        return request.request_id

    async def process(self, state: str, request: StageRequest, control: StageControl) -> AsyncIterator[RequestOutput]:
        self.pieces += 1
        yield said(request, request.prompt.text)
        if self.pieces == 2:
            raise RuntimeError("no more")

    def close(self, state: str) -> None:
        self.closed += 1


@virtual
async def test_a_request_whose_stage_raises_fails_once_and_its_pieces_go_with_it(runtime: VirtualRuntime) -> None:
    stage = Failing()
    desk = Desk(runtime, stage=stage)
    desk.piece("a", first=True)
    desk.piece("b")
    desk.piece("c")
    await asyncio.sleep(0.1)
    assert desk.texts == ["a", "b", ""] and desk.out[-1].error is not None
    assert (stage.pieces, stage.closed) == (2, 1) and not runtime.tasks
    desk.piece("anew", first=True)  # the id is free again
    await asyncio.sleep(0.1)
    assert desk.texts[-1] == "anew"
    desk.works.abort(["r"])
    await asyncio.sleep(0.1)
    assert stage.closed == 2
