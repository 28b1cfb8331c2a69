"""The examples of docs/client.md do what the page says, against a real server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from duologue.audio import write_wav
from tests.integration.client.served import scripted_server

PAGE = Path(__file__).parents[3] / "docs" / "client.md"
EXAMPLES = re.findall(r"## ([^\n]+)\n(?:(?!\n## ).)*?```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
PRINTED = {
    "A spoken turn": "answer: completed",
    "Everything that happens": "says: ",
    "Playback": "",
    "Functions that the model may call": "Sentence 1 about sunny in Rome.",
    "When the connection is lost": "session duplex-",
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with scripted_server() as address:
        yield address


def test_every_example_is_here() -> None:
    assert {title for title, _ in EXAMPLES} == set(PRINTED)
    assert PAGE.read_text().count("```python") == len(EXAMPLES)


@pytest.mark.parametrize(("title", "code"), EXAMPLES, ids=[title for title, _ in EXAMPLES])
def test_example(
    title: str, code: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    time_s = np.arange(16_000) / 16_000
    write_wav(tmp_path / "question.wav", (8000 * np.sin(2 * np.pi * 300 * time_s)).astype("<i2").tobytes(), 16_000)
    monkeypatch.chdir(tmp_path)
    assert "ws://127.0.0.1:8765" in code
    exec(compile(code.replace("ws://127.0.0.1:8765", url), f"{PAGE}: {title}", "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    assert PRINTED[title] in printed
    assert "error:" not in printed
