"""Bounds of ordinary requests as configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from duologue.config.loader import ConfigError, load_config
from duologue.config.turns import TurnLimits


def write(folder: Path, text: str) -> Path:
    path = folder / "duologue.yaml"
    path.write_text(text)
    return path


def test_bounds_are_set_by_file_and_environment(tmp_path: Path) -> None:
    path = write(tmp_path, "server: {turns: {max_running: 5, max_waiting: 0}}")
    turns = load_config(path, {"DUOLOGUE__SERVER__TURNS__KEEP_ALIVE_S": "3"}).server.turns
    assert (turns.max_running, turns.max_waiting, turns.keep_alive_s) == (5, 0, 3.0)
    assert load_config(None).server.turns == TurnLimits()


@pytest.mark.parametrize(
    ("text", "about"),
    [
        ("{max_running: 0}", "server.turns.max_running must be greater than 0, got 0"),
        ("{max_waiting: -1}", "max_waiting"),
        ("{max_held_bytes: 5}", "max_held_bytes must be at least max_body_bytes"),
        ("{pause_bytes: 100000000}", "max_unread_bytes must be greater than pause_bytes"),
        ("{max_runing: 3}", "did you mean 'max_running'"),
    ],
)
def test_bounds_that_make_no_sense_are_named(tmp_path: Path, text: str, about: str) -> None:
    with pytest.raises(ConfigError, match=about):
        load_config(write(tmp_path, f"server: {{turns: {text}}}"))
