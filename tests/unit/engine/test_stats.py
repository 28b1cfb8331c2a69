"""Statistics of requests as the engine keeps them: queueing, one table per response, one observation per stage."""

from __future__ import annotations

import asyncio
import logging

import pytest

from duologue.engine.messages import AbortRequest, OutputMessage, StageMetricsMessage
from duologue.metrics.stats import StageRequestStats
from duologue.outputs import RequestOutput, StageRequest
from duologue.sim.loop import VirtualRuntime, run, virtual
from tests.unit.engine.rig import Rig, StageSpec, echo, running, said


class Meter:
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, StageRequestStats]] = []

    def observe(self, stage: str, stats: StageRequestStats) -> None:
        self.heard.append((stage, stats))


def speak(request: StageRequest) -> list[RequestOutput | float]:
    return [0.5, said(request, audio=bytes(32_000), audio_rate_hz=16_000, token_ids=(1, 2), finished=True)]


@virtual
async def test_every_request_is_observed_once_at_each_stage_that_it_reached(runtime: VirtualRuntime) -> None:
    rig = Rig(runtime, [StageSpec(echo), StageSpec(speak)])
    rig.orchestrator._meters = meter = Meter()
    async with running(rig):
        rig.add("r", "x", prompt={"audio": bytes(64_000), "audio_rate_hz": 16_000})
        rig.add("gone", "x")
        await asyncio.sleep(0.1)
        rig.orchestrator.post(AbortRequest(request_ids=("gone",)))
        await asyncio.sleep(2)
        assert [(stage, stats.request_id) for stage, stats in meter.heard] == [
            ("stage0", "gone"),
            ("stage1", "gone"),
            ("stage0", "r"),
            ("stage1", "r"),
        ]
        spoken = meter.heard[-1][1]
        assert (spoken.output_tokens, spoken.audio_s, spoken.finished_at is not None) == (2, 1.0, True)
        assert spoken.first_output_s == spoken.real_time_factor == pytest.approx(0.5)
        assert meter.heard[-2][1].input_audio_s == 2.0
        assert meter.heard[1][1].finished_at is None


@virtual
async def test_the_client_hears_once_what_a_stage_cost_whose_output_it_does_not_get(runtime: VirtualRuntime) -> None:
    rig = Rig(runtime, [StageSpec(speak), StageSpec(echo)])
    async with running(rig):
        rig.add("r", "x")
        await asyncio.sleep(2)
        (cost,) = [message for message in rig.outbox.messages if isinstance(message, StageMetricsMessage)]
        assert (cost.request_id, cost.stage_id) == ("r", 0)
        assert (cost.values["output_tokens"], cost.values["audio_s"]) == (2, 1.0)
        assert cost.values["first_output_s"] == pytest.approx(0.5)
        assert cost.values["longest_gap_s"] is None
        outputs = [message.stage_id for message in rig.outbox.messages if isinstance(message, OutputMessage)]
        assert outputs and set(outputs) == {1}


@pytest.mark.parametrize("log_stats", [True, False])
def test_one_table_per_response_if_asked_for(log_stats: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(runtime: VirtualRuntime) -> None:
        rig = Rig(runtime, [StageSpec(echo), StageSpec(speak)])
        rig.orchestrator.log_stats = log_stats
        async with running(rig):
            for name in ("a", "b"):
                rig.add(name, "what nobody may read")
            await asyncio.sleep(2)

    with caplog.at_level(logging.INFO, "duologue"):
        run(scenario)
    tables = [record.getMessage() for record in caplog.records if "what the response cost" in record.getMessage()]
    assert len(tables) == (2 if log_stats else 0)
    for table in tables:
        lines = table.split("\n")
        assert [line.split()[0] for line in lines[1:]] == ["stage", "stage0", "stage1"]
        assert "500.0" in lines[3]
        assert "nobody" not in table


def test_a_request_that_waited_for_its_turn_says_how_long() -> None:
    """A replica with one slot, whose pieces take a turn of the loop per output; time passes only by what others do."""

    async def scenario(runtime: VirtualRuntime) -> None:
        spec = StageSpec(lambda request: [said(request, "x", finished=True)], blocking=True)
        rig = Rig(runtime, [spec])
        meter = rig.orchestrator._meters = Meter()
        async with running(rig):
            client = spec.clients[0]
            works = client._works
            assert works is not None
            free, works._free = works._free, 0  # type: ignore[attr-defined]
            rig.add("r", "x")
            await asyncio.sleep(0.3)
            works._free = free  # type: ignore[attr-defined]
            works._fill()  # type: ignore[attr-defined]
            await asyncio.sleep(1)
            ((_, stats),) = meter.heard
            assert stats.queue_s == pytest.approx(0.3)
            assert stats.first_output_s == pytest.approx(0.3)

    run(scenario)
