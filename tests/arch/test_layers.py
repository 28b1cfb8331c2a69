"""The layer table holds, and the check that says so can fail."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

from tests.arch.tree import BARE_PACKAGES, FIXTURES, PACKAGE, REPOSITORY, layer_rows, module_files, row_of


def test_no_module_imports_from_a_higher_row(capsys: pytest.CaptureFixture[str]) -> None:
    status = lint_imports(config_filename=str(REPOSITORY / "pyproject.toml"), no_cache=True, no_logo=True)
    assert status == 0, capsys.readouterr().out


def test_every_module_stands_in_a_row() -> None:
    lost = [name for name in module_files() if name not in BARE_PACKAGES and row_of(name) is None]
    assert not lost, f"add to the layer table in pyproject.toml, each in its row: {lost}"


def test_packages_outside_the_table_hold_nothing_but_their_docstring_and_version() -> None:
    for name, path in module_files().items():
        if name in BARE_PACKAGES:
            statements = ast.parse(path.read_text(encoding="utf-8")).body
            kinds = {type(statement) for statement in statements} - {ast.Expr, ast.Assign, ast.AnnAssign}
            assert not kinds, f"{name} stands in no row, so it may import and define nothing"


def _config_for(package: str, folder: Path) -> Path:
    """The real table with the root renamed, so that the fixture is judged by the same rows."""
    rows = [" : ".join(f"({package}{name.removeprefix(PACKAGE)})" for name in row) for row in layer_rows()]
    layers = "\n".join(f"    {row}" for row in reversed(rows))
    config = folder / "importlinter.ini"
    config.write_text(
        f"[importlinter]\nroot_package = {package}\n"
        f"[importlinter:contract:layers]\nname = layers\ntype = layers\nlayers =\n{layers}\n"
    )
    return config


@pytest.mark.parametrize(
    ("package", "broken_by"),
    [
        ("tangled", ["tangled.errors -> tangled.cli", "tangled.engine.duplex.core -> tangled.engine.pacing"]),
        ("tidy", []),
    ],
)
def test_the_check_finds_what_breaks_the_table(
    package: str,
    broken_by: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.syspath_prepend(str(FIXTURES))
    monkeypatch.chdir(REPOSITORY)
    config = _config_for(package, tmp_path)
    status = lint_imports(config_filename=str(config), no_cache=True, no_logo=True)
    report = capsys.readouterr().out
    assert (status != 0) == bool(broken_by), report
    for breach in broken_by:
        assert breach in report
