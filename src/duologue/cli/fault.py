"""Errors of commands: one readable line with a hint, a traceback only on request.

Rule kept here: what a person could have caused or can mend is told as such; anything else is named as our fault.
"""

from __future__ import annotations

import importlib


class CommandError(Exception):
    """A command cannot do what was asked. `hint` says what to type instead."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message}\n  {hint}" if hint else message)


# By name: none of these modules is loaded only to tell its errors apart.
_EXPECTED = (
    ("duologue.cli.fault", "CommandError"),
    ("duologue.client.fault", "ClientError"),
    ("duologue.config.loader", "ConfigError"),
    ("duologue.demo.process", "ServerError"),
    ("duologue.detect.weights", "ModelUnavailableError"),
    ("duologue.errors", "DuologueError"),
    ("duologue.server.serve", "ServeError"),
    ("duologue.setup.fault", "SetupError"),
    ("duologue.audio.format", "AudioFormatError"),
)


def explain(fault: Exception) -> str:
    """`fault` for a person: its own text if it has one for people, else that we are at fault and what to do."""
    if _expected(fault):
        return f"duologue: {fault}"
    if isinstance(fault, OSError):
        name = f" ({fault.filename})" if fault.filename else ""
        return f"duologue: {fault.strerror or fault}{name}"
    return (
        f"duologue: internal error: {type(fault).__name__}: {fault}\n"
        "  This is a fault in Duologue. The same command with --debug shows where."
    )


def _expected(fault: Exception) -> bool:
    names = {(kind.__module__, kind.__qualname__) for kind in type(fault).__mro__}
    return any(name in names for name in _EXPECTED)


def require(module: str, hint: str) -> object:
    """The module, or CommandError with `hint` if it cannot be loaded."""
    try:
        return importlib.import_module(module)
    except (ImportError, OSError) as fault:  # OSError: a system library that it wraps is missing
        raise CommandError(f"{module} cannot be loaded ({fault})", hint) from fault
