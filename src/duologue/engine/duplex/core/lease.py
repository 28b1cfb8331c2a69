"""The lease: who owns a session and until when.

Rules kept here: resume is a compare-and-swap on the generation; replaying the control id of the resume that made the
current generation is idempotent; the terminal state is entered once and nothing touches the lease after it; anything the
user does counts as activity, and what is done for somebody who has gone quiet does not.
"""

from __future__ import annotations

from dataclasses import dataclass

from duologue.engine.duplex.core.tables import LEASE, advance


@dataclass(slots=True)
class Lease:
    """Times in seconds on the session's clock."""

    last_activity: float
    state: str = "attached"
    generation: int = 0
    detached_at: float | None = None
    resumed_by: str | None = None
    unasked: bool = False  # what goes on is a question of ours to somebody who has gone quiet
    by_itself: bool = False  # and the client's program has begun to answer the calls of functions that come of it

    @property
    def attached(self) -> bool:
        return self.state == "attached"

    def touch(self, now: float) -> None:
        """A sign of life."""
        if self.state != "terminal":
            self.last_activity = now
            self.unasked = self.by_itself = False

    def worked(self, now: float) -> None:
        """Something was done for the client, or taken note of by it: a sign of life as long as it had asked for it."""
        if not self.unasked and self.state != "terminal":
            self.last_activity = now

    def answered(self, now: float) -> None:
        """A function's result came, which nobody has to be there for: a sign of life as :meth:`worked`."""
        self.by_itself = self.unasked
        self.worked(now)

    def asked(self, now: float) -> None:
        """An answer is asked for: a sign of life, unless it follows a function's result that is none."""
        if self.by_itself:
            self.worked(now)
        else:
            self.touch(now)

    def detach(self, now: float, expected: int | None) -> bool:
        """The owner is gone; false (and no change) if someone else owns the session by now."""
        if self.state != "attached" or (expected is not None and expected != self.generation):
            return False
        self.state = advance(LEASE, self.state, "detached")
        self.detached_at = now
        self.touch(now)
        return True

    def attach(self, now: float) -> None:
        """A connection takes over without changing the generation."""
        if self.state != "terminal":
            self.state = advance(LEASE, self.state, "attached")
            self.detached_at = None
            self.touch(now)

    def resume(self, now: float, control_id: str, expected: int) -> bool:
        """Compare-and-swap; false on conflict."""
        if self.state == "terminal":
            return False
        if self.resumed_by == control_id:
            return True
        if expected != self.generation:
            return False
        self.state = advance(LEASE, self.state, "resumed")
        self.generation += 1
        self.resumed_by = control_id
        self.detached_at = None
        self.touch(now)
        return True

    def end(self) -> None:
        """Irreversible; bumps the generation once."""
        if self.state != "terminal":
            self.state = advance(LEASE, self.state, "ended")
            self.generation += 1
            self.detached_at = None

    def expiry(self, now: float, *, idle_ttl_s: float | None, grace_s: float, busy: bool) -> str | None:
        """Why the lease is over, if it is: grace before idle; work in progress defers idle expiry only."""
        if self.state == "terminal":
            return None
        if self.detached_at is not None and now >= self.detached_at + grace_s:
            return "disconnect_grace_expired"
        if idle_ttl_s is not None and not busy and now >= self.last_activity + idle_ttl_s:
            return "idle_ttl_expired"
        return None
