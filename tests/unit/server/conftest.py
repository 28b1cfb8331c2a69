"""At the end of every test of a connection the simulator's checkers judge what its clients read (see ``reading.py``)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.server import driver
from tests.unit.server.reading import found


@pytest.fixture(autouse=True)
def _judged() -> Iterator[None]:
    driver.WORLDS.clear()
    yield
    wrong = [text for world in driver.WORLDS for text in found(world.clients)]
    driver.WORLDS.clear()
    assert not wrong, "\n".join(wrong)
