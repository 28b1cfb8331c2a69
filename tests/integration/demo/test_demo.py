"""The demonstration itself, with the real models: everything but the figures, which depend on the machine."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from duologue.audio import read_wav
from duologue.demo.run import DemoOptions, run_demo


@pytest.mark.weights
@pytest.mark.alone
def test_four_turns_with_the_embedded_models(tmp_path: Path, models_dir: Path) -> None:
    notes: list[str] = []
    report = asyncio.run(run_demo(DemoOptions(out_dir=tmp_path, models_dir=models_dir), notes.append))
    assert report.failures == ()
    assert report.ok
    assert len(report.turns) == 4
    assert [turn.interrupted for turn in report.turns] == [False, False, True, False]
    assert all(turn.wer <= 0.35 for turn in report.turns)
    third = report.turns[2]
    assert third.assistant_text.startswith(third.assistant_text_heard)
    assert report.cpu_seconds > 1 and report.rss_mb > 200
    saved = json.loads((tmp_path / "report.json").read_text())
    assert saved["ok"] is True
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    kinds = {line["event"]["type"] for line in events}
    assert {"input_audio_buffer.append", "response.output_audio.delta", "overlap.decision", "session.closed"} <= kinds
    sound, _ = read_wav(tmp_path / "conversation.wav")
    assert len(sound) / 2 / 24_000 > 20
