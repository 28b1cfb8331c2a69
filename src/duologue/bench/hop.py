"""What one hop costs: ``python -m duologue.bench.hop``.

Prints microseconds (medians) for

* one hop through the orchestrator with in-process echo stages: pipelines of 1 and 9 stages, one request at a time and 64
  at once, the difference divided by the 8 hops between them;
* one round trip through the process backend with 4 KB, 64 KiB and 1 MiB of audio, next to a bare echo over a Unix
  socket with asyncio on both sides, and the same over pyzmq, in the same run.
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
from collections.abc import Callable

import zmq
import zmq.asyncio

from duologue.bench.echo import EchoStage
from duologue.clock import AsyncioRuntime
from duologue.engine.messages import AddRequest, EngineQueueMessage, OutputMessage, Shutdown
from duologue.engine.orchestrator import Orchestrator
from duologue.engine.stage_pool import StagePool
from duologue.engine.stages.contract import StageClient
from duologue.engine.stages.edge import Edge, pass_on
from duologue.engine.stages.inproc import InprocClient
from duologue.engine.stages.process import ProcessClient, WorkerSpec
from duologue.outputs import RequestOutput, SamplingParams, StagePrompt, StageRequest

HOP_REQUESTS = 2_000
ROUND_TRIPS = 2_000
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


async def process_us(size_bytes: int, rounds: int) -> float:
    """Median microseconds from submitting a piece to its echo, through a worker process."""
    runtime = AsyncioRuntime()
    client = ProcessClient(WorkerSpec(factory="duologue.bench.echo:EchoWorkerStage", name="echo"), runtime=runtime)
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
    waiter.arrived = loop.create_future()
    await client.submit(request)
    await waiter.arrived
    samples = []
    for _ in range(rounds):
        waiter.arrived = loop.create_future()
        start = time.perf_counter()
        await client.update(request)
        await waiter.arrived
        samples.append(time.perf_counter() - start)
    await client.close()
    await runtime.aclose()
    return statistics.median(samples) * 1e6


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


async def socket_floor_us(size_bytes: int, rounds: int) -> float:
    """Median microseconds of a bare echo over a Unix socket pair, asyncio streams on both sides."""
    ours, theirs = socket.socketpair()
    context = multiprocessing.get_context("spawn")
    worker = context.Process(target=_socket_echo_worker, args=(theirs,))
    worker.start()
    theirs.close()
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    payload = bytes(size_bytes)
    samples = []
    for _ in range(rounds):
        start = time.perf_counter()
        writer.write(_LENGTH.pack(size_bytes) + payload)
        (length,) = _LENGTH.unpack(await reader.readexactly(4))
        await reader.readexactly(length)
        samples.append(time.perf_counter() - start)
    writer.close()
    await writer.wait_closed()
    await asyncio.to_thread(worker.join, 5)
    return statistics.median(samples[1:]) * 1e6


def _zmq_echo_worker(address: str) -> None:
    async def serve() -> None:
        with zmq.asyncio.Context() as context, context.socket(zmq.PAIR) as pair:
            pair.connect(address)
            while body := await pair.recv():
                await pair.send(body)

    asyncio.run(serve())


async def zmq_floor_us(size_bytes: int, rounds: int) -> float:
    """Median microseconds of a bare echo over pyzmq's asyncio sockets (ipc transport)."""
    with tempfile.TemporaryDirectory() as folder:
        address = f"ipc://{os.path.join(folder, 'echo')}"
        worker = multiprocessing.get_context("spawn").Process(target=_zmq_echo_worker, args=(address,))
        with zmq.asyncio.Context() as context, context.socket(zmq.PAIR) as pair:
            pair.bind(address)
            worker.start()
            payload = bytes(size_bytes)
            samples = []
            for _ in range(rounds):
                start = time.perf_counter()
                await pair.send(payload)
                await pair.recv()
                samples.append(time.perf_counter() - start)
            await pair.send(b"")
            await asyncio.to_thread(worker.join, 5)
    return statistics.median(samples[1:]) * 1e6


def main() -> None:
    """Run everything and print it."""
    gc.freeze()
    for at_once in (1, 64):
        wall, cpu = asyncio.run(hop_us(at_once))
        print(f"orchestrator hop, {at_once:>2} requests at once: {wall:7.1f} us ({cpu:.1f} us of processor time)")
    for name, size_bytes in SIZES.items():
        rounds = ROUND_TRIPS if size_bytes < 1_000_000 else ROUND_TRIPS // 10
        backend = asyncio.run(process_us(size_bytes, rounds))
        socket_floor = asyncio.run(socket_floor_us(size_bytes, rounds))
        zmq_floor = asyncio.run(zmq_floor_us(size_bytes, rounds))
        print(
            f"process round trip, {name:>6}: {backend:7.1f} us"
            f" = {backend / socket_floor:4.2f} x bare asyncio socket ({socket_floor:.1f} us)"
            f" = {backend / zmq_floor:4.2f} x bare asyncio pyzmq ({zmq_floor:.1f} us)"
        )


if __name__ == "__main__":
    main()
