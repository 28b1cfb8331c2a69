"""The paced backlog of a whole engine: what waits to be played exceeds its limit by a segment at most."""

from __future__ import annotations

import asyncio

import pytest

from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.commands import CommitAudio
from duologue.engine.duplex.events import ResponseDone
from duologue.models.scripted import Script, ephemeral_pipeline, tone
from duologue.sim.loop import VirtualRuntime, virtual
from tests.unit.session.world import MANUAL, RATE_HZ, engine

SENTENCE_MS = 1_000
SENTENCES = 60


@pytest.mark.parametrize("limit_ms", [4_999, 5_000, 5_001])
@virtual
async def test_a_model_that_is_far_ahead_makes_at_most_one_segment_beyond_the_backlog(
    limit_ms: int, runtime: VirtualRuntime
) -> None:
    """Also when it has been let go on: what was held comes one segment at a time."""
    script = Script(sentences=SENTENCES, sentence_ms=SENTENCE_MS, chunk_ms=SENTENCE_MS, think_s=0.0, speak_s=0.0)
    config = DuplexSessionRuntimeConfig(max_backlog_ms=limit_ms)
    async with engine(runtime, ephemeral_pipeline(runtime, script), config=config) as world:
        client = world.open(MANUAL)
        runner = world.engine.session_manager.runner("s1")
        assert runner is not None
        client.append(tone(600, rate_hz=RATE_HZ))
        client.send(CommitAudio(create_response=True))
        state = runner.session._state
        most, paused = 0.0, False
        while not client.of(ResponseDone):
            most = max(most, state.outbox.backlog_ms)
            paused = paused or any(record.paused for record in state.requests.records.values())
            await asyncio.sleep(0.02)
        done = client.of(ResponseDone)[0]
        assert done.audio_ms == SENTENCES * SENTENCE_MS
        assert limit_ms <= most <= limit_ms + SENTENCE_MS
        assert paused
        world.close(client)
