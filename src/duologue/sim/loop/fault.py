"""What ends a run that its program took for good, and how it is told to people: which task waits where."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

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
    """A coroutine was created and dropped, or waits for something although it is being dropped."""


class VirtualIoError(SimulationError):
    """The program reached for the real world."""


def stalled(turns: int, at_s: float, pending: list[asyncio.Task[Any]]) -> StallError:
    """So many turns of the loop at one instant."""
    return StallError(f"{turns} turns at {at_s:.6f} s, and time does not move: {describe(pending)}")


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
