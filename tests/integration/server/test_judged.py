"""The checkers that judge every integration test see what is wrong."""

from __future__ import annotations

import pytest

from duologue.engine.duplex.events import ResponseDone
from tests.integration.server.loopback import TALKERS, on_loop
from tests.integration.server.test_engine import LONG, ask, config, real
from tests.integration.watch import watching
from tests.unit.server.reading import found


@pytest.mark.parametrize("path", ["/v1/realtime", "/v1/duplex"])
@on_loop
async def test_a_response_that_an_engine_leaves_open_and_a_frame_that_a_client_reads_too_early_are_seen(
    path: str,
) -> None:
    with pytest.MonkeyPatch.context() as patch, watching(patch) as engines:
        async with real(config(**LONG)) as host, host.client(path) as client:
            await client.send("session.update", session={"type": "realtime", "turn_detection": None})
            await ask(client, 24_000 if path == "/v1/realtime" else 16_000)
            await client.until("response.output_audio.delta")
            await client.send("response.cancel")
            await client.until("response.done")
    (engine,) = engines
    assert engine.found() == [] and found(TALKERS) == []
    (told,) = engine.border.seen.told.values()
    place = next(place for place, one in enumerate(told) if isinstance(one.event, ResponseDone))
    done = told.pop(place)
    assert any("never done" in text for text in engine.found())
    told.insert(place, done)
    frames = client.frames
    frames.insert(0, frames.pop())
    assert any("it never began" in text for text in found(TALKERS))
    frames.append(frames.pop(0))
