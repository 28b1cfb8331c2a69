"""Names of models: what is served, and which other names mean it.

Stock clients ask for OpenAI's model names and repeat them in every full update, so a name that means the served model
must not look like a change of model.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import msgspec

from duologue.errors import ClientFault, ErrorCode

DEFAULT_ALIASES = ("gpt-realtime*", "gpt-4o*realtime*")


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """A model as ``/v1/models`` lists it. ``created`` is in Unix seconds."""

    id: str
    owned_by: str = "duologue"
    created: int = 0
    voices: tuple[str, ...] = ()


class ModelNames:
    """Resolves what a client calls a model. The first card is the default; ``aliases`` are patterns that mean it."""

    __slots__ = ("_aliases", "_ids")

    def __init__(self, cards: Sequence[ModelCard], aliases: Sequence[str] = DEFAULT_ALIASES) -> None:
        self._ids = [card.id for card in cards]
        self._aliases = tuple(aliases)

    @property
    def default(self) -> str:
        """The model of a session that names none (empty if none is served)."""
        return self._ids[0] if self._ids else ""

    def resolve(self, name: str | None) -> str:
        """The served model that ``name`` means. Raises ``ClientFault`` (``model_not_found``)."""
        if not name:
            return self.default
        if name in self._ids:
            return name
        if any(fnmatchcase(name, pattern) for pattern in self._aliases):
            return self.default
        served = ", ".join(self._ids) or "none"
        raise ClientFault(
            ErrorCode.MODEL_NOT_FOUND, f"Model {name!r} is not served here; served: {served}.", param="session.model"
        )
