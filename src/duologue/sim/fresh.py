"""Seeds that no run before has seen: derived from the commit, so that a test can be repeated at that commit."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path
from typing import Final

SPAN: Final = 1 << 40
FIXED_BELOW: Final = 10_000_000  # fresh seeds lie above every seed that a person would type


def commit_of(folder: Path) -> str:
    """The commit that is checked out in ``folder``; a constant where there is none (an unpacked archive)."""
    try:
        found = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, check=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return "no commit"
    return found.stdout.strip()


def fresh_seeds(commit: str, count: int) -> list[int]:
    """``count`` seeds of a commit."""
    seeds = []
    for number in range(count):
        digest = hashlib.sha256(f"{commit}:{number}".encode()).digest()
        seeds.append(FIXED_BELOW + int.from_bytes(digest[:8], "big") % SPAN)
    return seeds
