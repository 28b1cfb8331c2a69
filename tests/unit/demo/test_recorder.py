"""The record of wire events."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from duologue.demo.recorder import EventRecorder


def test_audio_is_replaced_by_its_length_and_order_is_kept(tmp_path: Path) -> None:
    times = iter((0.5, 0.75, 1.0, 1.25))
    recorder = EventRecorder(now=lambda: next(times), input_rate_hz=16_000, output_rate_hz=24_000)
    audio = base64.b64encode(bytes(3200)).decode()
    recorder("out", json.dumps({"type": "input_audio_buffer.append", "audio": audio}).encode())
    recorder("in", json.dumps({"type": "response.output_audio.delta", "delta": audio, "response_id": "r"}).encode())
    recorder("in", json.dumps({"type": "response.output_audio_transcript.delta", "delta": "Hi"}).encode())
    recorder("in", b"\xff")
    recorder.write(tmp_path / "events.jsonl")
    text = (tmp_path / "events.jsonl").read_text()
    assert audio not in text
    assert [json.loads(line) for line in text.splitlines()] == [
        {"t_ms": 500.0, "direction": "out", "event": {"type": "input_audio_buffer.append", "audio_ms": 100.0}},
        {
            "t_ms": 750.0,
            "direction": "in",
            "event": {"type": "response.output_audio.delta", "response_id": "r", "delta_ms": 66.7},
        },
        {"t_ms": 1000.0, "direction": "in", "event": {"type": "response.output_audio_transcript.delta", "delta": "Hi"}},
        {"t_ms": 1250.0, "direction": "in", "unreadable_bytes": 1},
    ]
