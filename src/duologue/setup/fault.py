"""The one error of set-up. Its text is for the person at the terminal: what went wrong and what to type."""

from __future__ import annotations


class SetupError(Exception):
    """Set-up could not finish; what was already fetched is kept, and running it again goes on from there."""
