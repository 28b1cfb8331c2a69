"""What runs the heavy backends' tests leaves no process behind, however it ends."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

import pytest

from tests.integration.backends.replica import PATIENCE_S, REPOSITORY

CONTAINED = [sys.executable, str(REPOSITORY / "scripts" / "contained.py")]
INDEPENDENT = """
import subprocess, sys
sleeper = subprocess.Popen(["sleep", "1000"], start_new_session=True, stdout=subprocess.DEVNULL)
print(sleeper.pid, flush=True)
"""


def gone(pid: int) -> bool:
    """Whether a process that was there has ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("code", [0, 7])
def test_the_exit_code_is_the_command_s(code: int) -> None:
    ended = subprocess.run([*CONTAINED, "sh", "-c", f"exit {code}"], timeout=PATIENCE_S, check=False)
    assert ended.returncode == code


def test_a_process_that_made_itself_independent_ends_with_the_command() -> None:
    ended = subprocess.run(
        [*CONTAINED, sys.executable, "-c", INDEPENDENT], stdout=subprocess.PIPE, timeout=PATIENCE_S, check=True
    )
    assert gone(int(ended.stdout))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_everything(number: signal.Signals) -> None:
    lasting = INDEPENDENT + "sleeper.wait()\n"
    with subprocess.Popen([*CONTAINED, sys.executable, "-c", lasting], stdout=subprocess.PIPE) as contained:
        assert contained.stdout is not None
        assert select.select([contained.stdout], [], [], PATIENCE_S)[0]
        sleeper = int(contained.stdout.readline())
        assert not gone(sleeper)
        contained.send_signal(number)
        assert contained.wait(PATIENCE_S) == 128 + number
    assert gone(sleeper)
