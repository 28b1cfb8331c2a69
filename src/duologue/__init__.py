"""Duologue: an engine and server for full-duplex speech."""

__version__ = "0.1.0"
