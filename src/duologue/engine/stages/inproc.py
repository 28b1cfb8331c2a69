"""The in-process backend: stage code on the engine's own loop, for light stages and for tests.

Deterministic under virtual time. Blocking stage code blocks the loop for as long as one output takes; stages that
compute belong into the process backend.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from duologue.config.stage_config import ModelConfig
from duologue.engine.stages.contract import AnyStage, AsyncStage, StageClient, StageSink
from duologue.engine.stages.piece import CallResult, value_of
from duologue.engine.stages.works import Key, SteppedWorks, TaskWorks, Works
from duologue.errors import ErrorCode, StageFault
from duologue.log import init_logger
from duologue.outputs import RequestOutput, SamplingParams, StageError, StageRequest

if TYPE_CHECKING:
    from duologue.clock import Runtime

logger = init_logger(__name__)

DEFAULT_SAMPLING = SamplingParams()
UNKNOWN_MODEL = ModelConfig()


class InprocClient(StageClient):
    """One replica in this process. ``stage`` is loaded by :meth:`start`, on the loop."""

    def __init__(
        self,
        stage: AnyStage,
        *,
        runtime: Runtime,
        default_sampling_params: SamplingParams = DEFAULT_SAMPLING,
        model_config: ModelConfig = UNKNOWN_MODEL,
        start_timeout_s: float = 120.0,
        close_timeout_s: float = 5.0,
    ) -> None:
        """The time-outs bound what asynchronous stage code may wait for when it is loaded and shut down."""
        self.default_sampling_params = default_sampling_params
        self.model_config = model_config
        self._start_timeout_s = start_timeout_s
        self._close_timeout_s = close_timeout_s
        self._stage = stage
        self._runtime = runtime
        self._sink: StageSink | None = None
        self._works: Works | None = None
        self._live: dict[str, None] = {}
        self._calls: set[asyncio.Future[CallResult]] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def stage(self) -> AnyStage:
        """The stage code."""
        return self._stage

    @property
    def healthy(self) -> bool:
        return self._works is not None

    async def start(self, sink: StageSink) -> None:
        stage = self._stage
        if isinstance(stage, AsyncStage):
            try:
                async with asyncio.timeout(self._start_timeout_s):
                    await stage.load()
            except TimeoutError:
                raise StageFault(
                    ErrorCode.REPLICA_UNAVAILABLE,
                    f"{type(stage).__name__} was not loaded after {self._start_timeout_s:g} s; raise its start_timeout_s.",
                ) from None
            self._works = TaskWorks(stage, self._push, self._spawn, self._runtime.now)
        else:
            stage.load()
            self._works = SteppedWorks(stage, self._push, asyncio.get_running_loop())
        self._sink = sink

    async def submit(self, request: StageRequest) -> None:
        works = self._working()
        if request.request_id in self._live:
            raise ValueError(f"request {request.request_id!r} is already at this replica")
        self._live[request.request_id] = None
        works.submit(request.request_id, request)

    async def update(self, request: StageRequest) -> None:
        self._working().update(request.request_id, request)

    async def abort(self, request_ids: Sequence[str]) -> None:
        known = [request_id for request_id in request_ids if request_id in self._live]
        for request_id in known:
            del self._live[request_id]
        if known and self._works is not None:
            self._works.abort(known)

    async def call(self, method: str, args: tuple[Any, ...]) -> object:
        answer: asyncio.Future[CallResult] = asyncio.get_running_loop().create_future()
        self._calls.add(answer)
        try:
            self._working().call(method, args, partial(_settle, answer))
            return value_of(await answer)
        finally:
            self._calls.discard(answer)

    async def close(self) -> None:
        works = self._stop()
        if works is None:
            return
        try:
            if isinstance(self._stage, AsyncStage):
                async with asyncio.timeout(self._close_timeout_s):
                    await self._stage.shutdown()
            else:
                self._stage.shutdown()
        except Exception:
            logger.exception("a stage failed to shut down")

    def die(self, error: BaseException) -> None:
        """End as a crashed worker process would: everything it ran is lost. For fault injection."""
        sink = self._sink
        if self._stop() is not None and sink is not None:
            sink.on_dead(error)

    def _stop(self) -> Works | None:
        works, self._works = self._works, None
        if works is not None:
            live = list(self._live)
            self._live.clear()
            works.abort(live)
            for task in self._tasks:
                if task is not asyncio.current_task():
                    task.cancel()
            gone = StageError(ErrorCode.REPLICA_UNAVAILABLE.value, "The replica is gone.")
            for answer in self._calls:
                _settle(answer, CallResult(error=gone))
        return works

    def _spawn(self, coro: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = self._runtime.spawn(coro, name="inproc-stage")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _working(self) -> Works:
        if self._works is None:
            raise StageFault(ErrorCode.REPLICA_UNAVAILABLE, "This replica is not running.")
        return self._works

    def _push(self, key: Key, output: RequestOutput) -> None:
        if output.finished or output.error is not None:
            self._live.pop(output.request_id, None)
        if self._sink is not None:
            self._sink.on_output(output)


def _settle(answer: asyncio.Future[CallResult], result: CallResult) -> None:
    if not answer.done():
        answer.set_result(result)
