"""Who may run now: a bounded number of ordinary requests, a bounded queue behind them, a bounded number of bytes held, and
a bounded number in any span of time.

Rules kept here: first come, first served; a place and its bytes are given back exactly once; whoever finds no place is
refused at once, since waiting without end is worse than being told.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from duologue.allowance import Allowance
from duologue.clock import monotonic
from duologue.config.turns import TurnLimits
from duologue.errors import AdmissionFault, ErrorCode


class Place:
    """One request's place among those that run or wait, and the bytes that it holds."""

    def __init__(self, gate: Gate) -> None:
        self.held_bytes = 0
        self._gate = gate

    def hold(self, size: int) -> None:
        """Hold ``size`` more bytes. Raises :class:`AdmissionFault` (``input_backpressure``) if there is no room."""
        self._gate.take_bytes(size)
        self.held_bytes += size

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Wait for a turn, and have it while the context is open."""
        await self._gate.enter()
        try:
            yield
        finally:
            self._gate.leave()


class Gate:
    """Counts requests and bytes. Used from one loop only. ``now`` is any clock in seconds."""

    def __init__(self, limits: TurnLimits, now: Callable[[], float] = monotonic) -> None:
        self._limits = limits
        self._now = now
        self._allowance = Allowance(limits.requests_per_minute, limits.request_burst)
        self._places = 0
        self._running = 0
        self._held_bytes = 0
        self._queue: deque[asyncio.Future[None]] = deque()

    @property
    def places(self) -> int:
        """Requests that run, wait or are being read."""
        return self._places

    @property
    def running(self) -> int:
        """Requests that run."""
        return self._running

    @property
    def held_bytes(self) -> int:
        """Bytes of all bodies."""
        return self._held_bytes

    @asynccontextmanager
    async def place(self) -> AsyncIterator[Place]:
        """A place while the context is open. Raises :class:`AdmissionFault` (``rate_limited``) when all are taken."""
        limits = self._limits
        if self._places >= limits.max_running + limits.max_waiting:
            raise AdmissionFault(
                ErrorCode.RATE_LIMITED,
                f"{limits.max_running} requests run and {limits.max_waiting} wait already; try again in a moment.",
            )
        if not self._allowance.take(self._now()):
            raise AdmissionFault(
                ErrorCode.RATE_LIMITED,
                f"More than {limits.request_burst} requests at once, and {limits.requests_per_minute} a minute on the whole, "
                f"are not accepted; the next one is in {self._allowance.wait_s(self._now()):.1f} s.",
            )
        place = Place(self)
        self._places += 1
        try:
            yield place
        finally:
            self._places -= 1
            self._held_bytes -= place.held_bytes

    def take_bytes(self, size: int) -> None:
        """See :meth:`Place.hold`."""
        if self._held_bytes + size > self._limits.max_held_bytes:
            raise AdmissionFault(
                ErrorCode.INPUT_BACKPRESSURE,
                f"The server holds {self._held_bytes} bytes of requests and may hold {self._limits.max_held_bytes}; "
                "try again in a moment.",
            )
        self._held_bytes += size

    async def enter(self) -> None:
        """Wait until one more may run."""
        if self._running < self._limits.max_running and not self._queue:
            self._running += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.leave()  # the turn came while its owner was going
            elif turn in self._queue:
                self._queue.remove(turn)
            raise

    def leave(self) -> None:
        """One has stopped running: the next may."""
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._running -= 1
