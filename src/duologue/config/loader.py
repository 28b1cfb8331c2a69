"""From a YAML file and environment variables to a checked :class:`DuologueConfig`.

Rules kept here:

* no file is needed: what is not set has its default;
* ``DUOLOGUE__SERVER__PORT=9000`` sets ``server.port``, over the file; its value is read as YAML, so lists are written
  ``[a, b]`` (for a list of strings ``a,b`` will do);
* every error names the key, the value and what is allowed; keys are never shown;
* all unknown keys are reported at once, with the first wrong value of each section that holds none.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import yaml

from duologue.config.service import DuologueConfig

PREFIX = "DUOLOGUE__"

_PATH = re.compile(r" - at `\$(?P<path>[^`]*)`$")
_KINDS = {bool: "bool", int: "int", float: "float", str: "str", list: "array", dict: "object", type(None): "null"}
"""How msgspec calls what YAML holds."""
_SECRET = re.compile(r"(^|[._])(api_keys?|tokens?|passwords?|secrets?)([._\[]|$)")


class ConfigError(ValueError):
    """The configuration can't be used. ``problems`` are sentences, one per thing to change."""

    def __init__(self, origin: str, problems: list[str]) -> None:
        self.origin = origin
        self.problems = tuple(problems)
        super().__init__(f"{origin}: " + "; ".join(problems))


def load_config(path: Path | None = None, environment: Mapping[str, str] | None = None) -> DuologueConfig:
    """The configuration in the file at ``path`` (``None``: defaults), with ``environment``'s overrides.

    Raises :class:`ConfigError`.
    """
    origin = "configuration" if path is None else str(path)
    try:
        return _load(path, origin, environment or {})
    except RecursionError:
        raise ConfigError(origin, ["the values are nested too deeply, or one holds itself"]) from None


def _load(path: Path | None, origin: str, environment: Mapping[str, str]) -> DuologueConfig:
    data = {} if path is None else _read(path)
    # A group whose every line is commented out reads as null; it means the defaults.
    data = {key: value for key, value in data.items() if value is not None}
    unknown = list(_unknown_keys(data, DuologueConfig, ""))
    if unknown:
        sound = _without(data, {re.split(r"\W", problem, maxsplit=1)[0] for problem in unknown})
        _, wrong = _converted(sound)
        raise ConfigError(origin, [*unknown, *wrong.values()])
    variables = _override(data, environment or {})
    config, wrong = _converted(data)
    if not wrong:
        return config
    blamed = variables.get(next(iter(wrong)), origin)
    raise ConfigError(blamed, [problem for key, problem in wrong.items() if variables.get(key, origin) == blamed])


def _converted(data: dict[str, Any]) -> tuple[DuologueConfig, dict[str, str]]:
    """The configuration, without the sections in which a value is wrong; and what is wrong, by key."""
    wrong: dict[str, str] = {}
    while True:
        try:
            return msgspec.convert(data, DuologueConfig), wrong
        except msgspec.ValidationError as error:
            key, problem = _explain(str(error), data)
        wrong[key] = problem
        # What follows from a wrong value is not told: the section is left out as a whole.
        rest = _without(data, {re.split(r"\W", key, maxsplit=1)[0]})
        data = rest if len(rest) < len(data) else {}


def _without(data: dict[str, Any], sections: set[str]) -> dict[str, Any]:
    return {section: values for section, values in data.items() if section not in sections}


def _read(path: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(str(path), [f"the file can't be read: {error.strerror}"]) from None
    except UnicodeDecodeError:
        raise ConfigError(str(path), ["the file is not UTF-8 text"]) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f" in line {mark.line + 1}, column {mark.column + 1}"
        raise ConfigError(
            str(path), [f"the file is not valid YAML{where}: {getattr(error, 'problem', error)}"]
        ) from None
    except ValueError:  # 2026-13-45, 0x_
        raise ConfigError(
            str(path), ["a value looks like a number or a date and is none; put it in quotes if it is text"]
        ) from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(str(path), [f"the file must hold keys and values, got a {type(data).__name__}"])
    return data


def _explain(message: str, data: object) -> tuple[str, str]:
    """The key that msgspec complains about, and its complaint with the key in front and what is allowed behind."""
    found = _PATH.search(message)
    path = "" if found is None else _named(found["path"].lstrip("."), message, data)
    text = _lower_first(message if found is None else message[: found.start()])
    annotation = _annotation_at(path)
    if not text.startswith(("expected", "invalid", "object")):
        return _explain_rule(path, text, annotation)
    allowed = _allowed_values(annotation)
    value = "" if _SECRET.search(path) else f", got {_lookup(data, path)!r}"
    if allowed:
        return path, f"{path} must be one of {', '.join(allowed)}{value}"
    return path, f"{path}: {text.partition(', got')[0].replace('`', '')}{value}"


def _named(path: str, message: str, data: object) -> str:
    """``path`` with the name of a key of the operator's own, which msgspec leaves out: ``model.options[...]``."""
    got = re.search(r"got `(\w+)`", message)
    holder = _lookup(data, path.removesuffix("[...]"))
    if got is None or not path.endswith("[...]") or not isinstance(holder, dict):
        return path
    keys = [key for key, value in holder.items() if _KINDS.get(type(value)) == got[1]]
    return f"{path.removesuffix('[...]')}.{keys[0]}" if keys else path


def _explain_rule(path: str, text: str, annotation: Any) -> tuple[str, str]:
    """A rule of ours was broken. It names the key within its group, and the value; only the group is missing."""
    first = re.split(r"\W", text, maxsplit=1)[0]
    if not path or text.startswith(f"{path}."):
        return text.split(" ", 1)[0], text
    if first in _all_fields(annotation):
        return f"{path}.{first}", f"{path}.{text}"
    return path, f"{path}: {text}"


def _annotation_at(path: str) -> Any:
    """The annotation of the key at ``path``, ``None`` if there is none."""
    annotation: Any = DuologueConfig
    for name in re.findall(r"[^.\[\]]+(?![^\[]*\])", path):
        annotation = _all_fields(annotation).get(name)
    return annotation


def _allowed_values(annotation: Any) -> list[str]:
    if get_origin(annotation) is Literal:
        return [str(value) for value in get_args(annotation)]
    return []


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:] if text.startswith(("Expected", "Object", "Invalid")) else text


def _lookup(data: object, path: str) -> object:
    value: Any = data
    for name, index in re.findall(r"([^.\[\]]+)|\[(\d+|\.\.\.)\]", path):
        try:
            value = value[name] if name else value[int(index)]
        except (KeyError, IndexError, TypeError, ValueError):
            return None
    return value


# -------------------------------------------------------------------- keys


def _structs_in(annotation: Any) -> Iterator[type[msgspec.Struct]]:
    """The struct types that a value of this annotation may be, inside unions and tuples too."""
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        yield annotation
    elif get_origin(annotation) in (Union, UnionType, tuple):
        for argument in get_args(annotation):
            yield from _structs_in(argument)


def _fields(struct: type[msgspec.Struct]) -> dict[str, Any]:
    hints = get_type_hints(struct)
    names = {name: hints[name] for name in struct.__struct_fields__}
    tag_field = struct.__struct_config__.tag_field
    return names if tag_field is None else {tag_field: Literal[struct.__struct_config__.tag], **names}


def _all_fields(annotation: Any) -> dict[str, Any]:
    """The keys of a group, with the tags of every struct that it may be."""
    fields: dict[str, Any] = {}
    for struct in _structs_in(annotation):
        for name, hint in _fields(struct).items():
            known = fields.get(name)
            both = get_origin(known) is Literal and get_origin(hint) is Literal
            fields[name] = Literal[(*get_args(known), *get_args(hint))] if both and known != hint else hint
    return fields


def _unknown_keys(data: object, annotation: Any, path: str) -> Iterator[str]:
    allowed = _all_fields(annotation)
    if not allowed:
        return
    if isinstance(data, list):
        for index, item in enumerate(data):
            yield from _unknown_keys(item, annotation, f"{path}[{index}]")
        return
    if not isinstance(data, dict):
        return
    for key, value in data.items():
        where = f"{path}.{key}" if path else str(key)
        if key in allowed:
            yield from _unknown_keys(value, allowed[key], where)
        else:
            yield _unknown(where, str(key), list(allowed))


def _unknown(where: str, key: str, allowed: list[str]) -> str:
    close = difflib.get_close_matches(key, allowed, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"allowed are {', '.join(sorted(allowed))}"
    return f"{where} is not a known key: {hint}"


# -------------------------------------------------------------------- environment


def _override(data: dict[str, Any], environment: Mapping[str, str]) -> dict[str, str]:
    """Set what the environment says in ``data``; returns the variable that set each key."""
    variables = {}
    for name in sorted(environment):
        if name.startswith(PREFIX):
            keys = name[len(PREFIX) :].lower().split("__")
            _set(data, keys, environment[name], name)
            variables[".".join(keys)] = name
    return variables


def _set(data: dict[str, Any], keys: list[str], text: str, variable: str) -> None:
    annotation: Any = DuologueConfig
    target = data
    for depth, key in enumerate(keys):
        allowed = _all_fields(annotation)
        path = ".".join(keys[: depth + 1])
        if allowed and key not in allowed:
            raise ConfigError(variable, [_unknown(path, key, list(allowed))])
        annotation = allowed.get(key)
        if depth == len(keys) - 1:
            target[key] = _value(text, annotation, variable)
            return
        inner = target.get(key)
        if inner is not None and not isinstance(inner, dict):
            raise ConfigError(variable, [f"{path} is not a group of keys, so nothing below it can be set"])
        if inner is None:
            inner = target[key] = {}
        target = inner


def _value(text: str, annotation: Any, variable: str) -> object:
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise ConfigError(variable, ["the value is not valid YAML; put it in quotes if it is text"]) from None
    kinds = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    if str in kinds and value is not None and not isinstance(value, str):
        return text  # digits may be a name
    if get_origin(annotation) is tuple and get_args(annotation)[:1] == (str,) and not isinstance(value, list):
        return [part.strip() for part in text.split(",") if part.strip()]
    return value
