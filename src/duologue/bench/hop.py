"""What one hop costs: ``python -m duologue.bench.hop``.

Prints microseconds (medians) for

* one hop through the orchestrator with in-process echo stages: pipelines of 1 and 9 stages, one request at a time and 64
  at once, the difference divided by the 8 hops between them;
* one round trip through the process backend with 4 KB, 64 KiB and 1 MiB of audio, next to a bare echo over a Unix
  socket with asyncio on both sides, and the same over pyzmq, in the same run and taking turns.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import socket
import statistics
import struct
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import zmq
import zmq.asyncio

from duologue.bench.echo import EchoStage
from duologue.bench.round_trip import WARM_UP, RoundTrip, client_echo, samples_us
from duologue.clock import AsyncioRuntime
from duologue.engine.messages import AddRequest, EngineQueueMessage, OutputMessage, Shutdown
from duologue.engine.orchestrator import Orchestrator
from duologue.engine.stage_pool import StagePool
from duologue.engine.stages.contract import StageClient
from duologue.engine.stages.edge import Edge, pass_on
from duologue.engine.stages.inproc import InprocClient
from duologue.engine.stages.process import ProcessClient, WorkerSpec
from duologue.outputs import StagePrompt

HOP_REQUESTS = 2_000
ROUND_TRIPS = 2_000
BLOCKS = 10
SIZES = {"4 KB": 4_096, "64 KiB": 65_536, "1 MiB": 1_048_576}


class Outbox:
    """Counts finished requests and calls back for each."""

    def __init__(self) -> None:
        self.on_finished: Callable[[], None] = lambda: None

    def put_nowait(self, message: EngineQueueMessage, /) -> None:
        if isinstance(message, OutputMessage) and message.finished:
            self.on_finished()


async def pipeline_us(stages: int, at_once: int) -> tuple[float, float]:
    """Median microseconds per request, by the wall and of processor time, through ``stages`` in-process echo stages."""
    runtime = AsyncioRuntime()
    outbox = Outbox()

    def client(_replica_id: int) -> StageClient:
        return InprocClient(EchoStage(), runtime=runtime)

    orchestrator = Orchestrator(
        stage_pools=[StagePool(stage_id=number, make_client=client, runtime=runtime) for number in range(stages)],
        edges=[Edge(source=number, target=number + 1, processor=pass_on) for number in range(stages - 1)],
        output_async_queue=outbox,
        rpc_async_queue=outbox,
        runtime=runtime,
    )
    await orchestrator.start()
    running = runtime.spawn(orchestrator.run(), name="orchestrator")
    await asyncio.sleep(0)
    prompt = StagePrompt(text="hello", audio=bytes(2_560), audio_rate_hz=16_000)
    wall, cpu = [], []
    for batch in range(HOP_REQUESTS // at_once):
        done = asyncio.get_running_loop().create_future()
        left = at_once

        def count(done: asyncio.Future[None] = done) -> None:
            nonlocal left
            left -= 1
            if not left:
                done.set_result(None)

        outbox.on_finished = count
        start, start_cpu = time.perf_counter(), time.process_time()
        for number in range(at_once):
            orchestrator.post(AddRequest(request_id=f"{batch}-{number}", prompt=prompt))
        await done
        wall.append((time.perf_counter() - start) / at_once)
        cpu.append((time.process_time() - start_cpu) / at_once)
    orchestrator.post(Shutdown())
    await running
    await runtime.aclose()
    return statistics.median(wall) * 1e6, statistics.median(cpu) * 1e6


async def hop_us(at_once: int) -> tuple[float, float]:
    """Median microseconds per hop, by the wall and of processor time (which a busy machine disturbs less)."""
    long = await pipeline_us(9, at_once)
    short = await pipeline_us(1, at_once)
    return (long[0] - short[0]) / 8, (long[1] - short[1]) / 8


@asynccontextmanager
async def backend_echo(size_bytes: int) -> AsyncIterator[RoundTrip]:
    """The process backend: a piece to a worker process, and its echo."""
    runtime = AsyncioRuntime()
    client = ProcessClient(WorkerSpec(factory="duologue.bench.echo:EchoWorkerStage", name="echo"), runtime=runtime)
    try:
        async with client_echo(client, size_bytes) as round_trip:
            yield round_trip
    finally:
        await runtime.aclose()


_LENGTH = struct.Struct(">I")


def _socket_echo_worker(connection: socket.socket) -> None:
    async def serve() -> None:
        reader, writer = await asyncio.open_unix_connection(sock=connection)
        try:
            while True:
                (length,) = _LENGTH.unpack(await reader.readexactly(4))
                body = await reader.readexactly(length)
                writer.write(_LENGTH.pack(length) + body)
        except asyncio.IncompleteReadError:
            writer.close()

    asyncio.run(serve())


@asynccontextmanager
async def socket_echo(size_bytes: int) -> AsyncIterator[RoundTrip]:
    """A bare echo over a Unix socket pair, asyncio streams on both sides."""
    ours, theirs = socket.socketpair()
    worker = multiprocessing.get_context("spawn").Process(target=_socket_echo_worker, args=(theirs,))
    worker.start()
    theirs.close()
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    payload = bytes(size_bytes)

    async def round_trip() -> None:
        writer.write(_LENGTH.pack(size_bytes) + payload)
        (length,) = _LENGTH.unpack(await reader.readexactly(4))
        await reader.readexactly(length)

    try:
        yield round_trip
    finally:
        writer.close()
        await writer.wait_closed()
        await asyncio.to_thread(worker.join, 5)


def _zmq_echo_worker(address: str) -> None:
    async def serve() -> None:
        with zmq.asyncio.Context() as context, context.socket(zmq.PAIR) as pair:
            pair.connect(address)
            while body := await pair.recv():
                await pair.send(body)

    asyncio.run(serve())


@asynccontextmanager
async def zmq_echo(size_bytes: int) -> AsyncIterator[RoundTrip]:
    """A bare echo over pyzmq's asyncio sockets (ipc transport)."""
    with tempfile.TemporaryDirectory() as folder:
        address = f"ipc://{os.path.join(folder, 'echo')}"
        worker = multiprocessing.get_context("spawn").Process(target=_zmq_echo_worker, args=(address,))
        with zmq.asyncio.Context() as context, context.socket(zmq.PAIR) as pair:
            pair.bind(address)
            worker.start()
            payload = bytes(size_bytes)

            async def round_trip() -> None:
                await pair.send(payload)
                await pair.recv()

            try:
                yield round_trip
            finally:
                await pair.send(b"")
                await asyncio.to_thread(worker.join, 5)


async def round_trips_us(size_bytes: int, rounds: int) -> list[list[float]]:
    """Medians of the backend, the bare socket and bare pyzmq, block by block.

    The three take turns, so that a machine that is busy for a while disturbs all alike.
    """
    async with backend_echo(size_bytes) as backend, socket_echo(size_bytes) as plain, zmq_echo(size_bytes) as zmq_pair:
        ways = (backend, plain, zmq_pair)
        for way in ways:
            await samples_us(way, WARM_UP)
        return [[statistics.median(await samples_us(way, rounds)) for way in ways] for _ in range(BLOCKS)]


def main() -> None:
    """Run everything and print it."""
    gc.freeze()
    for at_once in (1, 64):
        wall, cpu = asyncio.run(hop_us(at_once))
        print(f"orchestrator hop, {at_once:>2} requests at once: {wall:7.1f} us ({cpu:.1f} us of processor time)")
    for name, size_bytes in SIZES.items():
        rounds = ROUND_TRIPS if size_bytes < 1_000_000 else ROUND_TRIPS // 10
        blocks = asyncio.run(round_trips_us(size_bytes, rounds // BLOCKS))
        backend, plain, zmq_pair = (statistics.median(block[way] for block in blocks) for way in range(3))
        print(
            f"process round trip, {name:>6}: {backend:7.1f} us"
            f" = {statistics.median(one / other for one, other, _ in blocks):4.2f} x bare asyncio socket ({plain:.1f} us)"
            f" = {statistics.median(one / other for one, _, other in blocks):4.2f} x bare asyncio pyzmq ({zmq_pair:.1f} us)"
        )


if __name__ == "__main__":
    main()
