"""Which session has which group of replicas (``replica_policy`` ``least_sessions``).

Rules kept here:

* a session reserves one replica of every stage and keeps them for life: its requests go there or fail, never elsewhere;
* a replica serves at most the configured number of sessions; one that several groups share is counted once per session;
* reserving again gives the same placement; releasing twice is harmless;
* what a session reserved and has lost is told by name when it is used; a rebuilt session gets a new placement, one
  generation later, and nothing moves by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from duologue.config.stage_config import ReplicaGroup
from duologue.engine.placement import choose_group
from duologue.engine.stage_pool import StagePool
from duologue.errors import ErrorCode, StageFault


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Where a session is: the number of its group and the replica ids, one per stage. ``generation`` counts from 0."""

    group: int
    replicas: tuple[int, ...]
    generation: int = 0


class Reservations:
    """The placements of all sessions over ``pools``. At most ``cap`` sessions per replica.

    ``groups`` ``None``: one per slot number that every stage has, replicas that are added later included.
    """

    def __init__(self, pools: Sequence[StagePool], *, cap: int, groups: Sequence[ReplicaGroup] | None = None) -> None:
        self._pools = pools
        self._cap = cap
        self._groups = None if groups is None else tuple(groups)
        self._placements: dict[str, Placement] = {}
        self._occupancy: Counter[tuple[int, int]] = Counter()
        self._cursor = -1

    def __len__(self) -> int:
        """How many sessions have a placement."""
        return len(self._placements)

    def get(self, session_id: str) -> Placement | None:
        """The placement of a session, if it has one."""
        return self._placements.get(session_id)

    def reserve(self, session_id: str) -> Placement | None:
        """A placement for a session: the one it has, else a new one. ``None``: no group has room and lives."""
        return self._placements.get(session_id) or self._place(session_id, 0)

    def replace(self, session_id: str) -> Placement | None:
        """A new placement, one generation later, for a session that is rebuilt. ``None`` leaves everything as it was.

        Raises ``KeyError`` for a session that has none.
        """
        old = self._placements[session_id]
        self._count(old, -1)
        new = self._place(session_id, old.generation + 1)
        if new is None:
            self._count(old, 1)
        return new

    def release(self, session_id: str) -> None:
        """The session needs no replica any more. Idempotent."""
        placement = self._placements.pop(session_id, None)
        if placement is not None:
            self._count(placement, -1)

    def route(self, session_id: str) -> Mapping[int, int]:
        """The replica id for each stage. Empty for a session without a placement.

        Raises :class:`StageFault` (``replica_unavailable``) when one of them is gone.
        """
        placement = self._placements.get(session_id)
        if placement is None:
            return {}
        for pool, replica_id in zip(self._pools, placement.replicas, strict=True):
            if replica_id not in pool.replicas.serving_ids():
                raise StageFault(
                    ErrorCode.REPLICA_UNAVAILABLE,
                    f"Replica {replica_id} of stage {pool.name}, which this session had, is gone; open a new session.",
                )
        return dict(enumerate(placement.replicas))

    def owners(self, stage_id: int, replica_id: int) -> list[str]:
        """The sessions that have this replica, oldest first."""
        return [name for name, placement in self._placements.items() if placement.replicas[stage_id] == replica_id]

    def occupancy(self) -> Mapping[tuple[int, int], int]:
        """Sessions per (stage, replica id); those with none are left out."""
        return dict(self._occupancy)

    def _place(self, session_id: str, generation: int) -> Placement | None:
        groups = self._live_groups()
        number = choose_group(groups, self._occupancy, cap=self._cap, cursor=self._cursor)
        if number is None:
            return None
        self._cursor = number
        placement = Placement(group=number, replicas=groups[number], generation=generation)
        self._placements[session_id] = placement
        self._count(placement, 1)
        return placement

    def _live_groups(self) -> dict[int, tuple[int, ...]]:
        """Groups whose every member takes work, with the ids that the members have now."""
        live = [pool.replicas.live_slots() for pool in self._pools]
        groups = self._groups
        if groups is None:
            groups = tuple((slot,) * len(live) for slot in range(max(live[0], default=-1) + 1))
        return {
            number: tuple(slots[slot] for slot, slots in zip(group, live, strict=True))
            for number, group in enumerate(groups)
            if all(slot in slots for slot, slots in zip(group, live, strict=True))
        }

    def _count(self, placement: Placement, change: int) -> None:
        for member in enumerate(placement.replicas):
            self._occupancy[member] += change
            if not self._occupancy[member]:
                del self._occupancy[member]
