"""Run a coroutine on the spot for as long as it does not have to wait.

Routing an output is documented as a coroutine, but nearly always has nothing to wait for; a task for each would cost more
than the work. :func:`drive` runs it inline and returns what is left only if it really suspended.

The rule for whatever is driven: before its first real suspension it must not use what needs a task of its own
(``asyncio.timeout``, ``asyncio.current_task``).
"""

from __future__ import annotations

import types
from collections.abc import Coroutine, Generator
from typing import TypeVar

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


def drive(coro: Coroutine[object, object, None]) -> Coroutine[object, object, None] | None:
    """Run ``coro`` until it ends or suspends. ``None``: it ended; else the rest, to be run as a task of this loop.

    What the coroutine raises before it suspends is raised here.
    """
    try:
        waiting = coro.send(None)
    except StopIteration:
        return None
    return _rest(coro, waiting)
