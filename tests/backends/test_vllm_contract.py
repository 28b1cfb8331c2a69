"""The one contract of all backends, over vLLM: a worker process with a real engine in it and a tiny model.

Starting vLLM takes long, so one worker is handed from test to test, and must hold nothing in between. The test that ends it
comes last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from duologue.clock import AsyncioRuntime
from duologue.config.pipeline import StageConfig
from duologue.engine.assembly import replica_factory
from duologue.engine.stages.contract import StageClient, StageSink
from duologue.outputs import RequestOutput, StageRequest
from tests.backends.tiny import write_tiny_model, write_tiny_tokenizer
from tests.integration.backends import replica as harness
from tests.integration.backends import test_calls
from tests.integration.backends.test_contract import *  # noqa: F403
from tests.integration.backends.test_contract import LEFT_OUT

BACKENDS = [("vllm", "PuppetVllm")]
ENDS_ITS_WORKER = "test_a_closed_replica_takes_nothing_and_closing_again_is_harmless"
SLOTS = 208  # for the two hundred requests at once
CONTEXT_TOKENS = 2048

OPTIONS = {"greeting": "hi"}
"""What a test asks for; the worker has it for all of them."""

for _name in LEFT_OUT["vllm"]:
    del globals()[_name]


class Kept(StageClient):
    """A replica that outlives its tests: to close it is to see that nothing of the test is left in it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runtime: AsyncioRuntime | None = None
        self._client: StageClient | None = None
        self._sink: StageSink | None = None
        self._used: set[str] = set()
        self.ends = False
        """To close it is really to close it; it is started again when it is wanted."""

    @property
    def client(self) -> StageClient:
        assert self._client is not None
        return self._client

    @property
    def healthy(self) -> bool:
        return self.client.healthy

    async def start(self, sink: StageSink) -> None:
        if self._client is None or not self._client.healthy:
            await self.end()
            self._runtime = AsyncioRuntime()
            self._client = vllm_client(self._folder, OPTIONS, self._runtime)
            await self._client.start(self)
        self._sink = sink
        await self.client.call("forget", ())

    def on_output(self, output: RequestOutput) -> None:
        if self._sink is not None:
            self._sink.on_output(output)

    def on_dead(self, error: BaseException) -> None:
        if self._sink is not None:
            self._sink.on_dead(error)

    async def submit(self, request: StageRequest) -> None:
        self._used.add(request.request_id)
        await self.client.submit(request)

    async def update(self, request: StageRequest) -> None:
        await self.client.update(request)

    async def abort(self, request_ids: Sequence[str]) -> None:
        await self.client.abort(request_ids)

    async def call(self, method: str, args: tuple[Any, ...]) -> object:
        return await self.client.call(method, args)

    async def close(self) -> None:
        if self.ends:
            await self.client.close()
            return
        await self.abort(list(self._used))
        self._used.clear()
        self._sink = None
        async with asyncio.timeout(harness.PATIENCE_S):
            while await self.call("held", ()) != [0, 0, 0.0]:
                pass

    async def end(self) -> None:
        """Really close it."""
        if self._client is not None and self._runtime is not None:
            await self._client.close()
            await self._runtime.aclose()


def vllm_client(folder: Path, options: dict[str, Any], runtime: AsyncioRuntime) -> StageClient:
    stage = StageConfig(
        name="model",
        factory="tests.backends.puppet:PuppetVllm",
        backend="vllm",
        options={
            "model": str(folder),
            "slots": SLOTS,
            "context_tokens": CONTEXT_TOKENS,
            "kv_cache_bytes": 1 << 24,
            "unit_tokens": CONTEXT_TOKENS,
            "dtype": "float32",
            "weights": "dummy",
            **options,
        },
        start_timeout_s=300.0,
    )
    return replica_factory(stage, runtime)(0)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Kept]]:
    folder = write_tiny_model(tmp_path_factory.mktemp("tiny"), context_tokens=CONTEXT_TOKENS)
    write_tiny_tokenizer(folder)
    one = Kept(folder)
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner() as runner:
        patch.setattr(harness, "run", runner.run)
        yield folder, one
        runner.run(one.end())


@pytest.fixture(autouse=True)
def vllm_backend(kept: tuple[Path, Kept], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, one = kept
    one.ends = request.node.originalname == ENDS_ITS_WORKER

    def make(factory: str, changes: dict[str, object], runtime: AsyncioRuntime) -> StageClient:
        del factory
        options = changes.get("options", OPTIONS)
        assert isinstance(options, dict)
        return one if options == OPTIONS else vllm_client(folder, options, runtime)

    monkeypatch.setitem(harness.MAKERS, "vllm", make)


def test_calls_are_answered_as_everywhere() -> None:
    test_calls.test_answers_and_errors_come_back_beside_requests("vllm", "PuppetVllm")


globals()[ENDS_ITS_WORKER] = globals().pop(ENDS_ITS_WORKER)  # the last test of this module
