"""Which replica gets a request, and which group of replicas a session: pure rules, without any state of their own.

Order of precedence for a request: a pin (exactly that replica or an error, never another), then where the request
already is, then where its session's resident context is, then round robin over the live replicas.

A group has one replica for every stage. A session gets the group that is least occupied, and keeps it for life.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from duologue.errors import ErrorCode, StageFault

MAX_SESSION_KEYS: Final = 4096
"""Of so many sessions a stage remembers which replica holds their context."""


def choose_replica(live: Sequence[int], *, cursor: int, pinned: int | None = None, resident: int | None = None) -> int:
    """The replica for a new request.

    ``live`` are the ids that can take work, ascending; ``cursor`` is the id chosen last by round robin (-1: none).
    ``resident`` holds the session's context, if it lives. Raises :class:`StageFault` (``replica_unavailable``).
    """
    if pinned is not None:
        if pinned not in live:
            raise StageFault(
                ErrorCode.REPLICA_UNAVAILABLE, f"Replica {pinned} is pinned for this request and is gone; start anew."
            )
        return pinned
    if not live:
        raise StageFault(ErrorCode.REPLICA_UNAVAILABLE, "No replica of this stage is up. Try again in a few seconds.")
    if resident is not None and resident in live:
        return resident
    return next_replica(live, cursor)


def next_replica(live: Sequence[int], cursor: int) -> int:
    """The live id after ``cursor``, wrapping round. ``live`` is ascending and not empty."""
    for replica_id in live:
        if replica_id > cursor:
            return replica_id
    return live[0]


def choose_group(
    groups: Mapping[int, Sequence[int]], occupancy: Mapping[tuple[int, int], int], *, cap: int, cursor: int
) -> int | None:
    """The group for a new session, or ``None`` if each is full.

    ``groups`` maps the number of each group whose every replica takes work to its replica ids, one per stage.
    ``occupancy`` counts the sessions at (stage, replica id); none may come to more than ``cap``. The group with the
    smallest (highest occupancy of a member relative to ``cap``, sum of occupancies) is chosen; among equals the next one
    after ``cursor``, the number chosen last (-1: none), round the numbers.
    """
    best: tuple[tuple[float, int, bool, int], int] | None = None
    for number, replicas in groups.items():
        taken = [occupancy.get((stage_id, replica_id), 0) for stage_id, replica_id in enumerate(replicas)]
        if max(taken) >= cap:
            continue
        order = (max(taken) / cap, sum(taken), number <= cursor, number)
        if best is None or order < best[0]:
            best = (order, number)
    return None if best is None else best[1]


def frontend_groups(groups: Sequence[Sequence[int]], frontends: int) -> tuple[tuple[int, ...], ...]:
    """Which groups, by number, each of several frontends over the same replicas owns: group g is frontend g mod F's.

    Raises ``ValueError`` when there are more frontends than groups, or when two frontends would share a replica: each
    counts its own sessions only, so the cap would not hold.
    """
    if not 1 <= frontends <= len(groups):
        raise ValueError(f"there must be 1 to {len(groups)} frontends, one group each at least, got {frontends}")
    owners: dict[tuple[int, int], int] = {}
    for number, group in enumerate(groups):
        for stage_id, replica in enumerate(group):
            owner = owners.setdefault((stage_id, replica), number % frontends)
            if owner != number % frontends:
                raise ValueError(
                    f"replica {replica} of stage {stage_id} is in groups of frontends {owner} and {number % frontends}"
                )
    return tuple(tuple(range(frontend, len(groups), frontends)) for frontend in range(frontends))


def frontend_limit(
    groups: Sequence[Sequence[int]], *, frontend: int, frontends: int, max_sessions: int, cap: int
) -> int:
    """How many sessions a frontend admits: its fair share, low numbers taking the remainder, as far as its replicas go."""
    share = max_sessions // frontends + (frontend < max_sessions % frontends)
    owned = [groups[number] for number in frontend_groups(groups, frontends)[frontend]]
    return min(share, *(cap * len(set(replicas)) for replicas in zip(*owned, strict=True)))


class SessionKeys:
    """Where each session's resident context is. At most ``limit`` keys; the least recently used is forgotten."""

    __slots__ = ("_limit", "_where")

    def __init__(self, limit: int = MAX_SESSION_KEYS) -> None:
        self._limit = limit
        self._where: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._where)

    def find(self, key: str) -> int | None:
        """The replica that holds ``key``'s context, if any."""
        return self._where.get(key) if key else None

    def remember(self, key: str, replica_id: int) -> None:
        """``key``'s context is now at ``replica_id``. An empty key is ignored."""
        if not key:
            return
        self._where.pop(key, None)
        self._where[key] = replica_id
        if len(self._where) > self._limit:
            del self._where[next(iter(self._where))]

    def forget(self, key: str) -> None:
        """Nobody will ask for ``key`` again."""
        self._where.pop(key, None)

    def forget_replicas(self, gone: Collection[int]) -> None:
        """These replicas are gone with every context that they held."""
        self._where = {key: where for key, where in self._where.items() if where not in gone}
