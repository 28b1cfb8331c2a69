"""The whole program while people talk to it: it is told to stop, is stopped and continued, or is killed."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import signal
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.integration.faults.test_edges import MARK, marked
from tests.integration.server.loopback import eventually, on_loop
from tests.integration.server.test_program import PATIENCE_S, ended, start

TALKERS = 3
APPEND = json.dumps({"type": "input_audio_buffer.append", "audio": base64.b64encode(b"\x10\x27" * 1_280).decode()})


async def flood(socket: ClientConnection) -> None:
    """Append as fast as the server reads, until it closes."""
    try:
        while True:
            await socket.send(APPEND)
            await asyncio.sleep(0)  # else this client never reads
    except ConnectionClosed:
        pass


async def heard(socket: ClientConnection) -> list[str]:
    """The types of all frames up to the close."""
    types = []
    try:
        async for frame in socket:
            types.append(json.loads(frame)["type"])
    except ConnectionClosed:
        pass
    return types


def under_load(
    folder: Path,
    strike: Callable[[asyncio.subprocess.Process, list[ClientConnection]], Awaitable[None]],
    *,
    plugin: str = "scripted",
    options: str = "{}",
) -> tuple[list[list[str]], list[int | None], int | None]:
    """What each client heard, how its socket closed, and the exit code, with ``strike`` done to a busy server."""
    result: list[tuple[list[list[str]], list[int | None], int | None]] = []

    @on_loop
    async def run() -> None:
        process = await start(
            folder,
            f"server: {{port: 0}}\nmodel: {{plugin: {plugin}, options: {options}}}\n"
            f"sessions: {{max_sessions: {TALKERS}}}\n",
        )
        try:
            assert process.stdout is not None
            line = (await process.stdout.readline()).decode()
            found = re.search(r"ws://127\.0\.0\.1:\d+", line)
            assert found is not None, line
            url = f"{found.group()}/v1/duplex?model={plugin}"
            sockets = [await connect(url, compression=None) for _ in range(TALKERS)]
            for socket in sockets:
                assert json.loads(await socket.recv())["type"] == "session.created"
            floods = [asyncio.create_task(flood(socket)) for socket in sockets]
            async with asyncio.timeout(PATIENCE_S):
                await strike(process, sockets)
                types = await asyncio.gather(*(heard(socket) for socket in sockets))
                await asyncio.gather(*floods)
            code, _ = await ended(process)
            result.append((types, [socket.close_code for socket in sockets], code))
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    run()
    return result[0]


def test_a_busy_server_that_is_told_to_stop_ends_every_session_in_order(tmp_path: Path) -> None:
    async def strike(process: asyncio.subprocess.Process, sockets: list[ClientConnection]) -> None:
        process.send_signal(signal.SIGTERM)

    types, codes, exit_code = under_load(tmp_path, strike)
    assert [heard.count("session.closed") for heard in types] == [1] * TALKERS
    assert [heard[-1] for heard in types] == ["session.closed"] * TALKERS
    assert codes == [1001] * TALKERS
    assert exit_code == 0


def test_a_server_that_was_stopped_and_continued_goes_on(tmp_path: Path) -> None:
    async def strike(process: asyncio.subprocess.Process, sockets: list[ClientConnection]) -> None:
        process.send_signal(signal.SIGSTOP)
        process.send_signal(signal.SIGCONT)
        for socket in sockets:
            await socket.send(json.dumps({"type": "session.heartbeat", "event_id": "beat"}))
            while json.loads(await socket.recv())["type"] != "session.heartbeat_ack":
                pass
        process.send_signal(signal.SIGTERM)

    types, codes, exit_code = under_load(tmp_path, strike)
    assert [heard[-1] for heard in types] == ["session.closed"] * TALKERS
    assert (codes, exit_code) == ([1001] * TALKERS, 0)


def test_a_killed_server_is_noticed_by_everybody_at_once(tmp_path: Path) -> None:
    async def strike(process: asyncio.subprocess.Process, sockets: list[ClientConnection]) -> None:
        process.kill()

    types, codes, exit_code = under_load(tmp_path, strike)
    assert all("session.closed" not in heard for heard in types)
    assert codes == [1006] * TALKERS
    assert exit_code == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_worker_outlives_a_busy_server(
    number: signal.Signals, tmp_path: Path, models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    seen: list[int] = []

    async def strike(process: asyncio.subprocess.Process, sockets: list[ClientConnection]) -> None:
        seen.extend(marked(mark))
        process.send_signal(number)

    _, codes, exit_code = under_load(tmp_path, strike, plugin="native", options=f"{{models_dir: {models_dir}}}")
    assert len(seen) >= 2, "the server and a worker"
    assert codes == [1001 if number is signal.SIGTERM else 1006] * TALKERS
    assert exit_code == (0 if number is signal.SIGTERM else -number)
    on_loop(lambda: eventually(lambda: marked(mark) == []))()
