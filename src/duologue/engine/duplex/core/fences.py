"""Epoch, turn and sequence numbers: the ledger that makes staleness a comparison.

Rules kept here: the epoch only grows, by one, and only through :meth:`Fences.advance_epoch`; the turn only grows; ``seq``
restarts at 1 in every epoch, ``turn_seq`` at 1 in every turn; numbers are committed when a submission was accepted, so
that they have no gaps.
"""

from __future__ import annotations

from dataclasses import dataclass

from duologue.engine.duplex.contracts import DuplexFence


@dataclass(slots=True)
class Fences:
    """Where the session is. ``accepted`` is the high-water mark of accepted submissions."""

    session_id: str
    epoch: int = 0
    turn_id: int = 1
    seq: int = 0
    turn_seq: int = 0
    accepted: tuple[int, int] = (0, 0)
    spent: tuple[int, int] = (-1, -1)  # the last (epoch, turn) that a request id was made of
    resident_epoch: int = -1  # the last epoch whose own request id was used
    _current: DuplexFence | None = None
    _committed: DuplexFence | None = None  # what was accepted last was accepted under it

    @property
    def current(self) -> DuplexFence:
        """The fence under which work starts now."""
        fence = self._current
        if fence is None:
            fence = self._current = DuplexFence(session_id=self.session_id, epoch=self.epoch, turn_id=self.turn_id)
        return fence

    def advance_epoch(self) -> None:
        """Everything started before this instant is stale."""
        self.epoch += 1
        self.seq = 0
        self._current = None

    def complete_turn(self, done: int) -> None:
        """Turn ``done`` is over; an older turn changes nothing."""
        if done >= self.turn_id:
            self.turn_id = done
            self._next_turn()

    def _next_turn(self) -> None:
        self.turn_id += 1
        self.turn_seq = 0
        self._current = None

    def commit(self, fence: DuplexFence) -> None:
        """A submission under ``fence`` was accepted."""
        if fence is not self._committed:
            self._committed = fence
            self.accepted = max(self.accepted, (fence.epoch, fence.turn_id))
        if fence.epoch == self.epoch:
            self.seq += 1
            if fence.turn_id == self.turn_id:
                self.turn_seq += 1
