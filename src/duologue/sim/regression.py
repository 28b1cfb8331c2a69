"""Plans that once failed, kept as data: each is run again by the tests.

Rules kept here: a regression holds the shrunk plan and not only the seed, so that it stays what it was when the swarm draws
other plans from the same seed.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from duologue.sim.plan import Plan


class Regression(msgspec.Struct, frozen=True, kw_only=True):
    """``rule`` is the invariant that was broken, ``why`` what was wrong."""

    rule: str
    why: str
    plan: Plan


def load(path: Path) -> Regression:
    """Raises ``msgspec.ValidationError`` if the file is not a regression."""
    return msgspec.json.decode(path.read_bytes(), type=Regression)


def save(regression: Regression, path: Path) -> None:
    """Write a file that :func:`load` reads."""
    plan = msgspec.structs.replace(regression.plan, keeps=())
    kept = msgspec.structs.replace(regression, plan=plan)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(kept), indent=1) + b"\n")
