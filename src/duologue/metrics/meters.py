"""What stages cost, over all requests, for Prometheus.

Rules kept here: the only labels are the stage's name and how the request ended there; one observation per request and
stage, made when the request is over; a registry of its own, so that whoever serves metrics can include it.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from duologue.metrics.stats import StageRequestStats

_TIME_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_FACTOR = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 5.0)


class StageMeters(Collector):
    """Counters and histograms of all stages of one engine."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "duologue_stage_requests", "Requests that ended.", ["stage", "ended"], registry=self._registry
        )
        self._tokens = self._counter("tokens", "Tokens produced.")
        self._audio = self._counter("audio_seconds", "Audio produced.")
        self._queue = self._histogram("queue_seconds", "Submission to the start of work.", _TIME_S)
        self._first = self._histogram("first_output_seconds", "Submission to the first output.", _TIME_S)
        self._gap = self._histogram("output_gap_seconds", "Longest gap between outputs of a request.", _TIME_S)
        self._factor = self._histogram("real_time_factor", "Work per second of audio.", _FACTOR)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"duologue_stage_{name}", text, ["stage"], registry=self._registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"duologue_stage_{name}", text, ["stage"], buckets=buckets, registry=self._registry)

    def observe(self, stage: str, stats: StageRequestStats) -> None:
        """Account one request that is over at the stage called ``stage``."""
        self._requests.labels(stage, "stopped" if stats.finished_at is None else "finished").inc()
        self._tokens.labels(stage).inc(stats.output_tokens)
        self._audio.labels(stage).inc(stats.audio_s)
        if stats.first_output_s is not None:
            self._queue.labels(stage).observe(stats.queue_s)
            self._first.labels(stage).observe(stats.first_output_s)
        if stats.output_gaps_s:
            self._gap.labels(stage).observe(max(stats.output_gaps_s))
        if stats.real_time_factor is not None:
            self._factor.labels(stage).observe(stats.real_time_factor)

    def collect(self) -> Iterable[Metric]:
        """All of it, as Prometheus' client library wants it."""
        return self._registry.collect()
