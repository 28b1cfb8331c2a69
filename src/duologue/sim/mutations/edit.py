"""One safeguard that can be switched off, as data: which text of which function becomes which."""

from __future__ import annotations

import importlib
import inspect
from types import FunctionType
from typing import Final

import msgspec

CORE: Final = "duologue.engine.duplex.core"
SHELL: Final = "duologue.engine.duplex.session"
ENGINE: Final = "duologue.engine"
SERVER: Final = "duologue.server"


class StaleMutationError(Exception):
    """The code has changed: the text that a mutation replaces is not in it, or more than once."""


class Edit(msgspec.Struct, frozen=True):
    """In the function ``target`` (``package.module:Class.method``) the text ``old`` becomes ``new``."""

    target: str
    old: str
    new: str


class Mutation(msgspec.Struct, frozen=True):
    """One safeguard; ``what`` says what it guards. Several edits: several hands hold it, and all of them let go."""

    name: str
    what: str
    edits: tuple[Edit, ...]


def one(name: str, what: str, target: str, old: str, new: str) -> Mutation:
    """A mutation of one edit."""
    return Mutation(name, what, (Edit(target, old, new),))


def function_of(target: str) -> FunctionType:
    """The function that ``package.module:Class.method`` names; a property's getter."""
    module, _, path = target.partition(":")
    found: object = importlib.import_module(module)
    for name in path.split("."):
        found = inspect.getattr_static(found, name)
    if isinstance(found, property):
        found = found.fget
    found = inspect.unwrap(getattr(found, "__func__", found))  # type: ignore[arg-type]
    if not isinstance(found, FunctionType):
        raise StaleMutationError(f"{target} is not a function")
    return found
