"""Who is here: the sessions that hold a slot, and which session a stage request belongs to.

Rules kept here: a session is in the table exactly as long as it holds a slot; a request id belongs to at most one
session; both look-ups are one dictionary access.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import msgspec

from duologue.clock import TimerHandle
from duologue.engine.duplex.events import SessionClosed, SessionExpired, SessionTerminal
from duologue.engine.duplex.messages import ControlMessage
from duologue.engine.duplex.session.context import CloseKind
from duologue.errors import ErrorCode

if TYPE_CHECKING:
    from duologue.engine.duplex.session.runner import DuplexSessionRunner

SlotPhase = Literal["admitting", "open", "closing", "quarantined"]


@dataclass(slots=True, eq=False)
class SessionRecord:
    """One slot. ``kind``, ``reason`` and ``fault`` are those of the terminal, once closing.

    ``waiting`` are control operations that arrived behind a close in progress, ``closers`` those to be answered when it
    is over. ``external_ids``: requests that someone else is cleaning.
    """

    session_id: str
    resumable: bool = False
    phase: SlotPhase = "admitting"
    runner: DuplexSessionRunner | None = None
    request_ids: dict[str, None] = field(default_factory=dict)
    kind: CloseKind = "closed"
    reason: str = ""
    fault: ErrorCode | None = None
    terminal_sent: bool = False
    close_timer: TimerHandle | None = None
    closers: list[str] = field(default_factory=list)
    waiting: deque[ControlMessage] = field(default_factory=deque)
    external_ids: tuple[str, ...] = ()

    @property
    def ending(self) -> bool:
        """Whether its close has begun and its terminal has not left."""
        return self.phase == "closing" and not self.terminal_sent

    def terminal(self, slot_released: bool) -> SessionTerminal:
        """The event with which it ends."""
        if self.kind == "closed":
            return SessionClosed(reason=self.reason, slot_released=slot_released, fault=self.fault)
        return SessionExpired(reason=self.reason, slot_released=slot_released)


class SessionHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Slots by what holds them, and what stages may still hold for sessions that let go of it.

    ``held``: how much of what is bounded all sessions hold together, by name; ``acted``: how often each limit acted.
    """

    limit: int
    admitting: int
    open: int
    closing: int
    quarantined: int
    requests: int
    unclean_requests: int
    waiting: int = 0
    held: Mapping[str, int] = {}
    acted: Mapping[str, int] = {}

    @property
    def free(self) -> int:
        """Sessions that could be admitted now."""
        return self.limit - self.admitting - self.open - self.closing - self.quarantined


class SessionRegistry:
    """The two tables (see module docstring)."""

    __slots__ = ("_acted", "_requests", "_sessions")

    def __init__(self) -> None:
        self._sessions: dict[str, SessionRecord] = {}
        self._requests: dict[str, SessionRecord] = {}
        self._acted: Counter[str] = Counter()  # in sessions that are gone

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, session_id: str) -> SessionRecord | None:
        return self._sessions.get(session_id)

    def records(self) -> tuple[SessionRecord, ...]:
        """Every session that holds a slot, oldest first."""
        return tuple(self._sessions.values())

    def add(self, record: SessionRecord) -> None:
        self._sessions[record.session_id] = record

    def remove(self, record: SessionRecord) -> None:
        """The slot is free, and no request id leads to the session any more."""
        for request_id in record.request_ids:
            self._requests.pop(request_id, None)
        record.request_ids.clear()
        if self._sessions.get(record.session_id) is record:
            del self._sessions[record.session_id]
            if record.runner is not None:
                self._acted.update(record.runner.session.acted())

    def owner(self, request_id: str) -> SessionRecord | None:
        """The session that a stage request belongs to."""
        return self._requests.get(request_id)

    def register(self, request_id: str, session_id: str) -> None:
        """Unknown sessions are ignored: a submission may end after its session did."""
        record = self._sessions.get(session_id)
        if record is not None:
            self._requests[request_id] = record
            record.request_ids[request_id] = None

    def unregister(self, request_id: str) -> None:
        """Idempotent."""
        record = self._requests.pop(request_id, None)
        if record is not None:
            record.request_ids.pop(request_id, None)

    def held(self) -> dict[str, int]:
        """How much of what is bounded all sessions hold together."""
        total: Counter[str] = Counter()
        for record in self._sessions.values():
            if record.runner is not None:
                total.update(record.runner.session.held())
                total["waiting_command_bytes"] += record.runner.control.waiting_bytes
        return dict(total)

    def acted(self) -> dict[str, int]:
        """How often each limit has acted, in all sessions there ever were."""
        total = Counter(self._acted)
        for record in self._sessions.values():
            if record.runner is not None:
                total.update(record.runner.session.acted())
        return dict(total)

    def open_runner(self, session_id: str) -> DuplexSessionRunner | None:
        """The runner of a session whose close has not begun."""
        record = self._sessions.get(session_id)
        return record.runner if record is not None and record.phase == "open" else None

    def health(self, limit: int, waiting: int = 0) -> SessionHealth:
        """Slots by what holds them, ``limit`` in all."""
        records = self.records()
        phases = [record.phase for record in records]
        return SessionHealth(
            limit=limit,
            waiting=waiting,
            admitting=phases.count("admitting"),
            open=phases.count("open"),
            closing=phases.count("closing"),
            quarantined=phases.count("quarantined"),
            requests=len(self._requests),
            unclean_requests=sum(len(record.runner.model.unclean) for record in records if record.runner is not None),
            held=self.held(),
            acted=self.acted(),
        )

    def tables(self) -> dict[str, int]:
        """Sizes of both tables."""
        return {"sessions": len(self._sessions), "session_requests": len(self._requests)}
