"""What a process and its children cost: CPU seconds and resident memory.

Rules kept here: read only, never raises for a process that is gone; on Linux from /proc, elsewhere from `ps`. CPU time
counts children that have ended; memory is the sum of resident sets, so pages that processes share count once for each.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

import msgspec

_PROC = Path("/proc")


class ProcessFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One process: `cpu_s` since its start, `rss_bytes` now."""

    pid: int
    parent: int
    cpu_s: float
    rss_bytes: int
    ended: bool = False  # a zombie: ended, not yet collected by its parent
    command: str = ""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """A process with everything below it."""

    cpu_s: float
    rss_bytes: int
    pids: tuple[int, ...]


def usage_of(pid: int) -> Usage:
    """Figures of `pid` and its descendants now; zeros if it is gone."""
    return add_up(pid, list_processes())


def add_up(root: int, processes: Iterable[ProcessFigures]) -> Usage:
    """The figures of `root` and all its descendants among `processes`."""
    tree = tree_of(root, processes)
    return Usage(
        cpu_s=sum(process.cpu_s for process in tree),
        rss_bytes=sum(process.rss_bytes for process in tree),
        pids=tuple(process.pid for process in tree if not process.ended),
    )


def tree_of(root: int, processes: Iterable[ProcessFigures]) -> list[ProcessFigures]:
    """`root` first, then its descendants."""
    known = list(processes)
    tree = [process for process in known if process.pid == root]
    for process in tree:  # grows while it is walked
        tree.extend(child for child in known if child.parent == process.pid and child.pid != root)
    return tree


def list_processes() -> list[ProcessFigures]:
    """Every process that may be looked at."""
    if (_PROC / "self/stat").exists():
        found = (_from_proc(entry) for entry in _PROC.iterdir() if entry.name.isdigit())
        return [process for process in found if process is not None]
    return parse_ps(_ps())


def _from_proc(entry: Path) -> ProcessFigures | None:
    try:
        return parse_stat((entry / "stat").read_text(errors="replace"))
    except OSError:  # it ended while we looked
        return None


def parse_stat(text: str) -> ProcessFigures:
    """One line of /proc/PID/stat. The name stands in parentheses and may itself hold spaces and parentheses."""
    head, _, tail = text.rpartition(")")
    pid, _, name = head.partition(" (")
    fields = tail.split()
    ticks = sum(int(value) for value in fields[11:15])  # own user and system time, then that of collected children
    return ProcessFigures(
        pid=int(pid),
        parent=int(fields[1]),
        cpu_s=ticks / os.sysconf("SC_CLK_TCK"),
        rss_bytes=int(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
        ended=fields[0] in "ZX",
        command=name,
    )


def _ps() -> str:
    columns = "pid=,ppid=,rss=,time=,state=,comm="
    return subprocess.run(["ps", "-A", "-o", columns], capture_output=True, text=True, check=False).stdout


def parse_ps(text: str) -> list[ProcessFigures]:
    """Lines of `ps -A -o pid=,ppid=,rss=,time=,state=,comm=`; rss in KiB, time as [[DD-]HH:]MM:SS[.ss]."""
    processes = []
    for line in text.splitlines():
        fields = line.split(None, 5)
        if len(fields) < 5:
            continue
        pid, parent, rss_kib, time, state = fields[:5]
        processes.append(
            ProcessFigures(
                pid=int(pid),
                parent=int(parent),
                cpu_s=_seconds(time),
                rss_bytes=int(rss_kib) * 1024,
                ended=state.startswith("Z"),
                command=fields[5] if len(fields) > 5 else "",
            )
        )
    return processes


def _seconds(time: str) -> float:
    days, _, clock = time.rpartition("-")
    total_s = 0.0
    for part in clock.split(":"):
        total_s = total_s * 60 + float(part)
    return total_s + 86_400 * int(days or 0)
