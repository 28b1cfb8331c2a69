"""What a request cost at a stage: the figures, the table, and what Prometheus gets of them."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from duologue.metrics.meters import StageMeters
from duologue.metrics.stats import MOST_GAPS, StageRequestStats, stats_table


def spoken() -> StageRequestStats:
    """Submitted at 10 s, waited 0.1 s, spoke at 10.4, 10.5 and 10.9 s: two seconds of audio."""
    stats = StageRequestStats(stage_id=2, request_id="r", replica_id=1, submitted_at=10.0)
    stats.observe(10.4, tokens=0, audio_s=0.5, finished=False, queue_s=0.1)
    stats.observe(10.5, tokens=3, audio_s=1.0, finished=False, queue_s=9.0)
    stats.observe(10.9, tokens=0, audio_s=0.5, finished=True)
    return stats


def test_figures() -> None:
    stats = spoken()
    assert stats.first_output_s == pytest.approx(0.4)
    assert stats.queue_s == 0.1, "that of the first output"
    assert stats.output_gaps_s == pytest.approx([0.1, 0.4])
    assert (stats.outputs, stats.output_tokens, stats.audio_s, stats.finished_at) == (3, 3, 2.0, 10.9)
    assert stats.real_time_factor == pytest.approx((0.9 - 0.1) / 2.0)


def test_a_recogniser_is_measured_by_what_it_was_given() -> None:
    stats = StageRequestStats(stage_id=0, request_id="r", submitted_at=10.0, input_audio_s=4.0)
    assert stats.real_time_factor is None
    stats.observe(11.0, tokens=0, audio_s=0.0, finished=True)
    assert stats.real_time_factor == pytest.approx(0.25)


def test_a_long_call_does_not_grow_its_statistics() -> None:
    stats = StageRequestStats(stage_id=0, request_id="r", submitted_at=0.0)
    for number in range(2 * MOST_GAPS):
        stats.observe(float(number), tokens=1, audio_s=0.0, finished=False)
    assert (len(stats.output_gaps_s), stats.outputs) == (MOST_GAPS, 2 * MOST_GAPS)


def test_the_table_has_a_line_for_each_stage_and_dashes_for_what_is_not_known() -> None:
    silent = StageRequestStats(stage_id=0, request_id="r")
    title, first, second = stats_table([("respond", silent), ("speak", spoken())]).split("\n")
    assert title.split("  ")[0] == "stage"
    assert first.split() == ["respond", "-", "0.0", "-", "-", "-", "0", "0", "-", "-"]
    assert second.split() == ["speak", "1", "100.0", "400.0", "250.0", "400.0", "3", "3", "2.00", "0.40"]
    assert title.index("rtf") + 3 == len(second), "columns are aligned"


def test_prometheus_gets_every_figure_by_stage() -> None:
    meters = StageMeters()
    meters.observe("speak", spoken())
    meters.observe("speak", StageRequestStats(stage_id=2, request_id="gone", submitted_at=1.0))
    served = CollectorRegistry()
    served.register(meters)
    text = generate_latest(served).decode()
    for line in (
        'duologue_stage_requests_total{ended="finished",stage="speak"} 1.0',
        'duologue_stage_requests_total{ended="stopped",stage="speak"} 1.0',
        'duologue_stage_tokens_total{stage="speak"} 3.0',
        'duologue_stage_audio_seconds_total{stage="speak"} 2.0',
        'duologue_stage_queue_seconds_count{stage="speak"} 1.0',
        'duologue_stage_first_output_seconds_sum{stage="speak"} 0.4',
        'duologue_stage_output_gap_seconds_sum{stage="speak"} 0.4',
        'duologue_stage_real_time_factor_bucket{le="0.5",stage="speak"} 1.0',
    ):
        assert line in text or line.replace("0.4", "0.40000000000000036") in text, line
