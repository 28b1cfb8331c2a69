"""The runtime port: the same promises in virtual time and on a real loop."""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from duologue.clock import AsyncioRuntime, Runtime
from duologue.sim.loop import START_S, WALL_START_S, VirtualRuntime, run, virtual

Main = Callable[[AsyncioRuntime], Coroutine[Any, Any, None]]


def real(main: Main) -> None:
    async def start() -> None:
        runtime = AsyncioRuntime()
        try:
            await main(runtime)
        finally:
            await runtime.aclose()

    asyncio.run(start())


def simulated(main: Main) -> None:
    run(main, allow_task_failures=True)


both = pytest.mark.parametrize("world", [real, simulated])


async def forever() -> None:
    await asyncio.Event().wait()


@both
def test_spawned_tasks_are_tracked_until_they_end(world: Callable[[Main], None]) -> None:
    async def main(runtime: AsyncioRuntime) -> None:
        async def answer() -> int:
            await asyncio.sleep(0)
            return 42

        task = runtime.spawn(answer(), name="answer")
        assert task.get_name() == "answer"
        assert set(runtime.tasks) == {task}
        assert await task == 42
        await asyncio.sleep(0)
        assert not runtime.tasks

    world(main)


@both
def test_a_failure_is_logged_and_counted_and_a_cancel_is_not(
    world: Callable[[Main], None], caplog: pytest.LogCaptureFixture
) -> None:
    async def main(runtime: AsyncioRuntime) -> None:
        async def fail() -> None:
            raise ValueError("broken")

        runtime.spawn(fail(), name="failing")
        cancelled = runtime.spawn(forever(), name="cancelled")
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        await asyncio.sleep(0)
        assert runtime.task_failures == 1
        assert not runtime.tasks

    with caplog.at_level(logging.ERROR):
        world(main)
    [record] = caplog.records
    assert record.getMessage() == "task failed"
    assert record.__dict__["task"] == "failing"
    assert "ValueError: broken" in (record.exc_text or "")


@both
def test_closing_ends_all_tasks_in_order_and_refuses_new_work(world: Callable[[Main], None]) -> None:
    async def main(runtime: AsyncioRuntime) -> None:
        ended: list[int] = []

        async def worker(index: int) -> None:
            try:
                await forever()
            finally:
                await asyncio.sleep(0)
                ended.append(index)

        for index in range(20):
            runtime.spawn(worker(index), name=f"worker {index}")
        await asyncio.sleep(0)
        await runtime.aclose()
        await runtime.aclose()
        assert ended == list(range(20))
        assert not runtime.tasks
        with pytest.raises(RuntimeError, match="'late' can't start"):
            runtime.spawn(forever(), name="late")
        with pytest.raises(RuntimeError, match="closed"):
            await runtime.offload(len, b"")

    world(main)


@both
def test_a_task_may_close_the_runtime_that_runs_it(world: Callable[[Main], None]) -> None:
    async def main(runtime: AsyncioRuntime) -> None:
        other = runtime.spawn(forever(), name="other")
        await asyncio.sleep(0)
        closer = runtime.spawn(runtime.aclose(), name="closer")
        await closer
        assert other.cancelled()

    world(main)


@both
def test_offload_returns_results_and_errors(world: Callable[[Main], None]) -> None:
    async def main(runtime: AsyncioRuntime) -> None:
        assert await runtime.offload(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await runtime.offload(divmod, 7, 0)

    world(main)


@both
def test_timers_and_their_cancellation(world: Callable[[Main], None]) -> None:
    async def main(runtime: AsyncioRuntime) -> None:
        ran: list[str] = []
        event = asyncio.Event()
        runtime.call_at(runtime.now(), ran.append, "first")
        runtime.call_at(runtime.now(), ran.append, "never").cancel()
        assert ran == []
        runtime.call_at(runtime.now() + 0.001, event.set)
        await event.wait()
        assert ran == ["first"]

    world(main)


@both
def test_it_is_the_port(world: Callable[[Main], None]) -> None:
    async def main(runtime: AsyncioRuntime) -> None:
        port: Runtime = runtime
        assert len(port.entropy(16)) == 16
        assert port.entropy(16) != port.entropy(16)
        assert port.wall() > 1_600_000_000
        assert port.task_failures == 0

    world(main)


def test_the_real_pool_has_its_bound_and_its_threads_end() -> None:
    running = 0
    most = 0
    lock = threading.Lock()
    gate = threading.Barrier(2)

    def work() -> str:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        gate.wait(30)  # passes only if two run at once
        with lock:
            running -= 1
        return threading.current_thread().name

    async def main() -> set[str]:
        runtime = AsyncioRuntime(offload_threads=2)
        names = await asyncio.gather(*(runtime.offload(work) for _ in range(8)))
        await runtime.aclose()
        return set(names)

    names = asyncio.run(main())
    assert most == 2
    assert len(names) == 2
    assert not names & {thread.name for thread in threading.enumerate()}


def test_closing_does_not_wait_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()

    async def main() -> None:
        runtime = AsyncioRuntime()

        async def stubborn() -> None:
            while not release.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(3600)

        runtime.spawn(runtime.offload(release.wait), name="waits for a thread")
        task = runtime.spawn(stubborn(), name="stubborn")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await runtime.aclose(timeout_s=0.01)
        release.set()
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(main())
    text = caplog.text
    assert "task does not end when cancelled" in text
    assert "offloaded work did not end in time" in text


def test_real_time_is_the_loops_and_the_systems() -> None:
    async def main() -> None:
        runtime = AsyncioRuntime()
        loop = asyncio.get_running_loop()
        before, now, after = loop.time(), runtime.now(), loop.time()
        assert before <= now <= after
        before, now, after = time.time(), runtime.wall(), time.time()
        assert before <= now <= after

    asyncio.run(main())


def test_there_is_no_runtime_without_a_loop() -> None:
    with pytest.raises(RuntimeError, match="no running event loop"):
        AsyncioRuntime()


@virtual
async def test_virtual_wall_time_runs_along(runtime: VirtualRuntime) -> None:
    await asyncio.sleep(12.5)
    assert runtime.now() == START_S + 12.5
    assert runtime.wall() == WALL_START_S + 12.5


@virtual
async def test_virtual_offload_is_inline_but_lets_others_in(runtime: VirtualRuntime) -> None:
    order: list[str] = []
    asyncio.get_running_loop().call_soon(order.append, "other")
    assert await runtime.offload(threading.current_thread) is threading.current_thread()
    order.append("after")
    assert order == ["other", "after"]


def test_virtual_entropy_comes_from_the_seed() -> None:
    async def draw(runtime: VirtualRuntime) -> bytes:
        return runtime.entropy(8) + runtime.random.randbytes(8)

    assert run(draw, seed=1) == run(draw, seed=1) != run(draw, seed=2)
