"""The command `duologue`. Each command is a file; `app` puts them together; heavy parts load only when used."""

from duologue.cli.app import main

__all__ = ["main"]
