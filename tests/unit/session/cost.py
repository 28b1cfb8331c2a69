"""What the shell costs per append, in CPU time: `python -m tests.unit.session.cost [sessions]`.

One 80 ms append in, 80 ms of 24 kHz audio and a few characters out, on an instant stage. *core* steps the session alone,
*session* goes through manager and runner on a fake port, *engine* through the orchestrator, its pools and edges as well.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import AsyncIterator

import msgspec

from duologue.clock import AsyncioRuntime
from duologue.config.session import SessionConfig
from duologue.config.stage_config import DuplexSessionRuntimeConfig, ModelConfig
from duologue.engine.duplex.commands import AppendAudio
from duologue.engine.duplex.contracts import (
    DuplexOutputContext,
    DuplexRequestIdentity,
    DuplexStageSubmission,
    DuplexStageSubmissionResult,
)
from duologue.engine.duplex.messages import OpenSession, SessionCommand, SessionEventMessage
from duologue.engine.duplex.plugin import ModelCapabilities
from duologue.engine.duplex.session.manager import DuplexSessionManager
from duologue.engine.duplex_orchestrator import DuplexOrchestrator
from duologue.engine.messages import EngineQueueMessage, Shutdown
from duologue.engine.stage_pool import StagePool
from duologue.engine.stages.contract import StageClient, StageSink
from duologue.models.scripted import ResidentPlugin, Script, tone
from duologue.outputs import RequestOutput, SamplingParams, StageRequest
from tests.unit.session.desk import FakePort
from tests.unit.session.world import FORMAT

UNIT_MS = 80
APPEND = tone(UNIT_MS, rate_hz=16_000)
ANSWER = tone(UNIT_MS, rate_hz=24_000)
ROUNDS = 60


class Count:
    """A queue that only counts."""

    def __init__(self) -> None:
        self.events = 0

    def put_nowait(self, message: EngineQueueMessage, /) -> None:
        self.events += isinstance(message, SessionEventMessage)


def output(request_id: str) -> RequestOutput:
    return RequestOutput(
        request_id=request_id,
        segment_finished=True,
        text="four",
        audio=ANSWER,
        audio_rate_hz=24_000,
        metadata={"decision": "speak"},
    )


class InstantPort(FakePort):
    """Answers each piece before the submission returns."""

    manager: DuplexSessionManager

    async def submit(self, submission: DuplexStageSubmission) -> DuplexStageSubmissionResult:
        context = submission.context
        result = DuplexStageSubmissionResult(request_id=context.request_id, stage_id=0, replica_id=0)
        runner = self.manager.runner(context.session_id)
        assert runner is not None
        identity = DuplexRequestIdentity(session_id=context.session_id, fence=context.fence)
        runner.on_stage_output(
            0,
            output(context.request_id),
            None,
            request_id=context.request_id,
            context=DuplexOutputContext(identity=identity, final_stage_id=0, segment_finished=True),
        )
        return result

    @property
    def stage_count(self) -> int:
        return 1

    def sampling_defaults(self) -> tuple[object, ...]:
        return (SamplingParams(),)

    def ensure_request(self, context: object) -> None:
        pass


class InstantClient(StageClient):
    """A replica that answers each piece at once."""

    default_sampling_params = SamplingParams()
    model_config = ModelConfig()

    async def start(self, sink: StageSink) -> None:
        self._sink = sink

    async def submit(self, request: StageRequest) -> None:
        self._sink.on_output(output(request.request_id))

    async def update(self, request: StageRequest) -> None:
        self._sink.on_output(output(request.request_id))

    async def abort(self, request_ids: object) -> None:
        pass

    @property
    def healthy(self) -> bool:
        return True

    async def close(self) -> None:
        pass


def plugin() -> ResidentPlugin:
    made = ResidentPlugin(Script(unit_ms=UNIT_MS))
    made.capabilities = msgspec.structs.replace(made.capabilities, chunk_period_ms=3_600_000)
    assert isinstance(made.capabilities, ModelCapabilities)
    return made


LIMITS = DuplexSessionRuntimeConfig(max_sessions=1024, send_ahead_ms=None)
CONFIG = SessionConfig(input_format=FORMAT, auto_response=True)


def opening(index: int) -> OpenSession:
    return OpenSession(session_id=f"s{index}", control_id=f"c{index}", config=CONFIG, seed=str(index))


def appends(index: int) -> SessionCommand:
    return SessionCommand(session_id=f"s{index}", command=AppendAudio(audio=APPEND))


async def session_level(sessions: int) -> AsyncIterator[float]:
    runtime = AsyncioRuntime()
    count = Count()
    port = InstantPort()
    manager = DuplexSessionManager(
        plugin=plugin(),
        stage_port=port,
        output_sink=count,
        result_sink=count,
        runtime_config=LIMITS,
        runtime=runtime,
    )
    port.manager = manager
    for index in range(sessions):
        manager.dispatch(opening(index))
    messages = [appends(index) for index in range(sessions)]
    for _ in range(ROUNDS):
        before = count.events
        began = time.process_time()
        for message in messages:
            manager.dispatch(message)
        yield (time.process_time() - began) / sessions
        assert count.events - before >= sessions
        await asyncio.sleep(0)
    await manager.shutdown()
    await runtime.aclose()


async def engine_level(sessions: int) -> AsyncIterator[float]:
    runtime = AsyncioRuntime()
    count = Count()
    pool = StagePool(stage_id=0, make_client=lambda replica_id: InstantClient(), runtime=runtime)
    engine = DuplexOrchestrator(
        stage_pools=[pool],
        output_async_queue=count,
        rpc_async_queue=count,
        runtime=runtime,
        plugin=plugin(),
        duplex_session_config=LIMITS,
    )
    await engine.start()
    serving = asyncio.ensure_future(engine.run())
    await asyncio.sleep(0)
    for index in range(sessions):
        engine.post(opening(index))
    messages = [appends(index) for index in range(sessions)]
    for _ in range(ROUNDS):
        before = count.events
        began = time.process_time()
        for message in messages:
            engine.post(message)
        yield (time.process_time() - began) / sessions
        assert count.events - before >= sessions
        await asyncio.sleep(0)
    engine.post(Shutdown())
    await serving
    await runtime.aclose()


async def main(sessions: int) -> None:
    for name, level in (("session", session_level), ("engine", engine_level)):
        gc.collect()
        samples = sorted([value async for value in level(sessions)][5:])
        median, low = samples[len(samples) // 2], samples[0]
        print(f"{name}: {median * 1e6:.1f} us per append (best {low * 1e6:.1f}), {sessions} sessions")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 64))
