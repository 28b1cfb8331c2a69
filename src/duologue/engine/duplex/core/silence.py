"""Silence continuation: the schedule on which a resident model is fed silence to keep its clock.

Rule kept here: processing time never accumulates as drift, and an overdue schedule yields one unit, not a burst.
"""

from __future__ import annotations

from dataclasses import dataclass


def compute_silence_continuation_deadline(
    *,
    chunk_period_s: float,
    now: float,
    last_submit: float | None,
    current_deadline: float | None,
) -> tuple[float, float]:
    """Return ``(delay_s, next_silence_deadline)``.

    The first continuation is due one period after the last accepted submission (or after ``now`` if there was none);
    later ones advance from the current deadline. If the schedule is more than one period overdue it is stale: one
    continuation is due at once and the schedule restarts from ``now``. ``delay_s`` (never negative) is the wait before
    this continuation, ``next_silence_deadline`` the deadline of the one after it.
    """
    if current_deadline is not None:
        deadline = current_deadline
    else:
        deadline = (now if last_submit is None else last_submit) + chunk_period_s
    if now - deadline > chunk_period_s:
        deadline = now
    return max(0.0, deadline - now), deadline + chunk_period_s


@dataclass(slots=True)
class SilenceClock:
    """When the next unit of silence is due, and how many its owner has been given.

    ``due_at`` is set while a continuation is wanted. ``deadline`` is the schedule that accepted continuations advance;
    real input clears it and re-anchors. After real input nothing stands in for ``patience_s`` more than a period: a client
    may send pieces that are longer. Times in seconds.
    """

    period_s: float
    patience_s: float = 0.0
    last_submit: float | None = None
    deadline: float | None = None
    due_at: float | None = None
    following: float | None = None  # the deadline after the unit that is wanted
    taken_following: float | None = None  # the same of the unit that is on its way
    owner: str | None = None
    units: int = 0

    def want(self, now: float, owner: str) -> None:
        """A continuation for ``owner`` (a response) is wanted; asking twice changes nothing."""
        if self.owner != owner:
            self.owner = owner
            self.units = 0
        if self.due_at is None:
            delay_s, self.following = compute_silence_continuation_deadline(
                chunk_period_s=self.period_s, now=now, last_submit=self.last_submit, current_deadline=self.deadline
            )
            self.due_at = now + delay_s
            if self.patience_s and self.deadline is None and self.last_submit is not None:
                self.due_at = max(self.due_at, self.last_submit + self.period_s + self.patience_s)
                self.following = self.due_at + self.period_s

    def take(self) -> None:
        """The wanted unit is being submitted."""
        self.due_at = None
        self.taken_following = self.following
        self.units += 1

    def accepted(self, submitted_at: float, *, silence: bool) -> None:
        """An append was accepted; ``submitted_at`` is the instant just before it was submitted."""
        self.last_submit = submitted_at
        if silence:
            following = self.taken_following if self.taken_following is not None else submitted_at
            self.deadline = submitted_at + self.period_s if submitted_at > following else following
            if self.due_at is not None:
                # The next one was asked for before this one was accepted: it follows this one.
                self.due_at = self.deadline
                self.following = self.deadline + self.period_s
        else:
            self.deadline = None
            if self.due_at is not None:
                # Real input arrived while a unit was waiting: the wait starts anew, the answer is never abandoned.
                self.due_at = submitted_at + self.period_s + self.patience_s
                self.following = self.due_at + self.period_s

    def stop(self) -> None:
        """Nobody needs silence any more."""
        self.due_at = None
        self.deadline = None
        self.following = self.taken_following = None
        self.owner = None
        self.units = 0
