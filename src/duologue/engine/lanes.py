"""Coroutines run on the spot for as long as they need not wait, and in order within one request.

Routing an output is documented as a coroutine, but nearly always has nothing to wait for; a task for each would cost
more than the work. :func:`drive` runs it inline and returns what is left only if it really suspended.

Rules kept here:

* whatever is driven must not, before its first real suspension, use what needs a task of its own
  (``asyncio.timeout``, ``asyncio.current_task``);
* jobs of one request never overlap and never overtake each other; different requests do not wait for each other.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Generator
from typing import TYPE_CHECKING, TypeVar

from duologue.engine.requests import LaneJob, OrchestratorRequestState

if TYPE_CHECKING:
    from duologue.clock import Runtime

ResultT = TypeVar("ResultT")


@types.coroutine
def _continue(coro: Coroutine[object, object, ResultT], waiting: object) -> Generator[object, object, ResultT]:
    # What the coroutine waits for was already taken from it: hand that to the task first, then pass everything through.
    while True:
        try:
            sent = yield waiting
        except GeneratorExit:
            coro.close()
            raise
        except BaseException as error:
            try:
                waiting = coro.throw(error)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
        else:
            try:
                waiting = coro.send(sent)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]


async def _rest(coro: Coroutine[object, object, ResultT], waiting: object) -> ResultT:
    return await _continue(coro, waiting)


def drive(coro: Coroutine[object, object, ResultT]) -> Coroutine[object, object, ResultT] | None:
    """Run ``coro`` until it ends or suspends. ``None``: it ended; else the rest, to be run as a task of this loop.

    What the coroutine raises before it suspends is raised here.
    """
    try:
        waiting = coro.send(None)
    except StopIteration:
        return None
    return _rest(coro, waiting)


class Lanes:
    """One lane of jobs per request, and the tasks of those that had to wait. Jobs must not raise."""

    __slots__ = ("_runtime", "_tasks")

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._tasks: dict[asyncio.Task[None], None] = {}

    def __len__(self) -> int:
        """How many jobs are waiting for something."""
        return len(self._tasks)

    def launch(self, coro: Coroutine[object, object, None], *, name: str) -> None:
        """Run ``coro`` now, beside everything else; the rest of it as a task if it suspends."""
        rest = drive(coro)
        if rest is not None:
            self._spawn(rest, name)

    def start(self, coro: Coroutine[object, object, None], *, name: str) -> None:
        """Run ``coro`` as a task of its own from the beginning: it may use whatever needs one."""
        self._spawn(coro, name)

    def run(self, state: OrchestratorRequestState, coro: Coroutine[object, object, None]) -> None:
        """Run ``coro`` now as the next job of a request whose lane is idle (``not state.busy``)."""
        state.busy = True
        rest = drive(coro)
        if rest is not None:
            self._spawn(self._finish(state, rest), "request-lane")
        elif state.lane:
            self._drain(state)
        else:
            state.busy = False

    def enqueue(self, state: OrchestratorRequestState, job: LaneJob) -> None:
        """Run ``job`` after everything that is still to be done for this request; at once if that is nothing."""
        if state.busy:
            state.lane.append(job)
        else:
            self.run(state, job())

    async def close(self) -> None:
        """Cancel what still waits.

        A task that has not taken its first step takes it before that: cancelled earlier, it would never throw anything
        into the job that it carries.
        """
        for _ in range(2):  # what begins within one turn of the loop has no promised order
            await asyncio.sleep(0)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _drain(self, state: OrchestratorRequestState) -> None:
        while state.lane:
            rest = drive(state.lane.popleft()())
            if rest is not None:
                self._spawn(self._finish(state, rest), "request-lane")
                return
        state.busy = False

    async def _finish(self, state: OrchestratorRequestState, rest: Coroutine[object, object, None]) -> None:
        await rest
        self._drain(state)

    def _spawn(self, coro: Coroutine[object, object, None], name: str) -> None:
        task = self._runtime.spawn(coro, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
