"""The HTTP routes of ordinary requests, and the one way that each request takes: admitted, read, queued, done, answered.

Rules kept here: who may ask is decided before a byte of the body is read; a request always ends in one answer, one broken
connection or one client that has gone; no request outlives the server's drain.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from duologue.clock import Runtime
from duologue.config.turns import TurnLimits
from duologue.errors import ERRORS, AdmissionFault, DuologueError, ErrorCode, SessionFault
from duologue.log import init_logger
from duologue.server.hello import Access
from duologue.server.models import DEFAULT_ALIASES, ModelCard, ModelNames
from duologue.server.turns.chat import ChatHandler
from duologue.server.turns.exchange import ClientGone, Exchange
from duologue.server.turns.gate import Gate, Place
from duologue.server.turns.handler import Handler, Services, Work
from duologue.server.turns.measure import TurnMetrics
from duologue.server.turns.port import TurnPort
from duologue.server.turns.speech import SpeechHandler
from duologue.server.turns.transcription import TranscriptionHandler

logger = init_logger(__name__)

ALIASES = (*DEFAULT_ALIASES, "gpt-4o*audio*", "gpt-audio*", "gpt-4o*-tts*", "tts-1*", "gpt-4o*transcribe*", "whisper-1")
"""OpenAI's names of models that speak or hear: they mean the served one, so that stock clients work as they are."""


class TurnRoutes:
    """All ordinary requests of a server. ``on_change`` is called when one has ended."""

    def __init__(
        self,
        *,
        turns: Callable[[], TurnPort],
        models: tuple[ModelCard, ...],
        access: Access,
        runtime: Runtime,
        limits: TurnLimits,
        metrics: TurnMetrics,
        on_change: Callable[[], None],
    ) -> None:
        """``turns`` raises :class:`ClientFault` where there are no ordinary requests."""
        self.gate = Gate(limits, runtime.now)
        self.draining = False
        self._access = access
        self._runtime = runtime
        self._limits = limits
        self._metrics = metrics
        self._on_change = on_change
        self._exchanges: dict[Exchange, None] = {}
        services = Services(turns=turns, names=ModelNames(models, ALIASES), runtime=runtime, limits=limits)
        self.routes = [
            self._route("/v1/chat/completions", ChatHandler(services)),
            self._route("/v1/audio/speech", SpeechHandler(services)),
            self._route("/v1/audio/transcriptions", TranscriptionHandler(services)),
        ]

    @property
    def active(self) -> int:
        """Requests that have not been answered."""
        return len(self._exchanges)

    def measure(self) -> None:
        """Bring the gauges up to date."""
        gate = self.gate
        self._metrics.counted(places=gate.places, running=gate.running, held_bytes=gate.held_bytes)

    def stop(self) -> None:
        """End every request now, with an error as far as it can still be told."""
        for exchange in list(self._exchanges):
            exchange.interrupt(_shutting_down())

    def _route(self, path: str, handler: Handler) -> Route:
        return Route(path, _Endpoint(self, handler), methods=["POST"])

    async def serve(self, handler: Handler, scope: Scope, receive: Receive, send: Send) -> None:
        """One request from its head to the end of its answer."""
        exchange = Exchange(
            scope,
            receive,
            send,
            runtime=self._runtime,
            limits=self._limits,
            request_id=f"req_{self._runtime.entropy(12).hex()}",
        )
        self._exchanges[exchange] = None
        begun = self._runtime.now()
        status = "gone"
        try:
            status = await self._answered(handler, exchange)
        finally:
            del self._exchanges[exchange]
            self._metrics.ended(handler.name, status, self._runtime.now() - begun)
            self._on_change()

    async def _answered(self, handler: Handler, exchange: Exchange) -> str:
        """Do it, whatever happens; returns how it ended, for the metrics."""
        try:
            await self._attempt(handler, exchange)
            return str(exchange.status)
        except ClientGone:
            return "gone"
        except DuologueError as fault:
            return await self._refuse(exchange, fault)
        except Exception:
            logger.exception("a request failed", extra={"request_id": exchange.request_id, "endpoint": handler.name})
            return await self._refuse(exchange, SessionFault(ErrorCode.INTERNAL_ERROR, "A fault in the server."))

    async def _attempt(self, handler: Handler, exchange: Exchange) -> None:
        headers = exchange.headers
        self._access.admit(headers.get("authorization"), [], headers.get("origin"))
        if self.draining:
            raise _shutting_down()
        async with self.gate.place() as place:
            work = await handler.read(exchange, place)
            await exchange.attend(self._in_turn(place, work))

    async def _in_turn(self, place: Place, work: Work) -> None:
        async with place.running():
            await work()

    async def _refuse(self, exchange: Exchange, fault: DuologueError) -> str:
        begun = exchange.started
        try:
            await exchange.fail(fault)
        except ClientGone:
            return "gone"
        return "broken" if begun else str(ERRORS[fault.code].http_status)


class _Endpoint:
    """The ASGI application of one route."""

    def __init__(self, routes: TurnRoutes, handler: Handler) -> None:
        self._routes = routes
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._routes.serve(self._handler, scope, receive, send)


def _shutting_down() -> AdmissionFault:
    return AdmissionFault(ErrorCode.SHUTTING_DOWN, "The server is shutting down; try again in a moment.")
