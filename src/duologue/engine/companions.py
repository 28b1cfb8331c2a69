"""Companions of a request: further requests that live and end with their parent (classifier-free guidance).

A companion runs where its parent enters the pipeline, under another prompt. What it produced is kept until the parent
ends, and every piece that the parent hands on from its entry stage carries the outputs of all its companions.

Rules kept here:

* a companion counts as done only once its whole output is here;
* outputs are looked at, never consumed: every later piece of the parent carries the full set again;
* a parent that is done earlier waits, in its own lane and for a bounded time; a set that is still not complete then
  fails the parent, by the names of the roles that lack;
* everything about a parent is forgotten at once, and whoever waits is let go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from duologue.errors import ErrorCode, StageFault
from duologue.outputs import CompanionOutput

if TYPE_CHECKING:
    from duologue.clock import Runtime

MAX_COMPANIONS: Final = 8
"""How many companions one request may have."""


@dataclass(slots=True, eq=False)
class _Family:
    """The companions of one parent, by role: those that run, and what those that are done produced."""

    wait_s: float
    expected: dict[str, None] = field(default_factory=dict)
    running: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, CompanionOutput] = field(default_factory=dict)
    ready: asyncio.Future[bool] | None = None

    def missing(self) -> list[str]:
        return [role for role in self.expected if role not in self.outputs]

    def wake(self, complete: bool) -> None:
        if self.ready is not None and not self.ready.done():
            self.ready.set_result(complete)


@dataclass(slots=True, eq=False)
class CompanionTracker:
    """Which requests accompany which. A companion has one parent; a parent may have several companions, by role."""

    _families: dict[str, _Family] = field(default_factory=dict)
    _parents: dict[str, tuple[str, str]] = field(default_factory=dict)

    def expect(self, parent_id: str, roles: Sequence[str], wait_s: float) -> None:
        """The parent will not hand anything on without these roles, and waits ``wait_s`` for them at most."""
        self._families[parent_id] = _Family(wait_s, expected=dict.fromkeys(roles))

    def add(self, parent_id: str, role: str, companion_id: str, *, wait_s: float = 30.0) -> None:
        """Register a companion. A role whose companion is done may be given again: the new one takes its place.

        ``ValueError`` when the role is taken, the parent has too many or the id already accompanies a request.
        """
        if companion_id in self._parents:
            raise ValueError(f"request {companion_id!r} already accompanies {self._parents[companion_id][0]!r}")
        family = self._families.get(parent_id) or _Family(wait_s)
        if role in family.running:
            raise ValueError(f"request {parent_id!r} already has a companion with role {role!r}")
        if role not in family.expected and len(family.expected) >= MAX_COMPANIONS:
            raise ValueError(f"request {parent_id!r} already has {MAX_COMPANIONS} companions, the most there may be")
        self._families[parent_id] = family
        family.expected[role] = None
        family.running[role] = companion_id
        family.outputs.pop(role, None)
        self._parents[companion_id] = (parent_id, role)

    def parent_of(self, companion_id: str) -> str | None:
        """The parent of a companion that is not done, or ``None`` for any other request."""
        found = self._parents.get(companion_id)
        return None if found is None else found[0]

    def role_of(self, companion_id: str) -> str:
        """The role of a companion that is not done. ``KeyError`` for any other request."""
        return self._parents[companion_id][1]

    def finish(self, companion_id: str, output: CompanionOutput) -> None:
        """A companion is done, and this is what it produced. Lets the parent go on if it was the last one."""
        parent_id, role = self._parents.pop(companion_id)
        family = self._families[parent_id]
        del family.running[role]
        family.outputs[role] = output
        if not family.missing():
            family.wake(True)

    def has_companions(self, parent_id: str) -> bool:
        """Whether anything of this request has to be handed on with companions."""
        return parent_id in self._families

    async def bundle(self, parent_id: str, runtime: Runtime) -> tuple[CompanionOutput, ...]:
        """What all companions produced, in the order in which the roles were named; waits until that is complete.

        Ends with an empty bundle when the parent is forgotten meanwhile. Raises :class:`StageFault` (``timeout``).
        """
        family = self._families.get(parent_id)
        if family is None:
            return ()
        if family.missing():
            family.ready = asyncio.get_running_loop().create_future()
            timer = runtime.call_at(runtime.now() + family.wait_s, family.wake, False)
            try:
                complete = await family.ready
            finally:
                timer.cancel()
                family.ready = None
            if not complete:
                roles = ", ".join(repr(role) for role in family.missing())
                raise StageFault(
                    ErrorCode.TIMEOUT,
                    f"Request {parent_id!r} has waited {family.wait_s:g} s for its companions: {roles} did not finish.",
                )
        return tuple(family.outputs[role] for role in family.expected if role in family.outputs)

    def cleanup_parent(self, request_id: str) -> list[str]:
        """Forget the companions of ``request_id`` and return the ids of those that run; also forget it as a companion.

        A parent that waits is let go; one that loses a companion which is not done still lacks that role.
        """
        found = self._parents.pop(request_id, None)
        if found is not None and found[0] in self._families:
            self._families[found[0]].running.pop(found[1], None)
        family = self._families.pop(request_id, None)
        if family is None:
            return []
        family.wake(True)
        children = list(family.running.values())
        for child in children:
            self._parents.pop(child, None)
        return children

    @property
    def running(self) -> int:
        """Companions that are not done."""
        return len(self._parents)

    def __len__(self) -> int:
        return len(self._parents) + len(self._families)
