"""Cost of the virtual-time loop, beside asyncio's own where that needs no waiting. Run it by hand; it is no test.

python tests/unit/sim/cost.py
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from duologue.sim.loop import run

COUNT = 100_000


async def chain() -> None:
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    left = COUNT

    def step() -> None:
        nonlocal left
        left -= 1
        if left:
            loop.call_soon(step)
        else:
            done.set_result(None)

    loop.call_soon(step)
    await done


async def batch() -> None:
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    for _ in range(COUNT):
        loop.call_soon(int)
    loop.call_soon(done.set_result, None)
    await done


async def queue() -> None:
    items: asyncio.Queue[int] = asyncio.Queue()

    async def produce() -> None:
        for index in range(COUNT):
            await items.put(index)
            await asyncio.sleep(0)

    async def consume() -> None:
        for _ in range(COUNT):
            await items.get()

    async with asyncio.TaskGroup() as group:
        group.create_task(produce())
        group.create_task(consume())


async def sleeps() -> None:
    for _ in range(COUNT):
        await asyncio.sleep(0.02)


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    programs: list[Callable[[], Coroutine[Any, Any, None]]] = [chain, batch, queue, sleeps]
    for program in programs:
        virtual_s = min(seconds(lambda p=program: run(lambda _runtime: p())) for _ in range(3))  # type: ignore[misc]
        line = f"{program.__name__:8s} {COUNT / virtual_s:10.0f} a second"
        if program is not sleeps:
            real_s = min(seconds(lambda p=program: asyncio.run(p())) for _ in range(3))  # type: ignore[misc]
            line += f"   asyncio {COUNT / real_s:10.0f}"
        print(line)


if __name__ == "__main__":
    main()
