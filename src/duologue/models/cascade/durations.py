"""Makes hibari's graph say how long each phoneme lasts.

The synthesis graph computes durations but does not return them. A serialised protobuf message followed by another
is their union, so appending a model that consists of one output declaration adds that output; the file on disk stays
as it is.
"""

from __future__ import annotations

# Running total of frames up to and including each phoneme; one unit is two spectrum frames of 12.5 ms.
OUTPUT_NAME = "/CumSum_output_0"
UNIT_SAMPLES = 600

_MODEL_GRAPH, _GRAPH_OUTPUT = 7, 12  # field numbers of ONNX messages
_VALUE_NAME, _VALUE_TYPE, _TYPE_TENSOR, _TENSOR_ELEMENT = 1, 2, 1, 1
_INT64 = 7
_LENGTH_DELIMITED = 2


def with_durations(model: bytes) -> bytes:
    """`model` (a serialised ONNX file) with OUTPUT_NAME as one more output, int64 [phonemes].

    The result does not load if the graph has no such tensor.
    """
    element = bytes([_TENSOR_ELEMENT << 3, _INT64])
    value = _field(_VALUE_NAME, OUTPUT_NAME.encode()) + _field(_VALUE_TYPE, _field(_TYPE_TENSOR, element))
    return model + _field(_MODEL_GRAPH, _field(_GRAPH_OUTPUT, value))


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | _LENGTH_DELIMITED]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
