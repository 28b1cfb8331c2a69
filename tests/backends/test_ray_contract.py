"""The one contract of all backends, over Ray: every replica on the node that is not the driver's."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from tests.backends.cluster import Nodes, far_client
from tests.integration.backends import test_calls
from tests.integration.backends.replica import MAKERS
from tests.integration.backends.test_contract import *  # noqa: F403

BACKENDS = [("ray", "Parallel"), ("ray", "Asynchronous")]


@pytest.fixture(scope="module", autouse=True)
def ray_backend(nodes: Nodes) -> Iterator[None]:
    MAKERS["ray"] = partial(far_client, nodes)
    yield
    del MAKERS["ray"]


@pytest.mark.parametrize("stage", ["Parallel", "Asynchronous"])
def test_calls_are_answered_as_everywhere(stage: str) -> None:
    test_calls.test_answers_and_errors_come_back_beside_requests("ray", stage)
