"""Room for tests that talk in real time: while one of them runs, the other processes of the same run wait.

Rules kept here: whoever wants to be alone is next, however many others come and go; without other processes nothing waits.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def room(folder: Path, *, alone: bool) -> Iterator[None]:
    """Be in the room that all processes share that name the same ``folder``, beside others or ``alone``."""
    # Two locks, for one alone starves who waits to be alone: the others hold it in turns and it is never free.
    with (folder / "door.lock").open("w") as door, (folder / "room.lock").open("w") as inside:
        fcntl.flock(door, fcntl.LOCK_EX)
        fcntl.flock(inside, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)
        yield
