"""Playback: the clock, acknowledgements, truncation, and what of an answer stays in the conversation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from duologue.config.session import PlaybackCommitPolicy, SessionConfig
from duologue.engine.duplex.commands import (
    AckPlayback,
    BargeIn,
    CancelResponse,
    ClearOutput,
    CreateItem,
    CreateResponse,
    InputItem,
    RetrieveItem,
    TruncateItem,
)
from duologue.engine.duplex.core.items import Attached, Detached, OutputTaken, ResumeRequested
from duologue.engine.duplex.core.playback import PlaybackClock
from duologue.engine.duplex.events import (
    ErrorRaised,
    ItemRetrieved,
    ItemTruncated,
    OutputCleared,
    PlaybackAcknowledged,
    ResponseAudio,
    ResponseCreated,
    ResponseDone,
)
from duologue.engine.duplex.results import FunctionCall, Speech, TurnEnded, UserTranscript
from duologue.errors import ErrorCode
from duologue.outputs import ToolDefinition
from tests.unit.core.harness import CASCADE, MANUAL, World, audio

TEXT = "one two three four five six seven eight nine ten"


def answered(ms: int, *, policy: PlaybackCommitPolicy = "estimated", after_s: float = 0.0, end: bool = True) -> World:
    """A world ``after_s`` after the first audio of an answer of ``ms`` left."""
    world = World(structs.replace(MANUAL, playback_commit_policy=policy))
    world.append(audio("S" * 30))
    world.send_turn(TEXT, ms, end=end)
    world.advance(after_s)
    return world


def heard(world: World, item_id: str | None = None) -> str:
    item_id = item_id or world.of(ResponseCreated)[-1].item_id
    world.send(RetrieveItem(item_id=item_id))
    return world.last(ItemRetrieved).item.parts[0].transcript  # type: ignore[no-any-return]


def another_answer(world: World, text: str = "Two.", ms: int = 500) -> None:
    world.send(CreateItem(item=InputItem(role="user", texts=("more",))))
    world.send(CreateResponse())
    world.reply(text, ms, transcript=None)


# -- the clock -----------------------------------------------------------------------------------------------------------

moves = st.lists(
    st.one_of(
        st.tuples(st.just("taken"), st.floats(0, 500)),
        st.tuples(st.just("wait"), st.floats(0, 2)),
        st.tuples(st.just("set"), st.floats(-100, 5_000)),
        st.tuples(st.just("stop"), st.just(0.0)),
        st.tuples(st.just("resume"), st.just(0.0)),
        st.tuples(st.just("flush"), st.just(0.0)),
    ),
    max_size=40,
)


@given(moves)
def test_the_clock_is_never_ahead_of_what_was_handed_over(steps: list[tuple[str, float]]) -> None:
    """Decision 10; backwards it goes only when the client says so."""
    clock, now = PlaybackClock(), 10.0
    for step, value in steps:
        before = clock.position(now)
        match step:
            case "taken":
                clock.released_ms += value
                clock.taken(value, now)
            case "wait":
                now += value
            case "set":
                clock.set(value, now)
            case "stop":
                clock.stop(now)
            case "resume":
                clock.resume(now)
            case "flush":
                clock.flush(now)
        position = clock.position(now)
        assert 0.0 <= position <= clock.taken_ms <= clock.released_ms + 1e-9
        if step == "set":
            assert position == pytest.approx(min(max(0.0, value), clock.taken_ms))
        else:
            assert position >= before - 1e-9
        if step in ("stop", "resume", "wait", "taken"):
            assert position - before <= (value if step == "wait" else 0.0) * 1000 + 1e-6


def test_the_clock_runs_in_real_time_from_the_first_audio_and_stops_at_the_last() -> None:
    clock = PlaybackClock()
    assert clock.position(5.0) == 0.0 and clock.ends_at() is None
    clock.released_ms = 1_000.0
    clock.taken(1_000.0, 5.0)
    assert clock.position(5.3) == pytest.approx(300.0)
    assert clock.ends_at() == pytest.approx(6.0) and clock.reaches_at(400.0) == pytest.approx(5.4)
    assert clock.reaches_at(1_001.0) is None
    assert clock.position(9.0) == 1_000.0 and not clock.playing(9.0)


def test_a_gap_in_the_output_is_not_made_up_for() -> None:
    clock = PlaybackClock()
    clock.taken(100.0, 0.0)
    clock.taken(100.0, 5.0)
    assert clock.position(5.05) == pytest.approx(150.0)


def test_an_acknowledgement_corrects_it_and_it_runs_on_from_there() -> None:
    clock = PlaybackClock()
    clock.taken(1_000.0, 0.0)
    clock.set(100.0, 0.5)
    assert clock.position(0.7) == pytest.approx(300.0)
    clock.set(900.0, 0.8)
    assert clock.position(0.85) == pytest.approx(950.0)


def test_while_nobody_is_attached_it_stands_still() -> None:
    world = answered(5_000, after_s=1.0)
    at = world.state.playback.position(world.now)
    world.apply(Detached())
    sent = len(world.of(ResponseAudio))
    world.advance(60.0)
    assert world.state.playback.position(world.now) == at and len(world.of(ResponseAudio)) == sent
    world.apply(ResumeRequested(control_id="c", expected_generation=0))
    world.advance(0.2)
    assert world.state.playback.position(world.now) == pytest.approx(at + 200.0)
    world.apply(Attached())
    world.advance(10.0)
    assert world.last(ResponseDone).status == "completed"
    assert sum(e.duration_ms for e in world.of(ResponseAudio)) == 5_000


# -- acknowledgements ----------------------------------------------------------------------------------------------------


def test_acknowledgements_are_cumulative_and_clamped_to_what_was_sent() -> None:
    world = answered(5_000, policy="ack_only", after_s=1.0)
    sent = sum(e.duration_ms for e in world.of(ResponseAudio))
    for played, expected in ((500, 500), (200, 200), (-5, 0), (99_999, sent)):
        world.send(AckPlayback(played_ms=played))
        assert world.last(PlaybackAcknowledged).played_ms == expected
    assert world.state.response is not None and world.state.response.item.acked_ms == sent


def test_field_F09_an_acknowledgement_that_a_newer_turn_overtook_is_ignored() -> None:
    world = answered(1_000, policy="ack_only", after_s=2.0)
    first = world.last(ResponseDone)
    world.send(AckPlayback(played_ms=500, response_id=first.response_id))
    text = heard(world)
    another_answer(world)
    world.send(AckPlayback(played_ms=1_000, response_id=first.response_id, event_id="late"))
    note = world.last(PlaybackAcknowledged)
    assert (note.note, note.history_committed) == ("superseded", False)
    assert heard(world, first.item.item_id) == text and not world.of(ErrorRaised)
    world.advance(2.0)
    another_answer(world)
    world.send(AckPlayback(played_ms=1_000, response_id=first.response_id, item_id=first.item.item_id))
    assert world.last(PlaybackAcknowledged).note == "superseded" and not world.of(ErrorRaised)


def test_an_acknowledgement_of_nothing_known_is_an_error() -> None:
    world = World(MANUAL)
    world.send(AckPlayback(played_ms=5, event_id="a"))
    world.send(AckPlayback(played_ms=5, item_id="item_unknown", event_id="b"))
    assert [(e.code, e.event_id) for e in world.of(ErrorRaised)] == [
        (ErrorCode.PLAYBACK_ITEM_NOT_FOUND, "a"),
        (ErrorCode.PLAYBACK_ITEM_NOT_FOUND, "b"),
    ]


@pytest.mark.parametrize(
    "invented", ["resp_unknown", "", "resp-{session}", "resp-{session}-9-0123abcd", "resp-{session}-x-0123abcd"]
)
def test_an_acknowledgement_of_a_response_that_never_was_is_an_error(invented: str) -> None:
    world = answered(1_000, policy="ack_only", after_s=2.0)
    response_id = invented.format(session=world.state.session_id)
    world.send(AckPlayback(played_ms=500, response_id=response_id, event_id="e"))
    error = world.last(ErrorRaised)
    assert (error.code, error.event_id, error.param) == (ErrorCode.PLAYBACK_ITEM_NOT_FOUND, "e", "response_id")
    assert not world.of(PlaybackAcknowledged)


def test_an_acknowledgement_of_what_the_assistant_does_not_say_is_an_error() -> None:
    """A user's item, one that the client brought along, and a function call: none of them is ever played."""
    world = World(
        SessionConfig(tools=(ToolDefinition(name="weather"),)),
        capabilities=structs.replace(CASCADE, calls_functions=True),
    )
    world.send(CreateItem(item=InputItem(role="assistant", texts=("Hello.",), item_id="item_brought")))
    world.append(audio("S" * 20))
    world.send_turn(end=False)
    world.speak(FunctionCall(name="weather", arguments="{}"), TurnEnded(), finished=True)
    world.advance(2.0)
    spoken = world.last(ResponseDone).item.item_id
    others = [item.item_id for item in world.state.history.items if item.item_id != spoken]
    assert len(others) == 3
    for item_id in others:
        world.send(AckPlayback(played_ms=500, item_id=item_id, event_id=item_id))
        error = world.last(ErrorRaised)
        assert (error.code, error.event_id, error.param) == (ErrorCode.PLAYBACK_ITEM_NOT_FOUND, item_id, "item_id")
    assert not world.of(PlaybackAcknowledged)
    world.send(AckPlayback(played_ms=500, item_id=spoken))
    assert world.last(PlaybackAcknowledged).note is None


def test_an_acknowledgement_of_one_response_and_the_item_of_another_is_an_error() -> None:
    world = answered(1_000, policy="ack_only", after_s=2.0)
    first = world.last(ResponseDone)
    another_answer(world)
    world.advance(2.0)
    second = world.last(ResponseDone)
    user = next(item.item_id for item in world.state.history.items if item.role == "user")
    for response_id, item_id in (
        (first.response_id, second.item.item_id),
        (second.response_id, first.item.item_id),
        (second.response_id, user),
        ("resp_unknown", second.item.item_id),
    ):
        world.send(AckPlayback(played_ms=500, response_id=response_id, item_id=item_id, event_id="e"))
        error = world.last(ErrorRaised)
        assert (error.code, error.event_id, error.param) == (ErrorCode.PLAYBACK_ITEM_MISMATCH, "e", "item_id")
    assert len(world.of(ErrorRaised)) == 4 and not world.of(PlaybackAcknowledged)
    assert all(item.acked_ms == 0 for item in world.state.history.items)


def test_a_late_acknowledgement_corrects_an_interruption_until_the_next_turn() -> None:
    world = answered(5_000, after_s=1.0, end=False)
    world.send(CancelResponse())
    assert heard(world) == TEXT[:9]
    done = world.last(ResponseDone)
    world.send(AckPlayback(played_ms=1_300, response_id=done.response_id))
    assert heard(world) == TEXT[:12]
    world.send(AckPlayback(played_ms=1_100, response_id=done.response_id))
    assert heard(world) == TEXT[:12]
    world.send(AckPlayback(played_ms=5_000, response_id=done.response_id))
    sent = sum(e.duration_ms for e in world.of(ResponseAudio))
    assert heard(world) == TEXT[: len(TEXT) * sent // 5_000].rstrip()


# -- clear ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["ack_only", "estimated"])
def test_field_F05_what_was_cleared_does_not_come_back(policy: PlaybackCommitPolicy) -> None:
    world = answered(2_000, policy=policy, after_s=1.7)
    done = world.last(ResponseDone)
    world.send(AckPlayback(played_ms=800, response_id=done.response_id))
    world.send(ClearOutput())
    assert world.last(OutputCleared).response_id == done.response_id
    assert heard(world) == TEXT[: len(TEXT) * 800 // 2_000].rstrip()
    world.send(AckPlayback(played_ms=2_000, response_id=done.response_id))
    assert world.last(PlaybackAcknowledged).note == "cleared"
    assert heard(world) == TEXT[: len(TEXT) * 800 // 2_000].rstrip()
    another_answer(world)
    assert len(world.of(ResponseCreated)) == 2 and not world.of(ErrorRaised)


def test_clearing_an_older_response_is_acknowledged_and_nothing_else() -> None:
    world = answered(1_000, after_s=2.0)
    first = world.last(ResponseDone)
    another_answer(world, ms=3_000)
    epoch = world.core.epoch
    world.send(ClearOutput(response_id=first.response_id))
    assert world.last(OutputCleared).response_id == first.response_id
    assert world.core.epoch == epoch and len(world.of(ResponseDone)) == 1


def test_clearing_with_nothing_ever_said_is_silent() -> None:
    world = World(MANUAL)
    world.send(ClearOutput())
    assert world.names() == ["SessionCreated", "SessionUpdated"]


# -- interruption --------------------------------------------------------------------------------------------------------


def test_field_F45_text_whose_audio_never_came_was_not_heard() -> None:
    world = World(MANUAL)
    world.append(audio("S" * 30))
    world.send(CreateItem(item=InputItem(role="user", texts=("hi",))))
    world.send(CreateResponse())
    world.speak(UserTranscript(text="hi", final=True), Speech(text="Hello there"))
    world.send(CancelResponse())
    assert world.last(ResponseDone).item.parts[0].transcript == ""
    world.send(CreateItem(item=InputItem(role="user", texts=("again",))))
    world.send(CreateResponse())
    assert "Hello" not in " ".join(e.text for e in world.submits[-1].history)
    epoch = world.core.epoch
    world.reply("Fresh.", 300, transcript=None)
    world.advance(1.0)
    assert {e.epoch for e in world.of(ResponseAudio) if e.audio} == {epoch}


def test_every_answer_that_still_plays_is_cut_not_only_the_last() -> None:
    """Two answers shorter than what may be sent ahead: stopped while the first still plays."""
    world = answered(200)
    first = world.last(ResponseDone)
    another_answer(world, "Two.", 150)
    second = world.last(ResponseDone)
    assert first.response_id != second.response_id
    world.advance(0.1)
    world.send(BargeIn())
    assert heard(world, first.item.item_id) == TEXT[: len(TEXT) * 100 // 200].rstrip()
    assert heard(world, second.item.item_id) == ""


def test_answers_that_no_socket_took_were_not_heard() -> None:
    world = World(MANUAL, takes=False)
    world.append(audio("S" * 30))
    world.send_turn("One.", 100)
    another_answer(world, "Two.", 100)
    done = world.of(ResponseDone)
    assert len(done) == 2
    world.send(BargeIn())
    assert sorted(world.invalidated) == sorted(e.response_id for e in done)
    world.apply(OutputTaken(number=10_000))
    assert [heard(world, e.item.item_id) for e in done] == ["", ""]


@pytest.mark.parametrize(
    ("policy", "expected"), [("estimated", TEXT[:40]), ("commit_all_on_done", TEXT), ("ack_only", "")]
)
def test_policies_after_the_answer_was_made(policy: PlaybackCommitPolicy, expected: str) -> None:
    world = answered(2_000, policy=policy, after_s=1.7)
    assert world.last(ResponseDone).status == "completed"
    world.send(BargeIn())
    assert heard(world) == expected.rstrip()


# -- truncation ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "kept"), [(-50, 0), (0, 0), (700, 700), (2_650, 2_650), (2_735, 2_650), (9_100, 2_650)]
)
def test_field_F08_truncation_is_clamped(asked: int, kept: int) -> None:
    world = answered(2_650, after_s=5.0)
    item_id = world.last(ResponseDone).item.item_id
    world.send(TruncateItem(item_id=item_id, audio_end_ms=asked))
    assert world.last(ItemTruncated).audio_end_ms == kept
    assert heard(world) == (TEXT if kept == 2_650 else TEXT[: len(TEXT) * kept // 2_650].rstrip())
    another_answer(world)
    world.advance(2.0)
    assert world.last(ResponseDone).status == "completed" and not world.of(ErrorRaised)


def test_field_F08_truncating_while_deltas_come_leaves_the_response_alone() -> None:
    world = answered(3_000, after_s=0.5, end=False)
    item_id = world.last(ResponseCreated).item_id
    world.send(TruncateItem(item_id=item_id, audio_end_ms=9_100))
    cut = world.last(ItemTruncated).audio_end_ms
    assert cut == sum(e.duration_ms for e in world.of(ResponseAudio))
    world.advance(5.0)
    assert sum(e.duration_ms for e in world.of(ResponseAudio)) == 3_000
    assert heard(world) == TEXT[: len(TEXT) * cut // 3_000].rstrip()


def test_truncating_an_old_item_never_brings_back_what_was_not_sent() -> None:
    world = answered(10_000, after_s=1.0, end=False)
    world.send(CancelResponse())
    first = world.last(ResponseDone).item
    sent = sum(e.duration_ms for e in world.of(ResponseAudio))
    another_answer(world)
    world.advance(2.0)
    world.send(TruncateItem(item_id=first.item_id, audio_end_ms=9_000))
    assert world.last(ItemTruncated).audio_end_ms == sent
    assert heard(world, first.item_id) == TEXT[: len(TEXT) * sent // 10_000].rstrip()


def test_truncation_corrects_the_estimate_of_an_interruption_upwards() -> None:
    """Decision 10: up or down, within what was sent."""
    world = answered(10_000, after_s=1.0, end=False)
    world.send(CancelResponse())
    item_id = world.last(ResponseDone).item.item_id
    assert heard(world) == TEXT[:4].rstrip()
    world.send(TruncateItem(item_id=item_id, audio_end_ms=1_300))
    assert heard(world) == TEXT[:6]
    world.send(TruncateItem(item_id=item_id, audio_end_ms=400))
    world.send(TruncateItem(item_id=item_id, audio_end_ms=1_300))
    assert world.last(ItemTruncated).audio_end_ms == 400 and heard(world) == TEXT[:1]


def test_truncation_of_what_still_plays_stops_the_clock() -> None:
    world = answered(2_000, after_s=1.7)
    assert world.state.playback.playing(world.now)
    world.send(TruncateItem(item_id=world.last(ResponseDone).item.item_id, audio_end_ms=1_000))
    assert not world.state.playback.playing(world.now)
    assert heard(world) == TEXT[:24].rstrip()


@pytest.mark.parametrize("content_index", [0, 1])
def test_field_F53_what_has_no_audio_cannot_be_truncated(content_index: int) -> None:
    world = World(SessionConfig(output_modality="text"))
    world.append(audio("S" * 30))
    world.send_turn("Words.", 0)
    item_id = world.last(ResponseDone).item.item_id
    world.send(TruncateItem(item_id=item_id, audio_end_ms=0, content_index=content_index, event_id="e"))
    error = world.last(ErrorRaised)
    assert (error.code, error.event_id) == (ErrorCode.ITEM_NOT_TRUNCATABLE, "e")
