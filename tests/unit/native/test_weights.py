"""Weights of the native model: the same everywhere, made once, and never half there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from duologue.models.native import weights
from duologue.models.native.shape import Shape

TINY = Shape(width=16, layers=1, heads=2, window=4, codes=2, entries=8, depth_width=8, bands=5, noise_frames=3)


def same(a: weights.Weights, b: weights.Weights) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def test_a_seed_gives_the_same_weights_every_time_and_another_seed_others() -> None:
    assert same(weights.draw(3, TINY), weights.draw(3, TINY))
    assert not same(weights.draw(3, TINY), weights.draw(4, TINY))


def test_they_are_drawn_once_and_read_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = weights.load(tmp_path / "models", 3, TINY)
    assert [path.name for path in (tmp_path / "models").iterdir()] == [weights.file_name(3)]

    def refuse(seed: int, shape: Shape) -> weights.Weights:
        raise AssertionError("drawn again")

    monkeypatch.setattr(weights, "draw", refuse)
    assert same(first, weights.load(tmp_path / "models", 3, TINY))


@pytest.mark.parametrize("damage", [b"", b"not an archive", "half"])
def test_a_damaged_file_is_replaced(tmp_path: Path, damage: bytes | str) -> None:
    first = weights.load(tmp_path, 3, TINY)
    path = tmp_path / weights.file_name(3)
    whole = path.read_bytes()
    path.write_bytes(damage if isinstance(damage, bytes) else whole[: len(whole) // 2])
    assert same(first, weights.load(tmp_path, 3, TINY))
    assert same(first, dict(np.load(path)))


def test_weights_of_another_shape_are_not_used(tmp_path: Path) -> None:
    weights.load(tmp_path, 3, Shape(width=16, layers=2, heads=2, window=4, codes=2, entries=8, depth_width=8, bands=5))
    assert same(weights.draw(3, TINY), weights.load(tmp_path, 3, TINY))


def test_a_folder_that_cannot_be_written_costs_nothing_but_the_drawing(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way", encoding="utf-8")
    assert same(weights.draw(3, TINY), weights.load(blocked / "models", 3, TINY))
