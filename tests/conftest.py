"""What every test shares: one Hypothesis profile, no way out to the network, room, and the folder of model files.

Rules kept here: no test talks to any address but loopback, examples are the same in every run (so a failure
can be repeated), and nothing is judged by how long it took.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.room import room

# Inference libraries start one thread per core by default, which makes two shared cores slower, not faster.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile(
    "repeatable",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("search", deadline=None, max_examples=2000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


def _refuse_network(event: str, args: tuple[object, ...]) -> None:
    if event != "socket.connect":
        return
    address = args[1]
    if not isinstance(address, tuple):  # a Unix socket
        return
    host = str(address[0])
    if host != "localhost" and host != "::1" and not host.startswith("127."):
        raise RuntimeError(f"a test tried to reach {host}: tests may use loopback addresses only")


sys.addaudithook(_refuse_network)


@pytest.fixture(scope="session")
def models_dir() -> Path:
    """The folder with every model file; fails (never skips) with what to type when one is missing."""
    from duologue.setup import check_setup, default_models_dir

    folder: Path = default_models_dir()
    missing = check_setup(folder)
    if missing:
        names = ", ".join(entry.weight.name for entry in missing)
        pytest.fail(f"model files missing from {folder}: {names}. Type: make setup", pytrace=False)
    return folder


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Beside a test that needs the machine to itself no other process of this run has one."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return (yield)
    shared = item.config._tmp_path_factory.getbasetemp().parent  # type: ignore[attr-defined]
    with room(shared, alone=item.get_closest_marker("alone") is not None):
        return (yield)


@pytest.fixture(autouse=True)
def _unchanged_logging() -> Iterator[None]:
    """A command, server or linter under test may set up logging for the whole process: the next test must not notice."""
    logger = logging.getLogger("duologue")
    handlers, level, propagate = list(logger.handlers), logger.level, logger.propagate
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)
    logger.propagate = propagate
    for name, known in logging.root.manager.loggerDict.items():
        if name.partition(".")[0] == "duologue" and isinstance(known, logging.Logger):
            known.disabled = False  # logging.config disables the loggers that it does not name
