"""What the endpoints have in common: the services they share and the shape of each."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from duologue.clock import Runtime
from duologue.config.turns import TurnLimits
from duologue.engine.duplex.plugin import Turn
from duologue.errors import ClientFault
from duologue.server.models import ModelNames
from duologue.server.turns.exchange import Exchange
from duologue.server.turns.gate import Place
from duologue.server.turns.port import TurnOutputs, TurnPort
from duologue.server.turns.spoken import SpokenAnswers
from duologue.wire.objects import Voice

Work = Callable[[], Coroutine[Any, Any, None]]
"""What is left to do once a request was read and checked."""


class Services:
    """What every endpoint needs."""

    def __init__(
        self, *, turns: Callable[[], TurnPort], names: ModelNames, runtime: Runtime, limits: TurnLimits
    ) -> None:
        """``turns`` raises :class:`ClientFault` where there are no ordinary requests."""
        self.runtime = runtime
        self.limits = limits
        self.spoken = SpokenAnswers(runtime)
        self._turns = turns
        self._names = names

    @property
    def turns(self) -> TurnPort:
        return self._turns()

    def model(self, name: str | None) -> str:
        """The served model that a client means. Raises :class:`ClientFault` (``model_not_found``)."""
        try:
            return self._names.resolve(name)
        except ClientFault as fault:
            raise ClientFault(fault.code, fault.message, param="model") from None

    @contextmanager
    def request(self, turn: Turn) -> Iterator[TurnOutputs]:
        """The outputs of a request, which is stopped when the context is left."""
        outputs = self.turns.request(turn)
        try:
            yield outputs
        finally:
            outputs.close()


class Handler(Protocol):
    """One endpoint."""

    name: str

    async def read(self, exchange: Exchange, place: Place) -> Work:
        """Read the body and check it; what is left to do waits for its turn. Raises :class:`DuologueError`."""
        ...


def voice_name(voice: str | Voice | None) -> str | None:
    """The name of a voice, however it was given."""
    return voice.id if isinstance(voice, Voice) else voice
