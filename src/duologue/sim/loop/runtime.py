"""The runtime port in virtual time, and how a program or a test is run on it."""

import asyncio
import functools
import inspect
import random
import sys
import warnings
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar, TypeVarTuple, overload

from duologue.clock import AsyncioRuntime
from duologue.sim.loop.fault import (
    CallbackError,
    LeakError,
    NeverAwaitedError,
    TaskFailedError,
    describe,
)
from duologue.sim.loop.loop import START_S, VirtualLoop

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

WALL_START_S: Final = 1_700_000_000.0


class VirtualRuntime(AsyncioRuntime):
    """The runtime port in virtual time. Wall time runs along; entropy comes from the seed."""

    def __init__(self, loop: VirtualLoop, seed: int = 0) -> None:
        super().__init__(loop=loop)
        self._create_task = loop.create_followed
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
        if self.on_spawn:
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
    """Collect what Python says of coroutines that were dropped before they ran, or that waited on while being dropped."""
    found: list[str] = []
    previous = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        text = str(unraisable.exc_value)
        if isinstance(unraisable.exc_value, RuntimeWarning) and "was never awaited" in text:
            found.append(text)
        elif isinstance(unraisable.exc_value, RuntimeError) and "ignored GeneratorExit" in text:
            found.append(f"{text}: {unraisable.object.__qualname__}")
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
