"""With ``log_stats`` the log has one table per response: what that response cost at each stage, and no more."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from duologue.engine.duplex.commands import BargeIn, CloseSession
from duologue.engine.duplex.events import ResponseAudio, ResponseDone, SessionClosed
from duologue.models.scripted import Script, ScriptedPipeline, ephemeral_pipeline, resident_pipeline
from duologue.sim.loop import VirtualRuntime, run
from tests.unit.session.world import engine

Pipeline = Callable[[VirtualRuntime, Script], ScriptedPipeline]
SCRIPT = Script(transcripts=("hello there", "and again", "once more"), sentences=2, sentence_ms=400)


def tables_of(
    pipeline: Pipeline, caplog: pytest.LogCaptureFixture, *, log_stats: bool = True, stops: bool = False
) -> tuple[list[logging.LogRecord], list[ResponseDone]]:
    """Tables and terminals of a conversation of three answers; ``stops``: the second is stopped in the middle."""
    ends: list[ResponseDone] = []

    async def scenario(runtime: VirtualRuntime) -> None:
        async with engine(runtime, pipeline(runtime, SCRIPT)) as world:
            world.engine.log_stats = world.engine.session_manager.log_stats = log_stats
            client = world.open()
            for number in range(1, 4):
                heard = len(client.of(ResponseAudio))
                await client.say()
                if stops and number == 2:
                    await client.until(ResponseAudio, heard + 1)
                    client.send(BargeIn())
                await client.until(ResponseDone, number)
            client.send(CloseSession())
            await client.until(SessionClosed)
            ends.extend(client.of(ResponseDone))

    with caplog.at_level(logging.INFO, "duologue"):
        run(scenario)
    return [record for record in caplog.records if "what the response cost" in record.getMessage()], ends


def columns(table: logging.LogRecord, title: str) -> dict[str, str]:
    """A column of a table, by stage. Figures of one response: a title of two words is named by its first."""
    lines = table.getMessage().split("\n")[1:]
    end = lines[0].index(title) + len(title)
    return {line.split()[0]: line[:end].split()[-1] for line in lines[1:]}


@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize("pipeline", [ephemeral_pipeline, resident_pipeline])
def test_each_response_has_its_table(pipeline: Pipeline, stops: bool, caplog: pytest.LogCaptureFixture) -> None:
    tables, ends = tables_of(pipeline, caplog, stops=stops)
    assert [table.__dict__["response_id"] for table in tables] == [done.response_id for done in ends]
    assert len({table.__dict__["session_id"] for table in tables}) == 1
    for table in tables:
        assert "hello" not in table.getMessage() and "again" not in table.getMessage()
    whole = [columns(table, "audio s") for table, done in zip(tables, ends, strict=True) if done.status == "completed"]
    assert len(whole) == (2 if stops else 3)
    # A resident model's request is one from beginning to end: each table holds what its own response added.
    last = max(whole[0])
    assert {float(table[last]) for table in whole} == {0.8}, whole


@pytest.mark.parametrize("pipeline", [ephemeral_pipeline, resident_pipeline])
def test_nobody_asked(pipeline: Pipeline, caplog: pytest.LogCaptureFixture) -> None:
    tables, ends = tables_of(pipeline, caplog, log_stats=False)
    assert (tables, len(ends)) == ([], 3)
