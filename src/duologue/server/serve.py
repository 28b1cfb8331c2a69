"""Start and stop of the server, in order.

Rules kept here:

* an address that others can reach needs a key; this is judged before anything is started;
* the port is bound before the engine starts, so that a taken port costs nothing, and listened on after it is up;
* a signal drains: nothing new is admitted, every session gets its terminal, every socket is closed (1001), then the
  engine stops; a second signal stops at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

import msgspec
import uvicorn
from prometheus_client.registry import Collector

from duologue.clock import AsyncioRuntime, Runtime
from duologue.config.session import SessionConfig
from duologue.config.turns import TurnLimits
from duologue.log import init_logger
from duologue.server.app import RealtimeServer
from duologue.server.engine import EnginePort
from duologue.server.hello import LOCAL_ORIGINS, Access
from duologue.server.metrics import ServerMetrics
from duologue.server.models import DEFAULT_ALIASES, ModelNames
from duologue.server.registry import ConnectionLimits, SessionHub
from duologue.server.transport import HANDSHAKE_TIMEOUT_S, HandshakeProtocol, SocketProtocol

logger = init_logger(__name__)

# A frame above this is closed with 1009; between the event limit and this it gets a typed error.
MAX_FRAME_BYTES: Final = 24 * 1024 * 1024
PING_INTERVAL_S: Final = 20.0
PING_TIMEOUT_S: Final = 60.0


class ServeError(Exception):
    """The server cannot start as configured; the text says what to change."""


class ServeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about the server but its engine. ``collectors`` are shown at ``/metrics`` too."""

    host: str = "127.0.0.1"
    port: int = 8765
    api_keys: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = LOCAL_ORIGINS
    tls_certificate: str | None = None
    tls_key: str | None = None
    model_aliases: tuple[str, ...] = DEFAULT_ALIASES
    session: SessionConfig = SessionConfig()
    limits: ConnectionLimits = ConnectionLimits()
    turns: TurnLimits = TurnLimits()
    resumable: bool = True
    drain_timeout_s: float = 10.0
    handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S
    max_frame_bytes: int = MAX_FRAME_BYTES
    ping_interval_s: float = PING_INTERVAL_S
    ping_timeout_s: float = PING_TIMEOUT_S
    collectors: tuple[Collector, ...] = ()


EngineFactory = Callable[[Runtime], AbstractAsyncContextManager[EnginePort]]


class Listening(msgspec.Struct, frozen=True):
    """Where a server that has started listens."""

    host: str
    port: int
    tls: bool

    @property
    def url(self) -> str:
        """The base URL for WebSocket clients."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'wss' if self.tls else 'ws'}://{host}:{self.port}"


class _Uvicorn(uvicorn.Server):
    """uvicorn without its signal handling: the drain comes first."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()


@asynccontextmanager
async def running(
    config: ServeConfig, engine_factory: EngineFactory, *, runtime: Runtime | None = None
) -> AsyncIterator[tuple[Listening, RealtimeServer]]:
    """A server that listens while the context is open, and drains when it is left.

    Raises :class:`ServeError` for a configuration that must not run, ``OSError`` if the address cannot be bound.
    """
    check(config)
    own = AsyncioRuntime() if runtime is None else None
    world: Runtime = runtime if own is None else own  # type: ignore[assignment]
    listener = bind(config.host, config.port)
    try:
        async with engine_factory(world) as engine:
            realtime = _build(config, engine, world)
            async with _http(config, realtime, listener):
                host, port = listener.getsockname()[:2]
                yield Listening(host, port, config.tls_certificate is not None), realtime
                if not await realtime.drain(config.drain_timeout_s):
                    logger.warning("drain did not finish in time", extra={"timeout_s": config.drain_timeout_s})
    finally:
        listener.close()
        if own is not None:
            await own.aclose()


async def serve(
    config: ServeConfig,
    engine_factory: EngineFactory,
    *,
    runtime: Runtime | None = None,
    started: Callable[[Listening], None] | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """Serve until ``stop`` is set or the process is told to end (SIGINT, SIGTERM), then drain.

    ``started`` is called once, when connections are accepted.
    """
    ending = stop or asyncio.Event()
    with _signals(ending):
        async with running(config, engine_factory, runtime=runtime) as (listening, _):
            if started is not None:
                started(listening)
            await ending.wait()


def check(config: ServeConfig) -> None:
    """Raise :class:`ServeError` for a configuration that must not run."""
    if not _is_loopback(config.host) and not config.api_keys:
        raise ServeError(
            f"server.host {config.host} can be reached by others: set server.api_keys (or the environment variable that "
            "names them), or bind to 127.0.0.1."
        )
    if any(not key.strip() for key in config.api_keys):
        raise ServeError("server.api_keys holds an empty key: remove it or set its variable.")
    if (config.tls_certificate is None) != (config.tls_key is None):
        raise ServeError("TLS needs both server.tls_certificate and server.tls_key.")
    if config.max_frame_bytes < config.limits.max_event_bytes:
        raise ServeError("server.max_frame_bytes must be above limits.max_event_bytes, or no typed error is possible.")


def bind(host: str, port: int) -> socket.socket:
    """A bound, not yet listening socket. Port 0 takes a free one. Raises ``OSError`` naming the address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP: asyncio sends without delay (Nagle) only on sockets that say so.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as fault:
        listener.close()
        raise OSError(fault.errno, f"cannot listen on {host}:{port}: {fault.strerror}") from None
    return listener


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _build(config: ServeConfig, engine: EnginePort, runtime: Runtime) -> RealtimeServer:
    metrics = ServerMetrics()
    for collector in config.collectors:
        metrics.include(collector)
    hub = SessionHub(
        defaults=config.session,
        names=ModelNames(engine.models(), config.model_aliases),
        entropy=runtime.entropy,
        subscribe=engine.subscribe,
        unsubscribe=engine.unsubscribe,
        limits=config.limits,
        observer=metrics,
        resumable=config.resumable,
    )
    access = Access(config.api_keys, config.allowed_origins)
    return RealtimeServer(engine=engine, hub=hub, access=access, runtime=runtime, metrics=metrics, turns=config.turns)


@asynccontextmanager
async def _http(config: ServeConfig, realtime: RealtimeServer, listener: socket.socket) -> AsyncIterator[None]:
    """uvicorn on the listener, on this loop."""
    server = _Uvicorn(
        uvicorn.Config(
            realtime.app,
            lifespan="off",
            http=type("_Handshake", (HandshakeProtocol,), {"handshake_timeout_s": config.handshake_timeout_s}),
            ws=SocketProtocol,
            ws_max_size=config.max_frame_bytes,
            ws_per_message_deflate=False,
            ws_ping_interval=config.ping_interval_s,
            ws_ping_timeout=config.ping_timeout_s,
            ssl_certfile=config.tls_certificate,
            ssl_keyfile=config.tls_key,
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=2,
        )
    )
    task = asyncio.create_task(server.serve(sockets=[listener]), name="uvicorn")
    listening = asyncio.create_task(server.listening.wait(), name="listening")
    try:
        await asyncio.wait([task, listening], return_when=asyncio.FIRST_COMPLETED)
        if not server.started:
            raise ServeError("The HTTP server did not start; see the log.")
        yield
    finally:
        listening.cancel()
        server.should_exit = True
        await task


@contextlib.contextmanager
def _signals(stop: asyncio.Event) -> Iterator[None]:
    """SIGINT and SIGTERM set ``stop``; a second one ends the process as if nobody had listened."""
    loop = asyncio.get_running_loop()
    installed: list[signal.Signals] = []

    def handle(number: signal.Signals) -> None:
        if stop.is_set():
            loop.remove_signal_handler(number)
            signal.raise_signal(number)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        # Not in the main thread (a test, an embedding program): its owner stops the server.
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(number, handle, number)
            installed.append(number)
    try:
        yield
    finally:
        for number in installed:
            loop.remove_signal_handler(number)
