"""Calls into stage code: the same answers and errors whether or not the stage runs in this process."""

from __future__ import annotations

import asyncio
import os

import pytest

from duologue.errors import ClientFault, ErrorCode, StageFault
from tests.integration.backends.replica import PATIENCE_S, play, replica

every_backend = pytest.mark.parametrize(
    ("backend", "stage"),
    [("inproc", "Blocking"), ("inproc", "Asynchronous"), ("process", "Blocking"), ("process", "Asynchronous")],
)


@every_backend
def test_answers_and_errors_come_back_beside_requests(backend: str, stage: str) -> None:
    async def scenario() -> None:
        async with replica(backend, stage) as one:
            async with asyncio.timeout(PATIENCE_S):
                answer = await one.client.call("join", ("a", "b"))
                assert isinstance(answer, dict)
                process = answer.pop("process")
                assert answer == {"text": "a-b", "bytes": b"\0\xff"}
                assert (process == os.getpid()) == (backend == "inproc")
                for method, code in (
                    ("fail", ErrorCode.RATE_LIMITED),
                    ("nonsense", ErrorCode.UNSUPPORTED),
                    ("unencodable", ErrorCode.RUNTIME_STREAM_FAILED),
                ):
                    with pytest.raises(StageFault) as caught:
                        await one.client.call(method, ())
                    assert caught.value.code is code
                many = await asyncio.gather(*(one.client.call("join", (str(n),)) for n in range(50)))
                assert [found["text"] for found in many] == [str(n) for n in range(50)]  # type: ignore[index]
            assert (await one.ask("r", "echo x"))[-1].text == "x"

    play(scenario)


@pytest.mark.parametrize("stage", ["Blocking", "Asynchronous"])
def test_a_worker_that_dies_during_a_call_answers_it_too(stage: str) -> None:
    async def scenario() -> None:
        async with replica("process", stage) as one, asyncio.timeout(PATIENCE_S):
            with pytest.raises(StageFault, match="not running"):
                await one.client.call("die", ())
            assert len(one.sink.deaths) == 1

    play(scenario)


def test_a_call_that_is_given_up_is_forgotten_and_its_late_answer_dropped() -> None:
    async def scenario() -> None:
        async with replica("process", "Blocking") as one, asyncio.timeout(PATIENCE_S):
            waiting = asyncio.ensure_future(one.client.call("sleep", (0.05,)))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            assert len(one.client._exchange) == 0  # type: ignore[attr-defined]
            assert (await one.ask("r", "echo x"))[-1].text == "x"
            with pytest.raises(ClientFault, match="can't be sent"):
                await one.client.call("join", (object(),))

    play(scenario)
