"""`duologue serve` and `duologue config check`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import typer

from duologue.config.loader import PREFIX, ConfigError, load_config
from duologue.config.service import DuologueConfig


def configuration(
    path: Path | None,
    environment: Mapping[str, str],
    *,
    host: str | None = None,
    port: int | None = None,
    api_keys: tuple[str, ...] = (),
    log_level: str | None = None,
) -> DuologueConfig:
    """The file, over it the environment, over both the command line. Raises ConfigError."""
    given = {
        "--host": ("SERVER__HOST", host),
        "--port": ("SERVER__PORT", None if port is None else str(port)),
        "--api-key": ("SERVER__API_KEYS", ",".join(api_keys) or None),
        "--log-level": ("LOGGING__LEVEL", log_level),
    }
    typed = {f"{PREFIX}{name}": value for name, value in given.values() if value is not None}
    try:
        return load_config(path, {**environment, **typed})
    except ConfigError as fault:
        if fault.origin not in typed:
            raise
        # Told by the name that was typed, not by the one it travels under.
        option = next(option for option, (name, _) in given.items() if f"{PREFIX}{name}" == fault.origin)
        raise ConfigError(option, list(fault.problems)) from None


def run_serve(
    path: Path | None, *, host: str | None, port: int | None, api_keys: tuple[str, ...], log_level: str | None
) -> None:
    """Serve until Ctrl-C. Raises ConfigError, ServeError, ModelUnavailableError or OSError."""
    config = configuration(path, os.environ, host=host, port=port, api_keys=api_keys, log_level=log_level)
    from duologue.server.main import run_server

    run_server(config)


def check_config(path: Path) -> None:
    """Say that the file can be used. Raises ConfigError with everything that is wrong."""
    try:
        config = load_config(path, {})
    except ConfigError as fault:
        for problem in fault.problems:
            typer.echo(f"{fault.origin}: {problem}", err=True)
        raise typer.Exit(1) from None
    from duologue.server.assembly import check_model
    from duologue.server.serve import ServeError

    try:
        check_model(config)
    except ServeError as refusal:
        typer.echo(f"{path}: {refusal}", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"{path}: usable; model {config.model.plugin}, listens on {config.server.host}:{config.server.port}")
