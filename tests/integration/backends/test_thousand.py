"""Two times a thousand requests at once through three stages in worker processes: none lost, none twice, nothing left."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from duologue.clock import AsyncioRuntime
from duologue.config.pipeline import EdgeConfig, PipelineConfig, StageConfig
from duologue.engine.assembly import build_edges, build_pools
from duologue.engine.messages import AddRequest, EngineQueueMessage, OutputMessage, Shutdown, StageMetricsMessage
from duologue.engine.orchestrator import Orchestrator
from duologue.engine.stages.edge import EdgeInput
from duologue.engine.stages.process import ProcessClient
from duologue.outputs import StagePrompt
from tests.integration.backends.replica import PATIENCE_S, REPOSITORY, STAGES, play

REQUESTS = 1_000
AUDIO = bytes(4_096)
LEAK_BYTES = 4_000_000  # a kilobyte for each request would already be more, beside what an allocator keeps

STAGE_NAMES = ("first", "second", "third")
PIPELINE = PipelineConfig(
    stages=tuple(
        StageConfig(
            name=name,
            factory=f"{STAGES}:Parallel",
            environment={"PYTHONPATH": str(REPOSITORY)},
            heartbeat_timeout_s=60.0,
        )
        for name in STAGE_NAMES
    ),
    edges=(EdgeConfig(source="first", target="second"), EdgeConfig(source="second", target="third")),
)


def say_again(source: EdgeInput) -> StagePrompt:
    return StagePrompt(text=f"echo {source.text}", audio=source.audio, audio_rate_hz=16_000)


class Outbox:
    """Every message, and an event for the last one of ``wanted`` requests."""

    def __init__(self) -> None:
        self.messages: list[EngineQueueMessage] = []
        self.ended = 0
        self.all_ended = asyncio.Event()

    def put_nowait(self, message: EngineQueueMessage, /) -> None:
        self.messages.append(message)
        assert isinstance(message, OutputMessage | StageMetricsMessage), message
        self.ended += isinstance(message, OutputMessage) and message.finished
        if self.ended == REQUESTS:
            self.all_ended.set()


def held_bytes(engine: Orchestrator) -> list[int]:
    """Resident memory of each worker."""
    clients = [pool.stage_client for pool in engine.stage_pools]
    pids = [client.pid for client in clients if isinstance(client, ProcessClient)]
    assert len(pids) == len(STAGE_NAMES)
    return [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4_096 for pid in pids]


async def thousand(engine: Orchestrator, outbox: Outbox) -> list[int]:
    """A thousand at once; memory of the workers afterwards."""
    outbox.messages.clear()
    outbox.ended = 0
    outbox.all_ended.clear()
    for number in range(REQUESTS):
        prompt = StagePrompt(text=f"echo text {number}", audio=AUDIO, audio_rate_hz=16_000)
        engine.post(AddRequest(request_id=f"r{number}", prompt=prompt))
    assert len(engine.request_states) == REQUESTS
    async with asyncio.timeout(PATIENCE_S):
        await outbox.all_ended.wait()
    outputs = [message for message in outbox.messages if isinstance(message, OutputMessage)]
    assert Counter(message.request_id for message in outputs if message.finished) == Counter(
        f"r{number}" for number in range(REQUESTS)
    )
    texts = {message.request_id: message.output.text for message in outputs if message.output.text}
    assert texts == {f"r{number}": f"text {number}" for number in range(REQUESTS)}
    assert {name: size for name, size in engine.tables().items() if size} == {}
    return held_bytes(engine)


def test_a_thousand_requests_twice_through_three_workers() -> None:
    async def scenario() -> None:
        runtime = AsyncioRuntime()
        outbox = Outbox()
        engine = Orchestrator(
            stage_pools=build_pools(PIPELINE, runtime),
            edges=build_edges(PIPELINE, {(edge.source, edge.target): say_again for edge in PIPELINE.edges}),
            output_async_queue=outbox,
            rpc_async_queue=outbox,
            runtime=runtime,
        )
        run = runtime.spawn(engine.run(), name="engine")
        await engine.start()
        await thousand(engine, outbox)  # what is kept once for all
        first = await thousand(engine, outbox)
        second = await thousand(engine, outbox)
        assert all(after - before < LEAK_BYTES for before, after in zip(first, second, strict=True)), (first, second)
        engine.post(Shutdown())
        await run
        await runtime.aclose()

    play(scenario)
