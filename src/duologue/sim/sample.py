"""What an engine declares of itself at certain moments: the counters that checkers may read, beside what can be seen.

Rules kept here: a sample is what was declared and when, without a judgement; :mod:`duologue.sim.checkers.counters` judges.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Slots(NamedTuple):
    """A session asked to be opened, was opened or ended. ``placements``: sessions that have replicas of their own."""

    at: float
    held: int
    limit: int
    placements: int = 0


class Occupancy(NamedTuple):
    """How many sessions a replica carries, how many own it, and how many it may carry."""

    at: float
    stage: int
    replica: int
    carried: int
    owners: int
    cap: int


class Terminal(NamedTuple):
    """The end of a session leaves the engine. ``slot_released`` is what it says, ``held`` what is declared."""

    at: float
    session_id: str
    slot_released: bool
    held: bool


class Withdrawn(NamedTuple):
    """Content of a response is handed to a socket after it had been withdrawn."""

    at: float
    response_id: str


class Overflown(NamedTuple):
    """A resident model's context is given more units than fit into it, by nobody's haste."""

    at: float
    client: str
    limit: int


class Idle(NamedTuple):
    """A session in which nothing has happened for ``after_s``: its reservations, and its tables that are not empty."""

    after_s: float
    session_id: str
    reserved: Mapping[str, int]
    tables: Mapping[str, int]


class Left(NamedTuple):
    """What is not empty when everything must be: tables, reservations (``held.``) and slots, by name."""

    when: str
    tables: Mapping[str, int]


class Struck(NamedTuple):
    """``after_s`` after a strike: requests that the engine still has and no session knows."""

    after_s: float
    requests: tuple[str, ...]


Sample = Slots | Occupancy | Terminal | Withdrawn | Overflown | Idle | Left | Struck
