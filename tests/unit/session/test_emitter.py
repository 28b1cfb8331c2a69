"""The last look at an event before it leaves."""

from __future__ import annotations

from duologue.engine.duplex.core.effects import Emit
from duologue.engine.duplex.events import (
    ErrorRaised,
    HeartbeatAcknowledged,
    ResponseAudio,
    ResponseCreated,
    ResponseDone,
    SessionClosed,
    SessionExpired,
)
from duologue.errors import ErrorCode
from duologue.sim.loop import VirtualRuntime, virtual
from tests.unit.session.desk import Desk, desk


def created(response_id: str, epoch: int = 0) -> ResponseCreated:
    return ResponseCreated(response_id=response_id, item_id="i", epoch=epoch, turn_id=1, modality="audio")


def audio(response_id: str, epoch: int) -> ResponseAudio:
    return ResponseAudio(
        response_id=response_id, item_id="i", epoch=epoch, audio=b"", rate_hz=24_000, start_ms=0, duration_ms=0
    )


def emit(there: Desk, *events: object) -> None:
    for event in events:
        there.runner.out.emit(Emit(number=there.runner.out.last_number + 1, event=event))  # type: ignore[arg-type]


@virtual
async def test_content_of_an_ended_epoch_or_answer_never_leaves(runtime: VirtualRuntime) -> None:
    there = desk(runtime)
    emit(there, created("r1"), audio("r1", 0), audio("r1", -1), audio("r2", 0))
    emit(there, ResponseDone(response_id="r1", epoch=0, status="completed"), audio("r1", 0))
    assert there.of(ResponseAudio) == [audio("r1", 0)]
    assert there.runner.out.dropped_stale == 3
    assert there.runner.out.open_responses == ()


@virtual
async def test_nothing_follows_the_terminal(runtime: VirtualRuntime) -> None:
    there = desk(runtime)
    emit(there, SessionClosed(reason="x"), HeartbeatAcknowledged(), SessionExpired(reason="y"))
    assert isinstance(there.manager.events[-1], SessionClosed)
    assert there.runner.out.dropped_after_terminal == 2
    assert there.runner.closed_emitted


@virtual
async def test_what_a_broken_session_left_open_is_ended_in_order(runtime: VirtualRuntime) -> None:
    there = desk(runtime)
    emit(there, created("r1"), created("r2"))
    there.runner.out.fail_open_responses(ErrorCode.INTERNAL_ERROR, "It broke.")
    kinds = [type(event) for event in there.manager.events]
    assert kinds[-3:] == [ErrorRaised, ResponseDone, ResponseDone]
    assert [event.response_id for event in there.of(ResponseDone)] == ["r1", "r2"]
    assert there.manager.invalidated == ["r1", "r2"]
    assert there.manager.numbers == list(range(1, len(kinds) + 1))
