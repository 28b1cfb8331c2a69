"""What a connection asks of whoever holds its socket, in order."""

from __future__ import annotations

import msgspec

from duologue.engine.duplex.messages import ControlMessage
from duologue.engine.messages import EngineQueueMessage


class _Action(msgspec.Struct, frozen=True):
    pass


class Post(_Action, frozen=True):
    """Post this to the engine."""

    message: EngineQueueMessage


class Ask(_Action, frozen=True):
    """Carry this out at the engine, whatever becomes of the socket, and bring the answer to ``answered``."""

    message: ControlMessage


class CloseSocket(_Action, frozen=True):
    """Close the socket in order; nothing more is sent."""

    code: int
    reason: str


class AbortSocket(_Action, frozen=True):
    """Drop the socket: the client does not read."""


Action = Post | Ask | CloseSocket | AbortSocket
