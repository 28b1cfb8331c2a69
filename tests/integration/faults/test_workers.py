"""Workers at the edge: killed while they load, and stopped while everything is sent to them."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from duologue.clock import AsyncioRuntime
from duologue.engine.stages.process import ProcessClient
from duologue.errors import StageFault
from tests.integration.backends.replica import PATIENCE_S, SPEC, STAGES, Recorder, play, replica
from tests.integration.backends.test_process import process_of, until


def test_a_worker_that_is_killed_while_it_loads_fails_the_start_at_once() -> None:
    async def scenario() -> None:
        runtime = AsyncioRuntime()
        spec = SPEC.__class__(factory=f"{STAGES}:Blocking", environment=SPEC.environment, options={"load": "hang"})
        client = ProcessClient(spec, runtime=runtime)
        start = asyncio.create_task(client.start(Recorder()))
        try:
            await until(lambda: client.pid is not None)
            assert client.pid is not None
            os.kill(client.pid, signal.SIGKILL)
            with pytest.raises(StageFault, match="SIGKILL"):
                async with asyncio.timeout(PATIENCE_S):
                    await start
            assert not client.healthy
        finally:
            await client.close()
            await runtime.aclose()

    play(scenario)


def test_a_worker_that_reads_nothing_fills_its_socket_and_nobody_waits_for_it() -> None:
    async def scenario() -> None:
        async with replica("process", "Blocking", heartbeat_s=0.1, heartbeat_timeout_s=2.0) as one:
            pid = process_of(one)
            os.kill(pid, signal.SIGSTOP)
            with pytest.raises(StageFault, match="not running"):  # who waits is told when it is given up
                async with asyncio.timeout(PATIENCE_S):
                    for number in range(1_000):  # sixty megabytes: more than any socket holds
                        await one.submit(f"r{number}", "echo x", audio=bytes(60_000))
            await one.sink.until(lambda: bool(one.sink.deaths))
            assert "has not answered" in str(one.sink.deaths[0])
            await until(lambda: not Path(f"/proc/{pid}").exists())

    play(scenario)


def resident_kib(pid: int) -> int:
    """How much memory a process has of its own, in KiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


def test_field_F29_requests_that_are_cut_leave_nothing_in_the_worker() -> None:
    """Five hundred, each with 200 kB of input and cut at its fifth output: the worker is as large as after a hundred."""

    async def scenario() -> None:
        async with replica("process", "Blocking") as one:
            size: list[int] = []
            for number in range(500):
                name = f"r{number}"
                await one.submit(name, "flood", final=False, audio=bytes(200_000))
                await one.sink.until(lambda name=name: len(one.sink.of(name)) >= 5)  # type: ignore[misc]
                await one.client.abort([name])
                one.sink.outputs.clear()
                if number in (99, 499):
                    assert (await one.ask(f"last{number}", "echo x"))[-1].finished
                    size.append(resident_kib(process_of(one)))
            assert size[1] - size[0] < 4_000  # KiB, of the 80 MB that came

    play(scenario)
