"""Reads the named float tensors out of an ONNX file without any library.

ONNX is protobuf: nested (field number, value) records. Of those only the path model -> graph -> initialisers is
followed, and only 32-bit floats are taken. Every length is checked against the bytes that are there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from duologue.detect.weights import ModelUnavailableError, require_weights

_MODEL_GRAPH = 7
_GRAPH_INITIALISER = 5
_TENSOR_DIMENSION, _TENSOR_TYPE, _TENSOR_NAME, _TENSOR_RAW = 1, 2, 8, 9
_FLOAT = 1
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

FloatTensors = dict[str, NDArray[np.float32]]


def read_float_tensors(path: Path) -> FloatTensors:
    """Name to float32 array of each initialiser of the graph in `path`.

    Raises ModelUnavailableError if the file is missing or is not a whole ONNX file.
    """
    data = memoryview(require_weights(path).read_bytes())
    tensors: FloatTensors = {}
    try:
        for number, graph in _fields(data):
            if number == _MODEL_GRAPH and isinstance(graph, memoryview):
                tensors.update(_initialisers(graph))
    except (ValueError, IndexError, UnicodeDecodeError) as error:
        raise ModelUnavailableError(f"{path} is not a readable ONNX file: {error}") from error
    return tensors


def _initialisers(graph: memoryview) -> Iterator[tuple[str, NDArray[np.float32]]]:
    for number, tensor in _fields(graph):
        if number == _GRAPH_INITIALISER and isinstance(tensor, memoryview):
            named = _tensor(tensor)
            if named is not None:
                yield named


def _tensor(data: memoryview) -> tuple[str, NDArray[np.float32]] | None:
    """Name and values, or None for a tensor of another type."""
    shape: list[int] = []
    kind, name, raw = 0, "", memoryview(b"")
    for number, value in _fields(data):
        if isinstance(value, int):
            if number == _TENSOR_DIMENSION:
                shape.append(value)
            elif number == _TENSOR_TYPE:
                kind = value
        elif number == _TENSOR_NAME:
            name = bytes(value).decode()
        elif number == _TENSOR_RAW:
            raw = value
    if kind != _FLOAT:
        return None
    return name, np.frombuffer(raw, "<f4").reshape(shape)


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """The records of one message: integers as such, everything with a length as a view of its bytes."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, position = _varint(data, position)
            yield number, value
            continue
        if kind == _BYTES:
            length, position = _varint(data, position)
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"a record of unknown kind {kind}")
        if position + length > len(data):
            raise ValueError("it ends inside a record")
        yield number, data[position : position + length]
        position += length


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
