"""The table of pinned files agrees with itself, with the pages about it and with what loads the files."""

from __future__ import annotations

from duologue.setup.weights import WEIGHTS, WHEEL_SIZE_BYTES
from tests.arch.tree import REPOSITORY


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
