"""The checker of events that tests and simulator share: it sees what it is there for, and nothing else."""

from __future__ import annotations

import pytest

from duologue.engine.duplex.events import (
    CallOutputPart,
    CallPart,
    ErrorRaised,
    FunctionCalled,
    ItemAdded,
    ItemTruncated,
    ItemView,
    ResponseAudio,
    SessionEvent,
)
from duologue.errors import ErrorCode
from duologue.sim.checkers.bounds import judge_events


def audio(start_ms: int) -> ResponseAudio:
    return ResponseAudio(
        response_id="r", item_id="i", epoch=0, audio=b"\0\0", rate_hz=24_000, start_ms=start_ms, duration_ms=1, text=""
    )


def cut(end_ms: int) -> ItemTruncated:
    return ItemTruncated(item_id="i", content_index=0, audio_end_ms=end_ms)


def called(call_id: str) -> FunctionCalled:
    part = CallPart(call_id=call_id, name="f", arguments="{}")
    return FunctionCalled(
        response_id="r", epoch=0, item=ItemView(item_id="c", role="assistant", status="completed", parts=(part,))
    )


def result(call_id: str) -> ItemAdded:
    part = CallOutputPart(call_id=call_id, output="1")
    return ItemAdded(item=ItemView(item_id="o", role="tool", status="completed", parts=(part,)), previous_item_id=None)


def late(call_id: str) -> ErrorRaised:
    return ErrorRaised(
        code=ErrorCode.TOOL_RESULT_TIMEOUT, message=f"No result of function call '{call_id}' came within 3 s."
    )


def refused(call_id: str) -> ErrorRaised:
    return ErrorRaised(code=ErrorCode.TOOL_RESULT_TIMEOUT, message=f"Function call '{call_id}' has timed out.")


OVER = ErrorRaised(code=ErrorCode.OUTPUT_BACKPRESSURE, message="9 events wait to be read, which is the limit.")
PAUSED = ErrorRaised(code=ErrorCode.OUTPUT_BACKPRESSURE, message="9 pieces wait.")


@pytest.mark.parametrize(
    ("rule", "events"),
    [
        ("B19", [audio(0), audio(100), audio(50)]),
        ("B19", [cut(500), cut(600)]),
        ("B16", [called("a"), called("a")]),
        ("B16", [called("a"), result("a"), result("a")]),
        ("B16", [called("a"), late("a"), late("a")]),
        ("B21", [audio(0), OVER, audio(100)]),
    ],
)
def test_what_is_wrong_is_seen(rule: str, events: list[SessionEvent]) -> None:
    assert [found.rule for found in judge_events(events)] == [rule]


def test_what_is_right_is_not() -> None:
    events = [audio(0), audio(100), cut(80), cut(80), cut(0), called("a"), called("b"), result("a"), late("b"), PAUSED]
    assert not list(judge_events([*events, refused("b"), refused("b"), audio(200), OVER]))
