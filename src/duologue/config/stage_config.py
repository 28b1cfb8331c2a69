"""Server-side limits of duplex sessions, and what the engine knows about a stage's model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

ReplicaPolicy = Literal["legacy", "least_sessions"]
ReplicaGroup = tuple[int, ...]
"""One replica slot per stage, in the order of the stages."""


def replica_groups(groups: Sequence[ReplicaGroup] | None, replicas: Sequence[int]) -> tuple[ReplicaGroup, ...]:
    """The groups in which sessions are placed; ``replicas`` says how many each stage has.

    ``None``: one group per index, which needs the same number of replicas at every stage. Raises ``ValueError`` unless
    every group covers every stage, every replica is in a group and no group is there twice.
    """
    if groups is None:
        if len(set(replicas)) > 1:
            raise ValueError(
                f"sessions.replica_groups must be given, since the stages have {', '.join(map(str, replicas))} replicas"
            )
        return tuple((index,) * len(replicas) for index in range(replicas[0]))
    for number, group in enumerate(groups):
        where = f"sessions.replica_groups[{number}]"
        if len(group) != len(replicas):
            raise ValueError(f"{where} must name one replica for each of the {len(replicas)} stages, got {list(group)}")
        for stage_id, (slot, count) in enumerate(zip(group, replicas, strict=True)):
            if not 0 <= slot < count:
                raise ValueError(f"{where}: stage {stage_id} has replicas 0 to {count - 1}, got {slot}")
        if group in groups[:number]:
            raise ValueError(f"{where} is there twice: {list(group)}")
    for stage_id, count in enumerate(replicas):
        unused = sorted(set(range(count)) - {group[stage_id] for group in groups})
        if unused:
            raise ValueError(f"sessions.replica_groups: replica {unused[0]} of stage {stage_id} is in no group")
    return tuple(groups)


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine must know of a stage's model: its name and the longest context it may be given (0: unknown)."""

    model: str = ""
    max_model_len: int = 0


class DuplexSessionRuntimeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and time-outs of duplex sessions, set by the operator. Times in seconds or milliseconds as named.

    ``replica_policy``: ``legacy`` places each request by itself; ``least_sessions`` gives a session a group of replicas,
    one per stage, for life. A replica then serves at most ``max_sessions_per_replica``. ``replica_groups`` names the
    groups by the replicas' numbers, one per stage; null: one group per number.

    A client may commit ``turn_burst`` turns or ask for as many responses at once, and ``turns_per_minute`` on the whole
    (null: no limit). What exceeds that is refused (``rate_limited``): one that loops must not slow the others. Turns that
    detection ends are not counted. A session that lost a replica waits up to ``rebuild_timeout_s`` for another one.

    ``max_waiting_sessions``: so many may wait for a slot, each at most ``max_wait_s``; null: who finds none is refused.

    Raises ``ValueError`` on construction when a value is out of range.
    """

    max_sessions: int = 4
    max_waiting_sessions: int | None = None
    max_wait_s: float = 60.0
    idle_ttl_s: float | None = 300.0
    disconnect_grace_s: float = 30.0
    reaper_interval_s: float = 5.0
    close_timeout_s: float = 5.0
    control_timeout_s: float = 10.0
    submit_timeout_s: float = 30.0
    rebuild_timeout_s: float = 10.0
    resume_replay_ttl_s: float = 60.0
    resume_replay_max_bytes_per_session: int = 8 * 1024 * 1024
    max_pending_input_bytes_per_session: int = 16 * 1024 * 1024
    max_pending_turns_per_session: int = 4
    turns_per_minute: int | None = 120
    turn_burst: int = 20
    max_pending_output_bytes_per_session: int = 2 * 1024 * 1024
    max_pending_output_events_per_session: int = 512
    max_items_per_session: int = 2048
    max_history_chars: int = 262_144
    max_tool_calls_per_session: int = 256
    tool_result_timeout_s: float = 120.0
    max_image_bytes_per_item: int = 4 * 1024 * 1024
    max_image_bytes_per_session: int = 16 * 1024 * 1024
    send_ahead_ms: int | None = 400
    audio_delta_ms: int = 100
    max_backlog_ms: int = 10_000
    max_turn_ms: int = 120_000
    starvation_ms: int = 1_000
    replica_policy: ReplicaPolicy = "legacy"
    max_sessions_per_replica: int | None = None
    replica_groups: tuple[ReplicaGroup, ...] | None = None

    def __post_init__(self) -> None:
        for name in (
            "max_sessions",
            "reaper_interval_s",
            "close_timeout_s",
            "control_timeout_s",
            "submit_timeout_s",
            "rebuild_timeout_s",
            "max_wait_s",
            "max_pending_input_bytes_per_session",
            "max_pending_turns_per_session",
            "turn_burst",
            "max_pending_output_bytes_per_session",
            "max_pending_output_events_per_session",
            "max_items_per_session",
            "max_history_chars",
            "max_tool_calls_per_session",
            "tool_result_timeout_s",
            "max_image_bytes_per_item",
            "max_image_bytes_per_session",
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
        if self.turns_per_minute is not None and not self.turns_per_minute > 0:
            raise ValueError(f"sessions.turns_per_minute must be greater than 0 or null, got {self.turns_per_minute!r}")
        if self.max_waiting_sessions is not None and not self.max_waiting_sessions > 0:
            raise ValueError(
                f"sessions.max_waiting_sessions must be greater than 0 or null, got {self.max_waiting_sessions!r}"
            )
        for name in ("disconnect_grace_s", "resume_replay_ttl_s", "resume_replay_max_bytes_per_session"):
            value = getattr(self, name)
            if not value >= 0:
                raise ValueError(f"sessions.{name} must not be negative, got {value!r}")
        self._check_placement()
        if self.send_ahead_ms is not None and self.send_ahead_ms < self.audio_delta_ms:
            raise ValueError(
                f"sessions.send_ahead_ms ({self.send_ahead_ms}) must be null or at least "
                f"sessions.audio_delta_ms ({self.audio_delta_ms})"
            )

    def _check_placement(self) -> None:
        cap = self.max_sessions_per_replica
        if cap is not None and not cap > 0:
            raise ValueError(f"sessions.max_sessions_per_replica must be greater than 0 or null, got {cap!r}")
        if self.replica_policy == "least_sessions" and cap is None:
            raise ValueError("sessions.max_sessions_per_replica must be given with replica_policy least_sessions")
        if self.replica_policy != "least_sessions" and self.replica_groups is not None:
            raise ValueError("sessions.replica_groups needs replica_policy least_sessions")
        if self.replica_groups is not None and not self.replica_groups:
            raise ValueError("sessions.replica_groups must hold at least one group or be null")
