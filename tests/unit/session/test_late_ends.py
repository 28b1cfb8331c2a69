"""Requests that end by themselves while a piece of input is on its way to them: what is said of the piece is true."""

from __future__ import annotations

import asyncio

import pytest

from duologue.engine.duplex.commands import AppendAudio
from duologue.engine.duplex.contracts import DuplexStageSubmission
from duologue.engine.duplex.events import ErrorRaised, SessionClosed
from duologue.errors import ErrorCode, StageFault
from duologue.models.scripted import Script, resident_pipeline, tone
from duologue.models.scripted.resident import ResidentPlugin
from duologue.outputs import RequestOutput, StagePrompt
from duologue.sim.loop import VirtualRuntime, virtual
from tests.unit.session.desk import Desk, desk
from tests.unit.session.test_duplex_orchestrator import context
from tests.unit.session.world import MANUAL, RATE_HZ, engine


def two_pieces(runtime: VirtualRuntime, *, taken: bool, ends_in_s: float) -> tuple[Desk, str]:
    """A resident model that is being given a second piece, which takes a second; and its request, which ends meanwhile."""
    plugin = ResidentPlugin(Script())
    there = desk(runtime, plugin=plugin)
    unit = AppendAudio(audio=tone(plugin.capabilities.unit_ms or 0, rate_hz=RATE_HZ))

    async def on_its_way() -> None:
        there.port.on_submit = None
        await asyncio.sleep(ends_in_s)
        assert there.output(request_id, 0, final_stage_id=0, finished=True)
        await asyncio.sleep(1.0 - ends_in_s)
        if not taken:
            raise StageFault(ErrorCode.STALE_FENCE, "It ended before.")

    there.runner.submit(unit)
    request_id = there.last_request
    there.port.on_submit = on_its_way
    there.runner.submit(unit)
    assert [piece.already_submitted for piece in there.port.submitted] == [False, True]
    return there, request_id


@pytest.mark.parametrize("taken", [True, False])
@pytest.mark.parametrize("ends_in_s", [0.5, 1.0])
def test_what_was_on_its_way_is_taken_or_is_the_first_of_the_next_request(taken: bool, ends_in_s: float) -> None:
    @virtual
    async def main(runtime: VirtualRuntime) -> None:
        there, request_id = two_pieces(runtime, taken=taken, ends_in_s=ends_in_s)
        await asyncio.sleep(0.9)
        assert there.port.cleaned == [], "a request is not forgotten before the piece has arrived"
        assert len(there.port.submitted) == 2
        await asyncio.sleep(0.2)
        assert {ids for ids, _ in there.port.cleaned} == {(request_id,)}
        assert (there.runner.model.unclean, there.runner.model.idle, len(there.runner.tasks)) == ((), True, 0)
        again = there.port.submitted[2:]
        assert [piece.already_submitted for piece in again] == [False] * (not taken)
        assert there.runner.model_state.accepted == 2  # type: ignore[attr-defined]
        assert there.of(ErrorRaised) == []

    main()


@virtual
async def test_a_close_withdraws_what_is_on_its_way(runtime: VirtualRuntime) -> None:
    there, request_id = two_pieces(runtime, taken=True, ends_in_s=0.1)
    await asyncio.sleep(0.2)
    began = runtime.now()
    await there.runner.close("bye")
    assert runtime.now() == began
    assert there.of(SessionClosed)[0].slot_released
    assert ((request_id,), True) in there.port.cleaned
    assert (there.runner.model.unclean, there.runner.model.idle, len(there.runner.tasks)) == ((), True, 0)


@virtual
async def test_a_broken_session_withdraws_what_is_on_its_way_too(runtime: VirtualRuntime) -> None:
    """It does not name a request that ended."""
    there, request_id = two_pieces(runtime, taken=True, ends_in_s=0.1)
    await asyncio.sleep(0.2)
    there.runner.ending.break_off(RuntimeError("broken"))
    there.runner.begin_close("closed", "internal_error", emit_terminal=False)
    await asyncio.sleep(0.01)
    assert ((request_id,), True) in there.port.cleaned
    assert there.manager.steps[-2:] == ["slot free", "ended"]


@pytest.mark.parametrize("heard", [True, False])
def test_a_piece_for_a_request_that_its_stage_had_ended_is_not_taken(heard: bool) -> None:
    """Unless the session goes on with the request at a later stage: then it has lost nothing."""

    @virtual
    async def main(runtime: VirtualRuntime) -> None:
        pipeline = resident_pipeline(runtime)
        async with engine(runtime, pipeline) as world:
            world.open(MANUAL)
            port, replica = world.engine, pipeline.clients[0][0]
            first = context("r1", final_stage_id=0)
            port.ensure_request(first)
            await port.submit(DuplexStageSubmission(context=first, prompt=StagePrompt(), already_submitted=False))
            update = replica.update

            async def slow(request: object) -> None:
                await asyncio.sleep(1.0)
                await update(request)  # type: ignore[arg-type]

            replica.update = slow  # type: ignore[method-assign]
            piece = DuplexStageSubmission(context=first, prompt=StagePrompt(), already_submitted=True)
            on_its_way = asyncio.ensure_future(port.submit(piece))
            await asyncio.sleep(0.5)
            replica._push("r1", RequestOutput(request_id="r1", finished=True))
            if heard:
                port.session_manager.unregister_request("r1")
                with pytest.raises(StageFault, match="before it had this input"):
                    await on_its_way
            else:
                assert (await on_its_way).request_id == "r1"
            await port.cleanup(["r1"], abort=True)

    main()
