"""The vLLM stage in a worker process, through the contract that every backend keeps. Real vLLM, random weights."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path

import pytest

from duologue.clock import AsyncioRuntime
from duologue.config.pipeline import StageConfig
from duologue.engine.assembly import replica_factory
from duologue.engine.stages.process import ProcessClient
from duologue.outputs import Options, RequestOutput, SamplingParams, StagePrompt, StageRequest
from tests.backends.tiny import CONTEXT_TOKENS, write_tiny_model, write_tiny_tokenizer
from tests.integration.backends.replica import PATIENCE_S, Replica

SLOTS = 3
UNIT_TOKENS = 4


class Worker:
    """One worker for all tests of this file, on a loop that outlives them: starting vLLM takes long."""

    def __init__(self, folder: Path) -> None:
        self._runner = asyncio.Runner()
        self._names = 0
        self.one = self._runner.run(self._start(folder))

    async def _start(self, folder: Path) -> Replica:
        runtime = AsyncioRuntime()
        stage = StageConfig(
            name="model",
            factory="duologue.engine.stages.vllm_stage:VllmStage",
            backend="vllm",
            options={
                "model": str(folder),
                "slots": SLOTS,
                "context_tokens": CONTEXT_TOKENS,
                "kv_cache_bytes": 1 << 22,
                "unit_tokens": UNIT_TOKENS,
                "weights": "dummy",
            },
            start_timeout_s=300.0,
        )
        one = Replica(replica_factory(stage, runtime)(0), runtime)
        await one.client.start(one.sink)
        return one

    def run(self, scenario: Coroutine[object, object, None]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(PATIENCE_S):
                await scenario

        self._runner.run(bounded())

    def close(self) -> None:
        async def end() -> None:
            await self.one.client.close()
            await self.one.runtime.aclose()

        self._runner.run(end())
        self._runner.close()


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    folder = write_tiny_model(tmp_path_factory.mktemp("tiny"))
    write_tiny_tokenizer(folder)
    made = Worker(folder)
    yield made
    made.close()


def ask(
    name: str,
    text: str = "",
    *,
    tokens: Sequence[int] = (),
    final: bool = True,
    max_tokens: int = 12,
    options: Options | None = None,
) -> StageRequest:
    return StageRequest(
        request_id=name,
        external_req_id=name,
        prompt=StagePrompt(text=text, token_ids=tuple(tokens), final=final, options=options or {}),
        params=SamplingParams(max_tokens=max_tokens, temperature=0.0),
        resumable=not final,
    )


async def boundary(one: Replica, name: str, count: int = 1) -> list[RequestOutput]:
    """Wait until ``count`` pieces of a request have been answered."""
    await one.sink.until(lambda: sum(o.segment_finished or o.error is not None for o in one.sink.of(name)) >= count)
    return one.sink.of(name)


def tokens_of(outputs: Sequence[RequestOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


def test_a_whole_request_comes_in_order_and_ends(worker: Worker) -> None:
    async def scenario() -> None:
        one = worker.one
        await one.client.submit(ask("whole", "hello"))
        outputs = await boundary(one, "whole")
        assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
        assert outputs[-1].finish_reason == "length"
        assert len(tokens_of(outputs)) == 12
        assert len(outputs) > 6, "each step is given out as it is made"

    worker.run(scenario())


def test_pieces_are_appends_and_only_the_last_may_be_answered_at_length(worker: Worker) -> None:
    async def scenario() -> None:
        one = worker.one
        await one.client.submit(ask("pieces", tokens=range(3, 13), final=False))
        first = tokens_of(await boundary(one, "pieces"))
        assert len(first) == UNIT_TOKENS
        await one.client.update(ask("pieces", tokens=(50, 51), final=False, options={"generate": False}))
        assert tokens_of(await boundary(one, "pieces", 2)) == first, "what is only read is not answered"
        await one.client.update(ask("pieces", tokens=(52,)))
        answer = tokens_of(await boundary(one, "pieces", 3))[len(first) :]
        assert len(answer) == 12
        assert one.sink.of("pieces")[-1].finished
        await one.client.submit(ask("at-once", tokens=(*range(3, 13), *first, 50, 51, 52)))
        assert tokens_of(await boundary(one, "at-once")) == answer

    worker.run(scenario())


def test_an_abort_frees_the_slot_and_nothing_comes_after_it(worker: Worker) -> None:
    async def scenario() -> None:
        one = worker.one
        for number in range(3 * SLOTS):
            name = f"cut-{number}"
            await one.client.submit(ask(name, "tell me everything", max_tokens=100))
            await one.sink.until(lambda name=name: len(one.sink.of(name)) > 2)  # type: ignore[misc]
            await one.client.abort([name])
            seen = len(one.sink.of(name))
            await one.client.submit(ask(f"after-{number}", "x", max_tokens=2))
            assert (await boundary(one, f"after-{number}"))[-1].error is None
            assert len(one.sink.of(name)) == seen

    worker.run(scenario())


def test_an_id_may_be_used_again_after_an_abort(worker: Worker) -> None:
    async def scenario() -> None:
        one = worker.one
        await one.client.submit(ask("again", "tell me everything", max_tokens=100))
        await one.sink.until(lambda: len(one.sink.of("again")) > 2)
        await one.client.abort(["again"])
        del one.sink.outputs[:]
        await one.client.submit(ask("again", tokens=range(3, 13), max_tokens=5))
        await one.client.submit(ask("other", tokens=range(3, 13), max_tokens=5))
        assert tokens_of(await boundary(one, "again")) == tokens_of(await boundary(one, "other"))

    worker.run(scenario())


def test_a_request_beyond_the_slots_fails_with_its_cause_and_the_others_go_on(worker: Worker) -> None:
    async def scenario() -> None:
        one = worker.one
        for number in range(SLOTS):
            await one.client.submit(ask(f"open-{number}", "x", final=False))
            await boundary(one, f"open-{number}")
        await one.client.submit(ask("late", "x"))
        (failed,) = await boundary(one, "late")
        assert failed.error is not None
        assert failed.error.code == "resource_exhausted"
        assert "All 3 slots" in failed.error.message
        for number in range(SLOTS):
            await one.client.update(ask(f"open-{number}", "y"))
            assert (await boundary(one, f"open-{number}", 2))[-1].finished
        await one.client.submit(ask("later", "x"))
        assert (await boundary(one, "later"))[-1].finished

    worker.run(scenario())


def test_a_piece_that_does_not_fit_fails_its_request_alone(worker: Worker) -> None:
    async def scenario() -> None:
        one = worker.one
        await one.client.submit(ask("small", "x", final=False))
        await one.client.submit(ask("big", tokens=[5] * 100, final=False))
        await boundary(one, "big")
        await one.client.update(ask("big", tokens=[5] * 10, max_tokens=50))
        failed = (await boundary(one, "big", 2))[-1]
        assert failed.error is not None
        assert failed.error.code == "request_invalid"
        await one.client.update(ask("small", "y"))
        assert (await boundary(one, "small", 2))[-1].finished

    worker.run(scenario())


def test_requests_share_the_model_and_keep_apart(worker: Worker) -> None:
    async def scenario() -> None:
        one = worker.one
        names = [f"many-{number}" for number in range(SLOTS)]
        await asyncio.gather(*(one.client.submit(ask(name, name, max_tokens=20)) for name in names))
        for name in names:
            outputs = await boundary(one, name)
            assert len(tokens_of(outputs)) == 20
            assert outputs[-1].finished

    worker.run(scenario())


def test_a_dead_worker_is_reported_once(worker: Worker) -> None:
    """The last test of this file: the worker does not come back."""

    async def scenario() -> None:
        one = worker.one
        assert isinstance(one.client, ProcessClient)
        assert one.client.pid is not None
        await one.client.submit(ask("doomed", "x", max_tokens=100))
        os.kill(one.client.pid, signal.SIGKILL)
        await one.sink.until(lambda: bool(one.sink.deaths))
        assert not one.client.healthy
        assert len(one.sink.deaths) == 1

    worker.run(scenario())
