"""`duologue doctor`: what is there, what is missing, what to type.

Rules kept here: it changes nothing and uses no network; each finding is a value made by a function that is given what
it judges, so every case can be tested; only what is needed to serve makes the command fail.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import socket
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from duologue.setup import Missing, check_setup, default_models_dir

State = Literal["ok", "note", "missing"]
_OLDEST, _NEWEST = (3, 11), (3, 13)
_LEAST_MEMORY_GB = 2.0
_REQUIREMENT = re.compile(r"^\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*([^;]*)")
_BOUND = re.compile(r"(==|>=|<=|!=|<|>|~=)\s*([0-9][^,\s]*)")
_STYLES: dict[State, str] = {"ok": "green", "note": "yellow", "missing": "bold red"}
# Where the whole test-suite runs, and where every dependency has a wheel but nobody has tried.
_TESTED = {("Linux", "x86_64")}
_UNTESTED = {("Linux", "aarch64"), ("Darwin", "arm64")}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One line: `remedy` is what to type, if anything helps."""

    subject: str
    state: State
    detail: str
    remedy: str = ""


def run_doctor(models_dir: Path | None, port: int) -> int:
    """Print all findings; 1 if something needed is missing."""
    findings = examine(models_dir or default_models_dir(), port)
    show(findings, Console())
    return 1 if any(finding.state == "missing" for finding in findings) else 0


def examine(models_dir: Path, port: int) -> list[Finding]:
    """Look at this machine."""
    return [
        judge_python(sys.version_info[:3]),
        judge_platform(platform.system(), platform.machine()),
        judge_cores(os.cpu_count() or 1),
        judge_memory(memory_bytes()),
        *judge_packages(importlib.metadata.requires("duologue") or (), installed),
        *judge_models(models_dir, check_setup(models_dir)),
        judge_port(port, port_is_free(port)),
        judge_microphone(importlib.util.find_spec("sounddevice") is not None),
    ]


def judge_python(version: tuple[int, ...]) -> Finding:
    text = ".".join(str(part) for part in version)
    if _OLDEST <= version[:2] <= _NEWEST:
        return Finding(subject="Python", state="ok", detail=text)
    return Finding(
        subject="Python",
        state="missing",
        detail=f"{text} is not supported: 3.11, 3.12 and 3.13 are",
        remedy="make PYTHON=/path/to/python3.11 setup",
    )


def judge_platform(system: str, machine: str) -> Finding:
    text = f"{system} {machine}"
    if (system, machine) in _TESTED:
        return Finding(subject="platform", state="ok", detail=text)
    if (system, machine) in _UNTESTED:
        return Finding(subject="platform", state="note", detail=f"{text}: not tested, it may work")
    return Finding(
        subject="platform",
        state="missing",
        detail=f"{text} is not supported: the embedded models run on Linux x86_64",
        remedy="use a Linux x86_64 machine or container",
    )


def judge_cores(cores: int) -> Finding:
    if cores >= 2:
        return Finding(subject="cores", state="ok", detail=str(cores))
    return Finding(subject="cores", state="note", detail=f"{cores}: answers will be late, two are advised")


def judge_memory(total_bytes: int | None) -> Finding:
    if total_bytes is None:
        return Finding(subject="memory", state="note", detail="unknown")
    total_gb = total_bytes / 1e9
    if total_gb >= _LEAST_MEMORY_GB:
        return Finding(subject="memory", state="ok", detail=f"{total_gb:.1f} GB")
    detail = f"{total_gb:.1f} GB: the embedded models want {_LEAST_MEMORY_GB:.0f} GB"
    return Finding(subject="memory", state="note", detail=detail)


def judge_packages(requirements: Iterable[str], version_of: Callable[[str], str | None]) -> list[Finding]:
    """One finding per requirement that is not of an extra."""
    findings = []
    for requirement in requirements:
        if "extra ==" in requirement:
            continue
        found = _REQUIREMENT.match(requirement)
        if found is None:
            continue
        name, bounds = found.group(1), found.group(2).strip()
        version = version_of(name)
        wanted = f"{name}{bounds}"
        if version is None:
            remedy = f"pip install '{wanted}'"
            findings.append(Finding(subject=name, state="missing", detail="not installed", remedy=remedy))
        elif not satisfies(version, bounds):
            detail = f"{version}, but {bounds} is asked for"
            findings.append(Finding(subject=name, state="missing", detail=detail, remedy=f"pip install '{wanted}'"))
        else:
            findings.append(Finding(subject=name, state="ok", detail=version))
    return findings


def satisfies(version: str, bounds: str) -> bool:
    """Whether `version` is within bounds such as ``>=2.2,<3``; knows numbers only, no pre-releases."""
    have = _numbers(version)
    for operator, text in _BOUND.findall(bounds):
        want = _numbers(text)
        width = max(len(have), len(want))
        left, right = have + (0,) * (width - len(have)), want + (0,) * (width - len(want))
        match operator:
            case "==":
                good = left == right
            case "!=":
                good = left != right
            case ">=":
                good = left >= right
            case "<=":
                good = left <= right
            case "<":
                good = left < right
            case ">":
                good = left > right
            case _:  # ~=
                good = left >= right and have[: len(want) - 1] == want[:-1]
        if not good:
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0]))


def judge_models(folder: Path, missing: Sequence[Missing]) -> list[Finding]:
    """All files with their checksums, or each that is missing."""
    if not missing:
        return [Finding(subject="model files", state="ok", detail=f"all in {folder}, checksums right")]
    return [
        Finding(
            subject=entry.weight.name,
            state="missing",
            detail=f"{entry.reason} in {folder} ({entry.weight.purpose})",
            remedy="duologue setup",
        )
        for entry in missing
    ]


def judge_port(port: int, free: bool) -> Finding:
    if free:
        return Finding(subject=f"port {port}", state="ok", detail="free")
    return Finding(
        subject=f"port {port}",
        state="note",
        detail="in use: perhaps a server runs already",
        remedy="duologue serve --port 0",
    )


def judge_microphone(present: bool) -> Finding:
    if present:
        return Finding(subject="microphone", state="ok", detail="sounddevice is installed")
    return Finding(
        subject="microphone",
        state="note",
        detail="`duologue talk --mic` needs the extra",
        remedy="pip install 'duologue[mic]'",
    )


def installed(name: str) -> str | None:
    """The installed version of a distribution."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def memory_bytes() -> int | None:
    """Memory of this machine, if the system tells."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def port_is_free(port: int) -> bool:
    """Whether a server could listen on this loopback port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def show(findings: Sequence[Finding], console: Console) -> None:
    """A table, and below it what to type, each thing once."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for finding in findings:
        table.add_row(Text(finding.state, style=_STYLES[finding.state]), finding.subject, finding.detail)
    console.print(table)
    needed = list(dict.fromkeys(finding.remedy for finding in findings if finding.state == "missing"))
    if needed:
        console.print("\nto mend what is missing, type:")
        for remedy in needed:
            console.print(f"  {remedy}", highlight=False, markup=False)
    else:
        console.print("\neverything that is needed is there")
