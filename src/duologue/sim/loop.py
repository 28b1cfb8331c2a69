"""Virtual time: an asyncio loop whose clock jumps, and the runtime port on it.

Rules
- Time moves only when nothing is ready, and then exactly to the next timer. Nothing sleeps.
- The same program with the same seed runs its callbacks in the same order, in every process: ready callbacks in
  order of arrival, timers by time and then by order of arrival, sets of tasks iterate in order of creation.
- No threads, no sockets, no processes: executors run inline, the rest is refused.
- Nothing goes wrong quietly: a deadlock, a spin, a leaked task, a failed callback or task and a coroutine that
  was never awaited each end the run with an error that names the culprit.
"""

import asyncio
import functools
import heapq
import inspect
import random
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar, TypeVarTuple, overload

from duologue.clock import AsyncioRuntime

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

START_S: Final = 1_000.0  # not 0, so that code which takes 0 for "unset" is found out
WALL_START_S: Final = 1_700_000_000.0
STALL_TURNS: Final = 1_000_000
_CLEANUP_S: Final = 60.0
_ASYNCIO_DIR: Final = str(Path(asyncio.__file__).parent)


class SimulationError(Exception):
    """A run that went wrong in a way that the program under test did not notice."""


class DeadlockError(SimulationError):
    """Nothing is ready, no timer is set, and the main coroutine has not ended."""


class StallError(SimulationError):
    """Callbacks run on and on while time stands still."""


class TimeLimitError(SimulationError):
    """The main coroutine has not ended within `limit_s` of virtual time."""


class LeakError(SimulationError):
    """The main coroutine ended and left tasks behind."""


class CallbackError(SimulationError):
    """A callback, or a task whose result nobody asked for, raised."""


class TaskFailedError(SimulationError):
    """A task started by `Runtime.spawn` raised and nothing handled it."""


class NeverAwaitedError(SimulationError):
    """A coroutine was created and dropped."""


class VirtualIoError(SimulationError):
    """The program reached for the real world."""


class VirtualTask(asyncio.Task[_T]):
    """A task that hashes to its number, so that a set of tasks iterates alike in every process."""

    def __init__(self, number: int, coro: Coroutine[Any, Any, _T], **options: Any) -> None:
        self.number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self.number


class VirtualLoop(asyncio.BaseEventLoop):
    """The loop. It keeps BaseEventLoop's ready queue, and replaces its timers, its clock and its one turn."""

    _ready: deque[asyncio.Handle]
    _stopping: bool

    def __init__(self, *, seed: int = 0, limit_s: float | None = None, shuffle: bool = False) -> None:
        super().__init__()
        self._now = START_S
        self._limit = None if limit_s is None else START_S + limit_s
        self._shuffler = random.Random(f"order:{seed}") if shuffle else None
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
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

    def get_debug(self) -> bool:
        return False  # every handle asks

    def call_at(
        self, when: float, callback: Callable[[*_Ts], object], *args: *_Ts, context: Any = None
    ) -> asyncio.TimerHandle:
        self._check_closed()  # type: ignore[attr-defined]
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        timer._scheduled = True  # type: ignore[attr-defined]
        self._timer_count += 1
        heapq.heappush(self._timers, (when, self._timer_count, timer))
        return timer

    def _timer_handle_cancelled(self, handle: Any) -> None:
        if not handle._scheduled:
            return
        self._cancelled_timers += 1
        if self._cancelled_timers > 100 and self._cancelled_timers * 2 > len(self._timers):
            # In place of the handle that is being cancelled right now, which is not marked yet.
            kept = [entry for entry in self._timers if entry[2] is not handle and not entry[2].cancelled()]
            heapq.heapify(kept)
            self._timers = kept
            self._cancelled_timers = 0
            handle._scheduled = False

    def _take_due(self) -> None:
        """Move every timer that is due to the ready queue, in order."""
        timers = self._timers
        while timers and timers[0][0] <= self._now:
            timer = heapq.heappop(timers)[2]
            timer._scheduled = False  # type: ignore[attr-defined]
            if timer.cancelled():
                self._cancelled_timers -= 1
            else:
                self._ready.append(timer)

    def _jump(self) -> None:
        """Move time to the next timer; nothing is ready."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
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
        ready = self._ready
        self._take_due()
        if not ready and not self._stopping:
            if self._settling:
                self._stopping = True
                return
            self._jump()
            self._take_due()
        self._turns += 1
        if self._turns > self.stall_turns:
            raise StallError(
                f"{self._turns} turns at {self._now - START_S:.6f} s, and time does not move: "
                f"{describe(self.pending())}"
            )
        if self._shuffler is not None and len(ready) > 1:
            self._shuffle(self._shuffler)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()
        if self._faults:
            self._raise_fault()

    def _shuffle(self, shuffler: random.Random) -> None:
        """Permute what has no promised order (steps of different tasks, timers of one instant).

        Plain callbacks keep their order, which `call_soon` promises.
        """
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
        self._check_closed()  # type: ignore[attr-defined]
        self._task_count += 1
        number = self._task_count
        if context is not None:
            options["context"] = context
        name = name or ("main" if number == 1 else f"task-{number}")
        if self.wrap is not None:
            coro = self.wrap(coro)
        task: VirtualTask[Any] = VirtualTask(number, coro, loop=self, name=name, **options)
        task.add_done_callback(self._task_ended)
        return task

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

    def call_soon_threadsafe(
        self, callback: Callable[[*_Ts], object], *args: *_Ts, context: Any = None
    ) -> asyncio.Handle:
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


def _is_free(handle: asyncio.Handle) -> bool:
    if isinstance(handle, asyncio.TimerHandle):
        return True
    owner = getattr(handle._callback, "__self__", None)  # type: ignore[attr-defined]
    return isinstance(owner, asyncio.Task)


def describe(tasks: list[asyncio.Task[Any]]) -> str:
    """Names of tasks and where each of them waits."""
    if not tasks:
        return "no task is pending"
    shown = "; ".join(f"{task.get_name()!r} waits at {_position(task)}" for task in tasks[:20])
    return shown if len(tasks) <= 20 else f"{shown}; and {len(tasks) - 20} more"


def _position(task: asyncio.Task[Any]) -> str:
    """The innermost line outside asyncio at which a task is suspended."""
    step: Any = task.get_coro()
    position = "its start"
    while step is not None:
        frame = getattr(step, "cr_frame", None) or getattr(step, "ag_frame", None) or getattr(step, "gi_frame", None)
        if frame is not None and not frame.f_code.co_filename.startswith(_ASYNCIO_DIR):
            position = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
        step = getattr(step, "cr_await", None) or getattr(step, "ag_await", None)
    return position


class VirtualRuntime(AsyncioRuntime):
    """The runtime port in virtual time. Wall time runs along; entropy comes from the seed."""

    def __init__(self, loop: VirtualLoop, seed: int = 0) -> None:
        super().__init__(loop=loop)
        self.loop = loop
        self.seed = seed
        self.random = random.Random(f"world:{seed}")
        self.failed_tasks: list[tuple[str, BaseException]] = []
        self._entropy = random.Random(f"entropy:{seed}")
        self._wall_shift_s = 0.0
        self.on_spawn: list[Callable[[asyncio.Task[Any]], None]] = []  # each sees every task that begins

    def now(self) -> float:
        return self.loop._now

    def wall(self) -> float:
        return WALL_START_S + self.now() - START_S + self._wall_shift_s

    def leap_wall(self, by_s: float) -> None:
        """Somebody sets the wall clock, forth or back."""
        self._wall_shift_s += by_s

    def spawn(self, coro: Coroutine[Any, Any, _T], *, name: str) -> asyncio.Task[_T]:
        task = super().spawn(coro, name=name)
        for seen in tuple(self.on_spawn):
            seen(task)
        return task

    async def offload(self, fn: Callable[[*_Ts], _T], *args: *_Ts) -> _T:
        """Run `fn` inline, after one turn of the loop: others get in between, as with a real thread."""
        if self._closed:
            raise RuntimeError(f"{fn!r} can't be offloaded: the runtime is closed")
        await asyncio.sleep(0)
        return fn(*args)

    def entropy(self, n: int) -> bytes:
        return self._entropy.randbytes(n)

    def _failed(self, task: asyncio.Task[Any], fault: BaseException) -> None:
        super()._failed(task, fault)
        self.failed_tasks.append((task.get_name(), fault))


def run(
    main: Callable[[VirtualRuntime], Coroutine[Any, Any, _T]],
    *,
    seed: int = 0,
    limit_s: float | None = None,
    shuffle: bool = False,
    allow_task_failures: bool = False,
) -> _T:
    """Run `main(runtime)` to its end in virtual time and return its result.

    limit_s: virtual seconds until TimeLimitError. shuffle: permute by seed what has no promised order.
    allow_task_failures: an unhandled exception in a spawned task is only counted, as in the real world.
    Raises what `main` raises, or a SimulationError. Tasks that end without time passing once `main` has
    ended are no leak.
    """
    loop = VirtualLoop(seed=seed, limit_s=limit_s, shuffle=shuffle)
    runtime = VirtualRuntime(loop, seed)
    with _unawaited() as unawaited:
        try:
            result = loop.run_until_complete(main(runtime))
            loop.settle()
            _verify(loop, runtime.failed_tasks if not allow_task_failures else [])
        except Exception as fault:
            for task in loop.unasked():  # often the cause, when others then wait for ever
                fault.add_note(f"task {task.get_name()!r} had failed: {task.exception()!r}")
            raise
        finally:
            loop.finish()
    if unawaited:
        raise NeverAwaitedError("; ".join(unawaited))
    return result


def _verify(loop: VirtualLoop, failed_tasks: list[tuple[str, BaseException]]) -> None:
    """Raise if a run whose main coroutine ended well was not well otherwise."""
    for name, fault in failed_tasks:
        raise TaskFailedError(f"task {name!r} failed and nothing handled it: {fault!r}") from fault
    for task in loop.unasked():
        cause = task.exception()
        text = f"task {task.get_name()!r} failed and nobody asked for its result: {cause!r}"
        raise CallbackError(text) from cause
    left = loop.pending()
    if left:
        raise LeakError(f"{len(left)} tasks outlive the main coroutine: {describe(left)}")


@contextmanager
def _unawaited() -> Iterator[list[str]]:
    """Collect the warnings about coroutines that were dropped before they ran."""
    found: list[str] = []
    previous = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        text = str(unraisable.exc_value)
        if isinstance(unraisable.exc_value, RuntimeWarning) and "was never awaited" in text:
            found.append(text)
        else:
            previous(unraisable)

    # The interpreter gives this warning where nothing can catch it; as an error it reaches the hook.
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=r"coroutine .* was never awaited", category=RuntimeWarning)
        sys.unraisablehook = hook
        try:
            yield found
        finally:
            sys.unraisablehook = previous


_Test = Callable[..., Coroutine[Any, Any, object]]


@overload
def virtual(test: _Test, /) -> Callable[..., None]: ...
@overload
def virtual(
    *, seed: int = 0, limit_s: float | None = None, shuffle: bool = False, allow_task_failures: bool = False
) -> Callable[[_Test], Callable[..., None]]: ...
def virtual(test: _Test | None = None, /, **options: Any) -> Any:
    """Decorate an `async def` test to run in virtual time: `@virtual` or `@virtual(seed=3, limit_s=10)`.

    The test gets the VirtualRuntime as `runtime` if it asks for it; other parameters stay fixtures (or
    Hypothesis arguments).
    """
    if test is None:
        return functools.partial(_decorate, **options)
    return _decorate(test, **options)


def _decorate(test: _Test, **options: Any) -> Callable[..., None]:
    signature = inspect.signature(test)
    wants_runtime = "runtime" in signature.parameters
    others = [parameter for name, parameter in signature.parameters.items() if name != "runtime"]
    shown = signature.replace(parameters=others)

    @functools.wraps(test)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        # By name: Hypothesis passes by position what it sees in the signature, where `runtime` is missing.
        named = shown.bind(*args, **kwargs).arguments

        def main(runtime: VirtualRuntime) -> Coroutine[Any, Any, object]:
            return test(**named, runtime=runtime) if wants_runtime else test(**named)

        run(main, **options)

    del wrapper.__wrapped__
    wrapper.__signature__ = shown  # type: ignore[attr-defined]
    return wrapper
