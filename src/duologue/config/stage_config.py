"""Server-side limits of duplex sessions, and what the engine knows about a stage's model."""

from __future__ import annotations

from typing import Literal

import msgspec

ReplicaPolicy = Literal["legacy", "least_sessions"]


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine must know of a stage's model: its name and the longest context it may be given (0: unknown)."""

    model: str = ""
    max_model_len: int = 0


class DuplexSessionRuntimeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and time-outs of duplex sessions, set by the operator. Times in seconds or milliseconds as named.

    Raises ``ValueError`` on construction when a value is out of range.
    """

    max_sessions: int = 4
    idle_ttl_s: float | None = 300.0
    disconnect_grace_s: float = 30.0
    reaper_interval_s: float = 5.0
    close_timeout_s: float = 5.0
    control_timeout_s: float = 10.0
    submit_timeout_s: float = 30.0
    resume_replay_ttl_s: float = 60.0
    resume_replay_max_bytes_per_session: int = 8 * 1024 * 1024
    max_pending_input_bytes_per_session: int = 16 * 1024 * 1024
    max_pending_turns_per_session: int = 4
    max_pending_output_bytes_per_session: int = 2 * 1024 * 1024
    max_pending_output_events_per_session: int = 512
    max_items_per_session: int = 2048
    max_history_chars: int = 262_144
    send_ahead_ms: int | None = 400
    audio_delta_ms: int = 100
    max_backlog_ms: int = 10_000
    max_turn_ms: int = 120_000
    starvation_ms: int = 1_000
    replica_policy: ReplicaPolicy = "legacy"
    max_sessions_per_replica: int | None = None

    def __post_init__(self) -> None:
        for name in (
            "max_sessions",
            "reaper_interval_s",
            "close_timeout_s",
            "control_timeout_s",
            "submit_timeout_s",
            "max_pending_input_bytes_per_session",
            "max_pending_turns_per_session",
            "max_pending_output_bytes_per_session",
            "max_pending_output_events_per_session",
            "max_items_per_session",
            "max_history_chars",
            "audio_delta_ms",
            "max_backlog_ms",
            "max_turn_ms",
            "starvation_ms",
        ):
            value = getattr(self, name)
            if not value > 0:
                raise ValueError(f"sessions.{name} must be greater than 0, got {value!r}")
        if self.idle_ttl_s is not None and not self.idle_ttl_s > 0:
            raise ValueError(f"sessions.idle_ttl_s must be greater than 0 or null, got {self.idle_ttl_s!r}")
        if self.disconnect_grace_s < 0:
            raise ValueError(f"sessions.disconnect_grace_s must not be negative, got {self.disconnect_grace_s!r}")
        if self.send_ahead_ms is not None and self.send_ahead_ms < self.audio_delta_ms:
            raise ValueError(
                f"sessions.send_ahead_ms ({self.send_ahead_ms}) must be null or at least "
                f"sessions.audio_delta_ms ({self.audio_delta_ms})"
            )
