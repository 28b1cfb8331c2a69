"""Companions of a request: further requests that live and end with their parent (classifier-free guidance)."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class CompanionTracker:
    """Which requests accompany which. A companion has one parent; a parent may have several companions, by role."""

    _children: dict[str, dict[str, str]] = field(default_factory=dict)
    _parents: dict[str, str] = field(default_factory=dict)

    def add(self, parent_id: str, role: str, companion_id: str) -> None:
        """Register a companion. ``ValueError`` when the role is taken or the id already accompanies a request."""
        roles = self._children.setdefault(parent_id, {})
        if role in roles:
            raise ValueError(f"request {parent_id!r} already has a companion with role {role!r}")
        if companion_id in self._parents:
            raise ValueError(f"request {companion_id!r} already accompanies {self._parents[companion_id]!r}")
        roles[role] = companion_id
        self._parents[companion_id] = parent_id

    def parent_of(self, companion_id: str) -> str | None:
        """The parent of a companion, or ``None`` for a request that accompanies nothing."""
        return self._parents.get(companion_id)

    def cleanup_parent(self, request_id: str) -> list[str]:
        """Forget the companions of ``request_id`` and return their ids; also forget it as a companion."""
        children = list(self._children.pop(request_id, {}).values())
        for child in children:
            self._parents.pop(child, None)
        parent = self._parents.pop(request_id, None)
        if parent is not None:
            roles = self._children.get(parent, {})
            for role in [role for role, child in roles.items() if child == request_id]:
                del roles[role]
            if not roles:
                self._children.pop(parent, None)
        return children

    def __len__(self) -> int:
        return len(self._parents)
