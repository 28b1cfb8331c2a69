"""What the architecture tests look at: the layer table, the modules of the package, and their import statements.

The table is read from pyproject.toml, where import-linter reads it too: there is only one.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCE = REPOSITORY / "src"
PACKAGE = "duologue"
FIXTURES = Path(__file__).resolve().parent / "fixtures"

# These hold nothing but their docstring, so they stand in no row.
BARE_PACKAGES = (PACKAGE, f"{PACKAGE}.engine", f"{PACKAGE}.engine.duplex")


def layer_rows() -> tuple[tuple[str, ...], ...]:
    """The layer table, lowest row first, so that the index is the row's number."""
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = settings["tool"]["importlinter"]["contracts"]
    rows = [tuple(name.strip(" ()") for name in row.split(":")) for row in contract["layers"]]
    return tuple(reversed(rows))


def row_of(module: str) -> int | None:
    """The number of the row that holds `module` (dotted), or None when it stands in none."""
    for number, names in enumerate(layer_rows()):
        if any(within(module, name) for name in names):
            return number
    return None


def within(module: str, package: str) -> bool:
    """Whether `module` is `package` or lies below it."""
    return module == package or module.startswith(f"{package}.")


def module_files(source: Path = SOURCE, package: str = PACKAGE) -> dict[str, Path]:
    """Every module of `package` below `source`, by dotted name."""
    found = {}
    for path in sorted((source / package).rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@dataclass(frozen=True, slots=True)
class ImportStatement:
    """One imported name: `target` is dotted and absolute, and for `from a import b` it is `a.b`."""

    target: str
    line: int
    lazy: bool
    """Inside a function, so not run when the module is imported."""
    typing_only: bool
    """Below `if TYPE_CHECKING:`, so never run."""


def imports_of(path: Path, module: str) -> list[ImportStatement]:
    """Every import in a file, also those inside functions and `importlib.import_module("name")`."""
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    return list(_walk(tree, package, lazy=False, typing_only=False))


def _walk(node: ast.AST, package: str, *, lazy: bool, typing_only: bool) -> Iterator[ImportStatement]:
    for target in _targets(node, package):
        yield ImportStatement(target, getattr(node, "lineno", 0), lazy, typing_only)
    deferred = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    guarded = node.body if isinstance(node, ast.If) and _is_type_checking(node.test) else []
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, package, lazy=deferred, typing_only=typing_only or child in guarded)


def _is_type_checking(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else test.id if isinstance(test, ast.Name) else ""
    return name == "TYPE_CHECKING"


def _targets(node: ast.AST, package: str) -> list[str]:
    match node:
        case ast.Import():
            return [alias.name for alias in node.names]
        case ast.ImportFrom():
            origin = _absolute(node, package)
            return [f"{origin}.{alias.name}" for alias in node.names]
        case ast.Call(args=[ast.Constant(value=str(name)), *_]) if _called_name(node) in _IMPORTERS:
            return [name]
        case _:
            return []


_IMPORTERS = ("import_module", "__import__")


def _called_name(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if node.level == 0:
        return node.module or ""
    parents = package.split(".")
    kept = parents[: len(parents) - (node.level - 1)]
    return ".".join([*kept, node.module] if node.module else kept)
