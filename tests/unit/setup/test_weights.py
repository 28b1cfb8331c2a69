"""The table of pinned files agrees with itself, with the pages about it and with what loads the files."""

from __future__ import annotations

import ast

from duologue.setup.weights import WEIGHTS, WHEEL_SIZE_BYTES
from tests.arch.tree import REPOSITORY, module_files, within


def test_names_are_unique_and_plain() -> None:
    names = [weight.name for weight in WEIGHTS]
    assert len(set(names)) == len(names)
    assert all("/" not in name and not name.startswith(".") for name in names)


def test_every_wheel_has_a_size_for_the_bar() -> None:
    assert set(WHEEL_SIZE_BYTES) == {weight.requirement for weight in WEIGHTS}


def test_the_documentation_lists_every_file_with_its_package_and_licence() -> None:
    page = (REPOSITORY / "docs" / "dependencies.md").read_text(encoding="utf-8")
    for weight in WEIGHTS:
        row = f"| `{weight.name}` | `{weight.requirement}` | {weight.size_bytes / 1e6:.1f} MB | {weight.licence} |"
        assert row in page, f"docs/dependencies.md lacks: {row}"


def test_every_model_file_that_the_package_names_is_fetched_by_set_up() -> None:
    kinds = (".onnx", ".ort", ".gguf", ".bin")
    named = {
        node.value
        for module, path in module_files().items()
        if not within(module, "duologue.setup")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if node.value.endswith(kinds) and " " not in node.value and node.value not in kinds
    }
    assert named, "the embedded default names its files"
    assert named <= {weight.name for weight in WEIGHTS}
