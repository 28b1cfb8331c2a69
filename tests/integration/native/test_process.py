"""The native model in a worker process behind a listening server, served from the example file as it stands."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from duologue.config.loader import load_config
from duologue.engine.duplex_orchestrator import DuplexOrchestrator
from duologue.engine.stages.process import ProcessClient
from duologue.models.native.shape import RATE_HZ
from duologue.server.assembly import engine, serve_config
from duologue.server.engine import EngineFront
from duologue.server.serve import running
from tests.integration.server.loopback import FakeEngine, Frame, Server, Talker, eventually, on_loop
from tests.unit.native.alone import alone
from tests.unit.native.server import quiet, sound

FILE = Path(__file__).resolve().parents[3] / "examples" / "native.yaml"
HEARD = (sound(700) + quiet(3_300), quiet(400) + sound(1_200) + quiet(3_200))


def of(client: Talker, kind: str) -> list[Frame]:
    return [frame for frame in client.frames if frame["type"] == kind]


def spoken(client: Talker) -> bytes:
    return b"".join(base64.b64decode(delta["delta"]) for delta in of(client, "response.output_audio.delta"))


def statuses(client: Talker) -> list[str]:
    return [frame["response"]["status"] for frame in of(client, "response.done")]


async def hears(client: Talker, heard: bytes) -> None:
    await client.send("input_audio_buffer.append", audio=base64.b64encode(heard).decode())


async def converse(client: Talker, heard: bytes) -> bytes:
    """Everything at once; the answer comes at its own pace."""
    await client.until("session.created")
    await hears(client, heard)
    await client.until("response.done")
    return spoken(client)


@asynccontextmanager
async def served(models_dir: Path) -> AsyncIterator[Server]:
    """The server of the example file on a free port, sending as fast as the model speaks. Nothing may be left."""
    settings = load_config(
        FILE,
        {
            "DUOLOGUE__SERVER__PORT": "0",
            "DUOLOGUE__SESSIONS__SEND_AHEAD_MS": "null",
            "DUOLOGUE__MODEL__OPTIONS__MODELS_DIR": str(models_dir),
        },
    )
    assert settings.model.plugin == "native"
    async with running(serve_config(settings), lambda runtime: engine(settings, runtime)) as (listening, realtime):
        yield Server(FakeEngine(), listening, realtime)
        await eventually(lambda: not realtime.hub.sessions)


def kill_worker(host: Server) -> int:
    """End the model's one worker process as the kernel would; returns its id."""
    front = host.realtime.engine
    assert isinstance(front, EngineFront)
    orchestrator = front._orchestrator
    assert isinstance(orchestrator, DuplexOrchestrator)
    client = orchestrator.stage_pools[0].stage_client
    assert isinstance(client, ProcessClient) and client.pid is not None
    os.kill(client.pid, signal.SIGKILL)
    return client.pid


@on_loop
async def test_two_conversations_over_worker_processes(tmp_path: Path) -> None:
    async with served(tmp_path) as host, host.client() as first, host.client() as second:
        said = await asyncio.gather(converse(first, HEARD[0]), converse(second, HEARD[1]))
        assert list(said) == [alone(heard) for heard in HEARD]
    assert os.listdir(tmp_path) == ["native-1-0.npz"]


@pytest.mark.alone
@on_loop
async def test_a_conversation_outlives_its_worker_process(tmp_path: Path) -> None:
    """Killed between two answers nothing is heard of it; killed in mid-answer that answer is over and not said again."""
    async with served(tmp_path) as host, host.client("/v1/realtime?model=native&duplex=1") as client:
        await client.send("session.update", session={"audio": {"input": {"sample_rate_hz": RATE_HZ}}})
        await client.until("session.updated")
        await hears(client, HEARD[0])
        await client.until("response.done")
        first = kill_worker(host)
        await hears(client, HEARD[1])
        recovered = await client.until("session.recovered")
        assert (recovered["epoch"], recovered["placement_generation"]) == (1, 1)
        await client.until("response.done")
        assert statuses(client) == ["completed"] * 2
        assert spoken(client) == alone(b"".join(HEARD)), "nobody could tell that anything was lost"

        await hears(client, sound(1_000) + quiet(1_400))
        for _ in range(3):
            await client.until("response.output_audio.delta")
        assert kill_worker(host) != first
        await client.until("response.done")
        await hears(client, quiet(2_000) + sound(600) + quiet(4_000))
        await client.until("response.done")
        assert statuses(client) == ["completed", "completed", "failed", "completed"]
        ids = [frame["response"]["id"] for frame in of(client, "response.created")]
        assert len(ids) == len(set(ids)) == 4, "what was half said is not said again"
        assert [frame["placement_generation"] for frame in of(client, "session.recovered")] == [1, 2]
        assert [frame["error"]["code"] for frame in of(client, "error")] == ["replica_unavailable"]
        await client.send("session.close")
        await client.until("session.closed")
