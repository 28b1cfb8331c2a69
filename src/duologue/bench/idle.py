"""What idle sessions cost: ``python -m duologue.bench.idle [SESSIONS] [SECONDS]`` (Linux).

Starts the embedded server in a process of its own, opens the sessions over WebSockets, leaves them alone, and prints the CPU
time of the server with its workers as a share of one core, beside the same server without any session.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import time
import urllib.request
from pathlib import Path

from duologue.client import connect

_TICKS = os.sysconf("SC_CLK_TCK")
_PORT_TRIES = 1200


def _cpu_s(root: int) -> float:
    """CPU seconds of ``root`` and its descendants."""
    parents: dict[int, int] = {}
    spent: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(entry.name)] = int(fields[1])
        spent[int(entry.name)] = (int(fields[11]) + int(fields[12])) / _TICKS
    tree = [root]
    for pid in tree:
        tree.extend(child for child, parent in parents.items() if parent == pid)
    return sum(spent.get(pid, 0.0) for pid in tree)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _wait_ready(port: int) -> None:
    for _ in range(_PORT_TRIES):
        with contextlib.suppress(OSError):
            answer = await asyncio.to_thread(urllib.request.urlopen, f"http://127.0.0.1:{port}/ready")
            if answer.status == 200:
                return
        await asyncio.sleep(0.1)
    raise SystemExit("the server did not become ready")


async def _share(pid: int, seconds: float) -> float:
    """CPU of the process tree over ``seconds``, as a share of one core."""
    before, began = _cpu_s(pid), time.monotonic()
    await asyncio.sleep(seconds)
    return (_cpu_s(pid) - before) / (time.monotonic() - began)


async def measure(sessions: int, seconds: float) -> None:
    """Print the shares."""
    port = _free_port()
    settings = {
        "DUOLOGUE__SERVER__PORT": str(port),
        "DUOLOGUE__SESSIONS__MAX_SESSIONS": str(sessions),
        "OPENBLAS_NUM_THREADS": "1",
    }
    server = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "duologue.server",
        env={**os.environ, **settings},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        await _wait_ready(port)
        await asyncio.sleep(20.0)  # the language model's slots are still being warmed
        alone = await _share(server.pid, seconds)
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(sessions):
                await stack.enter_async_context(connect(f"ws://127.0.0.1:{port}"))
            idle = await _share(server.pid, seconds)
        print(f"without sessions: {alone:.3%} of a core")
        print(f"with {sessions} idle sessions: {idle:.3%} of a core ({idle - alone:+.3%} for the sessions together)")
    finally:
        server.terminate()
        await server.wait()


def main() -> None:
    """Read the arguments and measure."""
    sessions = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 20.0
    asyncio.run(measure(sessions, seconds))


if __name__ == "__main__":
    main()
