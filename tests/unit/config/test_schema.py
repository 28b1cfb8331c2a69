"""The JSON schema and the reference page: what they say of a setting is what the loader accepts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from duologue.config.loader import load_config
from duologue.config.schema import Setting, config_schema, groups
from duologue.config.service import DuologueConfig

PAGE = Path(__file__).resolve().parents[3] / "docs" / "configuration.md"
SETTINGS = [setting for group in groups() for setting in group.settings]


def lookup(path: str) -> object:
    value: Any = msgspec.to_builtins(DuologueConfig())
    for part in path.split("."):
        value = value[part]
    return value


def test_the_schema_knows_every_key_of_the_defaults_and_refuses_others() -> None:
    schema = json.loads(config_schema())

    def walk(node: dict[str, Any], value: object) -> None:
        while "$ref" in node:
            node = schema["$defs"][node["$ref"].rpartition("/")[2]]
        if isinstance(value, dict) and "properties" in node:
            assert node["additionalProperties"] is False
            for key, inner in value.items():
                walk(node["properties"][key], inner)

    walk(schema, msgspec.to_builtins(DuologueConfig()))


def test_every_setting_stands_once() -> None:
    paths = [setting.path for setting in SETTINGS if not setting.path.startswith("session.turn_detection.")]
    assert len(paths) == len(set(paths))
    names = {setting.path for setting in SETTINGS}
    for path in ("server.port", "sessions.replica_groups", "pipeline.stages[…].devices", "pipeline.edges[…].prewarm"):
        assert path in names


@pytest.mark.parametrize(
    "setting",
    [s for s in SETTINGS if s.variable and not s.path.startswith(("session.", "pipeline."))],
    ids=lambda s: s.path,
)
def test_a_default_is_what_is_there_without_a_file_and_its_variable_is_accepted(setting: Setting) -> None:
    value = json.loads(json.dumps(lookup(setting.path)))
    assert json.loads(setting.default) == value
    text = yaml.safe_dump(value, default_flow_style=True).removesuffix("...\n").strip()
    loaded = load_config(None, {setting.variable: text})
    assert loaded == DuologueConfig()


def test_kinds_of_detection_are_told_apart_by_their_tag() -> None:
    tags = [setting.kind for setting in SETTINGS if setting.path == "session.turn_detection.type"]
    assert tags == ["`server_vad`", "`semantic_vad`"]


def test_the_examples_of_the_page_can_be_used(tmp_path: Path) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        file = tmp_path / "config.yaml"
        file.write_text(block)
        assert load_config(file) != DuologueConfig()
