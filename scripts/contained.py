"""Runs a command and leaves nothing of it behind: ``python scripts/contained.py COMMAND ARGUMENT...`` (Linux).

When the command has ended, or this process is told to end, whatever descends from it is killed, processes that made
themselves independent included: orphans become children of this process. The exit code is the command's, 128 and the number
of the signal if there was one.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

PR_SET_CHILD_SUBREAPER = 36


class Told(BaseException):
    """A signal came."""


def told(number: int, _frame: FrameType | None) -> None:
    raise Told(number)


def descendants() -> list[int]:
    """All processes below this one; some may have ended already."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found = [os.getpid()]
    for pid in found:
        found.extend(children.get(pid, ()))
    return found[1:]


def end_all() -> None:
    """Kill until there is nobody left to wait for: what is killed may just have started something."""
    try:
        while True:
            for pid in descendants():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            os.wait()
    except ChildProcessError:
        return


def main(command: list[str]) -> int:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, told)
    try:
        code = subprocess.call(command)
        return code if code >= 0 else 128 - code
    except Told as signalled:
        return 128 + int(signalled.args[0])
    finally:
        end_all()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
