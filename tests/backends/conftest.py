"""The tests of the heavy backends. They need Ray and vLLM, so only `make test-backends` collects them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

collect_ignore_glob = [] if os.environ.get("DUOLOGUE_TEST_BACKENDS") else ["*"]

pytest.register_assert_rewrite("tests.integration.backends.test_contract")


@pytest.fixture(scope="session")
def nodes() -> Iterator[object]:
    """A Ray cluster for the whole run. Imported here, so that tests of vLLM alone need no Ray."""
    from tests.backends.cluster import two_nodes

    with two_nodes() as found:
        yield found
