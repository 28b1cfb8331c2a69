"""More input than a session may hold: it is bounded, refused as a whole, and the session goes on."""

from __future__ import annotations

import asyncio

from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.commands import AppendAudio, ClearAudio, CommitAudio, CreateItem, Heartbeat, InputItem
from duologue.engine.duplex.events import ErrorRaised, HeartbeatAcknowledged, InputCommitted, ItemAdded
from duologue.engine.duplex.session.control import SLICE_BYTES
from duologue.errors import ErrorCode
from duologue.sim.loop import VirtualRuntime, virtual
from tests.unit.session.desk import Desk, desk
from tests.unit.session.world import RATE_HZ

LIMIT = 10 * SLICE_BYTES
SMALL = DuplexSessionRuntimeConfig(max_pending_input_bytes_per_session=LIMIT)


async def decoded(there: Desk) -> None:
    while there.runner.control.waiting_commands:  # noqa: ASYNC110 - what is awaited has no event
        await asyncio.sleep(0)


def refusals(there: Desk) -> list[str | None]:
    errors = there.of(ErrorRaised)
    assert {error.code for error in errors} <= {ErrorCode.INPUT_BACKPRESSURE}
    return [error.event_id for error in errors]


@virtual
async def test_a_long_append_is_refused_as_a_whole_and_once(runtime: VirtualRuntime) -> None:
    there = desk(runtime, limits=SMALL)
    there.runner.submit(AppendAudio(audio=bytes(6 * SLICE_BYTES)))
    await decoded(there)
    there.runner.submit(AppendAudio(audio=bytes(5 * SLICE_BYTES), event_id="E"))
    await decoded(there)
    assert refusals(there) == ["E"]
    there.runner.submit(CommitAudio())
    assert len(there.of(InputCommitted)) == 1
    assert there.runner.session._state.audio.received_bytes == 6 * SLICE_BYTES  # nothing of the refused one was kept


@virtual
async def test_what_waits_behind_a_long_append_is_bounded(runtime: VirtualRuntime) -> None:
    there = desk(runtime, limits=SMALL)
    for number in range(50):
        there.runner.submit(AppendAudio(audio=bytes(4 * SLICE_BYTES), event_id=f"E{number}"))
    there.runner.submit(CreateItem(item=InputItem(role="user", texts=("t" * LIMIT,)), event_id="I"))
    refused = refusals(there)
    assert refused[:2] == ["E2", "E3"]
    assert refused[-1] == "I"
    await decoded(there)
    assert there.runner.session._state.audio.received_bytes == 8 * SLICE_BYTES
    assert there.of(ItemAdded) == []
    there.runner.submit(ClearAudio())
    there.runner.submit(AppendAudio(audio=bytes(RATE_HZ)))
    there.runner.submit(Heartbeat())
    assert len(there.of(HeartbeatAcknowledged)) == 1
    assert len(refusals(there)) == len(refused)


@virtual
async def test_commands_without_audio_are_bounded_too_and_a_flood_is_answered_once(runtime: VirtualRuntime) -> None:
    there = desk(runtime, limits=SMALL)
    there.runner.submit(AppendAudio(audio=bytes(2 * SLICE_BYTES)))
    for _ in range(10_000):
        there.runner.submit(Heartbeat())
    assert refusals(there) == [None]
    await decoded(there)
    assert 0 < len(there.of(HeartbeatAcknowledged)) < 1_000
