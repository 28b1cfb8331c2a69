"""The native model in a worker process behind a listening server, served from the example file as it stands."""

from __future__ import annotations

import asyncio
import base64
import os
from pathlib import Path

from duologue.config.loader import load_config
from duologue.server.assembly import engine, serve_config
from duologue.server.serve import running
from tests.integration.server.loopback import FakeEngine, Server, Talker, eventually, on_loop
from tests.unit.native.alone import alone
from tests.unit.native.server import quiet, sound

FILE = Path(__file__).resolve().parents[3] / "examples" / "native.yaml"
HEARD = (sound(700) + quiet(3_300), quiet(400) + sound(1_200) + quiet(3_200))


async def converse(client: Talker, heard: bytes) -> bytes:
    """Everything at once; the answer comes at its own pace."""
    await client.until("session.created")
    await client.send("input_audio_buffer.append", audio=base64.b64encode(heard).decode())
    await client.until("response.done")
    deltas = [frame for frame in client.frames if frame["type"] == "response.output_audio.delta"]
    return b"".join(base64.b64decode(delta["delta"]) for delta in deltas)


@on_loop
async def test_two_conversations_over_worker_processes(tmp_path: Path) -> None:
    settings = load_config(
        FILE,
        {
            "DUOLOGUE__SERVER__PORT": "0",
            "DUOLOGUE__SESSIONS__SEND_AHEAD_MS": "null",
            "DUOLOGUE__MODEL__OPTIONS__MODELS_DIR": str(tmp_path),
        },
    )
    assert settings.model.plugin == "native"
    async with running(serve_config(settings), lambda runtime: engine(settings, runtime)) as (listening, realtime):
        host = Server(FakeEngine(), listening, realtime)
        async with host.client() as first, host.client() as second:
            said = await asyncio.gather(converse(first, HEARD[0]), converse(second, HEARD[1]))
            assert list(said) == [alone(heard) for heard in HEARD]
        await eventually(lambda: not realtime.hub.sessions)
    assert os.listdir(tmp_path) == ["native-1-0.npz"]
