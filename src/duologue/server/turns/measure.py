"""What ordinary requests are measured by, for Prometheus. No label holds anything of a client."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class TurnMetrics:
    """``status`` is the HTTP status, ``gone`` when the client left first, ``broken`` when an answer was broken off."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._ended = Counter(
            "duologue_http_requests", "Ordinary requests that ended.", ["endpoint", "status"], registry=registry
        )
        self._duration = Histogram(
            "duologue_http_request_seconds",
            "From the first byte of a request to the last of its answer.",
            ["endpoint"],
            buckets=_BUCKETS_S,
            registry=registry,
        )
        self._requests = Gauge("duologue_http_active", "Ordinary requests.", ["state"], registry=registry)
        self._held = Gauge("duologue_http_held_bytes", "Bytes of request bodies that are held.", registry=registry)

    def ended(self, endpoint: str, status: str, seconds: float) -> None:
        """One request has ended."""
        self._ended.labels(endpoint, status).inc()
        self._duration.labels(endpoint).observe(seconds)

    def counted(self, *, places: int, running: int, held_bytes: int) -> None:
        """How many there are now."""
        self._requests.labels("all").set(places)
        self._requests.labels("running").set(running)
        self._held.set(held_bytes)
