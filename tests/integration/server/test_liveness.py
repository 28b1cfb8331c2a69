"""Work that takes long holds up nobody's sign of life: real sockets, a real loop, and a detector that will not end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import numpy as np
import pytest

from duologue.clock import Runtime
from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.session.detection import BatchedDetection
from duologue.server import assembly
from tests.integration.server.loopback import PATIENCE_S, eventually, on_loop
from tests.integration.server.test_engine import config, real, tone

CLIENTS = 20


class Endless:
    """A detector that is at work until somebody says that it may end, as one that takes all of a processor would be."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.begun = 0
        self.ended = 0

    def score(self, batch: Sequence[Any]) -> list[Any]:
        self.begun += 1
        self.may_end.wait(PATIENCE_S)
        self.ended += 1
        return [np.zeros(len(frames), dtype=np.float32) for _, frames in batch]


@on_loop
async def test_field_F36_pings_are_answered_while_a_detector_is_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were it at work on the loop, no ping would be answered before it ends, which here is after the last one was."""
    scorer = Endless()
    build = assembly._scripted

    def slow(options: Any, runtime: Runtime) -> Any:
        detection = BatchedDetection(runtime, scorer)  # type: ignore[arg-type]
        return msgspec.structs.replace(build(options, runtime), detection=detection)

    monkeypatch.setattr(assembly, "_scripted", slow)
    settings = msgspec.structs.replace(config(), sessions=DuplexSessionRuntimeConfig(max_sessions=CLIENTS))
    async with real(settings) as host, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(host.client()) for _ in range(CLIENTS)]
        for client in clients:
            assert (await client.next())["type"] == "session.created"
            await client.send("input_audio_buffer.append", audio=tone(0.5, 24_000))
        await eventually(lambda: scorer.begun == 1)
        async with asyncio.timeout(PATIENCE_S / 2):
            for client in clients:
                await (await client.socket.ping())
                await client.send("input_audio_buffer.append", audio=tone(0.1, 24_000))
        assert scorer.ended == 0, "all were answered while it was at work"
        scorer.may_end.set()
        for client in clients:
            await client.send("session.update", session={"type": "realtime", "instructions": "Be brief."})
            await client.until("session.updated")
            assert client.socket.close_code is None
