"""The runtime port: time, timers, tasks, threads and randomness, injected into all that is not the core.

Rules
- Nothing outside this module and the simulator reads a clock, starts a task or draws entropy by itself, so that
  the simulator can replace the world whole.
- Every task is tracked: none is lost silently, and closing the runtime ends all of them.
"""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Collection, Coroutine, KeysView
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol, TypeVar, TypeVarTuple

from duologue.log import init_logger

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

OFFLOAD_THREADS: Final = 4
CLOSE_TIMEOUT_S: Final = 5.0

logger = init_logger(__name__)


monotonic: Final = time.monotonic
"""For worker processes, which have no runtime: they measure durations and set no timers."""


class TimerHandle(Protocol):
    """A pending timer."""

    def cancel(self) -> None:
        """Make sure that the callback does not run; harmless after it ran."""
        ...


class Runtime(Protocol):
    """What the world offers. All calls come from the loop's own thread."""

    @property
    def tasks(self) -> Collection[asyncio.Task[Any]]:
        """Tasks started by `spawn` that have not ended."""
        ...

    @property
    def task_failures(self) -> int:
        """How many tasks ended with an exception that nothing handled."""
        ...

    def now(self) -> float:
        """Monotonic seconds, from an arbitrary start."""
        ...

    def wall(self) -> float:
        """Unix seconds. It may jump: for stating times to others (`expires_at`), never for measuring."""
        ...

    def call_at(self, when: float, callback: Callable[[*_Ts], object], *args: *_Ts) -> TimerHandle:
        """Call `callback(*args)` on the loop when `now()` reaches `when` (at once, but not inline, if it has)."""
        ...

    def spawn(self, coro: Coroutine[Any, Any, _T], *, name: str) -> asyncio.Task[_T]:
        """Run `coro` as a tracked task. An exception that it raises is logged and counted.

        Raises RuntimeError once the runtime is closed.
        """
        ...

    async def offload(self, fn: Callable[[*_Ts], _T], *args: *_Ts) -> _T:
        """Run `fn(*args)` away from the loop and return its result; for work above about 50 microseconds.

        A cancelled caller stops waiting, but `fn` runs to its end.
        """
        ...

    def entropy(self, n: int) -> bytes:
        """`n` random bytes, fit for keys and ids."""
        ...


class AsyncioRuntime:
    """The runtime port on an asyncio loop: the real world."""

    def __init__(
        self, *, offload_threads: int = OFFLOAD_THREADS, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        """On `loop`, by default the running one (RuntimeError if there is none)."""
        self._loop = asyncio.get_running_loop() if loop is None else loop
        self._offload_threads = offload_threads
        self._pool: ThreadPoolExecutor | None = None
        self._closed = False
        self._create_task = self._loop.create_task
        self._tasks: dict[asyncio.Task[Any], None] = {}  # ordered, unlike a set: closing repeats exactly
        self.task_failures = 0

    @property
    def tasks(self) -> KeysView[asyncio.Task[Any]]:
        """Tasks started by `spawn` that have not ended, oldest first: a live, set-like view."""
        return self._tasks.keys()

    def now(self) -> float:
        return self._loop.time()

    def wall(self) -> float:
        return time.time()

    def call_at(self, when: float, callback: Callable[[*_Ts], object], *args: *_Ts) -> TimerHandle:
        return self._loop.call_at(when, callback, *args)

    def spawn(self, coro: Coroutine[Any, Any, _T], *, name: str) -> asyncio.Task[_T]:
        if self._closed:
            coro.close()
            raise RuntimeError(f"task {name!r} can't start: the runtime is closed")
        task = self._create_task(coro, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    async def offload(self, fn: Callable[[*_Ts], _T], *args: *_Ts) -> _T:
        if self._closed:
            raise RuntimeError(f"{fn!r} can't be offloaded: the runtime is closed")
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._offload_threads, thread_name_prefix="duologue-offload")
        return await self._loop.run_in_executor(self._pool, fn, *args)

    def entropy(self, n: int) -> bytes:
        return os.urandom(n)

    async def aclose(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Cancel and await all tracked tasks (but the caller's own), then end the threads. May be repeated.

        Tasks and threads that have not ended after `timeout_s` each are named in the log and left behind.
        """
        self._closed = True
        waiting = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in waiting:
            task.cancel()
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=timeout_s)
            for task in late:
                logger.error("task does not end when cancelled", extra={"task": task.get_name()})
        pool, self._pool = self._pool, None
        if pool is not None:
            await self._end_threads(pool, timeout_s)

    async def _end_threads(self, pool: ThreadPoolExecutor, timeout_s: float) -> None:
        ended = asyncio.Event()

        def shut_down() -> None:
            pool.shutdown(wait=True, cancel_futures=True)
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(ended.set)

        # Waiting for a thread blocks, so a thread does it.
        threading.Thread(target=shut_down, name="duologue-offload-end", daemon=True).start()
        try:
            await asyncio.wait_for(ended.wait(), timeout_s)
        except TimeoutError:
            logger.error("offloaded work did not end in time", extra={"timeout_s": timeout_s})

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled():
            return
        fault = task.exception()
        if fault is not None:
            self.task_failures += 1
            self._failed(task, fault)

    def _failed(self, task: asyncio.Task[Any], fault: BaseException) -> None:
        logger.error("task failed", exc_info=fault, extra={"task": task.get_name()})
