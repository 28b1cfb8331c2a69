"""Virtual time: an asyncio loop whose clock jumps, and the runtime port on it.

Rules
- Time moves only when nothing is ready, and then exactly to the next timer. Nothing sleeps.
- The same program with the same seed runs its callbacks in the same order, in every process: ready callbacks in
  order of arrival, timers by time and then by order of arrival, sets of tasks iterate in order of creation.
- No threads, no sockets, no processes: executors run inline, the rest is refused.
- Nothing goes wrong quietly: a deadlock, a spin, a leaked task, a failed callback or task and a coroutine that
  was never awaited each end the run with an error that names the culprit.
"""

from duologue.sim.loop.fault import (
    CallbackError,
    DeadlockError,
    LeakError,
    NeverAwaitedError,
    SimulationError,
    StallError,
    TaskFailedError,
    TimeLimitError,
    VirtualIoError,
    describe,
)
from duologue.sim.loop.loop import STALL_TURNS, START_S, VirtualLoop
from duologue.sim.loop.runtime import WALL_START_S, VirtualRuntime, run, virtual
from duologue.sim.loop.task import VirtualTask

__all__ = [
    "STALL_TURNS",
    "START_S",
    "WALL_START_S",
    "CallbackError",
    "DeadlockError",
    "LeakError",
    "NeverAwaitedError",
    "SimulationError",
    "StallError",
    "TaskFailedError",
    "TimeLimitError",
    "VirtualIoError",
    "VirtualLoop",
    "VirtualRuntime",
    "VirtualTask",
    "describe",
    "run",
    "virtual",
]
