"""What the server measures, for Prometheus.

Rules kept here: no label holds anything of a session or a client; gauges are read when they are scraped.
"""

from __future__ import annotations

from collections import Counter as Tally

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.registry import Collector

from duologue.engine.duplex import events
from duologue.errors import ErrorCode
from duologue.server.engine import EngineHealth
from duologue.server.registry import SessionHub
from duologue.server.turns.measure import TurnMetrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_STOP_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 2.0)


HELD = (
    *("input_bytes", "turns", "untaken_events", "untaken_bytes", "backlog_ms", "items", "commands"),
    *("waiting_command_bytes", "pieces", "session_keys", "companions", "outbox_bytes", "sent_ahead"),
)
ACTED = (
    *("input", "input_reclaimed", "turns", "output", "backlog", "items", "history_chars", "turn_length", "starvation"),
    *("commands", "transcript_wait", "silence_units", "context", "marks"),
)
CONNECTION_LIMITS = ("max_frame_bytes", "max_early_events", "max_early_bytes", "max_local_frames")
_ANSWER_BUCKETS_S = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)


class ServerMetrics:
    """Counters and histograms of one server; also the observer of its sessions."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._errors = Counter("duologue_errors", "Errors sent to clients.", ["code"], registry=self._registry)
        self._responses = Counter("duologue_responses", "Responses that ended.", ["status"], registry=self._registry)
        self._calls = Counter(
            "duologue_tool_calls",
            "Function calls: asked for by models, answered by clients.",
            ["state"],
            registry=self._registry,
        )
        self._connections = Counter(
            "duologue_connections", "WebSockets accepted.", ["dialect"], registry=self._registry
        )
        self._refused = Counter("duologue_refused_handshakes", "WebSockets refused.", ["code"], registry=self._registry)
        self._limits = Counter(
            "duologue_connection_limit", "How often a limit of connections acted.", ["limit"], registry=self._registry
        )
        for limit in CONNECTION_LIMITS:
            self._limits.labels(limit)
        self._sessions = Gauge(
            "duologue_sessions", "Sessions that the server holds.", ["dialect"], registry=self._registry
        )
        self._backlog = Gauge("duologue_output_backlog", "Events that wait for sockets.", registry=self._registry)
        self._journal = Gauge("duologue_journal_bytes", "Bytes held for resume.", registry=self._registry)
        self._dropped = Gauge(
            "duologue_journal_dropped_frames", "Frames that journals dropped for want of room.", registry=self._registry
        )
        self._held = Gauge(
            "duologue_held", "What is bounded, and held by all sessions together.", ["what"], registry=self._registry
        )
        self._acted = Gauge(
            "duologue_limit_acted", "How often a limit acted since the start.", ["limit"], registry=self._registry
        )
        self._slots = Gauge("duologue_slots", "Session slots.", ["state"], registry=self._registry)
        self._replicas = Gauge("duologue_replicas", "Stage replicas.", ["stage", "state"], registry=self._registry)
        self.turns = TurnMetrics(self._registry)
        self._answer = Histogram(
            "duologue_answer_delay_seconds",
            "End of the user's speech to each part of the answer to it: judged, ended, understood, answered, sent.",
            ["part"],
            buckets=_ANSWER_BUCKETS_S,
            registry=self._registry,
        )
        self._onset = self._stop("onset", "Speech onset to the last audio byte handed over.")
        self._decision = self._stop("decision", "Decision to stop to the last audio byte handed over.")

    def _stop(self, start: str, text: str) -> Histogram:
        return Histogram(
            f"duologue_stop_latency_{start}_seconds", text, buckets=_STOP_BUCKETS_S, registry=self._registry
        )

    def include(self, collector: Collector) -> None:
        """Show what ``collector`` measures too. Its names must be its own."""
        self._registry.register(collector)

    def observed(self, event: events.SessionEvent) -> None:
        if isinstance(event, events.ErrorRaised):
            self._errors.labels(event.code.value).inc()
        elif isinstance(event, events.ResponseDone):
            self._responses.labels(event.status).inc()
            if event.delays is not None:
                self._answered(event.delays)
        elif isinstance(event, events.FunctionCalled):
            self._calls.labels("asked").inc()
        elif isinstance(event, events.ItemAdded):
            if event.item.role == "tool":
                self._calls.labels("answered").inc()
        elif isinstance(event, events.StopMeasured):
            if event.onset_to_last_audio_s is not None:
                self._onset.observe(event.onset_to_last_audio_s)
            if event.decision_to_last_audio_s is not None:
                self._decision.observe(event.decision_to_last_audio_s)

    def _answered(self, delays: events.AnswerDelays) -> None:
        parts = {
            "judged": delays.judged_ms,
            "ended": delays.ended_ms,
            "understood": delays.understood_ms,
            "answered": delays.answered_ms,
            "sent": delays.sent_ms,
        }
        for part, delay_ms in parts.items():
            if delay_ms is not None:
                self._answer.labels(part).observe(delay_ms / 1000)

    def refused(self, code: ErrorCode) -> None:
        self._errors.labels(code.value).inc()

    def accepted(self, dialect: str) -> None:
        """A WebSocket was accepted."""
        self._connections.labels(dialect).inc()

    def turned_away(self, code: ErrorCode) -> None:
        """A handshake was refused."""
        self._refused.labels(code.value).inc()

    def limited(self, limit: str) -> None:
        """One of :data:`CONNECTION_LIMITS` acted: reading stopped, or the socket was closed."""
        self._limits.labels(limit).inc()

    def render(self, hub: SessionHub, health: EngineHealth) -> bytes:
        """Everything, in Prometheus' text format."""
        dialects = Tally(attachment.dialect.style.dialect for attachment in hub.sessions)
        for dialect in ("ga", "duplex"):
            self._sessions.labels(dialect).set(dialects[dialect])
        self._backlog.set(sum(attachment.backlog for attachment in hub.sessions))
        self._journal.set(sum(a.journal.held_bytes for a in hub.sessions if a.journal is not None))
        self._dropped.set(sum(a.journal.dropped for a in hub.sessions if a.journal is not None))
        for what in HELD:
            self._held.labels(what).set(health.held.get(what, 0))
        for limit in ACTED:
            self._acted.labels(limit).set(health.acted.get(limit, 0))
        self._slots.labels("limit").set(health.slots_limit)
        self._slots.labels("used").set(health.slots_used)
        self._slots.labels("quarantined").set(health.slots_quarantined)
        self._slots.labels("waited_for").set(health.sessions_waiting)
        for pool in health.pools:
            self._replicas.labels(pool.name, "all").set(pool.replicas)
            self._replicas.labels(pool.name, "available").set(pool.available)
        return generate_latest(self._registry)
