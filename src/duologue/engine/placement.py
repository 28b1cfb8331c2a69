"""Which replica gets a request: pure rules over replica ids, without any state of their own.

Order of precedence: a pin (exactly that replica or an error, never another), then where the request already is, then
where its session's resident context is, then round robin over the live replicas.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from duologue.errors import ErrorCode, StageFault


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


class SessionKeys:
    """Where each session's resident context is. At most ``limit`` keys; the least recently used is forgotten."""

    __slots__ = ("_limit", "_where")

    def __init__(self, limit: int = 4096) -> None:
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
