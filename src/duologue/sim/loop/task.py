"""What a virtual loop runs: tasks that iterate alike in every process, and handles with nothing that it does not use."""

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

import msgspec

_T = TypeVar("_T")


class VirtualTask(asyncio.Task[_T]):
    """A task that hashes to its number, so that a set of tasks iterates alike in every process."""

    def __init__(self, number: int, coro: Coroutine[Any, Any, _T], **options: Any) -> None:
        self.number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self.number


class LeanHandle(msgspec.Struct, eq=False):
    """What ``call_soon`` returns: a handle with nothing that the loop does not use; each step of each task has one."""

    callback: Callable[..., object] | None
    args: tuple[Any, ...]
    context: contextvars.Context
    dropped: bool

    def cancel(self) -> None:
        """It will not run."""
        self.dropped = True
        self.callback = None  # as it may hold what should be free
        self.args = ()

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self.dropped

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'cancelled' if self.dropped else repr(self.callback)}>"


class TimerQueue(Protocol):
    """Who is told that a timer was cancelled while it waits."""

    def timer_dropped(self) -> None: ...


class LeanTimer(LeanHandle, eq=False):
    """What ``call_at`` returns."""

    at: float
    queue: TimerQueue
    waiting: bool = True

    def when(self) -> float:
        """The time of the loop at which it runs."""
        return self.at

    def cancel(self) -> None:
        """It will not run."""
        if not self.dropped:
            self.dropped = True
            self.callback = None
            self.args = ()
            if self.waiting:
                self.queue.timer_dropped()
