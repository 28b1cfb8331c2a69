"""When a dead replica is started again."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


class RestartPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Delays double from ``first_s`` to ``longest_s``; a replica that lived for ``stable_s`` starts afresh."""

    first_s: float = 0.5
    longest_s: float = 10.0
    stable_s: float = 30.0


@dataclass(slots=True)
class Backoff:
    """The delay before each start of one slot."""

    policy: RestartPolicy
    failures: int = 0

    def next_delay_s(self, lived_s: float) -> float:
        """How long to wait before the next start, after a replica that lived for ``lived_s`` seconds."""
        if lived_s >= self.policy.stable_s:
            self.failures = 0
        delay_s = min(self.policy.longest_s, self.policy.first_s * 2.0 ** min(self.failures, 16))
        self.failures += 1
        return delay_s
