"""The end of a replica's own process, asked for by stage code whose engine can't go on.

Rule kept here: only a process that runs nothing but the replica is ended; its end is what the engine evicts, reports and
restarts. Anywhere else the stage's errors have to do.
"""

from __future__ import annotations

import os
import sys

from duologue.log import init_logger

logger = init_logger(__name__)

EXIT_CODE = 70
OWN_PROCESS = "DUOLOGUE_REPLICA_PROCESS"
"""Environment variable that says that this process runs one replica and nothing else."""


def mark_own_process() -> None:
    """Say that this process runs one replica and nothing else."""
    os.environ[OWN_PROCESS] = "1"


def end_replica(why: str) -> None:
    """End this process if it runs one replica and nothing else; else only say so in the log."""
    logger.critical("this replica can't go on: %s", why)
    if os.environ.get(OWN_PROCESS) == "1":
        sys.stderr.flush()
        os._exit(EXIT_CODE)
