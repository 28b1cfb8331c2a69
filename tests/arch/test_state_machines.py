"""The drawing of the state machines is what the tables say, and would not be if a table changed."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from duologue.engine.duplex.core.tables import TABLES
from tests.arch.tree import REPOSITORY


def _script() -> ModuleType:
    path = REPOSITORY / "scripts" / "draw_state_machines.py"
    spec = importlib.util.spec_from_file_location("draw_state_machines", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


draw = _script()


def test_the_page_is_drawn_from_the_tables() -> None:
    assert draw.PAGE.read_text(encoding="utf-8") == draw.page()
    assert draw.main(["--check"]) == 0


def test_every_transition_is_in_the_page() -> None:
    page = draw.page()
    for name, table in TABLES.items():
        text = page[page.index(f"## {name}") :].split("\n## ")[0]
        for (state, event), after in table.items():
            arrows = [line for line in text.splitlines() if line.startswith(f"    {state} --> {after}: ")]
            assert len(arrows) == 1 and event in arrows[0].split(": ")[1].split(", ")


@pytest.mark.parametrize(
    "change",
    [
        {("open", "paused"): "closing"},  # a new event
        {("open", "close_begun"): "limbo"},  # a new state
    ],
)
def test_what_has_no_words_is_refused(change: dict[tuple[str, str], str]) -> None:
    tables = {**TABLES, "session": {**TABLES["session"], **change}}
    with pytest.raises(draw.Untold):
        draw.page(tables)


def test_a_changed_transition_changes_the_page() -> None:
    session = dict(TABLES["session"])
    del session["new", "close_begun"]
    assert draw.page({**TABLES, "session": session}) != draw.page()


def test_words_for_what_is_gone_are_refused() -> None:
    with pytest.raises(draw.Untold):
        draw.page({name: table for name, table in TABLES.items() if name != "lease"})


def test_a_page_that_is_not_current_is_noticed(tmp_path, monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(draw, "PAGE", tmp_path / "README.md")
    assert draw.main(["--check"]) == 1 and "run scripts/draw_state_machines.py" in capsys.readouterr().out
    assert draw.main([]) == 0 and draw.main(["--check"]) == 0
