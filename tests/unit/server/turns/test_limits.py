"""Every bound of ordinary requests that docs/limits.md lists and no other file tries: one below it, at it, and one above."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from duologue.clock import Runtime
from duologue.config.turns import TurnLimits
from duologue.engine.duplex.plugin import TurnPlan
from duologue.engine.messages import OutputMessage
from duologue.errors import ClientFault, DuologueError, ErrorCode
from duologue.models.scripted.script import Script
from duologue.outputs import RequestOutput, SamplingParams, StagePrompt
from duologue.server.turns.chat import MAX_STOPS
from duologue.server.turns.conversation import MAX_MESSAGES
from duologue.server.turns.desk import _MESSAGE_BYTES, TurnDesk, TurnStream
from duologue.server.turns.form import MAX_FIELD_BYTES, MAX_PARTS, read_form
from duologue.server.turns.spoken import MAX_ANSWERS, SpokenAnswers
from duologue.sim.loop import virtual
from tests.unit.server.turns.test_traffic import CHAT, SLOW, body
from tests.unit.server.turns.world import chat_body, world

AROUND = pytest.mark.parametrize("extra", [-1, 0, 1])
PAUSE, MOST = 10_000, 20_000


@AROUND
@virtual(limit_s=600)
async def test_places(extra: int, runtime: Runtime) -> None:
    """One more than may run waits for the first to end."""
    async with world(runtime, SLOW, limits=TurnLimits(max_running=2)) as place:
        begun, ends = runtime.now(), []

        async def one() -> None:
            assert (await place.chat()).status == 200
            ends.append(runtime.now() - begun)

        await asyncio.gather(*(one() for _ in range(2 + extra)))
        assert max(ends) > min(ends) * 1.5 if extra > 0 else max(ends) == min(ends)


@AROUND
@virtual(limit_s=600)
async def test_held_bytes(extra: int, runtime: Runtime) -> None:
    first, second = body(text="x" * 800), body(text="x" * 700)
    limits = TurnLimits(max_body_bytes=1_000, max_held_bytes=len(first) + len(second) - extra, max_running=1)
    async with world(runtime, SLOW, limits=limits) as place:
        held = place.call(CHAT, first)
        await asyncio.sleep(1)
        answer = await place.call(CHAT, second).task
        assert answer.status == (429 if extra > 0 else 200)
        assert (await held.task).status == 200


@pytest.mark.parametrize(("silent_s", "ends"), [(6.9, False), (7.0, True), (7.1, True)])
@virtual(limit_s=600)
async def test_silence_of_the_engine(silent_s: float, ends: bool, runtime: Runtime) -> None:
    """The longest the engine may say nothing; each word that it says begins the time anew."""
    script = Script(sentences=3, think_s=silent_s)
    async with world(runtime, script, limits=TurnLimits(output_timeout_s=7.0)) as place:
        assert (await place.chat()).status == (504 if ends else 200)


class Stopped:
    """An engine that is told what to stop, and nothing else."""

    def __init__(self) -> None:
        self.aborted: list[str] = []

    async def abort(self, request_ids: list[str]) -> None:
        self.aborted += request_ids


def stream_of(runtime: Runtime, paused: list[bool]) -> tuple[TurnStream, Stopped]:
    engine = Stopped()
    limits = TurnLimits(pause_bytes=PAUSE, max_unread_bytes=MOST)
    desk = TurnDesk(
        engine=engine,  # type: ignore[arg-type]
        pause=lambda request_id, on: paused.append(on),
        planner=None,
        defaults=lambda: (SamplingParams(),),
        runtime=runtime,
        limits=limits,
        input_rate_hz=16_000,
    )
    plan = TurnPlan(pieces=(StagePrompt(),), entry_stage_id=0, final_stage_id=0)
    stream = desk._streams["r"] = TurnStream(desk, "r", plan)
    return stream, engine


def piece(size: int) -> OutputMessage:
    """A message that counts as ``size`` bytes."""
    output = RequestOutput(request_id="r", audio=bytes(size - _MESSAGE_BYTES))
    return OutputMessage(request_id="r", stage_id=0, output=output, finished=False)


@AROUND
@virtual(limit_s=60)
async def test_unread_bytes_that_pause_the_stages(extra: int, runtime: Runtime) -> None:
    paused: list[bool] = []
    stream, _ = stream_of(runtime, paused)
    stream.take(piece(PAUSE + extra))
    assert paused == ([True] if extra > 0 else [])
    await anext(stream)
    assert paused == ([True, False] if extra > 0 else [])


@AROUND
@virtual(limit_s=60)
async def test_unread_bytes_that_end_the_request(extra: int, runtime: Runtime) -> None:
    stream, engine = stream_of(runtime, [])
    stream.take(piece(MOST // 2))
    stream.take(piece(MOST // 2 + extra))
    await asyncio.sleep(0)
    assert engine.aborted == (["r"] if extra > 0 else [])
    await anext(stream)
    await anext(stream)
    if extra > 0:
        with pytest.raises(DuologueError) as caught:
            await anext(stream)
        assert caught.value.code is ErrorCode.OUTPUT_BACKPRESSURE


@AROUND
@virtual(limit_s=60)
async def test_spoken_answers(extra: int, runtime: Runtime) -> None:
    answers = SpokenAnswers(runtime)
    ids = [answers.new_id() for _ in range(MAX_ANSWERS + extra)]
    for number, (answer_id, expires_at) in enumerate(ids):
        answers.keep(answer_id, expires_at, f"answer {number}")
    assert len(answers) == min(MAX_ANSWERS, MAX_ANSWERS + extra)
    assert answers.find(ids[0][0]) == (None if extra > 0 else "answer 0")
    assert answers.find(ids[-1][0]) == f"answer {len(ids) - 1}"


@AROUND
@virtual(limit_s=60)
async def test_messages_and_stops(extra: int, runtime: Runtime) -> None:
    async with world(runtime) as place:
        said = [{"role": "user", "content": "hello"}] * (MAX_MESSAGES + extra)
        many = chat_body(text="hello") | {"messages": said}
        answer = await place.post(CHAT, json.dumps(many).encode())
        assert answer.status == (400 if extra > 0 else 200)
        stops = await place.chat(stop=["x"] * (MAX_STOPS + extra))
        assert stops.status == (400 if extra > 0 else 200)


async def _read(*fields: bytes) -> Any:
    parts = b"".join(
        b'--b\r\ncontent-disposition: form-data; name="f%d"\r\n\r\n%s\r\n' % (number, value)
        for number, value in enumerate(fields)
    )

    async def pieces() -> AsyncGenerator[bytes]:
        yield parts + b"--b--\r\n"

    return await read_form("multipart/form-data; boundary=b", pieces())


@AROUND
@virtual(limit_s=60)
async def test_forms(extra: int, runtime: Runtime) -> None:
    del runtime
    for fields in ([b""] * (MAX_PARTS + extra), [b"x" * (MAX_FIELD_BYTES + extra)]):
        if extra > 0:
            with pytest.raises(ClientFault):
                await _read(*fields)
        else:
            assert len((await _read(*fields)).fields) == len(fields)
