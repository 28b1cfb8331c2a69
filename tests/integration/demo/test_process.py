"""A real server process: started, measured, stopped; and one that does not come up."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from duologue.demo.kill import sessions_left
from duologue.demo.process import ServerError, running_server

SCRIPTED = "model:\n  plugin: scripted\n"


def test_a_server_is_ready_measured_and_gone_afterwards(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(SCRIPTED)

    async def main() -> int:
        async with running_server(tmp_path / "server.log", arguments=[str(config)]) as server:
            assert await server.ready()
            assert await server.models() == ["scripted"]
            usage = server.measure()
            assert usage.rss_bytes > 10_000_000 and server.pid in usage.pids
            assert await sessions_left(server) == 0
            return server.pid

    pid = asyncio.run(main())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert "listening on" in (tmp_path / "server.log").read_text()


def test_a_server_that_cannot_start_is_told_in_its_own_words(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("server:\n  prot: 1\n")

    async def main() -> None:
        async with running_server(tmp_path / "server.log", arguments=[str(config)]):
            raise AssertionError("it started")

    with pytest.raises(ServerError, match=r"(?s)ended while starting.*server\.prot is not a known key"):
        asyncio.run(main())


def test_a_server_that_dies_is_told_at_the_end(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(SCRIPTED)

    async def main() -> None:
        async with running_server(tmp_path / "server.log", arguments=[str(config)]) as server:
            os.kill(server.pid, signal.SIGKILL)

    with pytest.raises(ServerError, match="exit code -9"):
        asyncio.run(main())


def test_a_server_is_stopped_when_the_conversation_breaks(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(SCRIPTED)
    pids = []

    async def main() -> None:
        async with running_server(tmp_path / "server.log", arguments=[str(config)]) as server:
            pids.append(server.pid)
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        asyncio.run(main())
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)
