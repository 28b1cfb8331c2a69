"""The server as a program: ``python -m duologue.server [config.yaml]``, and what ``duologue serve`` calls."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec
import uvloop

from duologue.config.loader import ConfigError, load_config
from duologue.config.service import DuologueConfig
from duologue.detect.weights import ModelUnavailableError
from duologue.errors import DuologueError
from duologue.log import configure_logging
from duologue.metrics.meters import StageMeters
from duologue.server.assembly import engine, serve_config
from duologue.server.loading import Loading
from duologue.server.serve import Listening, ServeError, serve


def run_server(config: DuologueConfig) -> None:
    """Serve until SIGINT or SIGTERM, then drain.

    Raises :class:`ServeError`, ``ModelUnavailableError``, or ``OSError`` when the address cannot be bound.
    """
    configure_logging(config.logging.level, config.logging.json)
    meters = StageMeters()
    settings = msgspec.structs.replace(serve_config(config), collectors=(meters,))
    with Loading() as loading, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        factory = partial(engine, config, meters=meters, loading=loading)
        runner.run(serve(settings, factory, started=partial(_announce, config, loading)))


def _announce(config: DuologueConfig, loading: Loading, listening: Listening) -> None:
    """Say where to connect, once connections are accepted."""
    loading.done()
    http = listening.url.replace("ws", "http", 1)
    print(
        f"duologue: listening on {listening.url}/v1/realtime (model {config.model.plugin}); {http}/health", flush=True
    )
    print("duologue: Ctrl-C stops: every session gets its end first", flush=True)


def main(arguments: Sequence[str]) -> int:
    """Exit code 0 after an orderly stop, 1 with one line on standard error if the server cannot run."""
    if len(arguments) > 1 or (arguments and arguments[0].startswith("-")):
        print("usage: python -m duologue.server [config.yaml]", file=sys.stderr)
        return 2
    try:
        run_server(load_config(Path(arguments[0]) if arguments else None, os.environ))
    except (ConfigError, ServeError, DuologueError, ModelUnavailableError, OSError) as fault:
        print(f"duologue: {fault}", file=sys.stderr)
        return 1
    return 0
