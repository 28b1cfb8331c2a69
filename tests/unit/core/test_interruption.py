"""Speech during an answer: every row of the decision, the client's hints, and what happens when the question is overtaken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from duologue.config.session import ServerVad, SessionConfig, SessionPatch
from duologue.engine.duplex.commands import BargeIn, CancelInput, CancelResponse, ClearAudio, ClearOutput, UpdateSession
from duologue.engine.duplex.core.effects import Detect
from duologue.engine.duplex.core.items import DetectorFailed
from duologue.engine.duplex.core.overlap import Verdict, decide_overlap, is_acknowledgement
from duologue.engine.duplex.events import (
    ErrorRaised,
    InputCommitted,
    OutputCleared,
    OverlapDecided,
    ResponseAudio,
    ResponseCreated,
    ResponseDone,
    SpeechStarted,
    SpeechStopped,
)
from duologue.engine.duplex.results import UserTranscript
from duologue.errors import ErrorCode
from tests.unit.core.harness import CASCADE, VAD, World, audio

LISTEN_ONLY = SessionConfig(turn_detection=ServerVad(), overlap_policy="listen_only")


def answering(config: SessionConfig = VAD, *, ms: int = 8_000, **fields: object) -> World:
    """A world in the middle of an answer."""
    world = World(config, **fields)  # type: ignore[arg-type]
    world.say("S" * 20 + "." * 16)
    world.answer_all()
    world.reply("One two three four five six seven eight nine ten.", ms)
    world.advance(1.0)
    return world


def undecided(**fields: object) -> World:
    """The same, with speech over it that nobody has judged yet."""
    world = answering(**fields)  # type: ignore[arg-type]
    world.say("S" * 5)
    assert world.state.overlap is not None and not world.of(OverlapDecided)
    return world


ROWS = [
    # partial, speech_ms, ended, waited -> action, reason
    (None, 100, False, False, "pending", "confirming"),
    (None, 100, False, True, "barge_in", "speech"),
    (None, 100, True, True, "barge_in", "speech"),
    ("stop please", 100, False, False, "pending", "confirming"),
    ("stop please", 100, False, True, "barge_in", "speech"),
    ("", 100, False, True, "barge_in", "speech"),
    ("mm-hm", 100, False, True, "pending", "acknowledgement"),
    ("mm-hm", 1199, False, True, "pending", "acknowledgement"),
    ("mm-hm", 1200, False, True, "barge_in", "longer_than_acknowledgement"),
    ("mm-hm", 700, True, True, "drop", "acknowledgement"),
    ("mm-hm", 701, True, True, "barge_in", "longer_than_acknowledgement"),
    ("ja genau", 700, True, True, "drop", "acknowledgement"),
    ("ja genau aber", 700, True, True, "barge_in", "speech"),
]


@pytest.mark.parametrize(("partial", "speech_ms", "ended", "waited", "action", "reason"), ROWS)
def test_every_row(partial: str | None, speech_ms: int, ended: bool, waited: bool, action: str, reason: str) -> None:
    verdict = decide_overlap(VAD, partial=partial, speech_ms=speech_ms, ended=ended, waited=waited, can_interrupt=True)
    assert verdict == Verdict(action, reason)  # type: ignore[arg-type]


@given(st.sampled_from([None, "", "mm-hm", "no wait"]), st.integers(0, 5_000), st.booleans(), st.booleans())
def test_who_may_not_interrupt_is_listened_to(partial: str | None, speech_ms: int, ended: bool, waited: bool) -> None:
    known = {"partial": partial, "speech_ms": speech_ms, "ended": ended, "waited": waited}
    assert decide_overlap(LISTEN_ONLY, can_interrupt=True, **known) == Verdict("listen", "listen_only")  # type: ignore[arg-type]
    verdict = decide_overlap(VAD, can_interrupt=False, **known)  # type: ignore[arg-type]
    assert verdict == Verdict("listen", "barge_in_unsupported")


@given(st.sampled_from([None, "", "mm-hm", "no wait"]), st.integers(0, 5_000), st.booleans())
def test_speech_that_ended_is_never_left_undecided(partial: str | None, speech_ms: int, waited: bool) -> None:
    verdict = decide_overlap(VAD, partial=partial, speech_ms=speech_ms, ended=True, waited=waited, can_interrupt=True)
    assert verdict.action in ("barge_in", "drop")


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("Mm-hm.", None, True),
        ("Yeah, yeah!", "en", True),
        ("of course", "en-GB", True),
        ("ja genau", "de", True),
        ("genau", "en", False),
        ("yes but wait", "en", False),
        ("", "en", False),
        ("...", "en", False),
        ("yes yes yes yes yes", "en", False),
        ("はい", "ja", True),
    ],
)
def test_acknowledgements(text: str, language: str | None, expected: bool) -> None:
    assert is_acknowledgement(text, SessionConfig(language=language)) is expected


def test_acknowledgements_can_be_overridden() -> None:
    own = SessionConfig(acknowledgements=("righto",))
    assert is_acknowledgement("Righto!", own) and not is_acknowledgement("yes", own)


# -- what the client says about an append --------------------------------------------------------------------------------


@pytest.mark.parametrize("hint", ["barge_in", "interrupt", "cancel"])
def test_a_hint_to_barge_in_announces_the_speech_that_was_undecided(hint: str) -> None:
    world = undecided()
    before = len(world.of(SpeechStarted))
    world.append(audio("S"), overlap_hint=hint)
    assert world.last(OverlapDecided).reason == "client_overlap_action"
    assert world.last(ResponseDone).reason == "turn_detected"
    assert len(world.of(SpeechStarted)) == before + 1
    world.say("S" * 6 + "." * 20)
    assert len(world.of(SpeechStarted)) == len(world.of(SpeechStopped)) == before + 1
    assert len(world.of(InputCommitted)) == 2


def test_forcing_a_barge_in_is_the_same() -> None:
    world = undecided()
    world.append(audio("S"), force_barge_in=True)
    assert world.last(ResponseDone).status == "cancelled"
    assert world.last(OverlapDecided).action == "barge_in"


def test_a_hint_to_listen_settles_it() -> None:
    world = undecided()
    world.append(audio("S"), overlap_hint="listen")
    world.say("S" * 12 + "." * 20)
    assert [e.action for e in world.of(OverlapDecided)] == ["listen"]
    assert not world.of(ResponseDone) and not world.state.outbox.held
    assert world.last(InputCommitted).deferred  # kept, and answered after


@pytest.mark.parametrize(
    ("hint", "action"),
    [
        ("drop", "drop"),
        ("ignore", "drop"),
        ("silence", "drop"),
        ("continue", "listen"),
        ("continue_output", "listen"),
        ("ack", "listen"),
    ],
)
def test_hints_that_keep_nothing(hint: str, action: str) -> None:
    world = undecided()
    for _ in range(12):
        world.now += 0.032
        world.append(audio("S"), overlap_hint=hint)
    world.say("." * 20)
    assert {e.action for e in world.of(OverlapDecided)} == {action}
    assert world.state.turn is None and not world.state.outbox.held
    world.advance(10.0)
    assert world.last(ResponseDone).status == "completed"
    assert len(world.of(InputCommitted)) == 1 and len(world.of(SpeechStarted)) == 1


def test_hints_mean_nothing_while_nobody_answers() -> None:
    world = World(VAD)
    for hint in ("barge_in", "drop", "listen", "ack"):
        world.append(audio("S" * 4), overlap_hint=hint)
    assert not world.of(OverlapDecided) and len(world.of(SpeechStarted)) == 1


def test_a_model_that_cannot_be_interrupted_says_so_and_keeps_the_audio() -> None:
    world = answering(capabilities=structs.replace(CASCADE, supports_barge_in=False))
    world.append(audio("S"), overlap_hint="barge_in", event_id="e")
    error = world.last(ErrorRaised)
    assert (error.code, error.event_id) == (ErrorCode.BARGE_IN_UNSUPPORTED, "e")
    world.send(BargeIn(event_id="f"))
    assert world.last(ErrorRaised).event_id == "f"
    world.say("S" * 20 + "." * 20)
    assert world.last(OverlapDecided).reason == "barge_in_unsupported"
    assert not world.of(ResponseDone) and len(world.of(InputCommitted)) == 2


# -- overtaken -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [CancelResponse(), ClearOutput()])
def test_a_client_that_stops_the_answer_makes_it_an_ordinary_turn(command: object) -> None:
    world = undecided()
    before = len(world.of(SpeechStarted))
    world.send(command)
    assert not world.state.outbox.held
    assert len(world.of(SpeechStarted)) == before + 1
    world.say("S" * 10 + "." * 20)
    assert len(world.of(SpeechStopped)) == before + 1
    assert len(world.of(ResponseCreated)) == 2


@pytest.mark.parametrize("command", [BargeIn(), CancelInput()])
def test_a_client_that_stops_everything_ends_the_turn_too(command: object) -> None:
    world = undecided()
    world.send(command)
    assert world.state.turn is None and world.state.overlap is None
    assert world.last(ResponseDone).status == "cancelled"
    assert world.state.audio.buffered_bytes == 0


def test_a_clear_lets_the_answer_go_on() -> None:
    world = undecided()
    world.send(ClearAudio())
    world.advance(10.0)
    assert world.last(ResponseDone).status == "completed"


def test_the_answer_goes_on_when_detection_is_switched_off() -> None:
    world = undecided()
    world.send(UpdateSession(patch=SessionPatch(turn_detection=None)))
    assert not world.state.outbox.held
    world.advance(10.0)
    assert world.last(ResponseDone).status == "completed"


def test_the_answer_goes_on_when_the_detector_fails() -> None:
    world = answering(auto=False)
    for _ in range(5):
        world.say("S")
        world.answer_all()
    world.speak(UserTranscript(text="mm-hm", final=False))
    world.say("S")
    detect = world.take(Detect)
    world.apply(DetectorFailed(number=detect.number, kind="speech", message="broken"))  # type: ignore[attr-defined]
    assert not world.state.outbox.held
    world.advance(10.0)
    assert world.last(ResponseDone).status == "completed"


def test_an_acknowledgement_that_turns_into_speech_interrupts_when_the_words_say_so() -> None:
    world = undecided()
    world.speak(UserTranscript(text="yeah", final=False))
    world.say("S" * 12)
    assert not world.of(ResponseDone)
    world.speak(UserTranscript(text="yeah but listen", final=False))
    assert world.last(ResponseDone).status == "cancelled"
    assert [e.action for e in world.of(OverlapDecided)] == ["pending", "barge_in"]


def test_an_acknowledgement_that_never_ends_interrupts_when_the_threshold_is_crossed() -> None:
    world = undecided()
    world.speak(UserTranscript(text="yeah", final=False))
    world.say("S" * 32)
    assert not world.of(ResponseDone)
    world.say("S")  # 38 frames: 1216 ms
    assert world.last(OverlapDecided).reason == "longer_than_acknowledgement"
    assert world.last(ResponseDone).status == "cancelled"


def test_nothing_leaves_while_it_is_undecided_and_everything_after() -> None:
    world = undecided(ms=3_000)
    sent = len(world.of(ResponseAudio))
    world.speak(UserTranscript(text="mm-hm", final=False))
    world.say("S" * 10)
    assert len(world.of(ResponseAudio)) == sent
    world.say("." * 20)
    world.advance(5.0)
    assert sum(e.duration_ms for e in world.of(ResponseAudio)) == 3_000


def test_barge_in_after_the_last_byte_left_is_as_visible_as_one_before() -> None:
    """Decision 6."""
    world = answering(ms=1_300)
    assert world.last(ResponseDone).status == "completed"
    world.say("S" * 3)
    assert world.state.overlap is not None
    world.say("S" * 2)
    world.send(BargeIn())
    assert world.last(OutputCleared).response_id == world.last(ResponseDone).response_id
    assert len(world.of(ResponseDone)) == 1 and world.core.epoch == 1


def test_being_made_to_listen_is_the_hint_to_listen() -> None:
    world = undecided()
    world.append(audio("S"), force_listen=True)
    world.say("S" * 12 + "." * 20)
    assert [e.action for e in world.of(OverlapDecided)] == ["listen"] and not world.of(ResponseDone)


def test_speech_that_outlasts_an_answer_it_did_not_interrupt_is_announced_then() -> None:
    world = answering(LISTEN_ONLY, ms=1_500)
    world.say("S" * 10)
    assert len(world.of(SpeechStarted)) == 1
    world.say("S" * 30 + "." * 16)
    assert len(world.of(SpeechStarted)) == len(world.of(SpeechStopped)) == 2
    assert world.last(SpeechStarted).audio_start_ms == 36 * 32
    assert not world.last(InputCommitted).deferred and len(world.of(ResponseCreated)) == 2


# -- what counts as speech -----------------------------------------------------------------------------------------------


def voice(frames: int, rms: int) -> bytes:
    """Frames of the same loudness, in sample units."""
    return rms.to_bytes(2, "little") * 512 * frames


@pytest.mark.parametrize(("rms", "interrupts"), [(327, False), (328, True), (329, True)])
def test_speech_over_an_answer_must_be_so_loud(rms: int, interrupts: bool) -> None:
    """``overlap_silence_rms``, here one hundredth of full scale (327.68)."""
    world = answering(SessionConfig(turn_detection=ServerVad(), overlap_silence_rms=0.01))
    for _ in range(20):
        world.verdicts.append(0.9)
        world.advance(0.032)
        world.append(voice(1, rms))
    assert bool(world.of(OverlapDecided)) == interrupts == bool(world.of(ResponseDone))
    assert world.state.outbox.held is False


def test_a_voice_that_becomes_loud_is_heard_from_there() -> None:
    world = answering(SessionConfig(turn_detection=ServerVad(), overlap_silence_rms=0.01))
    began = world.state.audio.ms(world.state.audio.end)
    for rms in [100] * 30 + [8_000] * 12:
        world.verdicts.append(0.9)
        world.advance(0.032)
        world.append(voice(1, rms))
    assert world.last(ResponseDone).reason == "turn_detected"
    started = world.last(SpeechStarted).audio_start_ms
    assert began + 30 * 32 - 300 - 96 <= started <= began + 30 * 32 - 300


def test_while_nobody_answers_the_detector_alone_decides() -> None:
    world = World(SessionConfig(turn_detection=ServerVad(), overlap_silence_rms=1.0))
    world.say("S" * 5)
    assert world.of(SpeechStarted)


@pytest.mark.parametrize("chunk", [1, 511, 512, 513, 5_000])
def test_the_client_s_word_on_an_append_outranks_the_detector(chunk: int) -> None:
    """Frames count as what the append says in which they end."""
    world = World(VAD)

    def append(pcm: bytes, is_speech: bool | None) -> None:
        for start in range(0, len(pcm), 2 * chunk):
            world.append(pcm[start : start + 2 * chunk], is_speech=is_speech)

    append(audio("S" * 20), False)
    assert not world.of(SpeechStarted)
    append(audio("." * 10), True)
    assert world.last(SpeechStarted).audio_start_ms == 20 * 32 - 300
    append(audio("S" * 16), False)
    assert len(world.of(InputCommitted)) == 1
    append(audio("." * 10), None)
    assert len(world.of(SpeechStarted)) == 1 and not world.state.detection.claims
    append(audio("S" * 5), None)
    assert len(world.of(SpeechStarted)) == 2


def test_what_the_client_calls_speech_interrupts_however_quiet_it_is() -> None:
    world = answering()
    for _ in range(20):
        world.advance(0.032)
        world.append(audio("."), is_speech=True)
    assert world.last(ResponseDone).reason == "turn_detected"


def test_without_a_detector_what_the_client_calls_silence_is_not_kept_while_the_answer_goes_on() -> None:
    world = World(SessionConfig())
    world.append(audio("S" * 20), is_speech=True)
    world.send_turn(ms=8_000)
    world.append(audio("." * 20), is_speech=False)
    assert world.last(OverlapDecided).reason == "silence_or_noise"
    assert world.state.audio.buffered_bytes == 0
    world.append(audio("S" * 20), is_speech=True)
    world.append(audio("S" * 20))
    assert world.state.audio.buffered_bytes == 2 * len(audio("S" * 20)) and len(world.of(OverlapDecided)) == 1
    world.advance(30.0)
    world.append(audio("." * 20), is_speech=False)  # nobody answers: a pause in what is said
    assert world.state.audio.buffered_bytes == 3 * len(audio("S" * 20))


def test_claims_do_not_outlive_the_detector_they_outrank() -> None:
    world = World(VAD, auto=False)
    world.append(audio("S" * 20), is_speech=True)
    detect = world.take(Detect)
    world.apply(DetectorFailed(number=detect.number, kind="speech", message="no"))  # type: ignore[attr-defined]
    assert not world.state.detection.claims
    world.send(ClearAudio())
