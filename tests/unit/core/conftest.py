"""At the end of every test of the state machine the checkers of the simulator judge each session that it drove."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.core import harness


@pytest.fixture(autouse=True)
def _judged() -> Iterator[None]:
    harness.WORLDS.clear()
    yield
    found = [violation for world in harness.WORLDS for violation in world.judge()]
    harness.WORLDS.clear()
    assert not found, "\n".join(f"{violation.rule}: {violation.text}" for violation in found)
