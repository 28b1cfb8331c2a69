"""The virtual-time loop: its clock, its order, and what of asyncio works on it."""

import asyncio
import contextvars
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.sim.loop import (
    START_S,
    VirtualLoop,
    VirtualRuntime,
    run,
    virtual,
)

# -- time


def test_a_day_passes_at_once_and_exactly() -> None:
    async def main(runtime: VirtualRuntime) -> float:
        await asyncio.sleep(86_400.5)
        return runtime.now()

    real = time.monotonic()
    assert run(main) == START_S + 86_400.5
    assert time.monotonic() - real < 60  # a day of real sleep would show


def test_time_stands_still_while_anything_is_ready() -> None:
    async def main(runtime: VirtualRuntime) -> set[float]:
        seen = set()
        for _ in range(1_000):
            await asyncio.sleep(0)
            seen.add(runtime.now())
        return seen

    assert run(main) == {START_S}


@given(delays=st.lists(st.integers(0, 5), max_size=30), cancelled=st.sets(st.integers(0, 29)))
def test_timers_run_by_time_then_by_order_of_arrival(delays: list[int], cancelled: set[int]) -> None:
    async def main(runtime: VirtualRuntime) -> list[tuple[int, int]]:
        ran: list[tuple[int, int]] = []
        for index, delay in enumerate(delays):
            timer = runtime.call_at(START_S + delay, lambda *key: ran.append(key), delay, index)
            if index in cancelled:
                timer.cancel()
        await asyncio.sleep(10)
        return ran

    keys = [(delay, index) for index, delay in enumerate(delays) if index not in cancelled]
    assert run(main) == sorted(keys)


def test_a_timer_in_the_past_runs_next_but_not_inline() -> None:
    async def main(runtime: VirtualRuntime) -> list[str]:
        ran: list[str] = []
        runtime.call_at(0.0, ran.append, "timer")
        ran.append("caller")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return [*ran, str(runtime.now())]

    assert run(main) == ["caller", "timer", str(START_S)]


def test_many_cancelled_timers_are_dropped_and_the_rest_still_runs() -> None:
    async def main(runtime: VirtualRuntime) -> tuple[int, list[int], float]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        ran: list[int] = []
        timers = [loop.call_later(5 + index % 7, ran.append, index) for index in range(2_000)]
        for index, timer in enumerate(timers):
            if index % 100:
                timer.cancel()
                timer.cancel()
        held = len(loop._timers)
        await asyncio.sleep(20)
        for timer in timers:
            timer.cancel()  # after it ran
        await asyncio.sleep(1)
        return held, sorted(ran), runtime.now()

    held, ran, now = run(main)
    assert held < 200
    assert ran == list(range(0, 2_000, 100))
    assert now == START_S + 21


# -- what asyncio offers


@virtual
async def test_queues_locks_events_and_conditions(runtime: VirtualRuntime) -> None:
    queue: asyncio.Queue[int] = asyncio.Queue(1)
    lock = asyncio.Lock()
    event = asyncio.Event()
    condition = asyncio.Condition()
    log: list[tuple[float, str]] = []

    def note(what: str) -> None:
        log.append((runtime.now() - START_S, what))

    async def producer() -> None:
        for value in range(3):
            await asyncio.sleep(1)
            await queue.put(value)
        async with lock:
            await asyncio.sleep(1)
        event.set()
        async with condition:
            condition.notify_all()

    async def consumer() -> None:
        for _ in range(3):
            note(f"got {await queue.get()}")
        async with lock:
            note("lock")
        await event.wait()

    async def watcher() -> None:
        async with condition:
            await condition.wait()
            note("condition")

    async with asyncio.TaskGroup() as group:
        for part in (producer, consumer, watcher):
            group.create_task(part())
    assert log == [(1, "got 0"), (2, "got 1"), (3, "got 2"), (4, "lock"), (4, "condition")]


@virtual
async def test_timeouts_cancel_at_their_time(runtime: VirtualRuntime) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2.5):
            await asyncio.Event().wait()
    assert runtime.now() == START_S + 2.5
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.sleep(9), 1)
    assert runtime.now() == START_S + 3.5
    assert await asyncio.wait_for(asyncio.sleep(1, "done"), 2) == "done"
    assert runtime.now() == START_S + 4.5


@virtual
async def test_groups_fail_together_and_wait_sees_the_first(runtime: VirtualRuntime) -> None:
    ended: list[str] = []

    async def fail() -> None:
        await asyncio.sleep(1)
        raise ValueError("one of us")

    async def wait_long(name: str) -> None:
        try:
            await asyncio.sleep(100)
        finally:
            ended.append(name)

    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.TaskGroup() as group:
            for name in "abcdefgh":
                group.create_task(wait_long(name))
            group.create_task(fail())
    assert caught.value.subgroup(ValueError)
    assert runtime.now() == START_S + 1
    assert ended == list("abcdefgh")  # in order of start: sets of tasks iterate so

    tasks = {asyncio.create_task(asyncio.sleep(delay, delay)) for delay in (3, 2)}
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert [task.result() for task in done] == [2]
    assert [await task for task in pending] == [3]
    assert await asyncio.gather(asyncio.sleep(1, "a"), asyncio.sleep(0, "b")) == ["a", "b"]


@virtual
async def test_executors_run_inline(runtime: VirtualRuntime) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    variable.set("seen")
    assert await asyncio.to_thread(variable.get) == "seen"
    loop = asyncio.get_running_loop()
    assert await loop.run_in_executor(None, divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await loop.run_in_executor(None, divmod, 7, 0)
    assert runtime.now() == START_S


@virtual
async def test_thread_safe_calls_from_the_same_thread_are_fine(runtime: VirtualRuntime) -> None:
    event = asyncio.Event()
    asyncio.get_running_loop().call_soon_threadsafe(event.set)
    await event.wait()


def test_async_generators_are_closed_at_the_end() -> None:
    closed: list[bool] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0)
            closed.append(True)

    kept: list[Any] = []

    async def main(_runtime: VirtualRuntime) -> None:
        kept.append(numbers())
        assert await anext(kept[0]) == 1

    run(main)
    assert closed == [True]


# -- order


PROGRAM = """
import asyncio, hashlib
from duologue.sim.loop import run

async def main(runtime):
    trace = []
    async def worker(name):
        for step in range(20):
            await asyncio.sleep(runtime.random.choice([0, 0.1, 0.2]))
            trace.append((name, step, round(runtime.now(), 6), runtime.entropy(2).hex()))
    waiting = {asyncio.create_task(worker(name)) for name in "abcdefghijklmnop"}
    while waiting:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        trace.append([task.get_name() for task in done])
    doomed = {asyncio.create_task(asyncio.sleep(99)) for _ in range(30)}
    await asyncio.sleep(0)
    for task in doomed:
        task.add_done_callback(lambda task: trace.append(task.get_name()))
        task.cancel()
    await asyncio.wait(doomed)
    return trace

for seed, shuffle in ((1, False), (1, True), (2, True)):
    print(hashlib.sha256(repr(run(main, seed=seed, shuffle=shuffle)).encode()).hexdigest())
"""


def test_the_same_seed_gives_the_same_order_in_every_process() -> None:
    outputs = []
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.append(done.stdout.split())
    assert outputs[0] == outputs[1]
    assert len(set(outputs[0])) == 3


async def race(_runtime: VirtualRuntime) -> tuple[str, str, str]:
    loop = asyncio.get_running_loop()
    steps: list[str] = []
    plain: list[str] = []
    timers: list[str] = []

    async def step(name: str) -> None:
        steps.append(name)

    tasks = [asyncio.create_task(step(name)) for name in "abcdef"]
    for name in "abcdef":
        loop.call_soon(plain.append, name)
        loop.call_later(1, timers.append, name)
    await asyncio.gather(*tasks)
    await asyncio.sleep(2)
    return "".join(steps), "".join(plain), "".join(timers)


def test_order_of_arrival_is_the_default() -> None:
    assert run(race) == ("abcdef",) * 3


def test_shuffling_permutes_tasks_and_timers_but_not_plain_callbacks() -> None:
    seen = [run(race, seed=seed, shuffle=True) for seed in range(8)]
    assert len({steps for steps, _, _ in seen}) > 4
    assert len({timers for _, _, timers in seen}) > 4
    for steps, plain, timers in seen:
        assert plain == "abcdef"
        assert sorted(steps) == sorted(timers) == list("abcdef")
    assert seen == [run(race, seed=seed, shuffle=True) for seed in range(8)]
