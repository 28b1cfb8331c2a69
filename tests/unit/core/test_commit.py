"""Explicit commits: answered once each, whatever becomes of the detector, and never more of them than may wait."""

from __future__ import annotations

import pytest

from duologue.config.session import ServerVad, SessionConfig, SessionPatch, TurnDetectionPatch
from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.commands import (
    ClearAudio,
    CloseSession,
    CommitAudio,
    CreateItem,
    CreateResponse,
    InputItem,
    UpdateSession,
)
from duologue.engine.duplex.core.effects import Detect, JudgeConfig
from duologue.engine.duplex.core.items import DetectorFailed
from duologue.engine.duplex.events import (
    ErrorRaised,
    InputCommitted,
    OverlapDecided,
    ResponseCreated,
    ResponseDone,
    SpeechStarted,
    SpeechStopped,
)
from duologue.engine.duplex.results import TurnEnded, UserTranscript
from duologue.errors import ErrorCode
from tests.unit.core.harness import MANUAL, PLAIN, VAD, World, audio, speech


def waiting(*, create_response: bool = True) -> World:
    """A commit that waits for verdicts on the speech before it."""
    world = World(VAD, auto=False)
    for _ in range(10):
        world.say("S")
        world.answer_all()
    world.say("S")
    world.send(CommitAudio(create_response=create_response, event_id="commit"))
    assert world.state.commit_wait is not None and not world.of(InputCommitted)
    return world


def test_a_commit_waits_for_its_verdicts_and_takes_everything_up_to_it() -> None:
    world = waiting()
    world.say("S" * 3)
    world.answer_all()
    committed = world.last(InputCommitted).item
    assert committed.parts[0].duration_ms == 11 * 32
    assert world.last(SpeechStopped).audio_end_ms == 11 * 32
    assert world.last(SpeechStarted).audio_start_ms == 11 * 32  # what came after belongs to the next turn


def test_a_cancel_never_waits() -> None:
    world = waiting()
    world.send(ClearAudio())
    assert world.state.commit_wait is None
    world.answer_all()
    assert not world.of(InputCommitted) and world.state.turn is None


def test_what_still_waits_when_the_session_ends_is_answered_once_each() -> None:
    world = waiting()
    patch = SessionPatch(instructions="Be terse.")
    world.send(UpdateSession(patch=patch, event_id="update"))
    world.send(UpdateSession(patch=patch))
    world.send(CommitAudio(event_id="again"))
    world.send(CloseSession())
    assert [(error.event_id, error.code) for error in world.of(ErrorRaised)] == [
        (event_id, ErrorCode.SESSION_CLOSED) for event_id in ("commit", "update", "again")
    ]
    world.answer_all()
    assert len(world.of(ErrorRaised)) == 3 and not world.of(InputCommitted)


def test_settings_that_are_being_judged_when_the_session_ends_are_answered() -> None:
    world = World(MANUAL, auto=False)
    world.send(UpdateSession(patch=SessionPatch(instructions="Be terse."), event_id="update"))
    assert world.state.judging is not None
    world.send(CloseSession())
    assert [error.event_id for error in world.of(ErrorRaised)] == ["update"]


def test_a_second_commit_of_the_same_audio_is_an_error() -> None:
    world = waiting()
    world.send(CommitAudio(event_id="again"))
    world.answer_all()
    assert [(e.code, e.event_id) for e in world.of(ErrorRaised)] == [(ErrorCode.INPUT_AUDIO_BUFFER_EMPTY, "again")]
    assert len(world.of(InputCommitted)) == 1


def test_switching_detection_off_comes_after_it() -> None:
    world = waiting()
    world.send(UpdateSession(patch=SessionPatch(turn_detection=None)))
    assert not [effect for effect in world.pending if isinstance(effect, JudgeConfig)]
    world.answer_all()
    assert world.names()[-2:] == ["InputCommitted", "SessionUpdated"] or not world.of(ErrorRaised)
    assert world.names().index("InputCommitted") < world.names().index("SessionUpdated", 3)
    world.append(audio("S" * 5))
    world.send(CommitAudio())
    assert len(world.of(InputCommitted)) == 2


def test_a_detector_that_fails_settles_it() -> None:
    world = waiting()
    detect = world.take(Detect)
    world.apply(DetectorFailed(number=detect.number, kind="speech", message="broken"))  # type: ignore[attr-defined]
    assert len(world.of(InputCommitted)) == 1
    assert [e.code for e in world.of(ErrorRaised)] == [ErrorCode.SERVER_VAD_UNAVAILABLE]


def test_a_detector_that_never_answers_is_overtaken_by_the_watchdog() -> None:
    world = waiting()
    world.advance(0.9)
    assert not world.of(InputCommitted)
    world.advance(0.2)
    assert len(world.of(InputCommitted)) == 1 and not world.of(ErrorRaised)
    assert len(world.of(ResponseCreated)) == 1


def test_speech_that_was_announced_ends_when_the_detector_fails() -> None:
    world = World(VAD, auto=False)
    for _ in range(10):
        world.say("S")
        world.answer_all()
    world.say("S")
    detect = world.take(Detect)
    world.apply(DetectorFailed(number=detect.number, kind="speech", message="broken"))  # type: ignore[attr-defined]
    assert len(world.of(SpeechStarted)) == len(world.of(SpeechStopped)) == 1
    world.send(CommitAudio(create_response=True))
    assert world.last(InputCommitted).item.parts[0].duration_ms == 11 * 32


def test_detection_can_be_switched_on_again_after_it_failed() -> None:
    world = World(VAD, auto=False)
    world.append(audio("S" * 4))
    detect = world.take(Detect)
    world.apply(DetectorFailed(number=detect.number, kind="speech", message="broken"))  # type: ignore[attr-defined]
    world.send(UpdateSession(patch=SessionPatch(turn_detection=None)))
    world.answer_all()
    world.send(UpdateSession(patch=SessionPatch(turn_detection=TurnDetectionPatch(type="server_vad"))))
    world.answer_all()
    for char in "S" * 10 + "." * 16:
        world.say(char)
        world.answer_all()
    assert len(world.of(SpeechStarted)) == len(world.of(SpeechStopped)) == 1


@pytest.mark.parametrize("limit", [1, 2, 4])
def test_no_more_answers_wait_than_may(limit: int) -> None:
    """Whoever asks (a commit that still waits for its verdicts, a detected turn, response.create): the bound holds."""
    config = SessionConfig(turn_detection=ServerVad(), overlap_policy="listen_only")
    world = World(config, auto=False, runtime=DuplexSessionRuntimeConfig(max_pending_turns_per_session=limit))
    world.send(CreateItem(item=InputItem(role="user", texts=("hello",))))
    world.send(CreateResponse())
    world.answer_all()
    world.speak(speech("A long answer.", 60_000))
    world.speak(TurnEnded(), finished=True)
    for _ in range(limit - 1):
        world.send(CreateResponse())
    world.append(audio("S" * 20))
    world.send(CommitAudio(create_response=True))
    assert world.state.commit_wait is not None and not world.of(ErrorRaised)
    world.send(CreateResponse(event_id="over"))
    assert [(e.code, e.event_id) for e in world.of(ErrorRaised)] == [(ErrorCode.INPUT_BACKPRESSURE, "over")]
    world.answer_all()
    assert len(world.state.wanted) == limit
    for char in "S" * 20 + "." * 20:
        world.say(char)
        world.answer_all()
    assert world.of(ErrorRaised)[-1].code is ErrorCode.INPUT_BACKPRESSURE and len(world.of(ErrorRaised)) == 2
    assert len(world.state.wanted) == limit
    world.send(CommitAudio(create_response=True, event_id="over too"))
    assert world.last(ErrorRaised).event_id == "over too"


def test_the_turn_of_a_commit_under_way_is_not_refused_for_its_own_sake() -> None:
    world = World(VAD, auto=False, runtime=DuplexSessionRuntimeConfig(max_pending_turns_per_session=1))
    world.append(audio("S" * 20 + "." * 30))
    world.send(CommitAudio(create_response=True))
    world.answer_all()
    assert len(world.of(InputCommitted)) == 1 and len(world.of(ResponseCreated)) == 1
    assert [e.code for e in world.of(ErrorRaised)] == [ErrorCode.INPUT_AUDIO_BUFFER_EMPTY]


def test_an_explicit_commit_is_never_taken_for_an_acknowledgement() -> None:
    """Decision 10: nor refused because audio is still playing. It waits for the answer that it did not interrupt."""
    world = World(VAD)
    world.say("S" * 20 + "." * 16)
    world.reply("A long answer.", 4_000)
    world.advance(1.0)
    world.say("S" * 9)
    world.speak(UserTranscript(text="yes", final=False))
    world.send(CommitAudio(create_response=True))
    assert world.last(InputCommitted).deferred and not world.of(ErrorRaised)
    assert [e.action for e in world.of(OverlapDecided)] == ["pending", "listen"]
    world.advance(5.0)
    assert world.last(ResponseDone).status == "completed" and len(world.of(ResponseCreated)) == 2


def test_a_commit_without_an_answer_takes_nobodys_place() -> None:
    world = World(MANUAL, capabilities=PLAIN, runtime=DuplexSessionRuntimeConfig(max_pending_turns_per_session=1))
    world.append(audio("S" * 20))
    world.send_turn("One.", 1_000, end=False)
    world.append(audio("S" * 20))
    world.send(CommitAudio(create_response=True))
    world.append(audio("S" * 20))
    world.send(CommitAudio(create_response=False))
    assert len(world.of(InputCommitted)) == 3 and not world.of(ErrorRaised)
    world.speak(TurnEnded(), finished=True)
    world.advance(2.0)
    assert world.last(ResponseDone).status == "completed" and len(world.of(ResponseCreated)) == 2


@pytest.mark.parametrize(
    ("samples", "accepted"), [(0, False), (1, False), (1_599, False), (1_600, True), (1_601, True)]
)
def test_a_commit_needs_a_tenth_of_a_second(samples: int, accepted: bool) -> None:
    """Field case F19."""
    world = World(MANUAL)
    world.append(bytes(2 * samples))
    world.send(CommitAudio(event_id="e"))
    assert bool(world.of(InputCommitted)) is accepted
    assert [(e.code, e.event_id) for e in world.of(ErrorRaised)] == (
        [] if accepted else [(ErrorCode.INPUT_AUDIO_BUFFER_EMPTY, "e")]
    )
    assert bool(world.submits) is accepted
