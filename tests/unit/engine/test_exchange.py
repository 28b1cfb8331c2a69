"""What is under way between a replica elsewhere and its client, whatever carries the messages."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.engine.stages.exchange import Exchange
from duologue.engine.stages.frames import Abort, Call, Submit, ToWorker, Update
from duologue.engine.stages.piece import CallResult
from duologue.errors import ClientFault, ErrorCode, StageFault
from duologue.outputs import RequestOutput, SamplingParams, StagePrompt, StageRequest
from duologue.sim.loop import VirtualRuntime, virtual


class Wire:
    """Keeps what was sent; refuses it while ``broken`` is set."""

    def __init__(self) -> None:
        self.sent: list[ToWorker] = []
        self.up = True
        self.broken: Exception | None = None
        self.exchange = Exchange("Worker", "speak", write=self.write, up=lambda: self.up)

    def write(self, message: ToWorker) -> None:
        if self.broken is not None:
            raise self.broken
        self.sent.append(message)


def piece(request_id: str) -> StageRequest:
    prompt = StagePrompt(text="x", final=False)
    return StageRequest(
        request_id=request_id, external_req_id=request_id, prompt=prompt, params=SamplingParams(), resumable=True
    )


names = st.sampled_from("abc")
steps = st.lists(st.tuples(st.sampled_from(["submit", "update", "abort", "last", "late"]), names), max_size=40)


@given(steps)
def test_nothing_late_is_taken_for_another_s(script: list[tuple[str, str]]) -> None:
    wire = Wire()
    live: dict[str, int] = {}
    gone: list[tuple[int, str]] = []
    used: list[int] = []
    for step, name in script:
        if step == "submit" and name not in live:
            wire.exchange.submit(piece(name))
            message = wire.sent[-1]
            assert isinstance(message, Submit)
            live[name] = message.number
            used.append(message.number)
        elif step == "update":
            before = len(wire.sent)
            wire.exchange.update(piece(name))
            updates = [message.number for message in wire.sent[before:] if isinstance(message, Update)]
            assert updates == ([live[name]] if name in live else [])
        elif step == "abort":
            before = len(wire.sent)
            wire.exchange.abort([name, "never heard of"])
            assert wire.sent[before:] == ([Abort((live[name],))] if name in live else [])
            if name in live:
                gone.append((live.pop(name), name))
        elif step == "last" and name in live:
            assert wire.exchange.accepts(live[name], RequestOutput(request_id=name, text="x"))
            assert wire.exchange.accepts(live[name], RequestOutput(request_id=name, finished=True))
            gone.append((live.pop(name), name))
        elif step == "late":
            for number, old in gone:
                assert not wire.exchange.accepts(number, RequestOutput(request_id=old, text="late"))
        assert len(wire.exchange) == len(live)
    assert len(set(used)) == len(used)


@pytest.mark.parametrize("error", [TypeError("a set"), ValueError("too long"), OverflowError("too large")])
def test_what_cannot_be_encoded_leaves_no_trace(error: Exception) -> None:
    wire = Wire()
    wire.broken = error
    with pytest.raises(ClientFault, match="stage speak can't be sent") as caught:
        wire.exchange.submit(piece("a"))
    assert caught.value.code is ErrorCode.PAYLOAD_UNENCODABLE
    assert len(wire.exchange) == 0
    wire.broken = None
    wire.exchange.submit(piece("a"))
    assert [type(message) for message in wire.sent] == [Submit]


def test_an_id_that_is_there_is_refused() -> None:
    wire = Wire()
    wire.exchange.submit(piece("a"))
    with pytest.raises(ValueError, match="already"):
        wire.exchange.submit(piece("a"))
    assert len(wire.sent) == 1


@virtual
async def test_calls_are_answered_by_number_and_all_of_them_when_the_replica_ends(runtime: VirtualRuntime) -> None:
    del runtime
    wire = Wire()
    first, second, given_up = (asyncio.create_task(wire.exchange.call("size", (number,))) for number in range(3))
    await asyncio.sleep(0)
    numbers = [message.number for message in wire.sent if isinstance(message, Call)]
    given_up.cancel()
    await asyncio.sleep(0)
    wire.exchange.answer(numbers[2], CallResult("nobody asks any more"))
    wire.exchange.answer(numbers[1], CallResult("two"))
    assert await second == "two"
    wire.up = False
    wire.exchange.end()
    with pytest.raises(StageFault, match=r"Worker speak is not running\."):
        await first
    with pytest.raises(StageFault, match="not running"):
        await wire.exchange.call("size", ())
    with pytest.raises(StageFault, match="not running"):
        wire.exchange.submit(piece("b"))
    assert len(wire.exchange) == 0


def test_an_end_forgets_the_requests_and_a_replica_that_is_gone_is_told_nothing() -> None:
    wire = Wire()
    wire.exchange.submit(piece("a"))
    wire.up = False
    wire.exchange.abort(["a"])
    assert [type(message) for message in wire.sent] == [Submit]
    wire.up = True
    wire.exchange.submit(piece("a"))
    wire.exchange.end()
    wire.exchange.end()
    assert not wire.exchange.accepts(2, RequestOutput(request_id="a", text="late"))
    assert len(wire.exchange) == 0
