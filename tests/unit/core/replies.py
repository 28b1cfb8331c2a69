"""What answers each command, and what must be left of a session at its end: shared by the tests that try every item.

Rule kept here: a command is answered by its event or by one documented error that names it; a session that ended has nothing
left in any table and said its terminal once, last.
"""

from __future__ import annotations

from duologue.engine.duplex import commands as c
from duologue.engine.duplex.core.items import CleanupEnded, CloseRequested, OutputTaken
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
from duologue.errors import ErrorCode
from tests.unit.core.harness import World

E = ErrorCode
REPLIES: dict[type, tuple[tuple[type, ...], frozenset[ErrorCode]]] = {
    c.AppendAudio: ((), frozenset({E.BAD_EVENT})),
    c.CommitAudio: (
        (InputCommitted,),
        frozenset({E.INPUT_AUDIO_BUFFER_EMPTY, E.INPUT_BACKPRESSURE, E.UNSUPPORTED, E.RATE_LIMITED}),
    ),
    c.ClearAudio: ((InputCleared,), frozenset()),
    c.ClearOutput: ((OutputCleared, ResponseDone), frozenset()),
    c.CreateResponse: (
        (ResponseCreated,),
        frozenset(
            {
                *(E.UNSUPPORTED_RESPONSE_OPTIONS, E.RESPONSE_ALREADY_ACTIVE, E.INPUT_BACKPRESSURE),
                *(E.TEXT_ONLY_TURN_UNSUPPORTED, E.RESPONSE_CREATE_WITHOUT_INPUT, E.ITEM_NOT_FOUND, E.RATE_LIMITED),
            }
        ),
    ),
    c.CancelResponse: ((ResponseDone,), frozenset({E.RESPONSE_NOT_ACTIVE})),
    c.CreateItem: (
        (ItemAdded,),
        frozenset(
            {
                *(E.ITEM_EXISTS, E.ITEM_NOT_FOUND, E.TOOL_CALL_UNKNOWN),
                *(E.TOOL_CALL_CANCELLED, E.TOOL_RESULT_DUPLICATE, E.TOOL_RESULT_TIMEOUT),
            }
        ),
    ),
    c.DeleteItem: ((ItemDeleted,), frozenset({E.ITEM_NOT_FOUND})),
    c.RetrieveItem: ((ItemRetrieved,), frozenset({E.ITEM_RETRIEVE_NOT_FOUND})),
    c.TruncateItem: ((ItemTruncated,), frozenset({E.ITEM_NOT_FOUND, E.ITEM_NOT_TRUNCATABLE})),
    c.AckPlayback: ((PlaybackAcknowledged,), frozenset({E.PLAYBACK_ITEM_NOT_FOUND, E.PLAYBACK_ITEM_MISMATCH})),
    c.Heartbeat: ((HeartbeatAcknowledged,), frozenset()),
    c.BargeIn: ((), frozenset({E.BARGE_IN_UNSUPPORTED})),
    c.CancelInput: ((InputCleared,), frozenset()),
    c.CloseSession: ((), frozenset()),
    c.SignalTurn: ((TurnSignalled,), frozenset({E.BARGE_IN_UNSUPPORTED})),
    c.AppendText: ((), frozenset({E.NATIVE_TEXT_APPEND_UNSUPPORTED})),
    c.UpdateSession: (
        (SessionUpdated,),
        frozenset(
            {
                *(E.MODEL_UPDATE_UNSUPPORTED, E.VOICE_UPDATE_UNSUPPORTED, E.UNSUPPORTED_TURN_DETECTION),
                E.INPUT_BACKPRESSURE,
            }
        ),
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
    mine = [e for e in events if isinstance(e, ErrorRaised) and e.event_id == command.event_id]
    assert len(mine) <= 1
    if phase != "open":
        expected = [E.SESSION_CLOSED] if phase in ("new", "closing") else []
        unread = expected and not mine and not world.state.has_room(0)  # a client that reads nothing is told no more
        assert ([e.code for e in mine] == expected or unread) and len(events) == len(mine)
        return
    kinds, codes = REPLIES[type(command)]
    assert {e.code for e in mine} <= codes, mine
    if not mine and not isinstance(command, SILENT) and world.core.phase == "open":
        waits = world.core.holding or world.state.wanted or not kinds
        idle_clear = isinstance(command, c.ClearOutput) and world.state.last_response is None
        assert any(isinstance(e, kinds) for e in events) or waits or idle_clear, type(command).__name__
