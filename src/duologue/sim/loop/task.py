"""What a virtual loop runs: tasks that iterate alike in every process, and handles with nothing that it does not use."""

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class VirtualTask(asyncio.Task[_T]):
    """A task that hashes to its number, so that a set of tasks iterates alike in every process."""

    def __init__(self, number: int, coro: Coroutine[Any, Any, _T], **options: Any) -> None:
        self.number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self.number


class LeanHandle(asyncio.Handle):
    """A handle without what only a loop in debug mode wants; there is one for every step of every task."""

    __slots__ = ()

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], loop: asyncio.AbstractEventLoop, context: Any
    ) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = self._source_traceback = None


class LeanTimer(asyncio.TimerHandle):
    """A timer without the same."""

    __slots__ = ()

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        context: Any,
    ) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = self._source_traceback = None
        self._when = when
        self._scheduled = True
