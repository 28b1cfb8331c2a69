"""The pages say what the code says."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from duologue.errors import ErrorCode
from duologue.wire.decoder import DUPLEX_CLIENT_TYPES

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gen_docs", REPOSITORY / "scripts" / "gen_docs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_are_current(generator: ModuleType) -> None:
    for page in generator.PAGES:
        text = page.read_text(encoding="utf-8")
        assert text == generator.generated(text, page), "run python scripts/gen_docs.py"


def test_the_page_names_every_code_and_every_event(generator: ModuleType) -> None:
    text = generator.PROTOCOL.read_text(encoding="utf-8")
    assert [code for code in ErrorCode if f"| `{code.value}` |" not in text] == []
    assert [name for name in DUPLEX_CLIENT_TYPES if f"`{name}`" not in text] == []


def test_a_stale_page_and_a_missing_marker_are_noticed(generator: ModuleType) -> None:
    text = generator.PROTOCOL.read_text(encoding="utf-8")
    stale = text.replace("The frame is not valid JSON", "Something else")
    assert stale != text
    assert generator.generated(stale) == text
    with pytest.raises(ValueError, match="errors"):
        generator.generated(text.replace("<!-- end: errors -->", ""))
