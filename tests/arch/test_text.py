"""Nothing in the repository names one machine's folders or a package registry's host, or holds what is not text.

The banned words are written here in pieces, so that this file does not contain them.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.arch.tree import REPOSITORY

_SLASH = "/"
# A path of somebody's machine: it starts where no word, dot, colon or slash stands before it.
MACHINE_PATHS = re.compile(
    r"(?<![\w.:~$})\]/-])/(?:"
    + "|".join(["work", "root", "home", "Users", "opt", "tmp" + _SLASH + "duo"])
    + r")(?=/|\b)"
)
REGISTRY_HOSTS = re.compile(
    "|".join(
        re.escape(".".join(parts))
        for parts in [
            ("pypi", "org"),
            ("pythonhosted", "org"),
            ("npmjs", "org"),
            ("npmjs", "com"),
            ("deb", "debian", "org"),
            ("proxy", "golang", "org"),
            ("crates", "io"),
        ]
    )
)
BINARY_KINDS = frozenset({".wav", ".onnx", ".ort", ".gguf", ".bin", ".npz", ".mp3", ".flac", ".opus", ".whl"})
LARGEST_BYTES = 500_000


def repository_files() -> list[Path]:
    """What git tracks or would add: ignored files (the environment, results, models) are left out."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=REPOSITORY,
        capture_output=True,
        check=True,
        text=True,
    )
    paths = [REPOSITORY / name for name in listed.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]


def breaches(text: str) -> list[str]:
    return [
        f"line {text.count(chr(10), 0, match.start()) + 1} has {match.group()}"
        for pattern in (MACHINE_PATHS, REGISTRY_HOSTS)
        for match in pattern.finditer(text)
    ]


def test_no_file_names_a_machine_or_a_registry() -> None:
    files = repository_files()
    assert Path(__file__) in files
    found = [
        f"{path}: {breach}" for path in files for breach in breaches(path.read_text(encoding="utf-8", errors="replace"))
    ]
    assert found == []


def test_no_recording_or_weight_is_in_the_repository() -> None:
    files = repository_files()
    assert [path for path in files if path.suffix in BINARY_KINDS] == []
    assert [path for path in files if path.stat().st_size > LARGEST_BYTES] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see " + _SLASH + "work/main/x.py", 1),
        ('open("' + _SLASH + 'root/.cache")', 1),
        ("`" + _SLASH + "home/ann/x`", 1),
        ("cd " + _SLASH + "tmp/duo", 1),
        ("https://" + ".".join(["files", "pythonhosted", "org"]) + "/x", 1),
        ("index = " + ".".join(["pypi", "org"]), 1),
        ("the session/work split, https://example.test/home/x, ./root, $HOME/root", 0),
        ("rootdir, homework, /workers, POST /v1/root", 0),
    ],
)
def test_the_check_tells_bad_text_from_good(text: str, found: int) -> None:
    assert len(breaches(text)) == found
