"""A server on a loopback port over a real engine, and stock clients that talk to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial, wraps
from typing import Any

import httpx
import openai

from duologue.config.service import DuologueConfig, ModelChoice, ServerConfig
from duologue.config.turns import TurnLimits
from duologue.engine.duplex_orchestrator import DuplexOrchestrator
from duologue.server.app import RealtimeServer
from duologue.server.assembly import engine, serve_config
from duologue.server.engine import EngineFront
from duologue.server.serve import running

PATIENCE_S = 60.0  # only a failure takes it


class Host:
    """A running server."""

    def __init__(self, url: str, server: RealtimeServer) -> None:
        self.url = url
        self.server = server

    @property
    def orchestrator(self) -> DuplexOrchestrator:
        assert isinstance(self.server.engine, EngineFront)
        orchestrator = self.server.engine._orchestrator
        assert isinstance(orchestrator, DuplexOrchestrator)
        return orchestrator

    def busy(self) -> dict[str, int]:
        """Whatever is not at rest."""
        sizes = {**self.orchestrator.tables(), "requests": self.server.turns.active}
        return {name: size for name, size in sizes.items() if size}

    async def at_rest(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.busy():  # noqa: ASYNC110 - what is awaited belongs to others and has no event
                await asyncio.sleep(0.005)


@asynccontextmanager
async def host(
    *, plugin: str = "scripted", limits: TurnLimits | None = None, keys: tuple[str, ...] = (), **options: Any
) -> AsyncIterator[Host]:
    """A server with the named model; everything must be at rest when it ends."""
    settings = DuologueConfig(
        server=ServerConfig(port=0, api_keys=keys, turns=limits or TurnLimits()),
        model=ModelChoice(plugin=plugin, options=options),
    )
    async with running(serve_config(settings), partial(engine, settings)) as (listening, server):
        place = Host(listening.url.replace("ws", "http", 1), server)
        yield place
        await place.at_rest()


@asynccontextmanager
async def stock_client(place: Host, **options: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's own client, told nothing but where the server is."""
    async with openai.AsyncOpenAI(base_url=f"{place.url}/v1", api_key="secret", **options) as client:
        yield client


@asynccontextmanager
async def plain_client(place: Host) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=place.url, timeout=PATIENCE_S, trust_env=False) as client:
        yield client


def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on a loop of its own."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(4 * PATIENCE_S):
                await test(*args, **kwargs)

        asyncio.run(bounded())

    return run
