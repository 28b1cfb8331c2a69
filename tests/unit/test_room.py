"""A test that needs the machine to itself gets it, however many others come and go."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
OTHER = """
import sys
from pathlib import Path
from tests.room import room
sys.stdin.readline()
for number in range(200):
    with room(Path(sys.argv[1]), alone=number == int(sys.argv[2])), open(sys.argv[1] + "/log", "a") as log:
        log.write(f"{'alone' if number == int(sys.argv[2]) else 'in'}\\n")
        log.flush()
        log.write("out\\n")
"""


def test_who_is_alone_is_alone_and_does_not_wait_for_ever(tmp_path: Path) -> None:
    others = [
        subprocess.Popen(
            [sys.executable, "-c", OTHER, str(tmp_path), str(number)], stdin=subprocess.PIPE, cwd=REPOSITORY, text=True
        )
        for number in (-1, 10, 20)
    ]
    for other in others:
        assert other.stdin is not None
        other.stdin.write("go\n")
        other.stdin.flush()
    for other in others:
        assert other.wait() == 0
        assert other.stdin is not None
        other.stdin.close()
    log = (tmp_path / "log").read_text().split("\n")
    places = [at for at, word in enumerate(log) if word == "alone"]
    assert len(places) == 2
    assert all(log[at + 1] == "out" for at in places)
    for at in places:
        assert log[:at].count("in") + log[:at].count("alone") == log[:at].count("out"), "somebody else was in"
