"""The ASGI application: WebSocket endpoints over the sans-IO connection, and the HTTP routes beside them.

Rules kept here: who may connect is decided before the WebSocket is accepted, and the refusal is an HTTP answer with the
same error body as everywhere; liveness (``/health``) is apart from readiness (``/ready``).
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from duologue.clock import Runtime
from duologue.config.turns import TurnLimits
from duologue.errors import ERRORS, AdmissionFault, ClientFault, DuologueError, ErrorCode
from duologue.log import init_logger
from duologue.server.connection import Connection
from duologue.server.engine import EngineHealth, EnginePort
from duologue.server.hello import REALTIME_PROTOCOL, Access, read_hello
from duologue.server.metrics import CONTENT_TYPE, ServerMetrics
from duologue.server.registry import SessionHub
from duologue.server.shell import SocketShell, ask
from duologue.server.transport import EXTENSION, AsgiTransport, DirectTransport
from duologue.server.turns.routes import TurnRoutes
from duologue.wire.objects import ErrorBody

logger = init_logger(__name__)

_TURNS = TurnLimits()


class _ErrorAnswer(msgspec.Struct):
    error: ErrorBody


class _Slots(msgspec.Struct):
    limit: int
    used: int
    quarantined: int


class _Pool(msgspec.Struct):
    name: str
    replicas: int
    available: int


class _Health(msgspec.Struct):
    status: str
    sessions: int
    connections: int
    slots: _Slots
    pools: list[_Pool]


class _Model(msgspec.Struct):
    id: str
    created: int
    owned_by: str
    object: str = "model"


class _Models(msgspec.Struct):
    data: list[_Model]
    object: str = "list"


class RealtimeServer:
    """The server's state, shared by all requests. ``app`` is the ASGI application."""

    def __init__(
        self,
        *,
        engine: EnginePort,
        hub: SessionHub,
        access: Access,
        runtime: Runtime,
        metrics: ServerMetrics,
        turns: TurnLimits = _TURNS,
    ) -> None:
        self.engine = engine
        self.hub = hub
        self.metrics = metrics
        self._access = access
        self._runtime = runtime
        self._shells: dict[SocketShell, None] = {}
        self._changed = asyncio.Event()
        hub.on_change = self._changed.set
        self.turns = TurnRoutes(
            turns=lambda: engine.turns(),
            models=tuple(engine.models()),
            access=access,
            runtime=runtime,
            limits=turns,
            metrics=metrics.turns,
            on_change=self._changed.set,
        )
        self.app = Starlette(
            routes=[
                WebSocketRoute("/v1/realtime", self._realtime),
                WebSocketRoute("/v1/duplex", self._realtime),
                Route("/health", self._health),
                Route("/ready", self._ready),
                Route("/metrics", self._metrics),
                Route("/v1/models", self._models),
                Route("/v1/models/{model:path}", self._model),
                *self.turns.routes,
            ],
            exception_handlers={HTTPException: _not_offered},
        )

    @property
    def connections(self) -> int:
        """Sockets that are open."""
        return len(self._shells)

    async def drain(self, timeout_s: float) -> bool:
        """Stop admitting, give every session its terminal, close every socket (1001). False if time ran out first.

        What is still open then is dropped.
        """
        self.hub.draining = self.turns.draining = True
        for shell in list(self._shells):
            shell.shutdown()
        for attachment in self.hub.sessions:
            if attachment.owner is None:
                self._runtime.spawn(ask(self.engine, self.hub.close_message(attachment, "shutdown")), name="close")
        try:
            async with asyncio.timeout(timeout_s):
                while self._shells or self.hub.sessions or self.turns.active:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            for shell in list(self._shells):
                shell.abort()
            self.turns.stop()
            return False
        return True

    # -- WebSocket

    async def _realtime(self, websocket: WebSocket) -> None:
        try:
            key_id = self._admit(websocket, websocket.scope["subprotocols"])
            if self.hub.draining:
                raise AdmissionFault(ErrorCode.SHUTTING_DOWN, "The server is shutting down; connect again in a moment.")
        except AdmissionFault as fault:
            self.metrics.turned_away(fault.code)
            logger.info("connection refused", extra={"code": fault.code.value})
            await websocket.send_denial_response(_error(fault))
            return
        hello = read_hello(websocket.url.path, websocket.url.query, key_id)
        offered = websocket.scope["subprotocols"]
        try:
            await websocket.accept(subprotocol=REALTIME_PROTOCOL if REALTIME_PROTOCOL in offered else None)
        except (WebSocketDisconnect, OSError, RuntimeError):
            return  # gone during the handshake
        self.metrics.accepted(hello.dialect)
        shell = SocketShell(
            Connection(hello, self.hub),
            engine=self.engine,
            runtime=self._runtime,
            transport=_transport(websocket),
            receive=websocket.receive,
            close=websocket.close,
            close_timeout_s=self.hub.limits.close_timeout_s,
            limited=self.metrics.limited,
        )
        self._shells[shell] = None
        try:
            await shell.run()
        finally:
            del self._shells[shell]
            self._changed.set()

    def _admit(self, connection: HTTPConnection, subprotocols: list[str]) -> str:
        headers = connection.headers
        return self._access.admit(headers.get("authorization"), subprotocols, headers.get("origin"))

    # -- HTTP

    async def _health(self, _: Request) -> Response:
        health = self.engine.health()
        return self._state(health, "ok" if health.alive else "dead", ok=health.alive)

    async def _ready(self, _: Request) -> Response:
        health = self.engine.health()
        if self.hub.draining:
            return self._state(health, "draining", ok=False)
        return self._state(health, "ready" if health.ready else "not ready", ok=health.ready)

    def _state(self, health: EngineHealth, status: str, *, ok: bool) -> Response:
        body = _Health(
            status=status,
            sessions=len(self.hub.sessions),
            connections=self.connections,
            slots=_Slots(health.slots_limit, health.slots_used, health.slots_quarantined),
            pools=[_Pool(pool.name, pool.replicas, pool.available) for pool in health.pools],
        )
        return _json(body, 200 if ok else 503)

    async def _metrics(self, request: Request) -> Response:
        try:
            self._admit(request, [])
        except AdmissionFault as fault:
            return _error(fault)
        self.turns.measure()
        return Response(self.metrics.render(self.hub, self.engine.health()), media_type=CONTENT_TYPE)

    async def _models(self, request: Request) -> Response:
        try:
            self._admit(request, [])
        except AdmissionFault as fault:
            return _error(fault)
        return _json(_Models([_Model(card.id, card.created, card.owned_by) for card in self.engine.models()]))

    async def _model(self, request: Request) -> Response:
        try:
            self._admit(request, [])
            name = self.hub.names.resolve(request.path_params["model"])
        except DuologueError as fault:
            return _error(fault)
        card = next(card for card in self.engine.models() if card.id == name)
        return _json(_Model(card.id, card.created, card.owned_by))


def _transport(websocket: WebSocket) -> DirectTransport | AsgiTransport:
    control: Any = websocket.scope.get("extensions", {}).get(EXTENSION)
    return control if isinstance(control, DirectTransport) else AsgiTransport(websocket.send)


def _json(body: msgspec.Struct, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status_code=status, media_type="application/json")


def _error(fault: DuologueError, status: int | None = None) -> Response:
    spec = ERRORS[fault.code]
    body = ErrorBody(type=spec.wire_type, code=fault.code.value, message=fault.message, param=fault.param)
    return _json(_ErrorAnswer(body), status or spec.http_status)


def _not_offered(request: Request, refusal: Exception) -> Response:
    """A path or a method that no route has."""
    status = refusal.status_code if isinstance(refusal, HTTPException) else 404
    fault = ClientFault(ErrorCode.UNSUPPORTED, f"The server does not offer {request.method} {request.url.path}.")
    answer = _error(fault, status)
    answer.headers.update(getattr(refusal, "headers", None) or {})
    return answer
