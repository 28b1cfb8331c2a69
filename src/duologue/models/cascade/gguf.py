"""Reads the description at the head of a GGUF file: strings and numbers, no tensors.

The file may come from anywhere, so every length is checked against the bytes that are there, and lists are skipped.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

from duologue.detect.weights import ModelUnavailableError, require_weights

_MAGIC = b"GGUF"
_STRING, _LIST = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_LONGEST_STRING = 1 << 20
_MOST_ENTRIES = 1 << 16
_LONGEST_LIST = 1 << 24

Value = str | int | float | bool


def read_description(path: Path) -> dict[str, Value]:
    """Key to value of every string and number in the head of `path`; lists are left out.

    Raises ModelUnavailableError if the file is missing or is not a whole GGUF head.
    """
    with require_weights(path).open("rb") as file:
        try:
            return _read(file)
        except (ValueError, struct.error) as error:
            raise ModelUnavailableError(f"{path} is not a readable GGUF file: {error}") from error


def _read(file: BinaryIO) -> dict[str, Value]:
    if file.read(4) != _MAGIC:
        raise ValueError("it does not begin with GGUF")
    version = _scalar(file, "I")
    if version not in (2, 3):
        raise ValueError(f"version {version}; 2 and 3 are known")
    _scalar(file, "Q")  # tensors
    entries = int(_scalar(file, "Q"))
    if entries > _MOST_ENTRIES:
        raise ValueError(f"it claims {entries} entries")
    description: dict[str, Value] = {}
    for _ in range(entries):
        key = _string(file)
        value = _value(file, int(_scalar(file, "I")))
        if value is not None:
            description[key] = value
    return description


def _scalar(file: BinaryIO, code: str) -> int | float | bool:
    size = struct.calcsize("<" + code)
    value: int | float | bool = struct.unpack("<" + code, file.read(size))[0]
    return value


def _string(file: BinaryIO) -> str:
    length = int(_scalar(file, "Q"))
    if length > _LONGEST_STRING:
        raise ValueError(f"a string of {length} bytes")
    data = file.read(length)
    if len(data) != length:
        raise ValueError("it ends inside a string")
    return data.decode("utf-8", "replace")


def _value(file: BinaryIO, kind: int) -> Value | None:
    if kind == _STRING:
        return _string(file)
    if kind == _LIST:
        element, count = int(_scalar(file, "I")), int(_scalar(file, "Q"))
        if count > _LONGEST_LIST or element == _LIST:
            raise ValueError(f"a list of {count} elements of kind {element}")
        _skip_list(file, element, count)
        return None
    if kind not in _SCALARS:
        raise ValueError(f"a value of unknown kind {kind}")
    return _scalar(file, _SCALARS[kind])


def _skip_list(file: BinaryIO, element: int, count: int) -> None:
    if element == _STRING:
        for _ in range(count):
            length = int(_scalar(file, "Q"))
            if length > _LONGEST_STRING:
                raise ValueError(f"a string of {length} bytes")
            file.seek(length, 1)
    elif element in _SCALARS:
        file.seek(count * struct.calcsize("<" + _SCALARS[element]), 1)
    else:
        raise ValueError(f"a list of unknown kind {element}")
