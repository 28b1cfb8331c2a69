"""The documented path of the session state machine, which is defined in the core."""

from __future__ import annotations

from duologue.engine.duplex.core.session import DuplexEngineSession, DuplexFenceMismatchError

__all__ = ["DuplexEngineSession", "DuplexFenceMismatchError"]
