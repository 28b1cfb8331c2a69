"""Every way in which a run in virtual time is made to fail, and what the error says."""

import asyncio
import contextlib
import gc
from typing import Any

import pytest

from duologue.sim.loop import (
    START_S,
    CallbackError,
    DeadlockError,
    LeakError,
    NeverAwaitedError,
    StallError,
    TaskFailedError,
    TimeLimitError,
    VirtualIoError,
    VirtualRuntime,
    run,
    virtual,
)


async def idle(_runtime: VirtualRuntime) -> None:
    pass


def test_a_deadlock_names_every_task_and_where_it_waits() -> None:
    cleaned: list[str] = []

    async def wait_for_nothing() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1)
            cleaned.append("worker")

    async def main(runtime: VirtualRuntime) -> None:
        runtime.spawn(wait_for_nothing(), name="worker of session 7")
        await asyncio.sleep(3)
        await asyncio.get_running_loop().create_future()

    with pytest.raises(DeadlockError, match=r"at 3\.0+ s") as caught:
        run(main)
    text = str(caught.value)
    assert "'main' waits at" in text and "in main" in text
    assert "'worker of session 7' waits at" in text and "in wait_for_nothing" in text
    assert "test_failures.py" in text
    assert cleaned == ["worker"]


def test_a_cancelled_timer_does_not_hide_a_deadlock() -> None:
    async def main(runtime: VirtualRuntime) -> None:
        runtime.call_at(START_S + 5, print).cancel()
        await asyncio.Event().wait()

    with pytest.raises(DeadlockError, match=r"at 0\.0+ s"):
        run(main)


def test_leaked_tasks_are_named_and_cancelled() -> None:
    ended: list[str] = []

    async def forever() -> None:
        try:
            while True:  # noqa: ASYNC110
                await asyncio.sleep(1)
        finally:
            ended.append("forever")

    async def main(runtime: VirtualRuntime) -> None:
        runtime.spawn(forever(), name="heartbeat")
        await asyncio.sleep(0.5)

    with pytest.raises(LeakError, match=r"1 tasks .*'heartbeat'"):
        run(main)
    assert ended == ["forever"]


def test_tasks_that_end_without_time_passing_are_no_leak() -> None:
    async def main(runtime: VirtualRuntime) -> str:
        task = runtime.spawn(asyncio.sleep(100), name="cancelled in the last moment")
        await asyncio.sleep(1)
        task.cancel()
        return "result"

    assert run(main) == "result"


def test_a_task_that_resists_cancellation_does_not_hang_the_end() -> None:
    async def stubborn() -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1)

    async def main(runtime: VirtualRuntime) -> None:
        runtime.spawn(stubborn(), name="stubborn")
        await asyncio.sleep(0.5)

    with pytest.raises(LeakError, match="stubborn"):
        run(main)
    gc.collect()


def test_a_failing_callback_ends_the_run() -> None:
    async def main(runtime: VirtualRuntime) -> None:
        runtime.call_at(START_S + 1, lambda: 1 / 0)
        await asyncio.sleep(50)

    with pytest.raises(CallbackError, match="ZeroDivisionError") as caught:
        run(main)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


async def explode() -> None:
    raise ValueError("bad thing")


def test_a_failing_task_that_nobody_asks_ends_the_run() -> None:
    async def main(_runtime: VirtualRuntime) -> None:
        asyncio.create_task(explode(), name="lost")  # noqa: RUF006
        await asyncio.sleep(50)

    with pytest.raises(CallbackError, match=r"'lost'.*bad thing") as caught:
        run(main)
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_failure_may_be_asked_for_late() -> None:
    async def main(_runtime: VirtualRuntime) -> str:
        task = asyncio.create_task(explode())
        await asyncio.sleep(50)
        return repr(task.exception())

    assert "bad thing" in run(main)


def test_a_deadlock_mentions_the_task_that_failed_before() -> None:
    async def main(_runtime: VirtualRuntime) -> None:
        task = asyncio.create_task(explode(), name="the cause")
        await asyncio.sleep(1)
        await asyncio.Event().wait()
        await task

    with pytest.raises(DeadlockError) as caught:
        run(main)
    assert caught.value.__notes__ == ["task 'the cause' had failed: ValueError('bad thing')"]


def test_a_failing_tracked_task_ends_the_run_unless_allowed() -> None:
    async def main(runtime: VirtualRuntime) -> int:
        runtime.spawn(explode(), name="worker")
        await asyncio.sleep(1)
        return runtime.task_failures

    with pytest.raises(TaskFailedError, match=r"'worker'.*bad thing") as caught:
        run(main)
    assert isinstance(caught.value.__cause__, ValueError)
    assert run(main, allow_task_failures=True) == 1


def test_a_coroutine_that_is_never_awaited_is_an_error() -> None:
    async def main(runtime: VirtualRuntime) -> None:
        idle(runtime)

    with pytest.raises(NeverAwaitedError, match="'idle' was never awaited"):
        run(main)
    run(idle)  # and the next run is not blamed for it


def test_a_coroutine_that_waits_while_it_is_dropped_is_an_error() -> None:
    async def stubborn() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(1)

    async def main(_runtime: VirtualRuntime) -> None:
        dropped = stubborn()
        dropped.send(None)
        del dropped

    with pytest.raises(NeverAwaitedError, match=r"ignored GeneratorExit: .*stubborn"):
        run(main)
    run(idle)


def test_spinning_is_found_out() -> None:
    async def main(runtime: VirtualRuntime) -> None:
        runtime.loop.stall_turns = 500
        await asyncio.sleep(1)
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    with pytest.raises(StallError, match=r"at 1\.0+ s.*'main' waits at"):
        run(main)


def test_the_limit_is_in_virtual_seconds() -> None:
    async def main(_runtime: VirtualRuntime) -> str:
        for _ in range(10):
            await asyncio.sleep(1)
        return "in time"

    assert run(main, limit_s=10) == "in time"
    with pytest.raises(TimeLimitError, match=r"9\.5 s .*'main'"):
        run(main, limit_s=9.5)


def test_what_main_raises_comes_out_unchanged_and_everything_is_closed() -> None:
    kept: list[Any] = []

    async def main(runtime: VirtualRuntime) -> None:
        kept.append(runtime.loop)
        kept.append(runtime.spawn(asyncio.sleep(100), name="left"))
        await asyncio.sleep(1)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run(main)
    loop, task = kept
    assert loop.is_closed()
    assert task.cancelled()
    with pytest.raises(RuntimeError, match="closed"):
        loop.call_later(1, print)


@virtual
async def test_the_real_world_is_refused(runtime: VirtualRuntime) -> None:
    loop = asyncio.get_running_loop()
    with pytest.raises(VirtualIoError, match="create_connection"):
        await asyncio.open_connection("127.0.0.1", 1)
    with pytest.raises(VirtualIoError, match="create_server"):
        await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    with pytest.raises(VirtualIoError, match="subprocess_exec"):
        await asyncio.create_subprocess_exec("true")
    with pytest.raises(VirtualIoError, match="add_reader"):
        loop.add_reader(0, print)
    with pytest.raises(VirtualIoError, match="getaddrinfo"):
        await loop.getaddrinfo("localhost", 80)
