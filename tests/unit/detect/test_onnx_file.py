"""Reading tensors out of an ONNX file, and refusing what is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.detect.onnx_file import read_float_tensors
from duologue.detect.silero import SileroNetwork
from duologue.detect.weights import ModelUnavailableError


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def _bytes(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _tensor(name: str, values: np.ndarray, kind: int = 1) -> bytes:
    shape = b"".join(_varint(1 << 3) + _varint(size) for size in values.shape)
    body = shape + _varint(2 << 3) + _varint(kind) + _bytes(8, name.encode()) + _bytes(9, values.tobytes())
    return _bytes(7, b"\x0d\x00\x00\x00\x00" + _bytes(5, body))


def test_tensors_are_found_by_name_past_everything_else(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    weights = np.arange(600, dtype="<f4").reshape(2, 300)
    header = _varint(1 << 3) + _varint(8) + _bytes(2, b"maker") + b"\x49" + bytes(8)
    counts = np.arange(4, dtype="<i8")
    path.write_bytes(header + _tensor("w", weights) + _tensor("counts", counts, kind=7) + _tensor("b", weights[0, :1]))
    tensors = read_float_tensors(path)
    assert set(tensors) == {"w", "b"}
    assert np.array_equal(tensors["w"], weights)
    assert tensors["b"].tolist() == [0.0]


@pytest.mark.parametrize("data", [b"\x3a\x05ab", b"\x3a", b"\x0b", b"\xff" * 12, _tensor("w", np.zeros(3, "<f4"))[:-4]])
def test_a_damaged_file_is_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelUnavailableError, match="not a readable ONNX file"):
        read_float_tensors(path)


@given(st.binary(max_size=200))
def test_no_bytes_do_anything_but_parse_or_be_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.onnx"
    path.write_bytes(data or b"\x00")
    try:
        tensors = read_float_tensors(path)
    except ModelUnavailableError:
        return
    assert all(tensor.dtype == np.float32 for tensor in tensors.values())


def test_another_network_is_not_taken_for_the_detector(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(_tensor("model.stft.forward_basis_buffer", np.zeros((258, 1, 128), "<f4")))
    with pytest.raises(ModelUnavailableError, match="another network"):
        SileroNetwork(path)
