"""Round trips: the one loop that measures them, and the one through a replica. Not run by itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager

from duologue.engine.stages.contract import StageClient
from duologue.outputs import RequestOutput, SamplingParams, StagePrompt, StageRequest

RoundTrip = Callable[[], Coroutine[object, object, None]]
"""Sends one message and waits for its echo."""

WARM_UP = 10


class Waiter:
    """A sink that resolves a future with each output."""

    def __init__(self) -> None:
        self.arrived: asyncio.Future[RequestOutput] | None = None

    def on_output(self, output: RequestOutput) -> None:
        if self.arrived is not None:
            self.arrived.set_result(output)

    def on_dead(self, error: BaseException) -> None:
        if self.arrived is not None:
            self.arrived.set_exception(error)


@asynccontextmanager
async def client_echo(client: StageClient, size_bytes: int) -> AsyncIterator[RoundTrip]:
    """From submitting a piece of ``size_bytes`` of audio to its echo. Starts ``client``, and closes it at the end.

    Its stage must answer each piece with one output (``duologue.bench.echo``).
    """
    waiter = Waiter()
    loop = asyncio.get_running_loop()
    await client.start(waiter)
    request = StageRequest(
        request_id="bench",
        external_req_id="bench",
        prompt=StagePrompt(audio=bytes(size_bytes), audio_rate_hz=16_000, final=False),
        params=SamplingParams(),
        resumable=True,
    )

    async def round_trip() -> None:
        waiter.arrived = loop.create_future()
        await client.update(request)
        await waiter.arrived

    try:
        waiter.arrived = loop.create_future()
        await client.submit(request)
        await waiter.arrived
        yield round_trip
    finally:
        await client.close()


async def samples_us(round_trip: RoundTrip, rounds: int) -> list[float]:
    """Microseconds of ``rounds`` round trips, ascending."""
    samples = []
    for _ in range(rounds):
        start = time.perf_counter()
        await round_trip()
        samples.append((time.perf_counter() - start) * 1e6)
    return sorted(samples)
