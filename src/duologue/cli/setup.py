"""`duologue setup`."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from duologue.setup import check_setup, choose_progress, default_models_dir, run_setup


def run_setup_command(models_dir: Path | None, *, check_only: bool) -> int:
    """Fill the models folder, or only say what it lacks; the exit code. Raises SetupError."""
    folder = models_dir or default_models_dir()
    if check_only:
        missing = check_setup(folder)
        for entry in missing:
            typer.echo(f"{entry.weight.name}: {entry.reason} in {folder}")
        typer.echo("missing files; type: duologue setup" if missing else f"all model files are in {folder}")
        return 1 if missing else 0
    try:
        run_setup(folder, progress=choose_progress(sys.stderr))
    except KeyboardInterrupt:
        typer.echo("\nstopped; type `duologue setup` to go on from here", err=True)
        return 130
    return 0
