"""Pacing and the outbox: what may leave when, in which order, how much of it may wait, and what happens at each bound."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.config.session import ServerVad, SessionConfig
from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.commands import (
    CancelResponse,
    ClearAudio,
    CommitAudio,
    CreateItem,
    CreateResponse,
    Heartbeat,
    InputItem,
    ResponseOptions,
    RetrieveItem,
)
from duologue.engine.duplex.core.effects import EndSession, SetPaused
from duologue.engine.duplex.core.items import Attached, CleanupEnded, CloseRequested, Detached, OutputTaken
from duologue.engine.duplex.core.outbox import AudioEntry, DoneEntry, Outbox
from duologue.engine.duplex.events import (
    ErrorRaised,
    HeartbeatAcknowledged,
    InputTranscribed,
    ResponseAudio,
    ResponseCreated,
    ResponseDone,
    ResponseText,
    SessionClosed,
)
from duologue.engine.duplex.results import Speech, TurnEnded, UserTranscript
from duologue.errors import ErrorCode
from tests.unit.core.harness import MANUAL, NATIVE, SEMANTIC, World, audio, speech


def answering(runtime: DuplexSessionRuntimeConfig | None = None, *, takes: bool = True) -> World:
    """A response that the model is about to speak."""
    world = World(MANUAL, runtime=runtime or DuplexSessionRuntimeConfig(), takes=takes)
    world.append(audio("S" * 20))
    world.send(CommitAudio(create_response=True))
    return world


def sent_ms(world: World) -> float:
    return sum(len(e.audio) * 500 / e.rate_hz for e in world.of(ResponseAudio))


# -- how far ahead -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ms", [399, 400, 401, 500, 501])
def test_at_most_so_much_leaves_before_it_is_played(ms: int) -> None:
    """Decision 12, at the bound of 400 ms in slices of 100 ms."""
    world = answering()
    world.speak(speech("Words.", ms))
    expected = ms if ms <= 400 else 400
    assert sent_ms(world) == pytest.approx(expected)
    world.advance(0.0999)
    world.advance(0.0002 if ms > 400 else 0.0)
    assert sent_ms(world) == pytest.approx(min(ms, 500) if ms > 400 else ms)


@given(
    st.lists(st.tuples(st.sampled_from(["speak", "wait", "ack"]), st.integers(1, 2_000)), max_size=25),
    st.sampled_from([100, 400, 1_000]),
    st.sampled_from([20, 100]),
)
def test_the_bound_holds_at_every_moment(steps: list[tuple[str, int]], ahead_ms: int, delta_ms: int) -> None:
    world = answering(DuplexSessionRuntimeConfig(send_ahead_ms=ahead_ms, audio_delta_ms=delta_ms))
    spoken = 0
    for step, ms in steps:
        if step == "speak":
            world.speak(speech("w ", ms))
            spoken += ms
        elif step == "wait":
            for _ in range(7):
                world.advance(ms / 7_000)
                playback = world.state.playback
                assert playback.released_ms - playback.position(world.now) <= ahead_ms + 0.02
        assert sent_ms(world) <= spoken + 1e-6
    world.speak(TurnEnded(), finished=True)
    world.advance(spoken / 1000 + 1)
    assert sent_ms(world) == pytest.approx(spoken)
    assert world.last(ResponseDone).status == "completed"


def test_without_a_bound_everything_leaves_at_once() -> None:
    world = answering(DuplexSessionRuntimeConfig(send_ahead_ms=None))
    world.reply("Words.", 60_000)
    assert sent_ms(world) == 60_000 and world.last(ResponseDone).status == "completed"


def test_nothing_waits_for_a_gap_in_the_output() -> None:
    world = answering()
    world.speak(speech("One.", 200))
    world.advance(5.0)
    world.speak(speech("Two.", 300))
    assert sent_ms(world) == 500


# -- order ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("samples", [1, 1_200, 2_399, 2_400, 2_401, 24_001])
def test_field_F49_the_tail_of_an_answer_is_sent_before_its_end(samples: int) -> None:
    world = answering()
    pcm = bytes(range(250)) * (2 * samples // 250 + 1)
    world.speak(Speech(text="All of it.", audio=pcm[: 2 * samples], rate_hz=24_000), TurnEnded(), finished=True)
    world.advance(3.0)
    assert b"".join(e.audio for e in world.of(ResponseAudio)) == pcm[: 2 * samples]
    names = world.names()
    assert names.index("ResponseDone") > max(i for i, name in enumerate(names) if name == "ResponseAudio")
    starts = [e.start_ms for e in world.of(ResponseAudio)]
    assert starts == [i * 100 for i in range(len(starts))]
    assert "".join(e.text for e in world.of(ResponseAudio)) == "All of it."


def test_what_is_not_audio_overtakes_it_and_the_end_does_not() -> None:
    world = answering()
    world.speak(speech("One.", 2_000))
    world.speak(UserTranscript(text="hi", final=True))
    world.send(Heartbeat())
    world.send(RetrieveItem(item_id="unknown"))
    assert world.of(InputTranscribed) and world.of(HeartbeatAcknowledged) and world.of(ErrorRaised)
    assert sent_ms(world) == 400
    world.speak(TurnEnded(), finished=True)
    world.advance(1.55)
    assert not world.of(ResponseDone)
    world.advance(0.1)
    assert world.of(ResponseDone)


def test_while_nobody_is_attached_audio_waits_and_comes_after() -> None:
    world = answering()
    world.apply(Detached())
    world.reply("Words.", 1_000)
    world.send(Heartbeat())
    world.advance(10.0)
    assert sent_ms(world) == 0 and not world.of(ResponseDone) and world.of(HeartbeatAcknowledged)
    world.apply(Attached())
    world.advance(1.0)
    assert sent_ms(world) == 1_000 and world.last(ResponseDone).status == "completed"


# -- backlog -------------------------------------------------------------------------------------------------------------


def paused(world: World) -> list[bool]:
    return [effect.paused for effect in world.effects if isinstance(effect, SetPaused)]


@pytest.mark.parametrize(("ms", "pauses"), [(10_399, False), (10_400, True), (10_401, True)])
def test_stages_are_paused_at_the_high_water_mark_and_go_on_below_half(ms: int, pauses: bool) -> None:
    world = answering()
    world.speak(speech("Words.", ms))
    assert paused(world) == [True] * pauses
    if pauses:
        world.advance(4.9)
        assert paused(world) == [True]
        world.advance(0.7)
        assert paused(world) == [True, False]
    assert not world.of(ErrorRaised)


def test_a_provisional_answer_is_paused_too() -> None:
    """Nothing of it may leave, so all of it is backlog; it goes on when the turn is confirmed and it has been spoken."""
    world = World(SEMANTIC, complete=0.1)
    world.say("S" * 20 + "." * 8)
    world.speak(UserTranscript(text="hi", final=True), speech("Words.", 9_999))
    assert not paused(world)
    world.speak(speech("Words.", 2))
    assert paused(world) == [True] and not world.of(ResponseAudio)
    world.complete = 0.9
    world.say("." * 6)
    assert world.of(ResponseCreated)
    world.advance(6.0)
    assert paused(world) == [True, False]


# -- what the socket has not taken ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_events_that_wait_to_be_read_are_bounded(extra: int) -> None:
    limit = 20
    world = World(MANUAL, takes=False, runtime=DuplexSessionRuntimeConfig(max_pending_output_events_per_session=limit))
    waiting = len(world.events)
    for _ in range(limit - waiting + extra):
        world.send(Heartbeat())
    if extra <= 0:
        assert world.core.phase == "open" and len(world.events) == limit + extra
        world.apply(OutputTaken(number=10_000))
        world.send(Heartbeat())
        assert world.core.phase == "open"
        return
    assert world.core.phase == "closing"
    assert world.last(ErrorRaised).code is ErrorCode.OUTPUT_BACKPRESSURE
    assert world.ended == [EndSession(kind="closed", reason="output_backpressure", fault=ErrorCode.OUTPUT_BACKPRESSURE)]
    world.apply(CloseRequested(kind="closed", reason="manager"))
    world.apply(CleanupEnded(released=True))
    assert isinstance(world.events[-1], SessionClosed)


def test_behind_what_finds_no_room_nothing_smaller_leaves_in_its_place() -> None:
    """The session ends with this step: the client is not told the rest of a text whose middle it never got."""
    runtime = DuplexSessionRuntimeConfig(max_pending_output_bytes_per_session=6_000)
    world = World(MANUAL, takes=False, runtime=runtime)
    world.send(CreateResponse(options=ResponseOptions(modality="text")))
    world.speak(Speech(text="The beginning"))
    world.speak(Speech(text=", the middle" * 500), Speech(text=", the end."))
    assert [event.text for event in world.of(ResponseText)] == ["The beginning"]
    assert world.last(ErrorRaised).code is ErrorCode.OUTPUT_BACKPRESSURE
    assert world.last(ResponseDone).status == "failed" and world.core.phase == "closing"


def test_what_ends_things_leaves_even_when_nothing_else_may() -> None:
    """Invariant 21: the response that is open when the bound is met has its terminal, and so has the session."""
    runtime = DuplexSessionRuntimeConfig(max_pending_output_events_per_session=12)
    world = answering(runtime, takes=False)
    world.speak(UserTranscript(text="hi", final=True), speech("Words.", 5_000))
    while world.core.phase == "open":
        world.send(Heartbeat())
    assert world.last(ResponseDone).status == "failed"
    assert world.last(ResponseDone).error is ErrorCode.OUTPUT_BACKPRESSURE
    world.apply(CloseRequested(kind="closed", reason="manager"))
    world.apply(CleanupEnded(released=True))
    assert isinstance(world.events[-1], SessionClosed)


def test_field_F01_a_slow_socket_paces_and_is_no_fault() -> None:
    """Audio waits where a cancel can remove it; only what was released counts against the bound."""
    runtime = DuplexSessionRuntimeConfig(max_pending_output_bytes_per_session=20_000, send_ahead_ms=None)
    world = answering(runtime, takes=False)
    world.speak(UserTranscript(text="hi", final=True), speech("A long answer.", 30_000))
    assert 0 < sent_ms(world) < 400 and world.core.phase == "open"
    world.apply(OutputTaken(number=world.state.outbox.numbers))
    assert sent_ms(world) < 800
    world.send(CancelResponse())
    before = sent_ms(world)
    world.apply(OutputTaken(number=10_000))
    world.advance(60.0)
    assert sent_ms(world) == before and world.core.phase == "open"
    assert world.last(ResponseDone).status == "cancelled"


def test_the_words_of_a_piece_of_audio_take_room_too() -> None:
    """Else a piece that fits by its samples alone is lost at the bound, and the next one follows without it."""
    runtime = DuplexSessionRuntimeConfig(max_pending_output_bytes_per_session=20_000, send_ahead_ms=None)
    for letters in range(0, 3_000, 50):
        world = answering(runtime, takes=False)
        for _ in range(4):
            world.speak(speech("x" * letters, 100))
        starts = [event.start_ms for event in world.of(ResponseAudio)]
        assert starts == [100 * number for number in range(len(starts))]
        assert starts
        assert world.core.phase == "open", letters


def test_withdrawn_audio_frees_its_room_and_never_counts_as_played() -> None:
    world = answering(takes=False)
    world.speak(speech("A long answer.", 5_000))
    state = world.state
    assert state.playback.released_ms == 400.0 and state.playback.taken_ms == 0.0
    world.send(CancelResponse())
    assert state.playback.released_ms == 0.0
    assert not any(entry.audio_ms for entry in state.outbox.released)
    assert world.invalidated == [world.last(ResponseDone).response_id]


def test_only_a_prefix_is_taken() -> None:
    outbox = Outbox()
    numbers = [outbox.release(10, 5.0, "r") for _ in range(4)]
    assert numbers == [1, 2, 3, 4]
    assert outbox.take(2) == 10.0 and outbox.released_bytes == 20
    assert outbox.take(1) == 0.0
    assert outbox.withdraw("other") is None and outbox.withdraw("r") == 10.0
    assert outbox.take(99) == 0.0 and outbox.released_bytes == 0


@given(st.lists(st.integers(0, 500), max_size=20), st.integers(1, 40))
def test_slices_of_the_outbox_are_the_audio_again(sizes: list[int], slice_ms: int) -> None:
    outbox = Outbox()
    for number, size in enumerate(sizes):
        outbox.push(AudioEntry("r", bytes([number % 251]) * 2 * size, 8_000, f"{number} "))
    outbox.push(DoneEntry("r"))
    said, text, total = b"", "", 0.0
    while isinstance(entry := outbox.queue[0], AudioEntry):
        piece, duration_ms, words = outbox.slice(entry, slice_ms)
        assert duration_ms <= slice_ms and duration_ms == len(piece) / 16
        said, text, total = said + piece, text + words, total + duration_ms
        assert outbox.backlog_ms == pytest.approx(sum(sizes) / 8 - total, abs=1e-6)
    assert said == b"".join(bytes([number % 251]) * 2 * size for number, size in enumerate(sizes))
    assert text == "".join(f"{number} " for number in range(len(sizes)))


# -- input ---------------------------------------------------------------------------------------------------------------

LIMIT = 100_000


@pytest.mark.parametrize(("size", "accepted"), [(LIMIT - 2, True), (LIMIT, True), (LIMIT + 2, False)])
def test_field_F33_one_append_up_to_the_limit_in_bytes(size: int, accepted: bool) -> None:
    world = World(MANUAL, runtime=DuplexSessionRuntimeConfig(max_pending_input_bytes_per_session=LIMIT))
    world.append(bytes(size), event_id="e")
    assert world.state.audio.buffered_bytes == (size if accepted else 0)
    assert [(e.code, e.event_id) for e in world.of(ErrorRaised)] == (
        [] if accepted else [(ErrorCode.INPUT_BACKPRESSURE, "e")]
    )


@pytest.mark.parametrize("recover", ["clear", "commit"])
def test_field_F18_a_full_buffer_is_an_error_that_names_the_limit_and_can_be_recovered_from(recover: str) -> None:

    world = World(MANUAL, runtime=DuplexSessionRuntimeConfig(max_pending_input_bytes_per_session=LIMIT))
    for _ in range(60):
        world.append(audio("S" * 3))
    held = world.state.audio.buffered_bytes
    assert held <= LIMIT < held + len(audio("S" * 3))
    errors = world.of(ErrorRaised)
    assert len(errors) == 1 and str(LIMIT) in errors[0].message, "a flood is not answered with a flood"
    world.append(audio("S" * 3), event_id="e")
    assert world.last(ErrorRaised).event_id == "e" and world.state.audio.buffered_bytes == held
    if recover == "clear":
        world.send(ClearAudio())
    else:
        world.send(CommitAudio(create_response=True))
        world.reply("Yes.", 100)
        world.advance(1.0)
    world.append(audio("S" * 3))
    assert world.state.audio.buffered_bytes == len(audio("S" * 3)) and len(world.of(ErrorRaised)) == 2


def test_field_F54_a_model_that_is_too_slow_fills_a_bounded_backlog_and_says_so() -> None:

    world = World(
        MANUAL,
        capabilities=NATIVE,
        auto=False,
        runtime=DuplexSessionRuntimeConfig(max_pending_input_bytes_per_session=LIMIT),
    )
    taken = 0
    for number in range(400):
        world.append(bytes(2_560))
        world.advance(0.08)
        if number % 2:
            world.answer(world.pending.popleft())
            taken += 1
        assert world.state.held_input_bytes <= LIMIT
    assert world.core.tables()["append_queue"] > 30, "the backlog can be seen"
    assert world.last(ErrorRaised).code is ErrorCode.INPUT_BACKPRESSURE
    while world.pending:
        world.answer(world.pending.popleft())
    world.append(bytes(2_560))
    assert world.core.phase == "open" and [s.seq for s in world.submits] == list(range(1, len(world.submits) + 1))


def test_settings_that_cannot_work_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="send_ahead_ms"):
        DuplexSessionRuntimeConfig(send_ahead_ms=99, audio_delta_ms=100)
    assert SessionConfig(turn_detection=ServerVad()).effective_overlap_policy == "barge_in_on_speech"


@pytest.mark.parametrize("count", [4, 5, 6])
def test_long_texts_that_wait_to_be_read_are_bounded_by_their_length(count: int) -> None:
    """A client that asks for one long item again and again, and reads nothing."""
    runtime = DuplexSessionRuntimeConfig(max_pending_output_bytes_per_session=60_000)
    world = World(MANUAL, takes=False, runtime=runtime)
    world.send(CreateItem(item=InputItem(item_id="long", role="user", texts=("x" * 10_000,))))
    for _ in range(count - 1):
        world.send(RetrieveItem(item_id="long"))
    assert world.state.outbox.released_bytes > min(count, 5) * 10_000
    assert (world.core.phase == "open") is (count <= 5)


def test_one_event_that_is_larger_than_the_bound_is_no_fault() -> None:
    runtime = DuplexSessionRuntimeConfig(max_pending_output_bytes_per_session=2_000)
    world = World(MANUAL, runtime=runtime)
    world.send(CreateItem(item=InputItem(item_id="long", role="user", texts=("x" * 10_000,))))
    world.send(RetrieveItem(item_id="long"))
    assert world.core.phase == "open" and not world.of(ErrorRaised)
