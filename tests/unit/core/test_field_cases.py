"""Field cases that the state machine alone can show; others stand with their ledger (search for ``test_field_``)."""

from __future__ import annotations

import math

import msgspec
import pytest

from duologue.config.session import ServerVad, SessionConfig, SessionPatch, TurnDetectionPatch
from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.commands import (
    CancelResponse,
    CloseSession,
    CommitAudio,
    CreateItem,
    CreateResponse,
    DeleteItem,
    InputItem,
    RetrieveItem,
    TruncateItem,
    UpdateSession,
)
from duologue.engine.duplex.core.effects import ApplyConfig, ClassifyTurn, Detect, SubmitAppend
from duologue.engine.duplex.core.items import CommandReceived, OutputTaken, TimerFired
from duologue.engine.duplex.events import (
    ErrorRaised,
    InputCommitted,
    InputTranscribed,
    ItemAdded,
    ItemDeleted,
    ItemRetrieved,
    ItemTruncated,
    OverlapDecided,
    ResponseAudio,
    ResponseCreated,
    ResponseDone,
    SessionUpdated,
    SpeechStarted,
    SpeechStopped,
)
from duologue.engine.duplex.results import ModelFailed, Speech, TurnEnded, UserTranscript
from duologue.errors import ErrorCode
from duologue.outputs import AudioMark
from tests.unit.core.harness import CASCADE, MANUAL, PLAIN, RATE, SEMANTIC, VAD, World, audio, speech

COUNT = "one two three four five six seven eight nine ten"


def answering(config: SessionConfig = VAD, *, ms: int = 8_000, end: bool = True, **fields: object) -> World:
    """Somebody asked, and the answer has been heard for a second."""
    world = World(config, **fields)  # type: ignore[arg-type]
    world.say("S" * 20 + "." * 16)
    world.reply(COUNT, ms, end=end)
    world.advance(1.0)
    return world


def test_field_F01_nothing_of_a_cancelled_response_leaves_and_the_other_session_does_not_notice() -> None:
    def other() -> list[str]:
        world = World(MANUAL, seed="b")
        world.append(audio("S" * 20))
        world.send_turn(COUNT, 2_000)
        world.advance(8.0)
        return [repr(event) for event in world.events]

    alone = other()
    slow = World(MANUAL, takes=False)
    slow.append(audio("S" * 20))
    slow.send_turn(COUNT, 20_000)
    slow.advance(6.0)
    assert other() == alone
    slow.send(CancelResponse())
    numbers = slow.state.outbox.numbers
    slow.advance(2.0)
    slow.apply(OutputTaken(number=numbers))
    slow.advance(60.0)
    done = slow.names().index("ResponseDone")
    assert not [e for e in slow.events[done:] if isinstance(e, ResponseAudio)]
    assert [e.status for e in slow.of(ResponseDone)] == ["cancelled"]
    assert slow.invalidated == [slow.last(ResponseDone).response_id]


@pytest.mark.parametrize("chunk", [10**6, 4_096, 1_000, 34])
def test_field_F04_turns_inside_one_append(chunk: int) -> None:
    """The boundary case of the report, and its neighbours: any cut gives the same two turns."""
    config = SessionConfig(turn_detection=ServerVad(min_speech_ms=32, create_response=False))
    world = World(config, capabilities=PLAIN)
    pcm = audio("S" + "." * 16 + "S" * 6 + "." * 20)
    for start in range(0, len(pcm), chunk):
        world.append(pcm[start : start + chunk])
    kinds = [type(e) for e in world.events[2:]]
    assert kinds == [SpeechStarted, SpeechStopped, InputCommitted] * 2
    first, second = world.of(SpeechStarted)
    assert (first.audio_start_ms, second.audio_start_ms) == (0, 17 * 32)
    held = [turn.audio for turn in world.state.committed.values()]
    assert held == [audio("S" + "." * 16), audio("S" * 6 + "." * 16)]


def test_field_F07_an_answer_that_never_comes_does_not_block_the_next_turn() -> None:
    """Without tools: a request that never says anything again is left behind by the next turn."""
    world = answering(end=False)
    world.say("S" * 20 + "." * 16)
    assert world.of(ResponseDone)[0].status == "cancelled"
    old = world.submits[0].request_id
    assert old in world.aborted
    world.speak(speech("late", 100), TurnEnded(), request_id=old, finished=True)
    world.reply("Next.", 300, transcript="next")
    world.advance(1.0)
    assert [e.full_text for e in world.of(ResponseDone)][-1] == "Next."


@pytest.mark.parametrize("config", [VAD, SEMANTIC])
def test_field_F13_every_polite_turn_is_answered(config: SessionConfig) -> None:
    world = World(config)
    for number in range(4):
        world.say("S" * 20 + "." * 16)
        world.reply(f"Answer {number}.", 1_500, transcript=f"question {number}")
        world.say("." * 150)
    assert [e.full_text for e in world.of(ResponseDone)] == [f"Answer {number}." for number in range(4)]
    assert {e.status for e in world.of(ResponseDone)} == {"completed"}
    assert [e.text for e in world.of(InputTranscribed) if e.final] == [f"question {number}" for number in range(4)]


def test_field_F16_turns_that_end_during_an_answer_wait_for_it_up_to_a_stated_number() -> None:
    world = answering(SessionConfig(turn_detection=ServerVad(interrupt_response=False)), ms=60_000)
    limit = world.runtime.max_pending_turns_per_session
    for _ in range(limit + 1):
        world.say("S" * 45 + "." * 25)
    committed = world.of(InputCommitted)
    assert [e.deferred for e in committed] == [False] + [True] * limit
    assert [e.code for e in world.of(ErrorRaised)] == [ErrorCode.INPUT_BACKPRESSURE]
    assert len(world.state.committed) == limit and world.state.turn is None, "the refused turn is not half kept"
    for number in range(limit + 1):
        world.advance(60.0)
        world.reply(f"Answer {number}.", 500, transcript=f"question {number}")
    world.advance(2.0)
    assert len(world.of(ResponseDone)) == limit + 1
    assert {e.status for e in world.of(ResponseDone)} == {"completed"}


def test_field_F19_nothing_empty_reaches_the_model() -> None:
    world = World(MANUAL, capabilities=PLAIN)
    world.send(CommitAudio(create_response=True, event_id="1"))
    world.append(b"")
    world.send(CommitAudio(create_response=True, event_id="2"))
    world.append(b"\0\0")
    world.send(CommitAudio(create_response=True, event_id="3"))
    world.append(audio("S" * 20))
    world.send(CommitAudio(create_response=True, event_id="4"))
    world.send(CommitAudio(create_response=True, event_id="5"))
    assert [(e.code, e.event_id) for e in world.of(ErrorRaised)] == [
        (ErrorCode.INPUT_AUDIO_BUFFER_EMPTY, name) for name in ("1", "2", "3", "5")
    ]
    assert [bool(s.audio) for s in world.submits] == [True]


def test_field_F21_noise_does_not_interrupt_and_speech_does_in_time() -> None:
    noise = answering()
    noise.hear(*[0.45, 0.3, 0.55, 0.2] * 24)  # loud, and never speech for as long as an onset takes
    assert not noise.of(OverlapDecided) and not noise.of(ResponseDone)
    click = answering()
    click.hear(0.9, 0.9, *[0.0] * 30)
    assert not click.of(OverlapDecided) and not click.of(ResponseDone)
    voice = answering()
    onset = voice.now
    voice.say("S" * 25)
    decided = voice.last(OverlapDecided)
    assert decided.action == "barge_in" and len(voice.of(ResponseDone)) == 1
    last = voice.state.playback.last_taken_at
    assert last is not None and last - onset <= 0.096 + 0.25 + 0.04
    sent = sum(e.duration_ms for e in voice.of(ResponseAudio))
    voice.advance(5.0)
    assert sum(e.duration_ms for e in voice.of(ResponseAudio)) == sent


def test_field_F24_the_interruption_is_kept_from_before_its_onset() -> None:
    world = answering()
    before = world.state.audio.end
    world.say("." * 15 + "S" * 20 + "." * 16)
    item_id = world.last(InputCommitted).item.item_id
    turn = world.state.committed[item_id].audio
    stream = audio("." * 15 + "S" * 20 + "." * 16)
    onset = 15 * 512
    assert turn == stream[(onset - RATE * 300 // 1000) * 2 :]
    heard = b"".join(s.audio for s in world.submits if s.fence.epoch == 1)
    assert heard == turn and world.last(SpeechStarted).audio_start_ms == (before + onset) * 1000 // RATE - 300


def test_field_F28_a_close_and_an_append_in_one_turn_of_the_loop() -> None:
    for _ in range(1_000):
        world = World(MANUAL)
        world.core.step(CommandReceived(command=CloseSession()), world.now)
        world.append(audio("S"), event_id="e")
        assert world.last(ErrorRaised).code is ErrorCode.SESSION_CLOSED
        assert world.state.audio.received_bytes == 0


@pytest.mark.parametrize("broken", [[math.nan], [math.inf], [-math.inf], [math.nan] * 40])
def test_field_F32_a_detector_that_was_fed_nonsense_hears_the_next_utterance(broken: list[float]) -> None:
    """Samples are made finite where they are decoded; here: scores that are not numbers poison nothing."""
    world = World(VAD)
    world.hear(*broken, *[0.0] * 20)
    world.say("S" * 20 + "." * 16)
    assert world.last(SpeechStarted).audio_start_ms == (len(broken) + 20) * 32 - 300
    assert len(world.of(InputCommitted)) == 1


def test_field_F35_an_hour_of_room_tone_and_speech_is_heard_to_its_end() -> None:
    world = World(SessionConfig(turn_detection=ServerVad(create_response=False)), capabilities=PLAIN)
    utterance = audio("S" * 156 + "." * 782)  # 5 s of speech, 25 s of silence
    per_block = []
    for _ in range(6):
        before = len(world.of(InputCommitted))
        for _ in range(20):
            world.append(utterance)
        per_block.append(len(world.of(InputCommitted)) - before)
        world.effects.clear()
        world.events.clear()
    assert per_block == [20] * 6


def test_field_F38_a_voice_is_fixed_once_it_was_heard() -> None:
    world = answering(ms=500)
    world.advance(1.0)
    world.send(UpdateSession(patch=SessionPatch(voice="other", instructions="x"), event_id="1"))
    assert (world.last(ErrorRaised).code, world.last(ErrorRaised).event_id) == (ErrorCode.VOICE_UPDATE_UNSUPPORTED, "1")
    assert world.core.config.instructions == ""
    for patch in (SessionPatch(voice=None), SessionPatch(instructions="y"), SessionPatch()):
        before = len(world.of(SessionUpdated))
        world.send(UpdateSession(patch=patch, event_id="2"))
        assert len(world.of(SessionUpdated)) == before + 1
    assert len(world.of(ErrorRaised)) == 1 and world.core.config.turn_detection == VAD.turn_detection


@pytest.mark.parametrize("end", [True, False])
@pytest.mark.parametrize("voice", [None, "ash"])
def test_field_F38_resending_the_voice_that_is_current_changes_nothing(voice: str | None, end: bool) -> None:
    """Also while the answer is still being spoken, and with all the rest of the settings beside it."""
    config = msgspec.structs.replace(VAD, voice=voice, instructions="Be brief.")
    world = answering(config, ms=500 if end else 8_000, end=end)
    assert world.of(ResponseAudio)
    generation, answers = world.core.config_generation, len(world.of(SessionUpdated))
    same = [SessionPatch(voice=voice), SessionPatch(voice=voice, instructions="Be brief.", model=config.model)]
    for patch in same:
        world.send(UpdateSession(patch=patch, event_id="1"))
    assert not world.of(ErrorRaised)
    assert [event.config for event in world.of(SessionUpdated)[answers:]] == [config] * len(same)
    assert world.core.config == config and world.core.config_generation == generation
    assert not [effect for effect in world.effects if isinstance(effect, ApplyConfig)]
    world.send(UpdateSession(patch=SessionPatch(voice="other"), event_id="2"))
    assert (world.last(ErrorRaised).code, world.last(ErrorRaised).event_id) == (ErrorCode.VOICE_UPDATE_UNSUPPORTED, "2")
    assert world.core.config == config


@pytest.mark.parametrize(
    "patch",
    [
        SessionPatch(),
        SessionPatch(instructions="x"),
        SessionPatch(turn_detection=None),
        SessionPatch(turn_detection=TurnDetectionPatch(threshold=9.0)),
        SessionPatch(model="other"),
    ],
)
def test_field_F39_one_reply_to_each_update(patch: SessionPatch) -> None:
    world = World(VAD)
    for number in range(3):
        world.send(UpdateSession(patch=patch, event_id=f"{number}"))
    replies = [e for e in world.events[2:] if isinstance(e, SessionUpdated | ErrorRaised)]
    assert len(replies) == 3
    assert [e.event_id for e in replies if isinstance(e, ErrorRaised)] in ([], ["0", "1", "2"])


def test_field_F40_errors_name_the_event_and_change_nothing() -> None:
    world = World(MANUAL)
    item = InputItem(item_id="a", role="user", texts=("hello",))
    world.send(CreateItem(item=item))
    before = [i.item_id for i in world.state.history.items]
    world.send(DeleteItem(item_id="unknown", event_id="E1"))
    world.send(CreateItem(item=InputItem(role="user", texts=("x",)), previous_item_id="unknown", event_id="E2"))
    world.send(CreateItem(item=item, event_id="E3"))
    world.send(RetrieveItem(item_id="unknown", event_id="E4"))
    world.send(TruncateItem(item_id="unknown", event_id="E5"))
    world.send(TruncateItem(item_id="a", event_id="E6"))
    assert [(e.code, e.event_id, e.param) for e in world.of(ErrorRaised)] == [
        (ErrorCode.ITEM_NOT_FOUND, "E1", "item_id"),
        (ErrorCode.ITEM_NOT_FOUND, "E2", "previous_item_id"),
        (ErrorCode.ITEM_EXISTS, "E3", "item.id"),
        (ErrorCode.ITEM_RETRIEVE_NOT_FOUND, "E4", "item_id"),
        (ErrorCode.ITEM_NOT_FOUND, "E5", "item_id"),
        (ErrorCode.ITEM_NOT_TRUNCATABLE, "E6", "item_id"),
    ]
    assert [i.item_id for i in world.state.history.items] == before
    world.send(DeleteItem(item_id="a"))
    assert world.last(ItemDeleted).item_id == "a" and len(world.of(ItemAdded)) == 1


def test_field_F43_truncated_means_gone_by_alignment_not_by_ratio() -> None:
    world = World(MANUAL)
    world.append(audio("S" * 20))
    world.send(CommitAudio(create_response=True))
    marks = (AudioMark(chars=3, end_ms=1_000), AudioMark(chars=7, end_ms=2_000), AudioMark(chars=48, end_ms=10_000))
    world.speak(
        UserTranscript(text="count", final=True),
        Speech(text=COUNT, audio=bytes(2 * 240_000), rate_hz=24_000, marks=marks),
        TurnEnded(),
        finished=True,
    )
    world.advance(11.0)
    item_id = world.last(ResponseDone).item.item_id
    world.send(TruncateItem(item_id=item_id, audio_end_ms=2_000))
    assert world.last(ItemTruncated).audio_end_ms == 2_000
    world.send(RetrieveItem(item_id=item_id))
    part = world.last(ItemRetrieved).item.parts[0]
    assert (part.transcript, part.duration_ms) == ("one two", 2_000)
    world.send(CreateItem(item=InputItem(role="user", texts=("what did you say last?",))))
    world.send(CreateResponse())
    assert [e.text for e in world.submits[-1].history][1] == "one two"


@pytest.mark.parametrize("after_ms", [0, 5, 50, 5_000])
def test_field_F44_a_cancel_after_the_end_is_an_error_without_effect(after_ms: int) -> None:
    world = World(MANUAL)
    world.append(audio("S" * 20))
    world.send_turn(COUNT, 1_000)
    while not world.of(ResponseDone):
        world.advance(0.01)
    world.advance(after_ms / 1000)
    world.send(CancelResponse(event_id="late"))
    error = world.last(ErrorRaised)
    assert (error.code, error.event_id) == (ErrorCode.RESPONSE_NOT_ACTIVE, "late")
    assert error.message.startswith("Cancellation failed")
    assert [e.status for e in world.of(ResponseDone)] == ["completed"]


def test_field_F44_an_old_id_never_cancels_the_new_response() -> None:
    world = World(MANUAL)
    world.append(audio("S" * 20))
    world.send_turn(COUNT, 200)
    world.advance(1.0)
    old = world.last(ResponseDone).response_id
    world.append(audio("S" * 20))
    world.send(CommitAudio(create_response=True))
    world.send(CancelResponse(response_id=old, event_id="old"))
    assert world.last(ErrorRaised).event_id == "old" and len(world.of(ResponseDone)) == 1
    new = world.last(ResponseCreated).response_id
    world.send(CancelResponse(response_id=new))
    world.send(CancelResponse(response_id=new, event_id="twice"))
    assert [e.status for e in world.of(ResponseDone)] == ["completed", "cancelled"]
    assert world.last(ErrorRaised).event_id == "twice"


def test_field_F60_speech_that_goes_on_before_any_output_reopens_the_turn() -> None:
    world = World(SEMANTIC, complete=0.9, auto=False)
    for char in "S" * 20 + "." * 7:
        world.say(char)
        world.answer_all(SubmitAppend, Detect)
    assert world.submits[-1].final, "the answer began on the quiet"
    provisional = world.submits[-1].request_id
    world.speak(UserTranscript(text="i would like", final=True), speech("What would you like?", 500))
    world.say("S" * 10)
    classify = world.take(ClassifyTurn)
    world.complete = 0.1
    world.answer(classify)
    world.answer_all()
    assert provisional in world.aborted and not world.of(ResponseCreated)
    world.complete = 0.9
    for char in "." * 8:
        world.say(char)
        world.answer_all()
    world.speak(speech("late", 500), request_id=provisional)
    assert len(world.of(InputCommitted)) == len(world.of(ResponseCreated)) == 1
    world.reply("To Rome, then.", 500, transcript="i would like a ticket to rome")
    world.advance(1.0)
    assert [e.full_text for e in world.of(ResponseDone)] == ["To Rome, then."]


def test_field_F60_speech_that_goes_on_after_the_first_output_is_a_barge_in() -> None:
    world = World(VAD)
    world.say("S" * 20 + "." * 16)
    world.reply("What would you like?", 3_000, transcript="i would like", end=False)
    world.say("." * 5 + "S" * 20 + "." * 16)
    assert [e.status for e in world.of(ResponseDone)] == ["cancelled"]
    assert len(world.of(ResponseCreated)) == 2
    texts = [(e.role, e.text) for e in world.submits[-1].history]
    assert texts[0] == ("user", "i would like") and texts[1][1] in "What would you like?"


@pytest.mark.parametrize("capabilities", [CASCADE, PLAIN])
def test_one_answer_that_fails_leaves_the_session_whole(capabilities: object) -> None:
    """Decision 3, in the core: the next turn is answered as if nothing had been."""
    world = World(VAD, capabilities=capabilities)  # type: ignore[arg-type]
    world.say("S" * 20 + "." * 16)
    world.speak(ModelFailed(message="The model gave up."))
    assert [type(e) for e in world.events[-2:]] == [ErrorRaised, ResponseDone]
    assert world.last(ResponseDone).status == "failed"
    world.say("." * 10 + "S" * 20 + "." * 16)
    world.reply("Fine.", 300)
    world.advance(1.0)
    assert [e.status for e in world.of(ResponseDone)] == ["failed", "completed"]


def test_field_F23_there_are_switches_against_an_echo_and_it_cannot_loop() -> None:
    """The answer comes back into the microphone, quieter and late: whatever the detector says, nobody is interrupted."""
    echo = (400).to_bytes(2, "little") * 512  # about -38 dB of full scale

    def played_back(config: SessionConfig) -> World:
        world = answering(config, ms=4_000)
        for _ in range(150):  # longer than the answer, by three tenths of a second
            world.verdicts.append(0.9 if world.state.answering else 0.01)
            world.advance(0.032)
            world.append(echo)
        return world

    for config in (
        SessionConfig(turn_detection=ServerVad(), overlap_silence_rms=0.02),
        SessionConfig(turn_detection=ServerVad(interrupt_response=False, create_response=False)),
    ):
        world = played_back(config)
        assert not any(event.reason == "turn_detected" for event in world.of(ResponseDone))
    gated = played_back(SessionConfig(turn_detection=ServerVad(), overlap_silence_rms=0.02))
    assert len(gated.of(InputCommitted)) == len(gated.of(ResponseCreated)) == 1  # no turn of its own echo
    assert gated.last(ResponseDone).status == "completed"


def test_field_F42_a_truncation_cuts_the_item_and_the_content_that_it_names() -> None:
    world = answering(ms=2_000)
    world.advance(2.0)
    world.say("S" * 20 + "." * 16)
    world.reply(COUNT, 8_000, end=False)
    world.advance(1.0)
    first, second = [item.item_id for item in world.state.history.items if item.role == "assistant"]
    order = [event.item_id for event in world.of(ResponseAudio)]
    assert order == sorted(order, key=[first, second].index)  # no delta of the first after the second began
    world.send(TruncateItem(item_id=first, content_index=1, audio_end_ms=100, event_id="no"))
    assert world.last(ErrorRaised).event_id == "no"
    world.send(TruncateItem(item_id=first, audio_end_ms=500))
    history = world.state.history
    assert history.by_id[first].cut_ms == 500
    assert history.by_id[second].cut_ms == history.by_id[second].sent_ms > 500  # what was sent of it, and no less
    assert world.state.response is not None and world.state.response.generating
    world.send(TruncateItem(item_id=second, audio_end_ms=300))
    assert (history.by_id[first].cut_ms, history.by_id[second].cut_ms) == (500, 300)


@pytest.mark.parametrize("late_s", [0.0, 0.001, 0.015])
def test_field_F48_timers_that_are_late_do_not_add_up(late_s: float) -> None:
    """A minute of audio in deltas of 20 ms: what is out follows the clock, not the number of timers."""
    world = World(
        MANUAL, runtime=DuplexSessionRuntimeConfig(audio_delta_ms=20, send_ahead_ms=40, max_backlog_ms=90_000)
    )
    world.append(audio("S" * 20))
    world.send(CommitAudio(create_response=True))
    world.reply(COUNT, 70_000, end=False)
    began = world.now

    def until(at: float) -> None:
        while (deadline := world.core.next_deadline()) is not None and deadline + late_s <= at:
            world.now = max(world.now, deadline + late_s)
            world.apply(TimerFired())
        world.now = at

    until(began + 60.0)
    sent_ms = sum(event.duration_ms for event in world.of(ResponseAudio))
    assert abs(sent_ms - 60_040) <= 20 + late_s * 1_000
    before = len(world.of(ResponseAudio))
    world.now += 5.0  # the process stands still
    world.apply(TimerFired())
    assert len(world.of(ResponseAudio)) - before <= 3, "no burst after the pause: nobody heard anything meanwhile"
