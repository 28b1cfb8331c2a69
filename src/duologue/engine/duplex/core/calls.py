"""The ledger of function calls: what the model asked for and what became of it.

Rules kept here: a call has one end (answered, timed out, cancelled) and one way to it; the ledger is bounded: the oldest
ended calls are forgotten, and it never holds more open ones than it may hold at all.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from duologue.engine.duplex.core.history import Item
from duologue.engine.duplex.core.tables import TOOL_CALL, advance


@dataclass(slots=True)
class CallRecord:
    """One call of the model. ``deadline``: a result at this instant is late."""

    call_id: str
    item: Item
    epoch: int
    deadline: float
    state: str = "pending"

    def advance(self, event: str) -> None:
        """One way; the item says the same, for the prompt."""
        self.state = self.item.call_state = advance(TOOL_CALL, self.state, event)


@dataclass(slots=True)
class ToolLedger:
    """At most ``limit`` calls, in the order in which they were asked for."""

    limit: int
    records: dict[str, CallRecord] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.records)

    def get(self, call_id: str) -> CallRecord | None:
        return self.records.get(call_id)

    def pending(self) -> list[CallRecord]:
        """Calls that wait for their result."""
        return [record for record in self.records.values() if record.state == "pending"]

    def make_room(self) -> bool:
        """Whether one more fits, once the oldest call that ended is forgotten."""
        if len(self.records) < self.limit:
            return True
        ended = next((call_id for call_id, record in self.records.items() if record.state != "pending"), None)
        if ended is None:
            return False
        del self.records[ended]
        return True

    def deadline(self) -> float | None:
        """When the next call times out."""
        if not self.records:
            return None
        return min((record.deadline for record in self.records.values() if record.state == "pending"), default=None)
