"""Operations on replicas as messages: collective calls, replicas that come and go, acknowledged aborts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from duologue.engine.messages import (
    AbortRequest,
    CollectiveRpc,
    RegisterReplica,
    ReplicaResult,
    ResultMessage,
    UnregisterReplica,
)
from duologue.engine.stages.contract import AsyncStage, Stage, StageControl
from duologue.outputs import RequestOutput, StageRequest
from duologue.sim.loop import VirtualRuntime, run, virtual
from tests.unit.engine.rig import Rig, Scripted, ScriptedBlocking, StageSpec, echo, running, said


def answer_call(stage: object, method: str, args: tuple[Any, ...]) -> object:
    match method:
        case "add":
            return {"sum": sum(args), "bytes": b"\0\xff"}
        case "odd":
            raise LookupError("only sometimes")
        case "object":
            return object()
        case _:
            raise AssertionError(stage)


class CallableAsync(Scripted):
    """Asynchronous stage code that takes calls."""

    async def call(self, method: str, args: tuple[Any, ...]) -> object:
        if method == "sleep":
            await asyncio.sleep(args[0])
            return "slept"
        if method == "unknown":
            return await AsyncStage.call(self, method, args)
        return answer_call(self, method, args)


class CallableBlocking(ScriptedBlocking):
    """Blocking stage code that takes calls."""

    def call(self, method: str, args: tuple[Any, ...]) -> object:
        return Stage.call(self, method, args) if method == "unknown" else answer_call(self, method, args)


class CallSpec(StageSpec):
    def stage(self) -> CallableAsync | CallableBlocking:
        kind = CallableBlocking if self.blocking else CallableAsync
        return kind(self.ledger, self.script)


def call(rig: Rig, method: str, *args: object, **fields: Any) -> None:
    rig.orchestrator.post(CollectiveRpc(control_id="call", method=method, args=args, **fields))


def results(rig: Rig) -> tuple[ReplicaResult, ...]:
    (answer,) = rig.answers()
    assert (answer.control_id, answer.error_code) == ("call", None), answer
    value: tuple[ReplicaResult, ...] = answer.value
    return value


@pytest.mark.parametrize("blocking", [True, False])
def test_every_replica_answers_for_itself(blocking: bool) -> None:
    async def scenario(runtime: VirtualRuntime) -> None:
        stages = [CallSpec(replicas=2, blocking=blocking), CallSpec(replicas=3, blocking=blocking)]
        async with running(Rig(runtime, stages)) as rig:
            call(rig, "add", 1, 2)
            await asyncio.sleep(0.1)
            assert [(one.stage_id, one.replica_id) for one in results(rig)] == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
            assert all(one.value == {"sum": 3, "bytes": b"\0\xff"} for one in results(rig))

    run(scenario)


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize(
    ("method", "code", "message"),
    [
        ("odd", "runtime_data_plane_stream_failed", "LookupError: only sometimes"),
        ("unknown", "unsupported", "has no method 'unknown'"),
        ("object", "runtime_data_plane_stream_failed", "object"),
    ],
)
def test_errors_are_results_too(blocking: bool, method: str, code: str, message: str) -> None:
    async def scenario(runtime: VirtualRuntime) -> None:
        async with running(Rig(runtime, [CallSpec(blocking=blocking), StageSpec()])) as rig:
            call(rig, method, stage_ids=(0,))
            await asyncio.sleep(0.1)
            (result,) = results(rig)
            assert (result.error_code, message in result.error_message) == (code, True), result

    run(scenario)


@virtual
async def test_a_call_takes_no_longer_than_its_time_out(runtime: VirtualRuntime) -> None:
    stages = [CallSpec(), CallSpec()]
    async with running(Rig(runtime, stages)) as rig:
        call(rig, "sleep", 100.0, stage_ids=(0,), timeout_s=2.0)
        await asyncio.sleep(1.9)
        assert rig.answers() == []
        await asyncio.sleep(0.2)
        (late,) = results(rig)
        assert (late.error_code, "did not answer within 2 s" in late.error_message) == ("timeout", True)
        assert rig.leftovers() == {}


@virtual
async def test_a_replica_that_dies_during_a_call_is_its_own_result(runtime: VirtualRuntime) -> None:
    spec = CallSpec(replicas=2)
    async with running(Rig(runtime, [spec])) as rig:
        call(rig, "sleep", 1.0)
        await asyncio.sleep(0.5)
        spec.clients[1].die(ConnectionError("killed"))
        await asyncio.sleep(1)
        alive, dead = results(rig)
        assert (alive.value, dead.error_code) == ("slept", "replica_unavailable")


@virtual
async def test_a_call_between_pieces_waits_for_blocking_stage_code(runtime: VirtualRuntime) -> None:
    order: list[str] = []

    class Noting(CallableBlocking):
        def call(self, method: str, args: tuple[Any, ...]) -> object:
            order.append("call")
            return None

    def script(request: StageRequest) -> list[RequestOutput | float]:
        return [said(request, f"{number}") for number in range(3)] + [said(request, finished=True)]

    class Spec(StageSpec):
        def stage(self) -> Noting:
            return Noting(self.ledger, self.script)

    async with running(Rig(runtime, [Spec(script, blocking=True)])) as rig:
        rig.add("r")
        await asyncio.sleep(0)
        call(rig, "note")
        await asyncio.sleep(0.1)
        assert order == ["call"]
        assert rig.text("r") == "012"


@virtual
async def test_calls_that_cannot_be_are_refused(runtime: VirtualRuntime) -> None:
    async with running(Rig(runtime, [CallSpec()])) as rig:
        call(rig, "add", timeout_s=0.0)
        call(rig, "add", timeout_s=float("nan"))
        call(rig, "add", stage_ids=(1,))
        await asyncio.sleep(0.1)
        assert [answer.error_code for answer in rig.answers()] == ["request_invalid"] * 3
        assert "must name stages between 0 and 0, got 1" in rig.answers()[2].error_message


@virtual
async def test_an_operation_under_way_at_the_end_is_answered_all_the_same(runtime: VirtualRuntime) -> None:
    rig = Rig(runtime, [CallSpec()])
    async with running(rig):
        call(rig, "sleep", 50.0, timeout_s=100.0)
        await asyncio.sleep(0.1)
    rig.orchestrator.post(RegisterReplica(control_id="late", stage_id=0))
    await asyncio.sleep(0.1)
    assert [answer.control_id for answer in rig.answers()] == ["call", "late"]
    assert rig.answers()[1].error_code == "shutting_down"


# -- replicas that come and go


def register(rig: Rig, stage_id: int = 0) -> None:
    rig.orchestrator.post(RegisterReplica(control_id="register", stage_id=stage_id))


def unregister(rig: Rig, replica_id: int, drain_s: float = 10.0, stage_id: int = 0) -> None:
    rig.orchestrator.post(
        UnregisterReplica(control_id="unregister", stage_id=stage_id, replica_id=replica_id, drain_s=drain_s)
    )


def values(rig: Rig) -> list[object]:
    return [answer.value if answer.error_code is None else answer.error_code for answer in rig.answers()]


def slowly(request: StageRequest) -> list[RequestOutput | float]:
    return [1.0, *echo(request)]


@virtual
async def test_a_replica_is_added_and_takes_its_share(runtime: VirtualRuntime) -> None:
    async with running(Rig(runtime, [StageSpec(slowly)])) as rig:
        register(rig)
        await asyncio.sleep(0.1)
        assert values(rig) == [1]
        for number in range(4):
            rig.add(f"r{number}", "x")
        pool = rig.orchestrator.stage_pools[0]
        assert [pool.replica_of(f"r{number}") for number in range(4)] == [0, 1, 0, 1]
        await asyncio.sleep(5)


@virtual
async def test_a_removed_replica_finishes_what_it_has_and_gets_nothing_new(runtime: VirtualRuntime) -> None:
    spec = StageSpec(slowly, replicas=2)
    async with running(Rig(runtime, [spec])) as rig:
        pool = rig.orchestrator.stage_pools[0]
        for number in range(4):
            rig.add(f"r{number}", "x")
        unregister(rig, 0)
        await asyncio.sleep(0.1)
        assert pool.live_replica_ids == [1]
        assert [one.phase for one in pool.health().replicas] == ["draining", "ready"]
        rig.add("new", "x")
        assert pool.replica_of("new") == 1
        assert rig.answers() == []
        await asyncio.sleep(2)
        assert values(rig) == [None]
        assert not spec.clients[0].healthy
        assert len(rig.endings()) == 5
        assert all(rig.text(name) == "x" for name in rig.endings())
        await asyncio.sleep(20)
        assert pool.live_replica_ids == [1], "nobody starts it again"
        register(rig)
        await asyncio.sleep(0.1)
        assert pool.live_replica_ids == [1, 2], "its id stays a hole"


@virtual
async def test_what_is_left_after_draining_fails_once(runtime: VirtualRuntime) -> None:
    async with running(Rig(runtime, [StageSpec(lambda request: [60.0, *echo(request)], replicas=2)])) as rig:
        rig.add("long", "x")
        unregister(rig, 0, drain_s=3.0)
        await asyncio.sleep(2.9)
        assert rig.endings() == {}
        await asyncio.sleep(0.2)
        assert [error.code for error in rig.errors("long")] == ["replica_unavailable"]
        assert "taken out of service" in rig.errors("long")[0].message
        assert values(rig) == [None]


@virtual
async def test_a_replica_that_dies_while_it_drains_is_gone_for_good(runtime: VirtualRuntime) -> None:
    spec = StageSpec(lambda request: [60.0, *echo(request)], replicas=2)
    async with running(Rig(runtime, [spec])) as rig:
        rig.add("long", "x")
        unregister(rig, 0, drain_s=30.0)
        await asyncio.sleep(1)
        spec.clients[0].die(ConnectionError("killed"))
        await asyncio.sleep(1)
        assert values(rig) == [None]
        assert rig.endings() == {"long": 1}
        await asyncio.sleep(60)
        assert rig.orchestrator.stage_pools[0].live_replica_ids == [1]


@virtual
async def test_operations_that_cannot_be_are_refused_by_name(runtime: VirtualRuntime) -> None:
    async with running(Rig(runtime, [StageSpec(replicas=2), StageSpec()])) as rig:
        register(rig, stage_id=2)
        unregister(rig, 5)
        unregister(rig, 0, stage_id=1)
        unregister(rig, 0, drain_s=-1.0)
        await asyncio.sleep(0.1)
        assert values(rig) == ["request_invalid"] * 4
        told = [answer.error_message for answer in rig.answers()]
        assert "stage_id must be between 0 and 1, got 2" in told[0]
        assert "no replica 5 that takes work, only [0, 1]" in told[1]
        assert "is the last of stage stage1" in told[2]
        assert "drain_s must be between 0 and 600, got -1.0" in told[3]


@virtual
async def test_a_replica_that_does_not_start_leaves_the_stage_as_it_was(runtime: VirtualRuntime) -> None:
    class Broken(AsyncStage[str]):
        async def load(self) -> None:
            raise MemoryError("no room")

        def open(self, request: StageRequest) -> str:
            return ""

        async def process(
            self, state: str, request: StageRequest, control: StageControl
        ) -> AsyncIterator[RequestOutput]:
            yield said(request, finished=True)

    spec = StageSpec()
    async with running(Rig(runtime, [spec])) as rig:
        spec.stage = Broken  # type: ignore[method-assign,assignment]
        register(rig)
        await asyncio.sleep(0.1)
        (answer,) = rig.answers()
        assert "no room" in answer.error_message
        assert rig.orchestrator.stage_pools[0].live_replica_ids == [0]
        rig.add("r", "x")
        await asyncio.sleep(1)
        assert rig.text("r") == "x"


# -- acknowledged aborts


@virtual
async def test_an_acknowledged_abort_returns_what_each_final_stage_had_said(runtime: VirtualRuntime) -> None:
    def talk(request: StageRequest) -> list[RequestOutput | float]:
        steps: list[RequestOutput | float] = []
        for number in range(9):
            steps += [1.0, said(request, f"{number}", token_ids=(number,), segment_finished=number % 2 == 1)]
        return [*steps, said(request, finished=True)]

    stages = [StageSpec(talk, final_output=True), StageSpec(echo)]
    async with running(Rig(runtime, stages)) as rig:
        rig.add("r")
        await asyncio.sleep(5.5)
        rig.orchestrator.post(AbortRequest(request_ids=("r", "ghost"), control_id="abort"))
        await asyncio.sleep(0.1)
        (answer,) = rig.answers()
        first, last = answer.value
        assert (first.stage_id, first.output.text, first.output.token_ids) == (0, "01234", (0, 1, 2, 3, 4))
        assert (last.stage_id, last.output.text, last.output.finish_reason) == (1, "0123", "abort")
        assert rig.outputs("r")[-1].output.text == "", "the client gets no text twice"
        assert rig.endings() == {"r": 1}


@virtual
async def test_answers_keep_their_ids(runtime: VirtualRuntime) -> None:
    rig = Rig(runtime, [CallSpec(), StageSpec()])
    async with running(rig):
        register(rig, stage_id=1)
        call(rig, "add", 1, stage_ids=(0,))
        rig.orchestrator.post(AbortRequest(request_ids=(), control_id="abort"))
        await asyncio.sleep(0.1)
        assert sorted(answer.control_id for answer in rig.answers()) == ["abort", "call", "register"]
    assert all(isinstance(message, ResultMessage) for message in rig.results.messages)
