"""Queue messages of duplex sessions: correlated control operations, one-way commands, and events on their way out."""

from __future__ import annotations

import msgspec

from duologue.config.session import SessionConfig
from duologue.engine.duplex.commands import DuplexCommand
from duologue.engine.duplex.events import SessionEvent
from duologue.engine.messages import EngineQueueMessage


class DuplexMessage(EngineQueueMessage, frozen=True, kw_only=True):
    """Base: everything that the session manager accepts."""

    session_id: str


class OpenSession(DuplexMessage, frozen=True, kw_only=True):
    """Admit and start a session. Answered by a ``ResultMessage`` whose value is an :class:`OpenedSession`.

    ``seed`` makes ids reproducible (empty: from the runtime's entropy). ``takes_output``: the consumer reports what it
    took (``OutputTaken``); otherwise every event counts as taken when it is put on the queue. ``resumable``: a lost
    connection puts the session in grace instead of closing it.
    """

    control_id: str
    config: SessionConfig
    seed: str = ""
    takes_output: bool = False
    resumable: bool = False


class CloseSessionMessage(DuplexMessage, frozen=True, kw_only=True):
    """End a session. Closing an unknown id succeeds."""

    control_id: str
    reason: str = "client_close"


class ResumeSession(DuplexMessage, frozen=True, kw_only=True):
    """Compare-and-swap on the lease generation; answered with the new generation. Replaying a control id is idempotent."""

    control_id: str
    expected_generation: int


class DetachSession(DuplexMessage, frozen=True, kw_only=True):
    """The connection that owns ``expected_generation`` is gone (``None``: whichever)."""

    control_id: str
    expected_generation: int | None = None


class TouchSession(DuplexMessage, frozen=True, kw_only=True):
    """Refresh the lease."""

    control_id: str


ControlMessage = OpenSession | CloseSessionMessage | ResumeSession | DetachSession | TouchSession
"""Operations that are answered, each under its ``control_id``, once."""


class SessionCommand(DuplexMessage, frozen=True, kw_only=True):
    """One client command, in arrival order."""

    command: DuplexCommand


class OutputTaken(DuplexMessage, frozen=True, kw_only=True):
    """The consumer handed every event up to ``number`` to its socket."""

    number: int


class OpenedSession(msgspec.Struct, frozen=True, kw_only=True):
    session_id: str
    generation: int
    config: SessionConfig


class SessionEventMessage(EngineQueueMessage, frozen=True, kw_only=True):
    """One event of a session. ``number`` counts from 1 per session without gaps except for invalidated events."""

    session_id: str
    number: int
    event: SessionEvent


class OutputInvalidated(EngineQueueMessage, frozen=True, kw_only=True):
    """Content of ``response_id`` that no socket has taken yet must not be sent any more."""

    session_id: str
    response_id: str
