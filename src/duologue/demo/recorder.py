"""Every wire event of the conversation, with its direction and time, as JSON lines without audio.

Rules kept here: nothing is lost (frames that are no JSON are kept by their length), audio is replaced by its length,
and lines are in the order in which the frames passed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Literal

_BYTES_PER_SAMPLE = 2


class EventRecorder:
    """The `tap` of a client. `now` returns seconds; rates are those of the session's PCM16 formats."""

    def __init__(self, *, now: Callable[[], float], input_rate_hz: int, output_rate_hz: int) -> None:
        self._now = now
        self._rates = {"out": input_rate_hz, "in": output_rate_hz}
        self._lines: list[str] = []

    def __call__(self, direction: Literal["out", "in"], frame: bytes) -> None:
        entry: dict[str, object] = {"t_ms": round(1000 * self._now(), 1), "direction": direction}
        try:
            event = json.loads(frame)
        except ValueError:
            event = None
        if isinstance(event, dict):
            entry["event"] = self._without_audio(event, direction)
        else:
            entry["unreadable_bytes"] = len(frame)
        self._lines.append(json.dumps(entry, ensure_ascii=False))

    def _without_audio(self, event: dict[str, object], direction: str) -> dict[str, object]:
        field = {"input_audio_buffer.append": "audio", "response.output_audio.delta": "delta"}.get(
            str(event.get("type"))
        )
        encoded = event.get(field) if field else None
        if not isinstance(encoded, str) or field is None:
            return event
        size = len(encoded) * 3 // 4 - encoded[-2:].count("=")
        plain = {key: value for key, value in event.items() if key != field}
        return {**plain, f"{field}_ms": round(1000 * size / _BYTES_PER_SAMPLE / self._rates[direction], 1)}

    def __len__(self) -> int:
        return len(self._lines)

    def write(self, path: Path) -> None:
        """All lines so far, replacing the file."""
        path.write_text("".join(f"{line}\n" for line in self._lines), encoding="utf-8")
