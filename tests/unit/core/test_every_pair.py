"""Every item in every situation: no exception, every invariant, documented errors, exactly one terminal of everything.

The table is the product of ``situations.py``; Hypothesis then tries what two and three items do to one another.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duologue.engine.duplex import commands as c
from duologue.engine.duplex.core.items import (
    AudioAppended,
    CleanupEnded,
    CloseRequested,
    CommandReceived,
    Item,
    OutputTaken,
)
from duologue.engine.duplex.events import (
    ErrorRaised,
    HeartbeatAcknowledged,
    InputCleared,
    InputCommitted,
    ItemAdded,
    ItemDeleted,
    ItemRetrieved,
    ItemTruncated,
    OutputCleared,
    PlaybackAcknowledged,
    ResponseCreated,
    ResponseDone,
    SessionClosed,
    SessionExpired,
    SessionUpdated,
    TurnSignalled,
)
from duologue.errors import ERRORS, ErrorCode, Fault
from tests.unit.core.harness import World
from tests.unit.core.situations import SITUATIONS, every_item

E = ErrorCode
REPLIES: dict[type, tuple[tuple[type, ...], frozenset[ErrorCode]]] = {
    c.AppendAudio: ((), frozenset({E.BAD_EVENT})),
    c.CommitAudio: ((InputCommitted,), frozenset({E.INPUT_AUDIO_BUFFER_EMPTY, E.INPUT_BACKPRESSURE, E.UNSUPPORTED})),
    c.ClearAudio: ((InputCleared,), frozenset()),
    c.ClearOutput: ((OutputCleared, ResponseDone), frozenset()),
    c.CreateResponse: (
        (ResponseCreated,),
        frozenset(
            {
                *(E.UNSUPPORTED_RESPONSE_OPTIONS, E.RESPONSE_ALREADY_ACTIVE, E.INPUT_BACKPRESSURE),
                *(E.TEXT_ONLY_TURN_UNSUPPORTED, E.RESPONSE_CREATE_WITHOUT_INPUT, E.ITEM_NOT_FOUND),
            }
        ),
    ),
    c.CancelResponse: ((ResponseDone,), frozenset({E.RESPONSE_NOT_ACTIVE})),
    c.CreateItem: ((ItemAdded,), frozenset({E.ITEM_EXISTS, E.ITEM_NOT_FOUND, E.TOOL_CALL_UNKNOWN})),
    c.DeleteItem: ((ItemDeleted,), frozenset({E.ITEM_NOT_FOUND})),
    c.RetrieveItem: ((ItemRetrieved,), frozenset({E.ITEM_RETRIEVE_NOT_FOUND})),
    c.TruncateItem: ((ItemTruncated,), frozenset({E.ITEM_NOT_FOUND, E.ITEM_NOT_TRUNCATABLE})),
    c.AckPlayback: ((PlaybackAcknowledged,), frozenset({E.PLAYBACK_ITEM_NOT_FOUND, E.PLAYBACK_ITEM_MISMATCH})),
    c.Heartbeat: ((HeartbeatAcknowledged,), frozenset()),
    c.BargeIn: ((), frozenset({E.BARGE_IN_UNSUPPORTED})),
    c.CancelInput: ((InputCleared,), frozenset()),
    c.CloseSession: ((), frozenset()),
    c.SignalTurn: ((TurnSignalled,), frozenset()),
    c.AppendText: ((), frozenset({E.NATIVE_TEXT_APPEND_UNSUPPORTED})),
    c.UpdateSession: (
        (SessionUpdated,),
        frozenset({E.MODEL_UPDATE_UNSUPPORTED, E.VOICE_UPDATE_UNSUPPORTED, E.UNSUPPORTED_TURN_DETECTION}),
    ),
}
SILENT = (c.BargeIn, c.CloseSession)
"""Commands whose success has no event of its own."""


def finish(world: World) -> None:
    """End the session, however far it is, and see that everything ended once and nothing is left."""
    claimed = world.core.phase == "closed" and not world.of(SessionClosed) + world.of(SessionExpired)
    world.apply(CloseRequested(kind="closed", reason="over"))
    world.answer_all()
    world.apply(CleanupEnded(released=True))
    world.apply(OutputTaken(number=10**9))
    world.advance(300.0)
    assert world.core.phase == "closed"
    assert {name: size for name, size in world.core.tables().items() if size} == {}
    terminals = [e for e in world.events if isinstance(e, SessionClosed | SessionExpired)]
    assert len(terminals) == (0 if claimed else 1)
    assert not terminals or world.events[-1] is terminals[0]
    beside = {e.response_id for e in world.of(ResponseCreated) if e.out_of_band}
    created = [e.response_id for e in world.of(ResponseCreated) if e.response_id not in beside]
    assert created == [e.response_id for e in world.of(ResponseDone) if e.response_id not in beside]
    assert len(beside) == len(world.of(ResponseDone)) - len(created)


def check_reply(world: World, command: c.DuplexCommand, before: int, phase: str) -> None:
    """A command is answered by its event or by one error that names it; both only if it did two things."""
    events = world.events[before:]
    mine = [e for e in events if isinstance(e, ErrorRaised) and e.event_id == "e"]
    assert len(mine) <= 1
    if phase != "open":
        expected = [E.SESSION_CLOSED] if phase in ("new", "closing") else []
        assert [e.code for e in mine] == expected and len(events) == len(mine)
        return
    kinds, codes = REPLIES[type(command)]
    assert {e.code for e in mine} <= codes
    if not mine and not isinstance(command, SILENT):
        waits = world.core.holding or world.state.wanted or not kinds
        idle_clear = isinstance(command, c.ClearOutput) and world.state.last_response is None
        assert any(isinstance(e, kinds) for e in events) or waits or idle_clear, type(command).__name__


def apply(world: World, item: Item) -> None:
    """One item with everything that must hold of it."""
    before, phase, errors = len(world.events), world.core.phase, len(world.of(ErrorRaised))
    held = world.state.audio.received_bytes
    world.apply(item)
    if isinstance(item, CommandReceived):
        check_reply(world, item.command, before, phase)
    if isinstance(item, AudioAppended) and phase != "open":
        assert world.state.audio.received_bytes == held
    for error in world.of(ErrorRaised)[errors:]:
        assert error.message.endswith(".") or error.message in ("no", "bad", "lost", "gone")
        if ERRORS[error.code].fault is Fault.CLIENT:
            assert isinstance(item, CommandReceived | AudioAppended) or error.event_id or phase == "open"


@pytest.mark.parametrize("name", SITUATIONS)
def test_every_item_in_every_situation(name: str) -> None:
    count = len(every_item(SITUATIONS[name]()))
    assert count > 90
    for index in range(count):
        world = SITUATIONS[name]()
        item = every_item(world)[index]
        try:
            apply(world, item)
            finish(world)
        except Exception as error:
            raise AssertionError(f"{name}: {type(item).__name__} ({index}): {item!r:.300}") from error


@settings(max_examples=400)
@given(st.sampled_from(list(SITUATIONS)), st.lists(st.integers(0, 10_000), min_size=2, max_size=4), st.floats(0.0, 1.0))
def test_items_one_after_the_other(name: str, choices: list[int], pause: float) -> None:
    world = SITUATIONS[name]()
    for choice in choices:
        items = every_item(world)
        apply(world, items[choice % len(items)])
        world.advance(pause)
    finish(world)


def test_every_kind_of_item_and_command_is_in_the_table() -> None:
    """A kind that is added later fails here until it is multiplied too."""
    from typing import get_args

    items = [item for make in SITUATIONS.values() for item in every_item(make())]
    assert {type(item) for item in items} == set(get_args(Item))
    assert {type(i.command) for i in items if isinstance(i, CommandReceived)} == set(get_args(c.DuplexCommand))
    assert set(REPLIES) == set(get_args(c.DuplexCommand))
