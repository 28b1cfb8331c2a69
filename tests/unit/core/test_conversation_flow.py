"""Whole conversations through the state machine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from duologue.config.session import ServerVad, SessionConfig
from duologue.engine.duplex.commands import (
    BargeIn,
    CancelResponse,
    ClearAudio,
    CommitAudio,
    CreateItem,
    CreateResponse,
    InputItem,
    TruncateItem,
)
from duologue.engine.duplex.core.effects import ClassifyTurn, Detect, SubmitAppend
from duologue.engine.duplex.core.items import CleanupEnded, OutputTaken
from duologue.engine.duplex.events import (
    AnswerDelays,
    ErrorRaised,
    InputCommitted,
    InputTranscribed,
    ItemTruncated,
    OutputCleared,
    OverlapDecided,
    ResponseAudio,
    ResponseCreated,
    ResponseDone,
    SessionClosed,
    SpeechStarted,
    SpeechStopped,
)
from duologue.engine.duplex.results import TurnEnded, UserTranscript
from duologue.errors import ErrorCode
from tests.unit.core.harness import MANUAL, PLAIN, SEMANTIC, VAD, World, audio, speech


def test_spoken_turn_with_server_vad() -> None:
    world = World(VAD)
    world.say("." * 20 + "S" * 20 + "." * 16)
    assert [
        type(e) for e in world.events if isinstance(e, SpeechStarted | SpeechStopped | InputCommitted | ResponseCreated)
    ] == [
        SpeechStarted,
        SpeechStopped,
        InputCommitted,
        ResponseCreated,
    ]
    started = world.last(SpeechStarted)
    assert started.audio_start_ms == 20 * 32 - 300
    assert world.last(SpeechStopped).audio_end_ms == 56 * 32
    final = world.submits[-1]
    assert final.final and final.respond
    fed = b"".join(s.audio for s in world.submits if s.request_id == final.request_id)
    assert fed == audio("." * 20 + "S" * 20 + "." * 16)[(20 * 512 - 4800) * 2 :]
    world.reply("Hello there.", 1000, transcript="hi")
    world.advance(2.0)
    done = world.last(ResponseDone)
    assert done.status == "completed" and done.item.parts[0].transcript == "Hello there."
    assert sum(e.duration_ms for e in world.of(ResponseAudio)) == 1000
    assert world.last(InputTranscribed).text == "hi"


def test_semantic_turn_is_provisional_until_complete() -> None:
    world = World(SEMANTIC, auto=True, complete=0.1)
    world.say("S" * 20 + "." * 8)
    assert not world.of(InputCommitted)
    provisional = world.submits[-1]
    assert provisional.final
    world.speak(UserTranscript(text="i would like", final=True), speech("What?", 500))
    assert not world.of(ResponseCreated) and not world.of(ResponseAudio)
    world.say("S" * 10)  # the user goes on
    assert provisional.request_id in world.aborted
    world.speak(speech("late", 500), request_id=provisional.request_id)
    world.complete = 0.9
    world.say("." * 8)
    assert len(world.of(InputCommitted)) == 1
    again = world.submits[-1]
    assert again.request_id != provisional.request_id
    fed = b"".join(s.audio for s in world.submits if s.request_id == again.request_id)
    assert fed == audio("S" * 20 + "." * 8 + "S" * 10 + "." * 6)
    world.reply("Two tickets.", 500, transcript="i would like a ticket")
    world.advance(1.0)
    assert len(world.of(ResponseCreated)) == len(world.of(ResponseDone)) == 1
    assert world.last(ResponseDone).full_text == "Two tickets."


@pytest.mark.parametrize(("config", "silence"), [(SEMANTIC, 6), (VAD, 16)])
def test_the_model_hears_all_of_the_speech_when_a_pause_begins(config: SessionConfig, silence: int) -> None:
    world = World(config)
    world.say("S" * 10 + ".")
    pause = world.submits[-1]
    assert pause.pause and not pause.final and pause.audio == audio("S" * 10 + ".")
    world.say("." * (silence - 1))
    final = world.submits[-1]
    assert final.final and final.quiet and final.request_id == pause.request_id
    assert final.audio == audio("." * (silence - 1))
    assert len(world.of(InputCommitted)) == 1


def test_a_pause_that_ends_costs_one_early_piece_and_no_request() -> None:
    world = World(SEMANTIC)
    world.say("S" * 10 + "." * 3 + "S" * 10 + "." * 6)
    assert not world.aborted and len({submit.request_id for submit in world.submits}) == 1
    assert [(submit.pause, submit.quiet, submit.final) for submit in world.submits] == [
        (True, False, False),
        (True, False, False),
        (False, True, True),
    ]
    assert b"".join(submit.audio for submit in world.submits) == audio("S" * 10 + "." * 3 + "S" * 10 + "." * 6)


def test_a_pause_that_is_over_by_the_time_it_is_seen_is_not_prepared_for() -> None:
    world = World(SEMANTIC)
    world.append(audio("S" * 6 + "." * 3 + "S" * 5))
    assert not world.submits
    world.append(audio("SS" + "." * 3))
    assert [(submit.pause, len(submit.audio)) for submit in world.submits] == [(True, 19 * 1024)]


def test_a_piece_that_was_withdrawn_on_its_way_keeps_its_number() -> None:
    """The stage took it, so what comes next has the next number; only a new epoch begins to count anew."""
    world = World(SessionConfig(turn_detection=ServerVad(create_response=False)), auto=False)
    for char in "S" * 10 + "." * 16:
        world.say(char)
        world.answer_all(Detect)
    withdrawn = world.take(SubmitAppend)
    assert withdrawn.seq == 1 and withdrawn.request_id in world.aborted  # type: ignore[attr-defined]
    assert not world.pending, "order holds across it"
    world.answer(withdrawn)
    assert world.submits[-1].seq == 2 and world.submits[-1].final and not world.submits[-1].respond


def test_an_answer_tells_how_the_time_before_it_passed() -> None:
    world = World(SEMANTIC, auto=False)
    for char in "S" * 10 + ".":
        world.say(char)
        world.answer_all(Detect, SubmitAppend)
    world.advance(0.02)
    world.answer_all(ClassifyTurn)
    for char in "." * 5:
        world.say(char)
        world.answer_all(Detect, SubmitAppend)
    world.advance(0.1)
    world.speak(UserTranscript(text="hi", final=True))
    world.advance(0.2)
    world.speak(speech("Hello.", 300), TurnEnded(), finished=True)
    world.advance(1.0)
    delays = world.last(ResponseDone).delays
    quiet = 32  # the frame without speech arrived that long after the last with it
    assert delays == AnswerDelays(
        judged_ms=quiet + 20,
        ended_ms=6 * 32 + 20,
        understood_ms=6 * 32 + 20 + 100,
        answered_ms=6 * 32 + 20 + 300,
        sent_ms=6 * 32 + 20 + 300,
    )


def test_what_was_prepared_was_there_before_the_turn_was_over() -> None:
    world = World(SEMANTIC, complete=0.1)
    world.say("S" * 10 + "." * 6)
    world.reply("Hello.", 300)
    world.complete = 0.9
    world.say("." * 6)
    world.advance(1.0)
    delays = world.last(ResponseDone).delays
    assert delays is not None and delays.understood_ms == delays.answered_ms == 6 * 32
    assert delays.judged_ms == delays.ended_ms == delays.sent_ms == 12 * 32


def test_nothing_is_told_of_an_answer_to_no_speech_or_of_which_nothing_was_sent() -> None:
    world = World(MANUAL)
    world.send(CreateItem(item=InputItem(item_id="i", role="user", texts=("hi",))))
    world.send(CreateResponse())
    world.reply("Hello.", 300, transcript=None)
    world.advance(1.0)
    assert world.last(ResponseDone).delays is None
    spoken = World(VAD)
    spoken.say("S" * 10 + "." * 16)
    spoken.send(CancelResponse())
    assert spoken.last(ResponseDone).delays is None


def test_a_piece_with_speech_is_never_called_quiet() -> None:
    """The first piece after a resumed pause goes from the beginning of the turn, and a commit takes what was said last."""
    world = World(SEMANTIC, complete=0.1)
    world.say("S" * 10 + "." * 7 + "S" * 3)
    assert not world.submits[-1].quiet
    world.say("." * 3 + "S" * 2)
    world.send(CommitAudio(create_response=True))
    assert world.submits[-1].final and not world.submits[-1].quiet


def test_no_pause_is_heard_while_an_answer_is_under_way() -> None:
    world = World(SEMANTIC)
    world.say("S" * 20 + "." * 6)
    world.reply("A long answer.", 5_000, end=False)
    before = len(world.submits)
    world.say("S" * 3 + ".")
    assert not any(submit.pause for submit in world.submits[before:])


def test_provisional_results_are_delivered_on_confirmation() -> None:
    world = World(SEMANTIC, auto=False)
    world.say("S" * 20 + "." * 10)
    while world.pending:
        effect = world.pending.popleft()
        if type(effect).__name__ == "ClassifyTurn":
            classify = effect
            break
        world.answer(effect)
    while world.pending:
        world.answer(world.pending.popleft())
    world.reply("Early answer.", 400, transcript="question")
    assert not world.of(ResponseCreated) and not world.of(InputTranscribed)
    world.answer(classify)
    world.advance(1.0)
    assert world.last(ResponseDone).full_text == "Early answer."
    order = world.names()
    assert order.index("InputCommitted") < order.index("InputTranscribed")
    assert order.index("ResponseCreated") < order.index("ResponseAudio")


def test_barge_in_by_speech() -> None:
    world = World(VAD)
    world.say("S" * 20 + "." * 16)
    world.reply("One two three four five six seven eight nine ten.", 10_000)
    world.advance(2.0)
    heard_before = sum(e.duration_ms for e in world.of(ResponseAudio))
    assert 2000 <= heard_before <= 2500
    started = len(world.of(SpeechStarted))
    world.say("S" * 4)
    assert len(world.of(SpeechStarted)) == started  # undecided: nothing is said yet
    assert not world.of(OverlapDecided)
    world.say("S" * 10)
    assert world.last(OverlapDecided).action == "barge_in"
    done = world.last(ResponseDone)
    assert done.status == "cancelled" and done.reason == "turn_detected"
    assert world.last(OutputCleared).response_id == done.response_id
    audio_sent = sum(e.duration_ms for e in world.of(ResponseAudio))
    assert audio_sent <= 2600
    transcript = done.item.parts[0].transcript
    assert transcript and "ten" not in transcript
    world.say("S" * 10 + "." * 16)
    submit = world.submits[-1]
    assert submit.fence.epoch == 1
    roles = [(entry.role, entry.text) for entry in submit.history]
    assert roles == [("user", "hi"), ("assistant", transcript)]
    assert sum(e.duration_ms for e in world.of(ResponseAudio)) == audio_sent


def test_acknowledgement_does_not_interrupt() -> None:
    world = World(VAD)
    world.say("S" * 20 + "." * 16)
    world.reply("A long story, which goes on and on.", 8_000)
    world.advance(1.0)
    answer = world.last(ResponseCreated).response_id
    world.say("S" * 9)
    partial = world.submits[-1]
    assert not partial.final
    world.speak(UserTranscript(text="mm-hm", final=False))
    world.say("S" * 4 + "." * 18)
    assert not world.of(ResponseDone)
    assert [e.action for e in world.of(OverlapDecided)] == ["pending", "drop"]
    world.advance(8.0)
    assert world.last(ResponseDone).response_id == answer
    assert world.last(ResponseDone).status == "completed"
    assert len(world.of(SpeechStarted)) == 1 and len(world.of(InputCommitted)) == 1


def test_manual_turns_and_response_create() -> None:
    world = World(MANUAL)
    world.append(audio("S" * 30))
    world.send(CommitAudio())
    assert world.last(InputCommitted) and not world.of(ResponseCreated)
    transcribe = world.submits[-1]
    assert transcribe.final and not transcribe.respond
    world.speak(UserTranscript(text="what time is it", final=True), finished=True)
    world.send(CreateResponse())
    assert world.of(ResponseCreated)
    answer = world.submits[-1]
    assert answer.audio == b"" and [e.text for e in answer.history] == ["what time is it"]
    world.reply("Noon.", 300, transcript=None)
    world.advance(1.0)
    assert world.last(ResponseDone).status == "completed"


def test_commit_needs_audio() -> None:
    world = World(MANUAL)
    world.send(CommitAudio(event_id="e1"))
    world.append(audio("S"))
    world.send(CommitAudio(event_id="e2"))
    errors = world.of(ErrorRaised)
    assert [(e.code, e.event_id) for e in errors] == [
        (ErrorCode.INPUT_AUDIO_BUFFER_EMPTY, "e1"),
        (ErrorCode.INPUT_AUDIO_BUFFER_EMPTY, "e2"),
    ]
    assert not world.submits


def test_cancel_keeps_the_turn_in_history() -> None:
    """Field case F17: cancelled before the words were known, and still in the next prompt."""
    world = World(MANUAL)
    world.append(audio("S" * 30))
    world.send(CommitAudio(create_response=True))
    first = world.submits[-1]
    world.send(CancelResponse())
    assert world.last(ResponseDone).status == "cancelled"
    assert first.request_id in world.aborted
    retry = world.submits[-1]
    assert retry.request_id != first.request_id and not retry.respond and retry.audio == first.audio
    world.append(audio("S" * 20))
    world.send(CommitAudio(create_response=True))
    assert world.submits[-1] is retry  # the prompt needs the words first
    world.speak(UserTranscript(text="my name is Ann", final=True), finished=True)
    final = world.submits[-1]
    assert final.respond and [e.text for e in final.history] == ["my name is Ann"]


def test_second_cancel_is_an_error_without_effect() -> None:
    world = World(MANUAL)
    world.append(audio("S" * 30))
    world.send(CommitAudio(create_response=True))
    world.send(CancelResponse(event_id="a"))
    world.send(CancelResponse(event_id="b"))
    world.send(CreateItem(item=InputItem(role="user", texts=("hi",))))
    world.send(CreateResponse())
    world.send(CancelResponse(response_id="resp-old", event_id="c"))
    assert [(e.code, e.event_id) for e in world.of(ErrorRaised)] == [
        (ErrorCode.RESPONSE_NOT_ACTIVE, "b"),
        (ErrorCode.RESPONSE_NOT_ACTIVE, "c"),
    ]
    assert len(world.of(ResponseDone)) == 1


def test_turn_boundary_inside_one_append() -> None:
    """Field case F04: turn 2 keeps its audio from its first sample, on one clock."""
    world = World(VAD, capabilities=PLAIN)
    world.append(audio("S" * 6 + "." * 16 + "S" * 6))
    world.append(audio("." * 20))
    kinds = [e for e in world.events if isinstance(e, SpeechStarted | SpeechStopped | InputCommitted)]
    assert [type(e).__name__ for e in kinds] == ["SpeechStarted", "SpeechStopped", "InputCommitted"] * 2
    assert kinds[3].audio_start_ms == 22 * 32
    finals = [submit.audio for submit in world.submits if submit.respond]
    assert finals == [audio("S" * 6 + "." * 16), audio("S" * 6 + "." * 16)]


@given(
    script=st.lists(st.sampled_from(["S" * 4, "S" * 9, "." * 3, "." * 9, "." * 17]), min_size=3, max_size=12),
    cuts=st.lists(st.integers(1, 9_000), min_size=1, max_size=40),
    config=st.sampled_from([VAD, SEMANTIC]),
    complete=st.sampled_from([0.1, 0.9]),
)
def test_events_and_committed_audio_depend_on_the_samples_alone(
    script: list[str], cuts: list[int], config: SessionConfig, complete: float
) -> None:
    """Decision 15: however the stream is cut, the same is heard (the model stays silent here, so nothing overlaps)."""
    pcm = audio("".join(script) + "." * 140)
    config = structs.replace(config, turn_detection=structs.replace(config.turn_detection, create_response=False))
    traces = []
    for pieces in ([len(pcm)], [*(cut * 2 for cut in cuts), 20_000]):
        world = World(config, capabilities=PLAIN, complete=complete)
        start, index = 0, 0
        while start < len(pcm):
            size = pieces[index % len(pieces)]
            world.append(pcm[start : start + size])
            start, index = start + size, index + 1
        traces.append([e for e in world.events if isinstance(e, SpeechStarted | SpeechStopped | InputCommitted)])
        held = {item_id: turn.audio for item_id, turn in world.state.committed.items()}
        traces[-1].append(held)
    assert traces[0] == traces[1]


def test_close_ends_everything_once() -> None:
    world = World(VAD)
    world.say("S" * 20 + "." * 16)
    world.reply("Story.", 5000)
    world.close()
    assert world.last(ResponseDone).status == "cancelled"
    assert not world.of(SessionClosed)
    assert len(world.cleanups) == 1
    world.apply(CleanupEnded(released=True))
    world.apply(CleanupEnded(released=True))
    assert world.names()[-1] == "SessionClosed" and len(world.of(SessionClosed)) == 1


def test_slow_socket_never_gets_audio_of_a_cancelled_response() -> None:
    """Field case F01: what was released and not taken is withdrawn."""
    world = World(MANUAL, takes=False)
    world.append(audio("S" * 30))
    world.send(CommitAudio(create_response=True))
    world.reply("A long answer that nobody reads.", 20_000)
    released = sum(e.duration_ms for e in world.of(ResponseAudio))
    assert released == 400
    world.advance(6.0)
    assert sum(e.duration_ms for e in world.of(ResponseAudio)) == 400
    world.send(CancelResponse())
    done = world.last(ResponseDone)
    assert world.invalidated == [done.response_id]
    assert done.item is not None and done.item.parts[0].transcript == ""
    world.apply(OutputTaken(number=1_000))
    world.advance(30.0)
    assert sum(e.duration_ms for e in world.of(ResponseAudio)) == 400


def test_truncate_clamps_and_cuts_history() -> None:
    """Field cases F08 and F43."""
    world = World(MANUAL)
    world.append(audio("S" * 30))
    world.send(CommitAudio(create_response=True))
    world.reply("one two three four five six seven eight nine ten", 10_000, transcript="count")
    world.advance(11.0)
    item_id = world.last(ResponseDone).item.item_id
    world.send(TruncateItem(item_id=item_id, audio_end_ms=99_999))
    assert world.last(ItemTruncated).audio_end_ms == 10_000
    world.send(TruncateItem(item_id=item_id, audio_end_ms=2_000))
    world.send(CreateItem(item=InputItem(role="user", texts=("what was the last thing you said?",))))
    world.send(CreateResponse())
    texts = [(e.role, e.text) for e in world.submits[-1].history]
    assert texts == [("user", "count"), ("assistant", "one two t"), ("user", "what was the last thing you said?")]
    assert not world.of(ErrorRaised)


def test_polite_turns_each_get_an_answer() -> None:
    """Field case F13: three turns, nobody acknowledges playback."""
    world = World(VAD)
    for number in range(3):
        world.say("S" * 15 + "." * 16)
        world.reply(f"Answer {number}.", 1000, transcript=f"question {number}")
        world.advance(4.0)
    assert [e.status for e in world.of(ResponseDone)] == ["completed"] * 3
    assert len(world.submits[-1].history) == 4


def test_commands_that_find_nothing_to_do() -> None:
    world = World(VAD)
    world.send(BargeIn())
    world.send(ClearAudio())
    assert not world.of(ErrorRaised)
    assert world.core.epoch == 0


def test_deferred_turn_is_answered_after_the_response() -> None:
    """Field case F16."""
    config = SessionConfig(turn_detection=VAD.turn_detection, overlap_policy="listen_only")
    world = World(config)
    world.say("S" * 15 + "." * 16)
    world.reply("A story of some length.", 5000, transcript="story")
    world.say("S" * 30 + "." * 25)
    committed = world.of(InputCommitted)
    assert len(committed) == 2 and committed[1].deferred
    assert not world.of(ResponseDone)
    world.advance(5.0)
    assert [e.status for e in world.of(ResponseDone)] == ["completed"]
    assert len(world.of(ResponseCreated)) == 2
    submit = world.submits[-1]
    assert submit.final and [e.text for e in submit.history] == ["story", "A story of some length."]
    world.reply("Second.", 500, transcript="and then")
    world.speak(TurnEnded(), finished=True)
    world.advance(2.0)
    assert [e.status for e in world.of(ResponseDone)] == ["completed"] * 2
