"""What may stand in a configuration file, told by the structs themselves: as JSON schema, and as rows for the reference.

Rules kept here: nothing is written twice; a setting appears under the one path by which files and variables name it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from duologue.config.loader import PREFIX
from duologue.config.service import DuologueConfig

_NAMES = {bool: "true or false", int: "integer", float: "number", str: "text", NoneType: "null"}


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting. ``path`` as errors name it; ``kind`` is what is allowed; ``variable`` is empty for parts of lists."""

    path: str
    kind: str
    default: str
    variable: str


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """The settings below one path, and what the code says about them. The path of the whole file is empty."""

    path: str
    text: str
    settings: tuple[Setting, ...]


def config_schema() -> str:
    """The JSON schema of a configuration file, indented. As the loader does, it knows no keys but those that there are."""
    schema = msgspec.json.schema(DuologueConfig)
    for definition in schema["$defs"].values():
        if "properties" in definition:
            definition["additionalProperties"] = False
    return json.dumps(schema, indent=2)


def groups() -> list[Group]:
    """All settings, group by group, in the order of a file."""
    return list(_groups(DuologueConfig, ""))


def _groups(struct: type[msgspec.Struct], path: str) -> Iterator[Group]:
    hints = get_type_hints(struct)
    settings, below = [], []
    for field in msgspec.structs.fields(struct):
        where = f"{path}.{field.encode_name}" if path else field.encode_name
        inner = list(_structs(hints[field.name]))
        if inner and _is_group(hints[field.name]):
            below += [_Inner(one, where, len(inner) > 1) for one in inner]
            words = [hint for hint in get_args(hints[field.name]) if get_origin(hint) is Literal]
            settings += [_setting(where, word, field) for word in words]  # a word, or a group of keys instead
        elif inner:
            below += [_Inner(one, f"{where}[…]", False) for one in inner]
        else:
            settings.append(_setting(where, hints[field.name], field))
    yield Group(path=path, text=_text(struct), settings=tuple(settings))
    for one in below:
        for group in _groups(one.struct, one.path):
            yield _tagged(one, group) if one.tagged and group.path == one.path else group


class _Inner(msgspec.Struct, frozen=True):
    struct: type[msgspec.Struct]
    path: str
    tagged: bool


def _tagged(one: _Inner, group: Group) -> Group:
    """One of several kinds that may stand at a path: its first row is the tag that chooses it."""
    config = one.struct.__struct_config__
    where = f"{one.path}.{config.tag_field}"
    tag = Setting(path=where, kind=f"`{config.tag}`", default="required", variable=_variable(where))
    return msgspec.structs.replace(group, settings=(tag, *group.settings))


def _setting(where: str, hint: Any, field: msgspec.structs.FieldInfo) -> Setting:
    return Setting(path=where, kind=_kind(hint), default=_default(field), variable=_variable(where))


def _variable(path: str) -> str:
    return "" if "[" in path else PREFIX + path.upper().replace(".", "__")


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    return json.dumps(msgspec.to_builtins(value), ensure_ascii=False)


def _text(struct: type[msgspec.Struct]) -> str:
    """What the struct says of itself, as Markdown; what it raises is for programmers."""
    text = re.sub(r":\w+:(?=`)", "", (struct.__doc__ or "").replace("``", "`")).replace("`None`", "null")
    sentences = " ".join(text.split()).split(". ")
    kept = ". ".join(sentence for sentence in sentences if not sentence.startswith("Raises"))
    return kept if kept.endswith(".") else f"{kept}."


def _structs(hint: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield hint
    for argument in get_args(hint):
        yield from _structs(argument)


def _is_group(hint: Any) -> bool:
    """Whether the value is a group of keys itself, not a list of such."""
    return get_origin(hint) in (None, Union, UnionType)


def _kind(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (Union, UnionType):
        return " or ".join(_kind(argument) for argument in arguments)
    if origin is tuple:
        return f"list of {_kind(arguments[0])}"
    if origin is not None:
        return "group of keys"
    return _NAMES.get(hint, str(getattr(hint, "__name__", hint)))
