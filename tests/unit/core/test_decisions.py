"""One test for each decision that the state machine carries out, by its number; each fails on the reference's behaviour.

Decisions of the shell and of the server have theirs there: here is what of them the core decides.
"""

from __future__ import annotations

import pytest
from msgspec import structs

from duologue.config.session import ServerVad, SessionConfig, SessionPatch, TurnDetectionPatch
from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.commands import (
    AckPlayback,
    BargeIn,
    CancelInput,
    CancelResponse,
    ClearAudio,
    CloseSession,
    CommitAudio,
    CreateItem,
    CreateResponse,
    DeleteItem,
    DuplexCommand,
    InputItem,
    RetrieveItem,
    UpdateSession,
)
from duologue.engine.duplex.core.effects import AbortRequests, ClassifyTurn, Detect, Emit, SubmitAppend
from duologue.engine.duplex.core.items import (
    AppendAccepted,
    CleanupEnded,
    CloseRequested,
    Detached,
    OutputTaken,
    ResumeRequested,
    SpeechScored,
    StageFailed,
)
from duologue.engine.duplex.events import (
    ErrorRaised,
    InputCommitted,
    ItemRetrieved,
    OutputCleared,
    OverlapDecided,
    ResponseAudio,
    ResponseCreated,
    ResponseDone,
    ResponseText,
    SessionClosed,
    SessionExpired,
    SpeechStarted,
    StopMeasured,
)
from duologue.engine.duplex.results import TurnEnded, UserTranscript
from duologue.errors import ErrorCode
from tests.unit.core.harness import CASCADE, MANUAL, NATIVE, PLAIN, RATE, SEMANTIC, VAD, World, audio, speech

TEXT = "one two three four five six seven eight nine ten"


def answering(config: SessionConfig = VAD, *, ms: int = 8_000, end: bool = True, **fields: object) -> World:
    world = World(config, **fields)  # type: ignore[arg-type]
    world.say("S" * 20 + "." * 16)
    world.reply(TEXT, ms, end=end)
    world.advance(1.0)
    return world


@pytest.mark.parametrize("kind", ["closed", "expired"])
@pytest.mark.parametrize("fault", [None, ErrorCode.REPLICA_UNAVAILABLE])
def test_decision_01_every_response_has_its_terminal_before_the_session(kind: str, fault: ErrorCode | None) -> None:
    """The reference leaves the response open and ends the session silently."""
    world = answering()
    world.apply(CloseRequested(kind=kind, reason="why", fault=fault))  # type: ignore[arg-type]
    world.apply(CleanupEnded(released=True))
    assert len(world.of(ResponseCreated)) == len(world.of(ResponseDone)) == 1
    assert isinstance(world.events[-1], SessionExpired if kind == "expired" else SessionClosed)


def test_decision_02_the_terminal_waits_for_the_slot_and_says_if_it_is_not_free() -> None:
    world = answering()
    world.close()
    world.advance(60.0)
    assert not world.of(SessionClosed)
    world.apply(CleanupEnded(released=False))
    assert world.last(SessionClosed).slot_released is False
    world.apply(CleanupEnded(released=True))
    assert len(world.of(SessionClosed)) == 1


def test_decision_03_one_fault_ends_one_response() -> None:
    """The reference leaves the response of an ephemeral model hanging when a stage yields nothing, or kills its session."""
    world = World(VAD)
    world.say("S" * 20 + "." * 16)
    world.apply(
        StageFailed(
            request_id=world.submits[-1].request_id, code=ErrorCode.EMPTY_HANDOFF, message="Stage 1 gave nothing."
        )
    )
    assert [type(e) for e in world.events[-2:]] == [ErrorRaised, ResponseDone]
    assert world.last(ResponseDone).error is ErrorCode.EMPTY_HANDOFF
    assert world.core.phase == "open" and not world.core.live_request_ids()


def test_decision_04_a_cancel_waits_for_nothing() -> None:
    """In the reference it stands in one queue with a commit that waits for the append tail."""
    world = World(VAD, auto=False)
    world.append(audio("S" * 20))
    world.send(CommitAudio(create_response=True))
    assert world.state.commit_wait is not None
    world.send(CancelInput())
    assert world.state.commit_wait is None and world.names()[-1] == "InputCleared"
    world = World(MANUAL, auto=False)
    world.append(audio("S" * 20))
    world.send(CommitAudio(create_response=True))
    effects = len(world.effects)
    world.send(CancelResponse())
    kinds = [type(effect) for effect in world.effects[effects:]]
    assert AbortRequests in kinds and world.last(ResponseDone).status == "cancelled"


@pytest.mark.parametrize(
    "command",
    [
        CancelResponse(),
        BargeIn(),
        CloseSession(),
        CancelInput(),
        UpdateSession(patch=SessionPatch(turn_detection=None)),
    ],
)
def test_decision_05_an_abort_reaches_the_stage_under_the_id_it_knows(command: DuplexCommand) -> None:
    """Also when the submission is still on its way, and its acceptance comes after the abort."""
    world = World(VAD, auto=False)
    world.say("S" * 30)
    world.answer_all(Detect)
    on_its_way = [e for e in world.pending if isinstance(e, SubmitAppend)]
    assert len(on_its_way) == 1, "the model hears the turn while it is spoken"
    world.send(command)
    world.answer_all(Detect)
    if isinstance(command, UpdateSession):
        world.answer_all()
    if isinstance(command, CloseSession):
        world.close()
    told = [*world.aborted, *(name for cleanup in world.cleanups for name in cleanup.request_ids)]
    if isinstance(command, CancelResponse):
        assert world.last(ErrorRaised).code is ErrorCode.RESPONSE_NOT_ACTIVE and not told
        return
    assert on_its_way[0].request_id in told
    again = len(world.aborted)
    world.apply(AppendAccepted(number=on_its_way[0].number, submitted_at=world.now))
    if not isinstance(command, UpdateSession | CloseSession):
        assert world.aborted[again:] == [on_its_way[0].request_id], "the abort may have overtaken it: say it again"
    assert not world.state.tail.orphans and on_its_way[0].request_id not in world.core.live_request_ids()


def test_decision_06_a_barge_in_looks_the_same_whether_the_answer_was_finished_or_not() -> None:
    """The reference says nothing of it when a resident model's finished audio still plays."""
    seen = []
    for end in (True, False):
        world = World(SessionConfig(turn_detection=ServerVad(), overlap_decide_ms=100), capabilities=NATIVE)
        world.say("." * 5)
        world.speak(speech(TEXT, 1_300))
        if end:
            world.speak(TurnEnded())
        world.advance(1.0)
        before = len(world.events)
        world.say("S" * 12)
        seen.append([type(e) for e in world.events[before:] if not isinstance(e, ResponseDone | StopMeasured)])
        assert [e.reason for e in world.of(OverlapDecided)] == ["speech"]
    assert seen[0] == seen[1] and {OverlapDecided, SpeechStarted, OutputCleared} <= set(seen[0])


def test_decision_07_updates_merge_deeply_and_all_or_nothing() -> None:
    world = World(SessionConfig(turn_detection=ServerVad(silence_duration_ms=700), instructions="a"))
    world.send(UpdateSession(patch=SessionPatch(turn_detection=TurnDetectionPatch(threshold=0.6))))
    assert world.core.config.turn_detection == ServerVad(silence_duration_ms=700, threshold=0.6)
    world.send(UpdateSession(patch=SessionPatch(instructions="b", turn_detection=TurnDetectionPatch(threshold=7.0))))
    assert world.core.config.instructions == "a"
    world.send(UpdateSession(patch=SessionPatch(playback_commit_policy="commit_all_on_done")))
    assert world.core.config.playback_commit_policy == "commit_all_on_done"


def test_decision_08_text_travels_as_text() -> None:
    world = World(SessionConfig(output_modality="text"))
    world.send(CreateItem(item=InputItem(role="user", texts=("hi",))))
    world.send(CreateResponse())
    world.speak(speech("Words.", 1_000), TurnEnded(), finished=True)
    assert [e.text for e in world.of(ResponseText)] == ["Words."] and not world.of(ResponseAudio)
    done = world.last(ResponseDone)
    assert type(done.item.parts[0]).__name__ == "TextPart" and done.status == "completed"


def test_decision_09_without_the_ability_to_rebuild_a_lost_worker_ends_its_sessions_in_order() -> None:
    world = answering()
    world.apply(
        StageFailed(
            request_id=None, code=ErrorCode.REPLICA_UNAVAILABLE, message="The worker is gone.", session_ends=True
        )
    )
    world.apply(CloseRequested(kind="expired", reason="request_cleanup"))
    world.apply(CleanupEnded(released=True))
    order = [type(e) for e in world.events if isinstance(e, ErrorRaised | ResponseDone | SessionExpired)]
    assert order == [ErrorRaised, ResponseDone, SessionExpired]


@pytest.mark.parametrize("config", [MANUAL, VAD])
def test_decision_10_nobody_has_to_acknowledge_playback(config: SessionConfig) -> None:
    """The reference stops answering after the first audible response of a client that never acknowledges."""
    world = World(config)
    for number in range(3):
        if config is MANUAL:
            world.append(audio("S" * 20))
            world.send(CommitAudio(create_response=True))
        else:
            world.say("S" * 20 + "." * 16)
        world.reply(f"Answer {number}.", 2_000)
        while len(world.of(ResponseDone)) <= number:
            world.advance(0.1)
        assert config is VAD or world.state.playback.playing(world.now), "asked again while it still plays"
        if config is VAD:
            world.advance(1.0)
    assert [e.status for e in world.of(ResponseDone)] == ["completed"] * 3 and not world.of(ErrorRaised)


def test_decision_11_one_arithmetic_for_wire_and_prompt() -> None:
    world = answering(end=False)
    world.send(CancelResponse())
    shown = world.last(ResponseDone).item
    world.send(RetrieveItem(item_id=shown.item_id))
    assert world.last(ItemRetrieved).item == shown
    world.send(CreateItem(item=InputItem(role="user", texts=("go on",))))
    world.send(CreateResponse())
    prompt = {entry.item_id: entry.text for entry in world.submits[-1].history}
    assert prompt[shown.item_id] == shown.parts[0].transcript != ""


def test_decision_12_audio_is_paced_and_nothing_else() -> None:
    world = answering(ms=30_000, end=False)
    playback = world.state.playback
    assert playback.released_ms - playback.position(world.now) <= 400.01
    world.send(RetrieveItem(item_id="unknown"))
    assert world.of(ErrorRaised)
    world.send(CancelResponse())
    assert world.names()[-2:] == ["ResponseDone", "StopMeasured"], "the terminal of a cancel does not wait for audio"


def test_decision_13_a_cancel_takes_back_what_no_socket_has_and_leaves_what_one_has() -> None:
    world = World(MANUAL, takes=False)
    world.append(audio("S" * 20))
    world.send_turn(TEXT, 10_000)
    taken = next(e for e in world.effects if isinstance(e, Emit) and isinstance(e.event, ResponseAudio)).number + 1
    world.apply(OutputTaken(number=taken))
    world.send(CancelResponse())
    left = {entry.number for entry in world.state.outbox.released if entry.audio_ms}
    assert not left and world.state.playback.taken_ms == 200.0
    assert world.state.playback.released_ms == 200.0


def test_decision_13_while_detached_no_audio_is_handed_over() -> None:
    world = answering()
    world.apply(Detached())
    sent = len(world.of(ResponseAudio))
    world.advance(30.0)
    assert len(world.of(ResponseAudio)) == sent
    world.apply(ResumeRequested(control_id="c", expected_generation=0))
    world.advance(10.0)
    assert world.last(ResponseDone).status == "completed"
    assert sum(e.duration_ms for e in world.of(ResponseAudio)) == 8_000


def test_decision_14_how_fast_it_stopped_is_measured_twice() -> None:
    world = answering()
    onset = world.now
    world.say("S" * 12)
    measured = world.last(StopMeasured)
    assert measured.response_id == world.last(ResponseDone).response_id
    last = world.state.playback.last_taken_at
    assert last is not None and measured.onset_to_last_audio_s == pytest.approx(
        max(0.0, last - onset - 0.032), abs=0.033
    )
    assert measured.decision_to_last_audio_s == 0.0


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 24_000, 48_000])
def test_decision_15_the_model_gets_its_own_rate_and_the_detector_its_copy(rate_hz: int) -> None:
    """The reference gives the model the detector's 16 kHz, and models of another rate refuse every append."""
    world = World(
        SessionConfig(turn_detection=ServerVad(create_response=False)),
        capabilities=structs.replace(PLAIN, input_rate_hz=rate_hz),
    )
    script = "." * 20 + "S" * 20 + "." * 20
    for char in script:
        samples = 512 * rate_hz // RATE
        world.append((b"\x07\x00" if char == "S" else b"\x01\x00") * samples, detector_pcm=audio(char))
    item = world.last(InputCommitted).item
    heard = world.state.committed[item.item_id].audio
    assert len(heard) == (36 * 512 * rate_hz // RATE + 300 * rate_hz // 1000) * 2
    assert heard.count(b"\x07\x00") == 20 * 512 * rate_hz // RATE
    assert world.last(SpeechStarted).audio_start_ms == 20 * 32 - 300


@pytest.mark.parametrize("prefix_ms", [0, 100, 300, 1_000])
def test_decision_16_the_prefix_is_audio_not_only_a_number(prefix_ms: int) -> None:
    """The reference discards what came before the detector confirmed the onset, and only shifts the time."""
    config = SessionConfig(turn_detection=ServerVad(create_response=False, prefix_padding_ms=prefix_ms))
    world = World(config, capabilities=PLAIN)
    stream = b"".join(bytes([n % 250, 0]) * 512 for n in range(60))
    world.verdicts.extend([0.0] * 40 + [0.9] * 20)
    for start in range(0, len(stream), 1_024):
        world.append(stream[start : start + 1_024])
    world.say("." * 20)
    onset = 40 * 512 - prefix_ms * RATE // 1000
    heard = world.state.committed[world.last(InputCommitted).item.item_id].audio
    assert heard.startswith(stream[2 * onset :])
    assert world.last(SpeechStarted).audio_start_ms == onset * 1000 // RATE


def test_decision_16_an_append_may_carry_any_number_of_units() -> None:
    world = World(MANUAL, capabilities=NATIVE)
    world.append(bytes(2_560 * 25))
    assert len(world.submits) == 25


def test_decision_17_one_detection_at_a_time_numbered_and_a_clear_voids_it() -> None:
    world = World(VAD, auto=False)
    for _ in range(10):
        world.say("S")
    requests = [e for e in world.effects if isinstance(e, Detect)]
    assert len(requests) == 1 and requests[0].reset and len(requests[0].pcm) == 1_024
    world.send(ClearAudio())
    world.apply(SpeechScored(number=requests[0].number, probabilities=(0.9,)))
    world.say("S")
    later = [e for e in world.effects if isinstance(e, Detect)][1]
    assert later.number > requests[0].number and later.reset, "a reset travels in the next request"
    world.answer_all()
    assert not world.of(SpeechStarted) and world.state.detection.endpointer.position == 11  # type: ignore[union-attr]


def test_decision_18_a_pause_is_tested_early_and_the_answer_begins_on_the_quiet() -> None:
    world = World(SEMANTIC, auto=False)
    for char in "S" * 20 + "." * 6:
        world.say(char)
        world.answer_all(Detect, SubmitAppend)
    assert any(isinstance(e, ClassifyTurn) for e in world.pending), "after about 200 ms"
    final = world.submits[-1]
    assert final.final and final.respond
    world.speak(UserTranscript(text="what time is it", final=True), speech("Noon.", 400))
    assert {type(e) for e in world.events[2:]} == {SpeechStarted}
    world.answer_all()
    assert world.last(ResponseCreated) and world.of(ResponseAudio)
    assert world.submits[-1] is final, "what was begun is used"


def test_decision_18_plain_detection_keeps_its_half_second() -> None:
    world = World(VAD)
    world.say("S" * 20 + "." * 15)
    assert not world.of(InputCommitted) and not any(isinstance(e, ClassifyTurn) for e in world.effects)
    world.say(".")
    assert len(world.of(InputCommitted)) == 1


def test_decision_19_speech_over_an_answer_is_announced_only_with_the_decision() -> None:
    """Stock clients flush and truncate on it; the reference sends it at once, also for a murmur of assent."""
    world = answering()
    world.say("S" * 6)
    world.speak(UserTranscript(text="Mm-hm.", final=False))
    world.say("S" * 6 + "." * 20)
    assert len(world.of(SpeechStarted)) == 1 and not world.of(ResponseDone)
    world.say("S" * 6)
    at = len(world.of(SpeechStarted))
    world.speak(UserTranscript(text="No, stop.", final=False))
    onset_ms = (36 + 32) * 32
    world.say("S" * 6)
    names = world.names()
    assert len(world.of(SpeechStarted)) == at + 1 and world.last(SpeechStarted).audio_start_ms == onset_ms - 300
    assert names.index("OverlapDecided") < len(names) - names[::-1].index("ResponseDone")
    assert world.last(ResponseDone).reason == "turn_detected"


@pytest.mark.parametrize("decide_ms", [100, 250])
def test_decision_19_without_words_it_is_decided_in_time(decide_ms: int) -> None:
    world = answering(SessionConfig(turn_detection=ServerVad(), overlap_decide_ms=decide_ms))
    world.say("S" * 3)  # confirmed
    world.advance(decide_ms / 1000 - 0.001)
    assert not world.of(ResponseDone) and world.state.outbox.held
    world.advance(0.002)
    assert world.last(ResponseDone).status == "cancelled"


def test_decision_20_input_that_stops_in_mid_speech_ends_the_turn() -> None:
    """The reference listens for ever."""
    world = World(VAD)
    world.say("S" * 40)
    world.advance(1.01)
    assert len(world.of(InputCommitted)) == len(world.of(ResponseCreated)) == 1


@pytest.mark.parametrize(
    "command",
    [
        CommitAudio(),
        ClearAudio(),
        DeleteItem(item_id="x"),
        CreateItem(item=InputItem(role="user")),
        AckPlayback(played_ms=1),
    ],
)
def test_decision_21_whatever_the_user_does_is_a_sign_of_life(command: DuplexCommand) -> None:
    """In the reference buffered speech, commits and edits are none."""
    world = World(MANUAL, runtime=DuplexSessionRuntimeConfig(idle_ttl_s=10.0))
    world.advance(9.0)
    world.send(command)
    world.advance(9.0)
    assert world.core.lease_expiry(world.now) is None
    world.append(audio("S"))
    world.advance(9.0)
    assert world.core.lease_expiry(world.now) is None
    world.advance(1.0)
    assert world.core.lease_expiry(world.now) == "idle_ttl_expired"


def test_a_long_answer_keeps_its_session_and_a_stage_that_hangs_does_not() -> None:
    """Field case F37, and the slot of a response that never ends."""
    runtime = DuplexSessionRuntimeConfig(idle_ttl_s=10.0)
    world = answering(VAD, ms=60_000, runtime=runtime)
    for _ in range(59):
        assert world.core.lease_expiry(world.now) is None
        world.advance(1.0)
    world.advance(3.0)
    assert world.core.lease_expiry(world.now) == "idle_ttl_expired"
    hanging = World(VAD, runtime=runtime)
    hanging.say("S" * 20 + "." * 16)
    hanging.advance(9.0)
    assert hanging.core.lease_expiry(hanging.now) is None
    hanging.speak(UserTranscript(text="hi", final=True))
    hanging.advance(9.9)
    assert hanging.core.lease_expiry(hanging.now) is None
    hanging.advance(0.1)
    assert hanging.core.lease_expiry(hanging.now) == "idle_ttl_expired"


@pytest.mark.parametrize("capabilities", [CASCADE, PLAIN, NATIVE])
@pytest.mark.parametrize("command", [ClearAudio(), CancelInput(), BargeIn(), CommitAudio(create_response=True)])
def test_decision_22_what_was_held_is_given_back_exactly_once(capabilities: object, command: DuplexCommand) -> None:
    """The reference zeroes a shared counter on clear, and later releases eat the reservations of others."""
    world = World(MANUAL, capabilities=capabilities, auto=False)  # type: ignore[arg-type]
    world.append(audio("S" * 10))
    world.send(CommitAudio(create_response=True))
    world.append(audio("S" * 10))
    world.send(command)
    world.append(audio("S" * 10))
    world.answer_all()
    for _ in range(3):
        world.send(CancelInput())
        world.send(CancelResponse())
        world.answer_all()
    for committed in list(world.state.committed.values()):
        world.send(DeleteItem(item_id=committed.item_id))
    world.answer_all()
    assert world.state.held_input_bytes == 0
    ledger = world.state.audio
    assert ledger.received_bytes == ledger.consumed_bytes + ledger.discarded_bytes == 30 * 1_024
