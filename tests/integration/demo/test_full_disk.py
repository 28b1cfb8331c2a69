"""A disk that is full when the demonstration writes what it recorded: told as such, and everything ends in order."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from duologue.audio import read_wav
from duologue.cli.app import main
from duologue.demo import run
from duologue.demo.conversation import Conversation
from duologue.demo.microphone import Utterance
from duologue.demo.process import ServerProcess
from duologue.demo.script import Script

SCRIPTED = "model: {plugin: scripted}\nlogging: {json: true}\n"


def demo(out: Path, full: str, monkeypatch: pytest.MonkeyPatch) -> ServerProcess:
    """``duologue demo`` with a short scene, in which the disk has no room left for the file ``full``. It exits with 1."""
    config = out.parent / "config.yaml"
    config.write_text(SCRIPTED)
    servers: list[ServerProcess] = []

    def no_script(_models: Path, _rate_hz: int) -> Script:
        silence = Utterance(text="", pcm16=b"", rate_hz=24_000, first_speech_sample=0, last_speech_sample=0)
        return Script(recording=silence, question=silence, long_request=silence, follow_up=silence)

    async def short_scene(conversation: Conversation, _script: Script) -> None:
        (out / full).symlink_to("/dev/full")
        await conversation.pause()

    original = ServerProcess.__init__

    def remember(self: ServerProcess, *given: object) -> None:
        original(self, *given)  # type: ignore[arg-type]
        servers.append(self)

    monkeypatch.setattr(ServerProcess, "__init__", remember)
    monkeypatch.setattr("duologue.cli.demo.check_setup", lambda _folder: [])
    monkeypatch.setattr(run, "write_script", no_script)
    monkeypatch.setattr(run, "four_turns", short_scene)
    monkeypatch.setattr(sys, "argv", ["duologue", "demo", "--config", str(config), "--out", str(out)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    (server,) = servers
    return server


@pytest.mark.parametrize("full", ["events.jsonl", "conversation.wav", "report.part"])
def test_a_full_disk_is_one_line_and_session_and_server_end_in_order(
    full: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "demo"
    server = demo(out, full, monkeypatch)
    errors = capsys.readouterr().err
    named = out / full.replace(".part", ".json")
    assert errors == f"duologue: No space left on device ({named})\n"
    assert not server.alive
    log = [json.loads(line) for line in server.log.read_text().splitlines() if line.startswith("{")]
    assert [entry["message"] for entry in log if entry["message"].startswith("session")] == [
        "session begins",
        "session is over",
    ]
    assert [entry for entry in log if entry["level"] in ("error", "critical")] == []
    # What there was room for is there; a report never is when something else is not.
    if full != "events.jsonl":
        assert len((out / "events.jsonl").read_text().splitlines()) > 3
    if full != "conversation.wav":
        assert len(read_wav(out / "conversation.wav")[0]) > 1_000
    assert not (out / "report.json").exists()
