"""The waiting room: sessions that found no free slot and were told to wait, if the operator wants that.

Rules kept here: first come, first served, and nobody overtakes; the room is bounded, and so is the wait; whoever leaves is
forgotten at once; everybody is told their place when they come in and when it has changed, but not of every step of many:
a crowd that leaves must not hold up those who are served.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from duologue.clock import Runtime, TimerHandle
from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.events import SessionEvent, SessionQueued
from duologue.engine.duplex.messages import OpenSession
from duologue.errors import AdmissionFault, ErrorCode

_SHUTDOWN = "The server is shutting down; connect to another one."
_SHARE = 0.3  # of the newest gap between two departures in the average
_PAUSE_S = 1.0  # between two reports of places that have changed
_TOLD_AT_ONCE = 64  # guests; then the loop gets its turn


@dataclass(slots=True, eq=False)
class _Guest:
    message: OpenSession
    timer: TimerHandle | None = None
    told: int = 0  # the place that it was told last


class WaitingRoom:
    """``max_waiting_sessions`` ``None``: there is none.

    ``admit`` tries to open a session (it comes back through :meth:`join` if there is still no slot), ``refuse`` answers its
    operation, ``tell`` sends it an event.
    """

    def __init__(
        self,
        runtime: Runtime,
        config: DuplexSessionRuntimeConfig,
        admit: Callable[[OpenSession], None],
        refuse: Callable[[str, ErrorCode, str], None],
        tell: Callable[[str, int, SessionEvent], None],
    ) -> None:
        self._runtime = runtime
        self._places = config.max_waiting_sessions or 0
        self._longest_s = config.max_wait_s
        self._admit = admit
        self._refuse = refuse
        self._tell = tell
        self._guests: deque[_Guest] = deque()
        self._called: _Guest | None = None
        self._last_departure: float | None = None
        self._gap_s: float | None = None
        self._call: TimerHandle | None = None
        self._reported: float | None = None
        self._report_timer: TimerHandle | None = None

    def __len__(self) -> int:
        """How many wait."""
        return len(self._guests)

    def must_wait(self, message: OpenSession) -> bool:
        """Whether others were here before this one."""
        called = self._called is not None and self._called.message is message
        return bool(self._guests) and not called

    def join(self, message: OpenSession, full: AdmissionFault) -> None:
        """Wait. Raises ``full`` if there is no waiting room, and :class:`AdmissionFault` if nobody more may wait."""
        called, self._called = self._called, None
        if called is not None and called.message is message:
            self._guests.appendleft(called)  # there was no slot after all: the first one stays the first
            return
        if not self._places:
            raise full
        if any(guest.message.session_id == message.session_id for guest in self._guests):
            raise AdmissionFault(ErrorCode.SESSION_EXISTS, f"Session {message.session_id} waits already.")
        if len(self._guests) >= self._places:
            raise AdmissionFault(
                ErrorCode.RESOURCE_EXHAUSTED,
                f"{full.message} {len(self._guests)} sessions wait for one, which is the limit.",
            )
        guest = _Guest(message)
        guest.timer = self._runtime.call_at(self._runtime.now() + self._longest_s, self._waited_long, guest)
        self._guests.append(guest)
        self._tell_place(guest, len(self._guests))

    def leave(self, session_id: str, *, shutdown: bool = False) -> bool:
        """The client does not wait any longer, or the server will not let it; false if it did not wait."""
        for guest in self._guests:
            if guest.message.session_id == session_id:
                if shutdown:
                    self._dismiss(guest, ErrorCode.SHUTTING_DOWN, _SHUTDOWN)
                else:
                    self._dismiss(guest, ErrorCode.SESSION_CLOSED, "The session was closed while it waited for a slot.")
                return True
        return False

    def departed(self) -> None:
        """A slot is free: the first one is called, in a loop turn of its own."""
        now = self._runtime.now()
        if self._last_departure is not None:
            gap_s = now - self._last_departure
            self._gap_s = gap_s if self._gap_s is None else self._gap_s + _SHARE * (gap_s - self._gap_s)
        self._last_departure = now
        self.call()

    def call(self) -> None:
        """See whether the first one can be admitted."""
        if self._guests and self._call is None:
            self._call = self._runtime.call_at(self._runtime.now(), self._admit_first)

    def close(self) -> None:
        """Nobody is admitted any more."""
        for guest in reversed(list(self._guests)):
            self._dismiss(guest, ErrorCode.SHUTTING_DOWN, _SHUTDOWN)
        for timer in (self._call, self._report_timer):
            if timer is not None:
                timer.cancel()

    def _admit_first(self) -> None:
        self._call = None
        admitted = False
        while self._guests:
            guest = self._called = self._guests.popleft()
            self._admit(guest.message)
            if self._guests and self._guests[0] is guest:
                break
            self._called = None
            _stop(guest)
            admitted = True
        if admitted:
            self._report()

    def _waited_long(self, guest: _Guest) -> None:
        guest.timer = None
        self._dismiss(
            guest, ErrorCode.RESOURCE_EXHAUSTED, f"No slot became free within {self._longest_s:g} s; try again later."
        )

    def _dismiss(self, guest: _Guest, code: ErrorCode, message: str) -> None:
        _stop(guest)
        self._guests.remove(guest)
        self._refuse(guest.message.control_id, code, message)
        self._report()

    def _report(self) -> None:
        """Places have changed: everybody concerned hears of it, now or a little later, of the newest one only."""
        if self._report_timer is not None:
            return
        now = self._runtime.now()
        when = now if self._reported is None else self._reported + _PAUSE_S
        if when <= now:
            self._tell_some()
        else:
            self._report_timer = self._runtime.call_at(when, self._tell_some)

    def _tell_some(self) -> None:
        self._report_timer = None
        self._reported = now = self._runtime.now()
        told = 0
        for place, guest in enumerate(self._guests, 1):
            if guest.told == place:
                continue
            if told == _TOLD_AT_ONCE:
                self._report_timer = self._runtime.call_at(now, self._tell_some)
                return
            self._tell_place(guest, place)
            told += 1

    def _tell_place(self, guest: _Guest, place: int) -> None:
        guest.told = place
        wait_s = None if self._gap_s is None else round(self._gap_s * place, 1)
        self._tell(guest.message.session_id, 0, SessionQueued(position=place, estimated_wait_s=wait_s))


def _stop(guest: _Guest) -> None:
    timer, guest.timer = guest.timer, None
    if timer is not None:
        timer.cancel()
