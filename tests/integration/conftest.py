"""At the end of every integration test the simulator's checkers judge what its engines said and its clients read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.server import loopback
from tests.integration.watch import watching
from tests.unit.server.reading import found


@pytest.fixture(autouse=True)
def _judged(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    loopback.TALKERS.clear()
    with watching(monkeypatch) as engines:
        yield
    wrong = [*found(loopback.TALKERS), *(text for engine in engines for text in engine.found())]
    loopback.TALKERS.clear()
    assert not wrong, "\n".join(wrong)
