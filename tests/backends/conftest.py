"""The tests of the heavy backends. They need Ray and vLLM, so only `make test-backends` collects them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

collect_ignore_glob = [] if os.environ.get("DUOLOGUE_TEST_BACKENDS") else ["*"]

pytest.register_assert_rewrite("tests.integration.backends.test_contract")


@pytest.fixture(scope="session", autouse=True)
def _ended_in_order() -> Iterator[None]:
    """A run that is asked to end takes its cluster and its workers along, as one that is interrupted does."""
    before = signal.signal(signal.SIGTERM, lambda _number, _frame: pytest.exit("terminated", returncode=143))
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def nodes() -> Iterator[object]:
    """A Ray cluster for the whole run. Imported here, so that tests of vLLM alone need no Ray."""
    from tests.backends.cluster import two_nodes

    with two_nodes() as found:
        yield found
