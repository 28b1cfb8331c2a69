"""The server as a process: it says where it listens, and an interrupt ends sessions, sockets and the process in order."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest
from websockets.asyncio.client import connect

from tests.integration.server.loopback import PATIENCE_S, on_loop


async def start(folder: Path, text: str) -> asyncio.subprocess.Process:
    file = folder / "config.yaml"
    file.write_text(text)
    quiet = {name: value for name, value in os.environ.items() if not name.startswith("DUOLOGUE__")}
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "duologue.server", str(file)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=quiet,
    )


async def ended(process: asyncio.subprocess.Process) -> tuple[int | None, str]:
    async with asyncio.timeout(PATIENCE_S):
        _, errors = await process.communicate()
    return process.returncode, errors.decode()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_drains(number: signal.Signals, tmp_path: Path) -> None:
    @on_loop
    async def run() -> None:
        process = await start(tmp_path, "server: {port: 0}\nmodel: {plugin: scripted}\n")
        try:
            assert process.stdout is not None
            line = (await process.stdout.readline()).decode()
            found = re.search(r"ws://127\.0\.0\.1:\d+", line)
            assert found is not None, line
            async with connect(found.group() + "/v1/duplex?model=scripted", compression=None) as socket:
                assert json.loads(await socket.recv())["type"] == "session.created"
                process.send_signal(number)
                frames = [json.loads(frame) async for frame in socket]  # 1001 ends the iteration
            assert frames[-1]["type"] == "session.closed"
            assert frames[-1]["reason"] == "shutdown"
            assert socket.close_code == 1001
            code, errors = await ended(process)
            assert (code, [text for text in errors.splitlines() if "ERROR" in text]) == (0, [])
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    run()


def test_what_it_cannot_do_is_one_line(tmp_path: Path) -> None:
    @on_loop
    async def run() -> None:
        process = await start(tmp_path, "server: {host: 0.0.0.0}\nmodel: {plugin: scripted}\n")
        code, errors = await ended(process)
        assert code == 1
        assert "api_keys" in errors
        assert "Traceback" not in errors

    run()


@pytest.mark.parametrize("level", ["info", "debug"])
def test_a_stage_that_cannot_start_is_one_sentence_and_its_traceback_is_for_debugging(
    level: str, tmp_path: Path
) -> None:
    @on_loop
    async def run() -> None:
        process = await start(
            tmp_path,
            "server: {port: 0}\nsession: {turn_detection: null}\n"
            'model: {plugin: "duologue.models.native.plugin:NativePlugin"}\n'
            'pipeline: {stages: [{name: think, factory: "nowhere.to:BeFound"}]}\n'
            f"logging: {{level: {level}}}\n",
        )
        code, errors = await ended(process)
        assert code == 1
        assert errors.splitlines()[-1].startswith("duologue: Worker think-0 (process ")
        assert errors.endswith("could not start its stage: ModuleNotFoundError: No module named 'nowhere'.\n")
        if level == "debug":
            assert "make_stage" in errors, "where it happened"
        else:
            assert [line.partition(" (process")[0] for line in errors.splitlines()] == [
                "duologue: loading the model duologue.models.native.plugin:NativePlugin",
                "duologue: loading the stages think",
                "duologue: Worker think-0",
            ]

    run()
