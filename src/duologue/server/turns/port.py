"""The small port through which the server reaches ordinary requests. It knows no model and no orchestrator."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from duologue.engine.duplex.plugin import Turn, TurnPlan
from duologue.engine.messages import EngineQueueMessage, OutputMessage
from duologue.errors import DuologueError


class TurnOutputs(Protocol):
    """The outputs of one ordinary request, for one reader, who closes it in any case."""

    @property
    def plan(self) -> TurnPlan:
        """The request's way through the stages."""
        ...

    def __aiter__(self) -> AsyncIterator[OutputMessage]:
        """In order; raises what ended the request early."""
        ...

    def close(self) -> None:
        """Nobody reads any more: what still runs is stopped at every stage. Idempotent, does not wait."""
        ...


class TurnPort(Protocol):
    """Ordinary requests, beside sessions."""

    @property
    def longest_utterance_ms(self) -> int:
        """How long a recording may be to be recognised in one piece. Raises as :meth:`request` does."""
        ...

    @property
    def input_rate_hz(self) -> int:
        """The rate of the audio in requests."""
        ...

    def request(self, turn: Turn) -> TurnOutputs:
        """Start a request. Raises :class:`DuologueError` for one that cannot even be tried."""
        ...


class TurnService(TurnPort, Protocol):
    """The port, and what the engine tells it."""

    def take(self, message: EngineQueueMessage) -> None:
        """One message; ignored unless it is about a request that somebody reads."""
        ...

    def died(self, fault: DuologueError) -> None:
        """The engine has stopped for good."""
        ...
