"""`duologue demo`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import typer
from rich.console import Console

from duologue.cli.fault import CommandError
from duologue.demo.run import DemoOptions, run_demo
from duologue.demo.summary import show_report
from duologue.setup import check_setup, default_models_dir


def run_demo_command(out_dir: Path, models_dir: Path | None, config: Path | None, *, kill_worker: bool) -> int:
    """Hold the conversation; 0 if all was well, 1 if not."""
    folder = models_dir or default_models_dir()
    missing = check_setup(folder)
    if missing:
        names = ", ".join(entry.weight.name for entry in missing)
        raise CommandError(f"model files are missing from {folder}: {names}", "type: duologue setup")
    options = DemoOptions(out_dir=out_dir, models_dir=folder, config=config, kill_worker=kill_worker)
    report = asyncio.run(run_demo(options, lambda line: typer.echo(line)))
    show_report(report, out_dir, Console())
    return 0 if report.ok else 1
