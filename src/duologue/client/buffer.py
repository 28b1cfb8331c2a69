"""A queue between the reader, which must never wait, and one consumer, who may be slow.

Rules kept here: putting never blocks; at the bound the oldest entry that may be dropped goes, and if there is none the
oldest of all; what was dropped is counted; entries come out in the order they went in.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


def _weightless(_: object) -> int:
    return 0


def _any(_: object) -> bool:
    return True


class Buffer(Generic[T]):
    """At most `max_entries`, weighing together at most `max_weight` (the newest entry is always kept)."""

    def __init__(
        self,
        *,
        max_entries: int,
        max_weight: int = 0,
        weight: Callable[[T], int] = _weightless,
        droppable: Callable[[T], bool] = _any,
    ) -> None:
        self._entries: deque[T] = deque()
        self._max_entries = max_entries
        self._max_weight = max_weight
        self._weigh = weight
        self._droppable = droppable
        self._weight = 0
        self._changed = asyncio.Event()
        self._closed = False
        self.dropped = 0
        self.dropped_weight = 0

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, entry: T) -> list[T]:
        """Add an entry; returns those that had to go for it."""
        self._entries.append(entry)
        self._weight += self._weigh(entry)
        gone = []
        while len(self._entries) > 1 and self._too_much():
            gone.append(self._drop())
        self._changed.set()
        return gone

    def close(self) -> None:
        """Nothing more will come: what is here can still be taken."""
        self._closed = True
        self._changed.set()

    async def take(self) -> T | None:
        """The oldest entry, waiting for one; ``None`` once the buffer is closed and empty."""
        while not self._entries:
            if self._closed:
                return None
            self._changed.clear()
            await self._changed.wait()
        entry = self._entries.popleft()
        self._weight -= self._weigh(entry)
        return entry

    def _too_much(self) -> bool:
        return len(self._entries) > self._max_entries or self._weight > self._max_weight > 0

    def _drop(self) -> T:
        # The newest entry stays, so the search leaves it out.
        last = len(self._entries) - 1
        index = next((i for i in range(last) if self._droppable(self._entries[i])), 0)
        entry = self._entries[index]
        del self._entries[index]
        weight = self._weigh(entry)
        self._weight -= weight
        self.dropped += 1
        self.dropped_weight += weight
        return entry
