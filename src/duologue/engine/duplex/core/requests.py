"""The request table: which stage requests of this session are alive, and for what.

Rule kept here: a model output is accepted if and only if its request is in this table under the current epoch. That is
the whole staleness check; nothing else in the core compares epochs of outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from duologue.engine.duplex.contracts import DuplexFence
from duologue.engine.duplex.core.gauge import ContextGauge
from duologue.engine.duplex.results import ModelResult

Purpose = Literal["turn", "transcribe", "resident"]


@dataclass(slots=True)
class StageRequestRecord:
    """One request. ``held`` keeps the results of a provisional turn until it is confirmed."""

    request_id: str
    fence: DuplexFence
    purpose: Purpose
    item_id: str | None = None
    response_id: str | None = None
    submitted: bool = False
    held: list[ModelResult] | None = None
    held_finished: bool = False
    understood_at: float | None = None
    answered_at: float | None = None
    held_ms: float = 0.0  # audio among what is held
    paused: bool = False
    stages: set[int] = field(default_factory=set)
    context: ContextGauge = field(default_factory=ContextGauge)


@dataclass(slots=True)
class RequestTable:
    """Live requests by id."""

    records: dict[str, StageRequestRecord] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.records)

    def get(self, request_id: str) -> StageRequestRecord | None:
        return self.records.get(request_id)

    def add(self, record: StageRequestRecord) -> StageRequestRecord:
        self.records[record.request_id] = record
        return record

    def remove(self, request_id: str) -> StageRequestRecord | None:
        return self.records.pop(request_id, None)

    def clear(self) -> tuple[str, ...]:
        """Forget all; returns their ids, oldest first."""
        ids = tuple(self.records)
        self.records.clear()
        return ids
