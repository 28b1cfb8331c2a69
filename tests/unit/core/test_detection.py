"""Speech detection as the session sees it: one clock, whatever happens to the audio or to the detector's settings."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.config.session import ServerVad, SessionConfig, SessionPatch, TurnDetectionPatch
from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.commands import CommitAudio, UpdateSession
from duologue.engine.duplex.core.effects import ClassifyTurn, Detect, SubmitAppend
from duologue.engine.duplex.core.items import DetectorFailed, SpeechScored, TurnClassified
from duologue.engine.duplex.events import (
    ErrorRaised,
    InputCommitted,
    OverlapDecided,
    ResponseDone,
    SpeechStarted,
    SpeechStopped,
)
from duologue.engine.duplex.plugin import ModelCapabilities
from tests.unit.core.harness import MANUAL, PLAIN, RATE, SEMANTIC, VAD, World, audio

TURNS_BY_CLIENT = ModelCapabilities(family="resident", unit_ms=80, chunk_period_ms=80, input_rate_hz=RATE)


def test_appends_that_the_client_wants_dropped_leave_the_clock_alone() -> None:
    world = World(VAD)
    world.say("S" * 20 + "." * 16)
    world.reply("Something long.", 1_000)
    world.append(audio("S" * 31), overlap_hint="drop")
    assert world.last(OverlapDecided).action == "drop"
    world.advance(5.0)
    world.say("." * 10 + "S" * 10 + "." * 20)
    assert world.last(SpeechStarted).audio_start_ms == (36 + 31 + 10) * 32 - 300
    assert world.last(SpeechStopped).audio_end_ms == (36 + 31 + 10 + 10 + 16) * 32
    assert len(world.of(SpeechStarted)) == 2


def test_dropped_appends_are_silence_in_a_turn_and_nothing_without_detection() -> None:
    world = World(SessionConfig(turn_detection=ServerVad(), overlap_policy="listen_only"), capabilities=PLAIN)
    world.say("S" * 20 + "." * 16)
    world.reply("Something long.", 9_000)
    world.say("S" * 6)
    world.append(audio("S" * 4), overlap_hint="drop")
    world.say("S" * 6 + "." * 16)
    item_id = world.last(InputCommitted).item.item_id
    heard = world.state.committed[item_id].audio
    assert heard == audio("S" * 6) + bytes(4 * 1024) + audio("S" * 6 + "." * 16)

    manual = World(MANUAL, capabilities=PLAIN)
    manual.append(audio("S" * 10))
    manual.send_turn("Something long.", 9_000)
    manual.append(audio("S" * 5))
    manual.append(audio("S" * 50), overlap_hint="drop")
    assert manual.state.audio.buffered_bytes == len(audio("S" * 5))


def test_a_hesitant_onset_keeps_its_prefix() -> None:
    """Decision 16: the detector hesitates for longer than the audio that is otherwise kept; the prefix is still there."""
    world = World(VAD)
    world.hear(*[0.0] * 40, 0.9, *[0.4] * 25, 0.9, 0.9)
    assert world.last(SpeechStarted).audio_start_ms == 40 * 32 - 300


def test_a_detector_that_never_decides_does_not_fill_the_buffer() -> None:
    world = World(VAD)
    world.hear(0.9, *[0.4] * 500)
    assert world.state.audio.buffered_bytes < 4 * RATE * 2


def test_silence_is_not_kept_while_a_resident_model_waits_for_a_commit() -> None:
    world = World(VAD, capabilities=TURNS_BY_CLIENT)
    for _ in range(60):
        world.append(audio("." * 31))
    assert world.state.audio.buffered_bytes < 2 * RATE * 2


@pytest.mark.parametrize("broken", [math.nan, -math.inf, -1.0])
def test_scores_that_are_no_probabilities_are_silence(broken: float) -> None:
    world = World(VAD)
    world.hear(*[0.9] * 5)
    world.hear(*[broken] * 16)
    assert len(world.of(SpeechStopped)) == 1
    world.hear(*[broken] * 30)
    assert len(world.of(SpeechStarted)) == 1
    world.reply("Yes.", 100)
    world.advance(1.0)
    world.hear(*[0.9] * 5)
    assert len(world.of(SpeechStarted)) == 2


def test_the_detector_starts_afresh_in_long_silence_and_only_there() -> None:
    world = World(SessionConfig(turn_detection=ServerVad(create_response=False)), capabilities=PLAIN)
    for _ in range(3):
        world.say("S" * 150 + "." * 780)
    resets = []
    position = 0
    for effect in world.effects:
        if isinstance(effect, Detect):
            if effect.reset:
                resets.append(position)
            position += len(effect.pcm) // 1024
    assert resets[0] == 0 and len(resets) == 10
    for at in resets[1:]:
        assert at % 930 >= 150 + 250, "a reset in mid-speech, or soon after it"


def test_frames_lie_where_they_would_lie_had_detection_always_been_on() -> None:
    late = World(MANUAL, capabilities=PLAIN)
    late.append(audio("." * 10)[:-600])
    late.send(UpdateSession(patch=SessionPatch(turn_detection=TurnDetectionPatch(type="server_vad"))))
    late.append(audio("." * 10)[-600:])
    always = World(VAD, capabilities=PLAIN)
    always.append(audio("." * 10))
    for world in (late, always):
        world.append(audio("S" * 20 + "." * 20))
    assert late.last(SpeechStarted).audio_start_ms == always.last(SpeechStarted).audio_start_ms
    assert late.last(SpeechStopped).audio_end_ms == always.last(SpeechStopped).audio_end_ms


def asked(world: World) -> list[ClassifyTurn]:
    """Every question to the turn classifier, oldest first."""
    return [effect for effect in world.effects if isinstance(effect, ClassifyTurn)]


def say_scored(world: World, script: str) -> None:
    """Speech whose frames are scored at once; questions to the turn classifier stay open."""
    for char in script:
        world.say(char)
        world.answer_all(Detect)


def test_a_pause_is_judged_as_it_begins_and_the_verdict_counts_at_192_ms() -> None:
    world = World(SEMANTIC, auto=False)
    say_scored(world, "S" * 20 + ".")
    (question,) = asked(world)
    assert question.pcm == audio("S" * 20 + ".") + bytes(5 * 1024), "as it sounds when the pause counts"
    world.answer_all(ClassifyTurn)
    say_scored(world, "." * 4)
    assert not world.of(InputCommitted), "the verdict is there, but the pause does not count yet"
    say_scored(world, ".")
    assert len(world.of(InputCommitted)) == 1 and len(asked(world)) == 1
    assert world.last(SpeechStopped).audio_end_ms == 26 * 32


def test_a_candidate_waits_for_the_verdict_that_was_asked_ahead() -> None:
    world = World(SEMANTIC, auto=False)
    say_scored(world, "S" * 20 + "." * 9)
    assert len(asked(world)) == 1 and not world.of(InputCommitted)
    world.answer_all(ClassifyTurn)
    assert world.last(SpeechStopped).audio_end_ms == 26 * 32, "however late the verdict, the end is where it was"


def test_a_verdict_on_a_pause_that_is_over_decides_nothing() -> None:
    world = World(SEMANTIC, auto=False)
    say_scored(world, "S" * 20 + "." * 3)
    stale = world.take(ClassifyTurn)
    say_scored(world, "S" * 3 + "." * 5)
    assert len(asked(world)) == 1, "a judge that is behind is not asked about every pause"
    say_scored(world, ".")
    world.answer(stale)
    assert not world.of(InputCommitted)
    assert asked(world)[1].pcm == audio("S" * 20 + "." * 3 + "S" * 3 + "." * 6)
    world.answer_all(ClassifyTurn)
    assert world.last(SpeechStopped).audio_end_ms == 32 * 32


def test_what_was_scored_after_a_pause_in_which_a_turn_became_too_long_is_not_waited_for() -> None:
    world = World(SEMANTIC, auto=False, runtime=DuplexSessionRuntimeConfig(max_turn_ms=800))
    world.append(audio("S" * 20 + "." * 7 + "S" * 10))
    world.answer_all(Detect)
    assert len(world.of(InputCommitted)) == 1, "the limit ended it while its pause was still to be judged"
    assert len(world.of(SpeechStarted)) == 2, "what followed in the same append is the next one"
    world.send(CommitAudio(event_id="mine"))
    world.answer_all()
    assert len(world.of(InputCommitted)) == 2


def test_an_incomplete_verdict_that_came_ahead_is_asked_again_when_the_pause_has_doubled() -> None:
    world = World(SEMANTIC, complete=0.1)
    world.say("S" * 20 + "." * 12)
    assert [len(question.pcm) // 1024 for question in asked(world)] == [26, 32]


def test_a_classifier_that_fails_ahead_is_asked_again_and_then_told() -> None:
    world = World(SEMANTIC, auto=False)
    say_scored(world, "S" * 20 + ".")
    for count in (1, 2):
        question = world.take(ClassifyTurn)
        world.apply(DetectorFailed(number=question.number, kind="turn_end", message="no"))  # type: ignore[attr-defined]
        say_scored(world, "." * 5)
        assert len(asked(world)) == 2 and len(world.of(ErrorRaised)) == count - 1
    say_scored(world, ".")
    world.answer_all()
    assert len(world.of(InputCommitted)) == 1, (
        "a failure is no verdict: the pause is judged once more when it has doubled"
    )


@pytest.mark.parametrize("scores", [".", "..", "....", "....."])
def test_a_commit_forgets_what_was_asked_ahead(scores: str) -> None:
    world = World(SEMANTIC, auto=False)
    say_scored(world, "S" * 20 + scores)
    stale = world.take(ClassifyTurn)
    world.answer_all(SubmitAppend)
    world.send(CommitAudio(create_response=True))
    assert len(world.of(InputCommitted)) == 1
    say_scored(world, "S" * 10 + "." * 6)
    world.answer(stale)
    assert len(world.of(InputCommitted)) == 1
    world.answer_all(ClassifyTurn)


def test_another_kind_of_detection_withdraws_the_question_about_a_pause() -> None:
    world = World(SEMANTIC, auto=False)
    for char in "S" * 20 + "." * 6:
        world.say(char)
        world.answer_all(Detect)
    question = world.take(ClassifyTurn)
    world.say("." * 2)
    world.send(UpdateSession(patch=SessionPatch(turn_detection=TurnDetectionPatch(type="server_vad"))))
    world.answer_all()
    world.apply(TurnClassified(number=question.number, probability=0.01))  # type: ignore[attr-defined]
    assert not world.of(InputCommitted)
    for char in "." * 9:
        world.say(char)
        world.answer_all()
    assert len(world.of(InputCommitted)) == 1


@given(st.lists(st.sampled_from([0.0, 0.34, 0.36, 0.49, 0.5, 0.9, math.nan]), max_size=120))
def test_every_start_has_its_stop(probabilities: list[float]) -> None:
    """Field case F22: whatever the detector says, speech that was announced ends when silence follows."""
    world = World(SessionConfig(turn_detection=ServerVad(create_response=False)), capabilities=PLAIN)
    world.hear(*probabilities, *[0.0] * 20)
    kinds = [type(e) for e in world.events if isinstance(e, SpeechStarted | SpeechStopped)]
    assert kinds == [SpeechStarted, SpeechStopped] * (len(kinds) // 2)


def test_a_verdict_that_is_too_short_counts_as_silence_and_one_that_is_too_long_is_cut() -> None:
    world = World(VAD, auto=False)
    world.append(audio("S" * 10))
    detect = world.take(Detect)
    world.apply(SpeechScored(number=detect.number, probabilities=(0.9,) * 4))  # type: ignore[attr-defined]
    assert world.state.detection.endpointer.position == 10  # type: ignore[union-attr]
    assert len(world.of(SpeechStarted)) == 1
    world.append(audio("." * 20))
    detect = world.take(Detect)
    world.apply(SpeechScored(number=detect.number, probabilities=(0.01,) * 99))  # type: ignore[attr-defined]
    assert world.state.detection.endpointer.position == 30  # type: ignore[union-attr]
    assert not world.of(ResponseDone)
