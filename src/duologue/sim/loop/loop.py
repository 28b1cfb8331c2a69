"""The loop whose clock jumps (the rules are in :mod:`duologue.sim.loop`)."""

import asyncio
import random
import threading
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Any, Final, TypeVarTuple

from duologue.sim.loop.fault import (
    CallbackError,
    DeadlockError,
    SimulationError,
    TimeLimitError,
    VirtualIoError,
    describe,
    stalled,
)
from duologue.sim.loop.task import LeanHandle, LeanTimer, VirtualTask

_Ts = TypeVarTuple("_Ts")

START_S: Final = 1_000.0  # not 0, so that code which takes 0 for "unset" is found out
STALL_TURNS: Final = 1_000_000
_CLEANUP_S: Final = 60.0


class VirtualLoop(asyncio.BaseEventLoop):
    """The loop. It keeps BaseEventLoop's ready queue, and replaces its timers, its clock and its one turn."""

    _ready: deque[LeanHandle]
    _stopping: bool
    _closed: bool

    def __init__(self, *, seed: int = 0, limit_s: float | None = None, shuffle: bool = False) -> None:
        super().__init__()
        self.create_future = partial(asyncio.Future, loop=self)  # type: ignore[method-assign]  # without a frame of Python
        self._now = START_S
        self._limit = None if limit_s is None else START_S + limit_s
        self._shuffler = random.Random(f"order:{seed}") if shuffle else None
        self._timers: list[tuple[float, int, LeanTimer]] = []
        self._timer_count = 0
        self._cancelled_timers = 0
        self._task_count = 0
        self._turns = 0  # since time last moved
        self._settling = False
        self._faults: list[dict[str, Any]] = []
        self._failed: list[asyncio.Task[Any]] = []  # and perhaps nobody will ask for their results
        self.stall_turns = STALL_TURNS
        self.wrap: Callable[[Any], Any] | None = None  # what the coroutine of each new task is replaced by, to watch it

    # -- time and timers

    def time(self) -> float:
        return self._now

    def elapsed(self) -> float:
        return self._now - START_S

    # Every future and every cancelled handle of asyncio asks: bool() is False, without a call into Python.
    get_debug = staticmethod(bool)

    def call_soon(self, callback: Callable[[*_Ts], object], *args: *_Ts, context: Any = None) -> Any:
        if self._closed:
            raise RuntimeError("Event loop is closed")
        handle = LeanHandle(callback, args, copy_context() if context is None else context, False)
        self._ready.append(handle)
        return handle

    def call_at(self, when: float, callback: Callable[[*_Ts], object], *args: *_Ts, context: Any = None) -> Any:
        if self._closed:
            raise RuntimeError("Event loop is closed")
        context = copy_context() if context is None else context
        timer = LeanTimer(callback, args, context, False, when, self)
        self._timer_count += 1
        heappush(self._timers, (when, self._timer_count, timer))
        return timer

    def call_later(self, delay: float, callback: Callable[[*_Ts], object], *args: *_Ts, context: Any = None) -> Any:
        return self.call_at(self._now + delay, callback, *args, context=context)

    async def pause(self, delay_s: float) -> None:
        """Wait: what ``asyncio.sleep`` does, with half the work. Most of what a simulated world does is to wait."""
        future = self.create_future()
        timer = self.call_at(self._now + delay_s, _release, future)
        try:
            await future
        except asyncio.CancelledError:
            timer.cancel()
            raise

    def timer_dropped(self) -> None:
        """One that waits was cancelled."""
        self._cancelled_timers += 1
        if self._cancelled_timers > 100 and self._cancelled_timers * 2 > len(self._timers):
            kept = [entry for entry in self._timers if not entry[2].dropped]
            heapify(kept)
            self._timers = kept
            self._cancelled_timers = 0

    def _take_due(self) -> None:
        """Move every timer that is due to the ready queue, in order."""
        timers, now, ready = self._timers, self._now, self._ready
        while timers and timers[0][0] <= now:
            timer = heappop(timers)[2]
            if timer.dropped:
                self._cancelled_timers -= 1
            else:
                timer.waiting = False
                ready.append(timer)

    def _jump(self) -> None:
        """Move time to the next timer; nothing is ready."""
        timers = self._timers
        while timers and timers[0][2].dropped:
            heappop(timers)
            self._cancelled_timers -= 1
        if not timers:
            raise DeadlockError(
                f"at {self._now - START_S:.6f} s nothing can ever run again: {describe(self.pending())}"
            )
        if self._failed:
            self._failed = self.unasked()
        when = timers[0][0]
        if self._limit is not None and when > self._limit:
            raise TimeLimitError(f"{self._limit - START_S:g} s of virtual time are over: {describe(self.pending())}")
        if when > self._now:
            self._now = when
            self._turns = 0

    # -- one turn

    def _run_once(self) -> None:
        """Turn after turn, until something stops the loop: asyncio would call this once a turn."""
        ready, faults, shuffler = self._ready, self._faults, self._shuffler
        popleft = ready.popleft
        while True:
            timers = self._timers
            if timers and timers[0][0] <= self._now:
                self._take_due()
            if not ready and not self._move_on():
                return
            self._turns = turns = self._turns + 1
            if turns > self.stall_turns:
                raise stalled(turns, self.elapsed(), self.pending())
            if shuffler is not None:
                self._shuffle(shuffler)
            for _ in range(len(ready)):
                handle = popleft()
                if handle.dropped:
                    continue
                try:
                    handle.context.run(handle.callback, *handle.args)  # type: ignore[arg-type]
                except BaseException as fault:
                    self._failed_in(handle, fault)
            if faults or self._stopping:
                break
        self._raise_fault()

    def _move_on(self) -> bool:
        """Nothing is ready: move time, unless the loop is to stop, or only to settle."""
        if self._settling or self._stopping:
            self._stopping = True
            return False
        self._jump()
        self._take_due()
        return True

    def _failed_in(self, handle: LeanHandle, fault: BaseException) -> None:
        if isinstance(fault, SystemExit | KeyboardInterrupt):
            raise fault
        self.call_exception_handler({"message": "Exception in callback", "exception": fault, "handle": handle})

    def _shuffle(self, shuffler: random.Random) -> None:
        """Permute what has no promised order (steps of different tasks, timers of one instant).

        Plain callbacks keep their order, which `call_soon` promises.
        """
        if len(self._ready) < 2:
            return
        handles = list(self._ready)
        free = [index for index, handle in enumerate(handles) if _is_free(handle)]
        order = free.copy()
        shuffler.shuffle(order)
        for index, source in zip(free, order, strict=True):
            self._ready[index] = handles[source]

    def leap(self, by_s: float) -> None:
        """The process stands still for `by_s`: what was due meanwhile runs late, all at once."""
        self._now += by_s
        self._turns = 0

    def settle(self) -> None:
        """Run what is ready now and what follows from it, without moving time."""
        self._settling = True
        try:
            self.run_forever()
        finally:
            self._settling = False

    # -- tasks

    def create_task(self, coro: Any, *, name: object = None, context: Any = None, **options: Any) -> asyncio.Task[Any]:
        if context is not None:
            options["context"] = context
        task = self.create_followed(coro, name=name, **options)
        task.add_done_callback(self._task_ended)
        return task

    def create_followed(self, coro: Any, *, name: object = None, **options: Any) -> asyncio.Task[Any]:
        """A task whose failure its maker will see to."""
        self._check_closed()  # type: ignore[attr-defined]
        self._task_count += 1
        number = self._task_count
        name = name or ("main" if number == 1 else f"task-{number}")
        if self.wrap is not None:
            coro = self.wrap(coro)
        return VirtualTask(number, coro, loop=self, name=name, **options)

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        # asyncio reports a failure that nobody asked for when the task is collected as garbage, which is at no
        # certain time; keeping the task makes it certain: at the end of the run.
        if task._log_traceback:
            self._failed.append(task)

    def unasked(self) -> list[asyncio.Task[Any]]:
        """Tasks that failed and whose result nobody has asked for, in order of failure."""
        return [task for task in self._failed if task._log_traceback]

    def pending(self) -> list[asyncio.Task[Any]]:
        """Tasks that have not ended, oldest first."""
        return sorted(asyncio.all_tasks(self), key=hash)

    def finish(self) -> None:
        """Cancel what is left, let it clean up (within a minute of virtual time), close the loop."""
        self._limit = self._now + _CLEANUP_S
        self._turns = 0
        try:
            left = self.pending()
            for task in left:
                task.cancel()
            self._faults.clear()
            if left:
                self.run_until_complete(asyncio.wait(left))
            self.run_until_complete(self.shutdown_asyncgens())
        except SimulationError:
            pass  # a task that resists cancellation; the run has failed already, and why is known
        finally:
            for task in self.pending():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
            for task in self._failed:
                task._log_traceback = False
            self.close()

    # -- faults

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        if self.is_closed():
            super().default_exception_handler(context)
        else:
            self._faults.append(context)

    def _raise_fault(self) -> None:
        if not self._faults:
            return
        context = self._faults[0]
        self._faults.clear()
        culprit = context.get("task") or context.get("future") or context.get("handle")
        cause = context.get("exception")
        raise CallbackError(f"{context.get('message')}: {cause!r} in {culprit!r}") from cause

    # -- the real world

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as fault:
            future.set_exception(fault)
        return future

    def call_soon_threadsafe(self, callback: Callable[[*_Ts], object], *args: *_Ts, context: Any = None) -> Any:
        if self.is_running() and threading.get_ident() != self._thread_id:  # type: ignore[attr-defined]
            raise VirtualIoError(f"another thread called {callback!r}: there are no threads in virtual time")
        return self.call_soon(callback, *args, context=context)


_REFUSED: Final = (
    *("add_reader", "remove_reader", "add_writer", "remove_writer", "add_signal_handler", "remove_signal_handler"),
    *("create_connection", "create_server", "create_datagram_endpoint", "connect_accepted_socket", "start_tls"),
    *("create_unix_connection", "create_unix_server", "connect_read_pipe", "connect_write_pipe", "sendfile"),
    *("sock_recv", "sock_recv_into", "sock_recvfrom", "sock_recvfrom_into", "sock_sendall", "sock_sendto"),
    *("sock_connect", "sock_accept", "sock_sendfile", "getaddrinfo", "getnameinfo"),
    *("subprocess_exec", "subprocess_shell"),
)


def _refusal(name: str) -> Callable[..., object]:
    def refuse(self: VirtualLoop, *_args: object, **_options: object) -> object:
        raise VirtualIoError(f"{name} reaches the real world, which does not exist in virtual time")

    return refuse


for _name in _REFUSED:
    setattr(VirtualLoop, _name, _refusal(_name))


def _release(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _is_free(handle: LeanHandle) -> bool:
    if isinstance(handle, LeanTimer):
        return True
    return isinstance(getattr(handle.callback, "__self__", None), asyncio.Task)
