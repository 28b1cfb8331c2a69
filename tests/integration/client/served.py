"""A real server with a scripted model on a loopback port, in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import msgspec

from duologue.config.loader import load_config
from duologue.config.service import ModelChoice
from duologue.server.assembly import engine, serve_config
from duologue.server.serve import Listening, running

_PATIENCE_S = 30.0


@contextmanager
def scripted_server(**environment: str) -> Iterator[str]:
    """The URL of a server that answers every turn with two short sentences, or asks for the weather if that is asked."""
    config = load_config(
        None,
        {
            "DUOLOGUE__SERVER__PORT": "0",
            "DUOLOGUE__MODEL__PLUGIN": "scripted",
            "DUOLOGUE__SESSION__TURN_DETECTION": "null",
            **environment,
        },
    )
    call = {"when": "weather", "name": "weather", "arguments": '{"city": "Rome"}', "says": 0}
    model = ModelChoice(plugin="scripted", options={"calls": [call]})  # type: ignore[dict-item]
    config = msgspec.structs.replace(config, model=model)
    started = threading.Event()
    found: list[Listening] = []
    faults: list[BaseException] = []
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        async with running(serve_config(config), partial(engine, config)) as (listening, _):
            found.append(listening)
            started.set()
            await stop.wait()

    def work() -> None:
        try:
            loop.run_until_complete(serve())
        except BaseException as fault:
            faults.append(fault)
            started.set()
        finally:
            loop.close()

    thread = threading.Thread(target=work, name="scripted-server")
    thread.start()
    try:
        assert started.wait(_PATIENCE_S) and found, faults
        yield found[0].url
    finally:
        if not loop.is_closed():
            loop.call_soon_threadsafe(stop.set)
        thread.join(_PATIENCE_S)
    assert not thread.is_alive() and not faults, faults
