"""Opening, settings and the end of a session: one answer to each update, nothing after the close has begun, one terminal."""

from __future__ import annotations

import pytest

from duologue.config.session import SessionConfig, SessionPatch, TurnDetectionPatch
from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.commands import (
    CloseSession,
    CommitAudio,
    CreateResponse,
    Heartbeat,
    SignalTurn,
    UpdateSession,
)
from duologue.engine.duplex.core.barrier import MAX_WAITING_COMMANDS
from duologue.engine.duplex.core.effects import ApplyConfig, CleanupSession, EndSession, JudgeConfig, SubmitAppend
from duologue.engine.duplex.core.items import (
    AppendFailed,
    CleanupEnded,
    CloseRequested,
    CommandRefused,
    ConfigJudged,
    Opened,
    StageFailed,
    TerminalClaimed,
)
from duologue.engine.duplex.core.lease import Lease
from duologue.engine.duplex.events import (
    ErrorRaised,
    ResponseCreated,
    ResponseDone,
    SessionClosed,
    SessionCreated,
    SessionExpired,
    SessionUpdated,
    SpeechStopped,
    TurnSignalled,
)
from duologue.engine.duplex.plugin import ModelCapabilities
from duologue.errors import ErrorCode
from tests.unit.core.harness import CASCADE, MANUAL, NATIVE, VAD, World, audio, speech
from tests.unit.core.test_resident import BY_CLIENT


def test_a_session_opens_once() -> None:
    world = World(MANUAL)
    assert world.names() == ["SessionCreated", "SessionUpdated"]
    world.apply(Opened())
    assert len(world.of(SessionCreated)) == 1 and world.core.phase == "open"


# -- session.update ------------------------------------------------------------------------------------------------------


def test_updates_sent_together_are_answered_one_by_one_and_none_is_lost() -> None:
    """Field case F39, and decision 7: the second is judged over what the first left."""
    world = World(MANUAL, auto=False)
    world.send(UpdateSession(patch=SessionPatch(instructions="be brief"), event_id="1"))
    world.send(UpdateSession(patch=SessionPatch(model="another"), event_id="2"))
    world.send(UpdateSession(patch=SessionPatch(voice="v"), event_id="3"))
    world.send(UpdateSession(patch=SessionPatch(), event_id="4"))
    world.answer_all()
    assert [type(e) for e in world.events[2:]] == [SessionUpdated, ErrorRaised, SessionUpdated, SessionUpdated]
    assert world.last(ErrorRaised).event_id == "2"
    assert (world.core.config.instructions, world.core.config.voice) == ("be brief", "v")
    assert world.core.config_generation == 2


def test_a_refused_update_changes_nothing_and_the_next_one_is_judged() -> None:
    world = World(MANUAL, auto=False)
    world.send(UpdateSession(patch=SessionPatch(voice="bad"), event_id="1"))
    world.send(UpdateSession(patch=SessionPatch(instructions="x"), event_id="2"))
    judged = world.take(JudgeConfig)
    world.apply(ConfigJudged(number=judged.number, code=ErrorCode.INVALID_SESSION_CONFIG, message="no", param="voice"))  # type: ignore[attr-defined]
    world.answer_all()
    assert world.last(ErrorRaised).event_id == "1" and world.core.config.voice is None
    assert world.core.config.instructions == "x"


@pytest.mark.parametrize("count", [MAX_WAITING_COMMANDS, MAX_WAITING_COMMANDS + 1, MAX_WAITING_COMMANDS + 2])
def test_updates_that_wait_are_bounded(count: int) -> None:
    world = World(MANUAL, auto=False)
    for number in range(count):
        world.send(UpdateSession(patch=SessionPatch(instructions=f"{number}"), event_id=f"{number}"))
    world.answer_all()
    refused = max(0, count - MAX_WAITING_COMMANDS - 1)
    assert len(world.of(SessionUpdated)) - 1 == count - refused
    assert [e.code for e in world.of(ErrorRaised)] == [ErrorCode.INPUT_BACKPRESSURE] * refused


@pytest.mark.parametrize(
    ("patch", "code"),
    [
        (SessionPatch(instructions="x", model="other"), ErrorCode.MODEL_UPDATE_UNSUPPORTED),
        (
            SessionPatch(instructions="x", turn_detection=TurnDetectionPatch(threshold=7.0)),
            ErrorCode.UNSUPPORTED_TURN_DETECTION,
        ),
        (SessionPatch(instructions="x", speed=99.0), ErrorCode.INVALID_SESSION_CONFIG),
        (
            SessionPatch(instructions="x", turn_detection=TurnDetectionPatch(eagerness="low")),
            ErrorCode.UNSUPPORTED_TURN_DETECTION,
        ),
    ],
)
def test_field_F03_a_rejected_update_leaves_no_trace(patch: SessionPatch, code: ErrorCode) -> None:
    world = World(VAD)
    before = world.core.config
    world.send(UpdateSession(patch=patch, event_id="e"))
    assert [(e.code, e.event_id) for e in world.of(ErrorRaised)] == [(code, "e")]
    assert world.core.config is before
    assert not [e for e in world.effects if isinstance(e, JudgeConfig | ApplyConfig)]


# -- the end -------------------------------------------------------------------------------------------------------------


def test_a_verdict_on_settings_that_comes_after_the_close_changes_nothing() -> None:
    world = World(MANUAL, auto=False)
    world.send(UpdateSession(patch=SessionPatch(voice="x")))
    world.send(UpdateSession(patch=SessionPatch(instructions="x")))
    judged = world.take(JudgeConfig)
    world.close()
    world.answer(judged)
    assert world.core.config == MANUAL
    assert not [e for e in world.effects if isinstance(e, ApplyConfig)]


def test_field_F14_an_append_that_fails_because_of_the_close_says_nothing() -> None:
    world = World(MANUAL, auto=False)
    world.append(audio("S" * 30))
    world.send(CommitAudio(create_response=True))
    submit = world.take(SubmitAppend)
    world.send(CloseSession())
    world.answer(submit, ok=False)
    assert not world.of(ErrorRaised)
    world.apply(CloseRequested(kind="closed", reason="manager"))
    world.apply(AppendFailed(number=submit.number, code=ErrorCode.TIMEOUT, message="late"))  # type: ignore[attr-defined]
    world.apply(CleanupEnded(released=True))
    world.apply(CleanupEnded(released=True))
    assert [n for n in world.names() if n in ("ResponseDone", "SessionClosed")] == ["ResponseDone", "SessionClosed"]
    assert world.names()[-1] == "SessionClosed"
    assert len(world.of(SessionClosed)) == 1


def test_field_F28_nothing_is_accepted_once_the_close_has_begun() -> None:
    world = World(VAD)
    world.say("S" * 10)
    world.send(CloseSession(reason="bye"))
    assert world.core.phase == "closing" and world.ended == [EndSession(kind="closed", reason="bye", fault=None)]
    received = world.state.audio.received_bytes
    world.append(audio("S"), event_id="a")
    world.send(Heartbeat(event_id="b"))
    world.send(CloseSession(event_id="c"))
    assert [(e.code, e.event_id) for e in world.of(ErrorRaised)] == [
        (ErrorCode.SESSION_CLOSED, event_id) for event_id in ("a", "b", "c")
    ]
    assert world.state.audio.received_bytes == received
    assert not world.of(SpeechStopped) and world.core.next_deadline() is None


@pytest.mark.parametrize("by", ["client", "manager", "fault"])
def test_commands_that_wait_when_the_session_closes_are_answered_before_its_terminal(by: str) -> None:
    """Each by the name that the client gave it, behind the terminal of the response; one without a name expects no answer."""
    world = World(MANUAL, capabilities=BY_CLIENT, auto=False)
    world.append(audio("S" * 10))
    world.send(CommitAudio(create_response=True))
    world.send(UpdateSession(patch=SessionPatch(instructions="new"), event_id="a"))
    world.append(audio("S" * 10))
    world.send(CommitAudio(event_id="b"))
    world.send(CommitAudio())
    match by:
        case "client":
            world.send(CloseSession(event_id="c"))
        case "manager":
            world.close()
        case _:
            world.apply(StageFailed(request_id=None, code=ErrorCode.TIMEOUT, message="late", session_ends=True))
    refused = [e.event_id for e in world.of(ErrorRaised) if e.code is ErrorCode.SESSION_CLOSED]
    assert refused == ["a", "b"] and world.core.config.instructions != "new"
    names = world.names()
    assert "ResponseDone" in names[:-2] and names[-2:] == ["ErrorRaised", "ErrorRaised"]
    world.close()
    world.apply(CleanupEnded(released=True))
    assert world.names()[-1] == ("SessionClosed" if by != "fault" else "SessionExpired")


def test_a_commit_that_waits_for_the_detector_when_the_session_closes_is_answered() -> None:
    world = World(VAD, auto=False)
    world.append(audio("S" * 10))
    world.send(CommitAudio(event_id="a"))
    world.close()
    assert [(e.code, e.event_id) for e in world.of(ErrorRaised)] == [(ErrorCode.SESSION_CLOSED, "a")]


@pytest.mark.parametrize("by", ["client", "manager"])
def test_answers_that_wait_when_the_session_closes_are_answered_by_the_name_of_their_wish(by: str) -> None:
    """A turn whose answer waits was answered already: it was committed."""
    world = World(MANUAL)
    world.append(audio("S" * 20))
    world.send_turn("A long answer.", 5_000)
    world.append(audio("S" * 20))
    world.send(CommitAudio(create_response=True, event_id="commit"))
    world.send(CreateResponse(event_id="create"))
    world.send(CreateResponse())
    assert len(world.state.wanted) == 3
    if by == "client":
        world.send(CloseSession())
    else:
        world.close()
    assert [(e.code, e.event_id) for e in world.of(ErrorRaised)] == [(ErrorCode.SESSION_CLOSED, "create")]
    assert world.names()[-1] == "ErrorRaised" and len(world.of(ResponseCreated)) == len(world.of(ResponseDone)) == 1


def test_answers_to_what_waits_never_keep_a_response_from_its_terminal() -> None:
    """A client that reads nothing is told no more than there is room for, the terminals first."""
    runtime = DuplexSessionRuntimeConfig(max_pending_output_events_per_session=4)
    world = World(MANUAL, capabilities=BY_CLIENT, auto=False, takes=False, runtime=runtime)
    world.append(audio("S" * 10))
    world.send(CommitAudio(create_response=True))
    for number in range(16):
        world.send(UpdateSession(patch=SessionPatch(instructions="new"), event_id=str(number)))
    world.close()
    assert len(world.of(ResponseDone)) == 1
    world.apply(CleanupEnded(released=True))
    assert world.names()[-1] == "SessionClosed"


@pytest.mark.parametrize("kind", ["closed", "expired"])
@pytest.mark.parametrize("released", [True, False])
def test_decision_1_and_2_every_response_ends_before_the_session_does(kind: str, released: bool) -> None:
    world = World(MANUAL)
    world.append(audio("S" * 20))
    world.send_turn("A long answer.", 5_000)
    world.apply(CloseRequested(kind=kind, reason="why"))  # type: ignore[arg-type]
    assert world.last(ResponseDone).status == "cancelled"
    assert len([e for e in world.effects if isinstance(e, CleanupSession)]) == 1
    terminal = SessionClosed if kind == "closed" else SessionExpired
    assert not world.of(terminal)
    world.apply(CleanupEnded(released=released))
    assert world.names()[-1] == terminal.__name__
    assert world.last(terminal).slot_released is released and world.last(terminal).reason == "why"


def test_a_fault_fails_the_response_and_names_itself() -> None:
    world = World(MANUAL)
    world.append(audio("S" * 20))
    world.send_turn("A long answer.", 5_000)
    world.apply(CloseRequested(kind="closed", reason="worker", fault=ErrorCode.REPLICA_UNAVAILABLE, message="gone"))
    world.apply(CleanupEnded(released=True))
    assert [type(e).__name__ for e in world.events[-3:]] == ["ErrorRaised", "ResponseDone", "SessionClosed"]
    assert world.last(ResponseDone).error is ErrorCode.REPLICA_UNAVAILABLE
    assert world.last(SessionClosed).fault is ErrorCode.REPLICA_UNAVAILABLE


def test_a_terminal_that_somebody_else_claimed_is_not_sent_twice() -> None:
    world = World(MANUAL)
    world.apply(TerminalClaimed())
    assert world.core.phase == "open"
    world.close()
    world.apply(TerminalClaimed())
    world.apply(CleanupEnded(released=True))
    world.apply(CommandRefused(code=ErrorCode.BAD_AUDIO, message="late"))
    assert world.core.phase == "closed" and not world.of(SessionClosed) and not world.of(ErrorRaised)


def test_a_resident_model_that_fails_ends_its_session_in_order() -> None:
    world = World(MANUAL, capabilities=NATIVE)
    world.append(audio("." * 5))
    world.speak(speech("Hello.", 1_000))
    world.apply(
        StageFailed(request_id=world.submits[-1].request_id, code=ErrorCode.RUNTIME_STREAM_FAILED, message="lost")
    )
    assert world.core.phase == "closing" and world.ended[0].reason == "request_cleanup"
    world.apply(CloseRequested(kind="expired", reason="request_cleanup"))
    world.apply(CleanupEnded(released=True))
    order = [type(e).__name__ for e in world.events if isinstance(e, ErrorRaised | ResponseDone | SessionExpired)]
    assert order == ["ErrorRaised", "ResponseDone", "SessionExpired"]
    assert world.last(ResponseDone).status == "failed"


@pytest.mark.parametrize("name", ["close", "timeout", "hello"])
def test_a_turn_signal_never_ends_a_session(name: str) -> None:
    world = World(SessionConfig())
    world.append(audio("S" * 20))
    world.send_turn("A long answer.", 5_000)
    world.send(SignalTurn(name=name))
    assert world.last(TurnSignalled).name == name
    assert world.core.phase == "open" and len(world.of(ResponseCreated)) == 1 and not world.of(ResponseDone)
    world.send(SignalTurn(name="cancel"))
    assert world.last(ResponseDone).status == "cancelled"


def test_the_stages_are_cleaned_even_if_the_terminal_was_claimed_first() -> None:
    """Decision 5: whatever the order, what the stages hold is named once."""
    world = World(MANUAL)
    world.append(audio("S" * 20))
    world.send_turn("A long answer.", 5_000, end=False)
    live = world.core.live_request_ids()
    world.send(CloseSession())
    world.apply(TerminalClaimed())
    world.close()
    world.close()
    named = [request_id for cleanup in world.cleanups for request_id in cleanup.request_ids]
    assert len(world.cleanups) == 1 and set(live) <= {*named, *world.aborted}
    assert not world.core.live_request_ids()


AROUND = pytest.mark.parametrize(("after_s", "over"), [(29.999, False), (30.0, True), (30.001, True)])


@AROUND
@pytest.mark.parametrize("busy", [False, True])
def test_a_lease_that_is_silent_for_its_idle_time_is_over(after_s: float, over: bool, busy: bool) -> None:
    lease = Lease(last_activity=100.0)
    why = lease.expiry(100.0 + after_s, idle_ttl_s=30.0, grace_s=1.0, busy=busy)
    assert why == ("idle_ttl_expired" if over and not busy else None)
    lease.touch(100.0 + after_s)
    assert lease.expiry(100.0 + after_s + 29.9, idle_ttl_s=30.0, grace_s=1.0, busy=False) is None


@AROUND
@pytest.mark.parametrize("busy", [False, True])
def test_a_lease_that_is_detached_for_its_grace_is_over(after_s: float, over: bool, busy: bool) -> None:
    lease = Lease(last_activity=100.0)
    assert lease.detach(100.0, lease.generation)
    lease.touch(100.0 + after_s)  # work that goes on is no sign of the client
    why = lease.expiry(100.0 + after_s, idle_ttl_s=None, grace_s=30.0, busy=busy)
    assert why == ("disconnect_grace_expired" if over else None)
    assert lease.resume(100.0 + after_s, "c", lease.generation), "until the reaper has come, nothing is lost"


@pytest.mark.parametrize("capabilities", (NATIVE, CASCADE))
def test_the_request_whose_failure_ends_the_session_is_named_to_the_stages(capabilities: ModelCapabilities) -> None:
    """One stage gave up on it; the others must hear that it is over."""
    world = World(MANUAL, capabilities=capabilities)
    world.append(audio("S" * 20))
    if capabilities is CASCADE:
        world.send(CommitAudio(create_response=True))
    request_id = world.submits[-1].request_id
    world.apply(
        StageFailed(request_id=request_id, code=ErrorCode.RUNTIME_STREAM_FAILED, message="lost", session_ends=True)
    )
    world.close()
    assert request_id in [*world.cleanups[0].request_ids, *world.aborted]
