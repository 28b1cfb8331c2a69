"""The embedded server in a process of its own, for benchmarks (Linux)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_READY_TRIES = 1200
_STOP_S = 15.0


class EmbeddedServer:
    """A server that is ready."""

    def __init__(self, pid: int, port: int) -> None:
        self.pid = pid
        self.url = f"ws://127.0.0.1:{port}"

    def cpu_s(self) -> float:
        """CPU seconds of the server with its workers so far."""
        parents: dict[int, int] = {}
        spent: dict[int, float] = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
                spent[int(entry.name)] = (int(fields[11]) + int(fields[12])) / _TICKS
        tree = [self.pid]
        for pid in tree:
            tree.extend(child for child, parent in parents.items() if parent == pid)
        return sum(spent.get(pid, 0.0) for pid in tree)

    async def share(self, seconds: float) -> float:
        """CPU over ``seconds`` from now, as a share of one core."""
        before, began = self.cpu_s(), time.monotonic()
        await asyncio.sleep(seconds)
        return (self.cpu_s() - before) / (time.monotonic() - began)


@asynccontextmanager
async def embedded_server(max_sessions: int) -> AsyncIterator[EmbeddedServer]:
    """Start, wait until ready, stop."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    settings = {
        "DUOLOGUE__SERVER__PORT": str(port),
        "DUOLOGUE__SESSIONS__MAX_SESSIONS": str(max_sessions),
        "OPENBLAS_NUM_THREADS": "1",
    }
    process = _start({**os.environ, **settings})
    try:
        await _wait_ready(process, port)
        yield EmbeddedServer(process.pid, port)
    finally:
        process.terminate()
        try:
            await asyncio.to_thread(process.wait, _STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait)


def _start(environment: dict[str, str]) -> subprocess.Popen[bytes]:
    # Not asyncio's: its watcher and whoever sends a signal would both collect the child, and the exit code could be lost.
    return subprocess.Popen(
        [sys.executable, "-m", "duologue.server"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


async def _wait_ready(process: subprocess.Popen[bytes], port: int) -> None:
    for _ in range(_READY_TRIES):
        if process.poll() is not None:
            raise SystemExit(f"the server ended with exit code {process.returncode} before it was ready")
        with contextlib.suppress(OSError):
            answer = await asyncio.to_thread(urllib.request.urlopen, f"http://127.0.0.1:{port}/ready")
            if answer.status == 200:
                return
        await asyncio.sleep(0.1)
    raise SystemExit("the server did not become ready")
