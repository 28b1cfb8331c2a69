"""The example of docs/stages.md, served from its own configuration file as a reader would serve it."""

from __future__ import annotations

import base64
from pathlib import Path

import msgspec
import pytest
from openai import AsyncOpenAI

from duologue.config.loader import load_config
from duologue.config.service import DuologueConfig
from duologue.server.assembly import engine, serve_config
from duologue.server.serve import running
from tests.integration.server.loopback import FakeEngine, Server, on_loop

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
FILE = EXAMPLES / "two_stage" / "config.yaml"
LONGEST_LINES = 60

pytestmark = pytest.mark.weights  # speech detection has weights, whatever the model


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> DuologueConfig:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return load_config(FILE, {"DUOLOGUE__SERVER__PORT": "0"})


def test_it_is_as_short_as_the_page_says() -> None:
    for name in ("stages.py", "plugin.py"):
        assert len((FILE.parent / name).read_text(encoding="utf-8").splitlines()) <= LONGEST_LINES


@on_loop
async def test_a_conversation_and_a_chat_with_a_model_of_ones_own(settings: DuologueConfig) -> None:
    async with running(serve_config(settings), lambda runtime: engine(settings, runtime)) as (listening, realtime):
        host = Server(FakeEngine(), listening, realtime)
        async with host.client("/v1/realtime?model=toy") as client:
            await client.until("session.created")
            await client.send("session.update", session={"audio": {"input": {"turn_detection": None}}})
            await client.until("session.updated")
            second = base64.b64encode(bytes(2 * 24_000)).decode()
            await client.send("input_audio_buffer.append", audio=second)
            await client.send("input_audio_buffer.commit")
            await client.send("response.create")
            response = (await client.until("response.done"))["response"]
            assert response["status"] == "completed"
            (part,) = response["output"][0]["content"]
            assert part["transcript"].split() == ["I", "heard", "1.0", "seconds.", "I", "am", "a", "toy."]
            deltas = [frame for frame in client.frames if frame["type"] == "response.output_audio.delta"]
            heard = b"".join(base64.b64decode(frame["delta"]) for frame in deltas)
            assert len(heard) == 2 * 24_000 * 8 // 10, "a tenth of a second for each of eight words"

        base_url = f"{listening.url.replace('ws', 'http', 1)}/v1"
        async with AsyncOpenAI(base_url=base_url, api_key="none") as stock:
            chat = await stock.chat.completions.create(model="toy", messages=[{"role": "user", "content": "hello"}])
            assert chat.choices[0].message.content == "You wrote hello. I am a toy."


def test_the_file_is_what_config_check_accepts(settings: DuologueConfig) -> None:
    assert settings.pipeline is not None
    assert [stage.name for stage in settings.pipeline.stages] == ["answer", "speak"]
    assert msgspec.to_builtins(settings.pipeline.stages[1].options) == {"pitch_hz": 330.0}
