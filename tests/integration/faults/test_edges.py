"""What a machine refuses or cuts off: a port that is taken, a disk that is full, a connection in the middle of a frame."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import socket
import struct
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from duologue.audio import write_wav
from duologue.models.scripted import silence, tone
from tests.integration.server.loopback import FakeEngine, eventually, on_loop, server
from tests.integration.server.test_program import PATIENCE_S, ended, start
from tests.unit.server.fake_engine import answer

MARK = "DUOLOGUE_TEST_MARK"
CUT_FRAME = b"\x81\xfe\x03\xe8" + b"mask" + b"the first of a thousand bytes"


@on_loop
async def test_a_reset_in_the_middle_of_a_frame_ends_that_session_alone() -> None:
    engine = FakeEngine(slots=10)
    async with server(engine) as host, host.client() as steady:
        await steady.next()
        (steady_id,) = engine.sessions
        async with host.client() as client:
            await client.next()
            assert len(engine.sessions) == 2
            wire = client.socket.transport
            wire.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            wire.write(CUT_FRAME)
            wire.abort()  # without lingering: a reset
        await eventually(lambda: set(engine.sessions) == {steady_id} and host.realtime.connections == 1)
        engine.say(steady_id, *answer("r", "i"))
        await steady.until("response.done")
        assert engine.subscriptions == 1


def marked(mark: str) -> list[int]:
    """Processes that inherited ``mark``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue  # gone, or somebody else's
            if f"{MARK}={mark}".encode() in environment:
                found.append(int(entry.name))
    return found


@pytest.mark.parametrize("plugin", ["scripted", "native"])
def test_a_port_that_is_taken_is_one_line_and_starts_no_worker(
    plugin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)

    @on_loop
    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            process = await start(tmp_path, f"server: {{port: {port}}}\nmodel: {{plugin: {plugin}}}\n")
            code, errors = await ended(process)
        assert code == 1
        assert str(port) in errors and "in use" in errors
        assert "Traceback" not in errors and len(errors.splitlines()) <= 2

    run()
    assert marked(mark) == []


def no_room(folder: Path) -> tuple[Path, Callable[[], None] | None, str]:
    del folder
    return Path("/dev/full"), None, "No space left on device"


def short_files(folder: Path) -> tuple[Path, Callable[[], None] | None, str]:
    return folder / "answer.wav", lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, 1_000)), "File too large"


@pytest.mark.parametrize("disk", [no_room, short_files])
def test_a_disk_that_is_full_is_one_line_and_the_server_serves_on(
    disk: Callable[[Path], tuple[Path, Callable[[], None] | None, str]], tmp_path: Path
) -> None:
    asked = tmp_path / "question.wav"
    write_wav(asked, tone(600, rate_hz=16_000) + silence(1_200, rate_hz=16_000), 16_000)

    @on_loop
    async def run() -> None:
        process = await start(tmp_path, "server: {port: 0}\nmodel: {plugin: scripted}\n")
        try:
            assert process.stdout is not None
            found = re.search(r"ws://127\.0\.0\.1:\d+", (await process.stdout.readline()).decode())
            assert found is not None

            async def talk(out: Path, before: Callable[[], None] | None) -> tuple[int | None, str]:
                code = "from duologue.cli.app import main; main()"
                options = ["talk", "--url", found.group(), "--wav", str(asked), "--fast", "--out", str(out)]
                talker = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-c", code, *options),
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.PIPE,
                    preexec_fn=before,
                    env=dict(os.environ),
                )
                async with asyncio.timeout(PATIENCE_S):
                    _, errors = await talker.communicate()
                return talker.returncode, errors.decode()

            out, before, message = disk(tmp_path)
            code, errors = await talk(out, before)
            assert code == 1 and message in errors and "Traceback" not in errors, errors
            code, errors = await talk(tmp_path / "good.wav", None)
            assert code == 0 and (tmp_path / "good.wav").stat().st_size > 1_000, errors
        finally:
            process.terminate()
            assert (await ended(process))[0] == 0

    run()
