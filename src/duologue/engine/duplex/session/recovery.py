"""Sessions that lost a replica: which of them go on, and the wait for a new place.

Rules kept here: a session hears of the loss before its requests fail, so that it leaves them behind; it is placed as soon as
there is a place, and asked for again a tenth of a second later if there is none; the core bounds the wait.
"""

from __future__ import annotations

from collections.abc import Callable

from duologue.clock import Runtime, TimerHandle
from duologue.engine.duplex.contracts import DuplexStagePort
from duologue.engine.duplex.core.items import Replaced, ReplicaLost
from duologue.engine.duplex.session.runner import DuplexSessionRunner

RETRY_S = 0.1

FindRunner = Callable[[str], "DuplexSessionRunner | None"]


class SessionRecovery:
    """``runner`` finds the runner of a session that is open."""

    __slots__ = ("_port", "_runner", "_runtime", "_timers")

    def __init__(self, port: DuplexStagePort, runtime: Runtime, runner: FindRunner) -> None:
        self._port = port
        self._runtime = runtime
        self._runner = runner
        self._timers: dict[str, TimerHandle] = {}

    def lost(self, session_id: str, message: str, *, pinned: bool) -> bool:
        """A replica of the session is gone; false if the session cannot go on without it. ``pinned``: it was reserved."""
        runner = self._runner(session_id)
        if runner is None or not runner.can_rebuild():
            return False
        runner.apply(ReplicaLost(message=message, pinned=pinned))
        self._place(session_id)
        return True

    def forget(self, session_id: str) -> None:
        """The session is over. Idempotent."""
        timer = self._timers.pop(session_id, None)
        if timer is not None:
            timer.cancel()

    def _place(self, session_id: str) -> None:
        self.forget(session_id)
        runner = self._runner(session_id)
        if runner is None or not runner.session.awaits_placement:
            return
        if self._port.recover_session(session_id):
            runner.apply(Replaced())
        else:
            self._timers[session_id] = self._runtime.call_at(self._runtime.now() + RETRY_S, self._place, session_id)

    def __len__(self) -> int:
        """How many sessions wait for a place."""
        return len(self._timers)
