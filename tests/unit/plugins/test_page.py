"""docs/plugins.md: its example is served as it stands in the page, and the page names every member and ability."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from duologue.config.loader import load_config
from duologue.engine.duplex import plugin, results
from duologue.sim.loop import VirtualRuntime, virtual
from tests.unit.native.server import host, sound

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "plugins.md").read_text(encoding="utf-8")
LONGEST_LINES = 80


def block(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    return str(found)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "parrot.py").write_text(block("python"), encoding="utf-8")
    (tmp_path / "parrot.yaml").write_text(block("yaml"), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield tmp_path
    sys.modules.pop("parrot", None)


def test_the_example_is_as_short_as_it_is_said_to_be() -> None:
    assert len(block("python").splitlines()) <= LONGEST_LINES


@virtual
async def _converse(runtime: VirtualRuntime, files: Path) -> None:
    settings = load_config(
        files / "parrot.yaml",
        {"DUOLOGUE__SESSION__TURN_DETECTION": "null", "DUOLOGUE__MODEL__OPTIONS": "{}"},
    )
    async with host(runtime, settings) as server, server.talker() as talker:
        for turn, length_ms in enumerate((500, 1_300), 1):
            await talker.stream(sound(length_ms))
            await talker.send("input_audio_buffer.commit")
            await talker.send("response.create")
            done = await talker.until("response.done", turn)
            assert done["response"]["status"] == "completed"
            (part,) = done["response"]["output"][0]["content"]
            assert part["transcript"] == f"{length_ms / 1000:.1f} seconds."
            said = talker.audio(done["response"]["id"])
            assert len(said) == 2 * 2 * 24 * length_ms
        await talker.stream(sound(3_000))
        await talker.send("input_audio_buffer.commit")
        await talker.send("response.create")
        await talker.until("response.output_audio.delta", 20)
        await talker.send("response.cancel")
        assert (await talker.until("response.done", 3))["response"]["status"] == "cancelled"
        await talker.send("session.update", session={"output_modalities": ["text"]})
        assert "does not write" in (await talker.until("error"))["error"]["message"]


def test_the_example_takes_part_in_a_conversation(files: Path) -> None:
    _converse(files)


def test_the_page_tells_of_every_member_every_result_and_every_ability() -> None:
    members = [name for name in vars(plugin.DuplexModelPlugin) if not name.startswith("_")]
    abilities = [
        name
        for name, value in vars(plugin).items()
        if inspect.isclass(value) and getattr(value, "_is_protocol", False) and value.__module__ == plugin.__name__
    ]
    said = [kind.__name__ for kind in results.ModelResult.__args__]
    assert len(members) > 5 and len(abilities) > 1 and len(said) > 4
    missing = [name for name in (*members, *abilities, *said) if f"`{name}" not in PAGE]
    assert not missing
