"""The server as a process of its own: started, waited for, measured, stopped.

Rules kept here: it listens on a free loopback port; its output goes to a file and nowhere else; it is always stopped,
first politely; if it does not come up, the error holds the end of its log. Only `subprocess` collects the child:
asyncio's own watcher loses the exit code when a signal is sent to a child that has just ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from duologue.demo.usage import Usage, usage_of

_READY_POLL_S = 0.1
_STOP_S = 15.0
_MEASURE_PERIOD_S = 0.5
_QUIET_LIBRARIES = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


class ServerError(Exception):
    """The server did not start, or did not stop. The text is for people."""


def free_port() -> int:
    """A loopback port that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class ServerProcess:
    """A running server. Made by `running_server`."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self._process = process
        self.port = port
        self.log = log
        self.peak_rss_bytes = 0
        self.last_usage = Usage(cpu_s=0.0, rss_bytes=0, pids=())

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def measure(self) -> Usage:
        """Figures of the server with its workers now; remembers the most memory seen."""
        usage = usage_of(self.pid)
        if usage.pids:
            self.last_usage = usage
            self.peak_rss_bytes = max(self.peak_rss_bytes, usage.rss_bytes)
        return usage

    async def fetch(self, path: str) -> tuple[int, str]:
        """Status and body of GET `path`; status 0 if nobody answers."""
        return await asyncio.to_thread(_fetch, f"http://127.0.0.1:{self.port}{path}")

    async def ready(self) -> bool:
        """The server says that it can serve a new session."""
        return (await self.fetch("/ready"))[0] == 200

    async def models(self) -> list[str]:
        """Ids of the models that it serves; empty if it does not tell."""
        status, body = await self.fetch("/v1/models")
        if status != 200:
            return []
        try:
            return [str(entry["id"]) for entry in json.loads(body)["data"]]
        except (ValueError, KeyError, TypeError):
            return []

    def last_lines(self, count: int = 15) -> str:
        """The end of the log."""
        with contextlib.suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-count:])
        return ""

    async def stop(self) -> None:
        """Ask it to drain, and wait. Raises ServerError if it has to be killed, or ends with an error."""
        self._process.send_signal(signal.SIGINT)  # does nothing if it has ended
        try:
            code = await asyncio.to_thread(self._process.wait, _STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
            raise ServerError(
                f"the server did not stop within {_STOP_S:.0f} s and was killed; see {self.log}"
            ) from None
        if code not in (0, -signal.SIGINT, 130):
            raise ServerError(f"the server ended with exit code {code}; see {self.log}\n{self.last_lines()}")


def _fetch(url: str) -> tuple[int, str]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=2.0) as answer:
            return answer.status, answer.read().decode("utf-8", "replace")
    except urllib.error.HTTPError as fault:
        with fault:
            return fault.code, fault.read().decode("utf-8", "replace")
    except (OSError, ValueError):
        return 0, ""


@asynccontextmanager
async def running_server(
    log: Path, *, arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None, start_s: float = 60.0
) -> AsyncIterator[ServerProcess]:
    """A server on a free port for the length of the block, ready when it begins. Raises ServerError."""
    port = free_port()
    command = [sys.executable, "-m", "duologue.server", *arguments]
    address = {"DUOLOGUE__SERVER__HOST": "127.0.0.1", "DUOLOGUE__SERVER__PORT": str(port)}
    process = _start(command, log, {**_QUIET_LIBRARIES, **os.environ, **address, **(environment or {})})
    server = ServerProcess(process, port, log)
    meter = asyncio.create_task(_meter(server), name="demo-meter")
    try:
        await _until_ready(server, start_s)
        yield server
    except BaseException:
        with contextlib.suppress(ServerError):
            await server.stop()
        raise
    else:
        server.measure()
        await server.stop()
    finally:
        meter.cancel()
        await asyncio.gather(meter, return_exceptions=True)


def _start(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    with log.open("wb") as sink:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=environment,
            # Ctrl-C must reach us alone: we stop the server in order.
            start_new_session=True,
        )


async def _until_ready(server: ServerProcess, start_s: float) -> None:
    deadline_s = asyncio.get_running_loop().time() + start_s
    while not await server.ready():
        if not server.alive:
            raise ServerError(f"the server ended while starting; its last words:\n{server.last_lines()}")
        if asyncio.get_running_loop().time() > deadline_s:
            raise ServerError(
                f"the server was not ready within {start_s:.0f} s; its last words:\n{server.last_lines()}"
            )
        await asyncio.sleep(_READY_POLL_S)


async def _meter(server: ServerProcess) -> None:
    while True:
        server.measure()
        await asyncio.sleep(_MEASURE_PERIOD_S)
