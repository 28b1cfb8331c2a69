"""The four turns against a server in memory, and every way in which the demo must fail."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from duologue.audio import read_wav
from duologue.client import connect
from duologue.demo.conversation import Conversation
from duologue.demo.microphone import Microphone, Utterance, annotate
from duologue.demo.player import Player
from duologue.demo.prompts import Message, Prompt
from duologue.demo.recorder import EventRecorder
from duologue.demo.report import Evidence, Plan, TurnReport, find_failures, measures_of, turn_reports
from duologue.demo.run import write_sound
from duologue.demo.scene import RATE_HZ, four_turns, opening_settings
from duologue.demo.script import Script
from duologue.sim import loop as virtual_time
from tests.unit.demo.speech_server import Manners, SpeechServer

TEXTS = ("I do think so.", "How many legs?", "Tell me a long story.", "Who is it about?")
ANSWERS = ("Well.", "Eight.", "Once upon a time there was a man who kept a light by the sea for years.", "A man.")


def tone(text: str, duration_s: float) -> Utterance:
    time_s = np.arange(int(duration_s * RATE_HZ)) / RATE_HZ
    return annotate(text, (8000 * np.sin(2 * np.pi * 220 * time_s)).astype("<i2").tobytes(), RATE_HZ)


SCRIPT = Script(
    recording=tone(TEXTS[0], 1.2), question=tone(TEXTS[1], 1.0), long_request=tone(TEXTS[2], 1.4),
    follow_up=tone(TEXTS[3], 1.0),
)  # fmt: skip


class Held(msgspec.Struct):
    server: SpeechServer
    evidence: Evidence
    turns: tuple[TurnReport, ...]
    codes: list[tuple[str, int | None]]
    player: Player
    microphone: Microphone
    recorder: EventRecorder
    conversation: Conversation


def hold(manners: Manners | None = None, *, prompts: bool = True, transcripts: tuple[str, ...] = TEXTS) -> Held:
    """The whole conversation in virtual time."""

    async def main(_: object) -> Held:
        server = SpeechServer(list(transcripts), list(ANSWERS), manners)
        origin_s = asyncio.get_running_loop().time()

        def now() -> float:
            return asyncio.get_running_loop().time() - origin_s

        recorder = EventRecorder(now=now, input_rate_hz=RATE_HZ, output_rate_hz=RATE_HZ)
        microphone = Microphone(RATE_HZ)
        player = Player(now=now, rate_hz=RATE_HZ)
        async with connect("ws://h", session=opening_settings(), opener=server.open, tap=recorder) as session:
            conversation = Conversation(session, microphone, player, now=now)
            async with conversation.running():
                await four_turns(conversation, SCRIPT)
                heard = await conversation.heard_texts()
        played = {
            key: float(known.played_ms)
            for key in conversation.ledger.answers
            if (known := player.heard(key)) is not None
        }
        asked = tuple(
            Prompt(session_id="s1", request_id="r", messages=tuple(Message(*entry) for entry in prompt))
            for prompt in server.prompts
        )
        evidence = Evidence(
            ledger=conversation.ledger, played_ms=played, heard=heard, prompts=asked if prompts else None
        )
        turns = turn_reports(evidence)
        failures = find_failures(evidence, turns, Plan())
        codes = [(failure.code, failure.turn) for failure in failures]
        return Held(server, evidence, turns, codes, player, microphone, recorder, conversation)

    return virtual_time.run(main, limit_s=200.0)


@pytest.fixture(scope="module")
def good() -> Held:
    return hold()


def test_a_good_conversation_has_no_failures(good: Held) -> None:
    assert good.codes == []
    assert [turn.user_text_heard for turn in good.turns] == list(TEXTS)
    assert [turn.wer for turn in good.turns] == [0.0] * 4
    assert [turn.interrupted for turn in good.turns] == [False, False, True, False]
    assert [turn.assistant_text for turn in good.turns] == list(ANSWERS)


def test_the_wait_is_counted_from_the_last_sample_of_speech(good: Held) -> None:
    # the server answers 300 ms after it heard the last loud chunk (up to 100 ms long), plus 200 ms
    for turn in good.turns:
        assert turn.end_of_speech_to_first_audio_ms is not None
        assert 490 <= turn.end_of_speech_to_first_audio_ms <= 720


def test_the_interruption_comes_two_seconds_into_the_answer(good: Held) -> None:
    third = good.turns[2]
    assert 2000 <= third.answer_played_ms <= 2400
    assert third.answer_generated_ms == 20_000
    assert third.assistant_text.startswith(third.assistant_text_heard)
    assert 0 < len(third.assistant_text_heard) < len(third.assistant_text)
    assert third.stop_latency_onset_ms is not None and 0 <= third.stop_latency_onset_ms <= 300
    assert third.stop_latency_decision_ms == 0.0
    truncate = [event for event in good.server.received if event["type"] == "conversation.item.truncate"]
    assert [(event["item_id"], event["audio_end_ms"]) for event in truncate] == [("a3", int(third.answer_played_ms))]


def test_the_measures_come_from_the_turns(good: Held) -> None:
    measures = {measure.name: measure for measure in measures_of(good.turns, Plan())}
    assert measures["word error rate, human recording"].met
    assert measures["speech onset to last audio"].value == good.turns[2].stop_latency_onset_ms
    waits = sorted(turn.end_of_speech_to_first_audio_ms or 0 for turn in good.turns)
    assert measures["end of speech to first audio, median"].value == pytest.approx((waits[1] + waits[2]) / 2)


def test_the_recording_is_silent_from_the_stop_until_the_next_answer(good: Held, tmp_path: Path) -> None:
    start_s = good.conversation.microphone_start_s
    write_sound(tmp_path / "c.wav", microphone=good.microphone, player=good.player, start_s=start_s)
    import wave

    with wave.open(str(tmp_path / "c.wav")) as file:
        assert (file.getnchannels(), file.getframerate()) == (2, RATE_HZ)
        frames = np.frombuffer(file.readframes(file.getnframes()), "<i2").reshape(-1, 2)
    cut = good.evidence.ledger.interruptions[0]
    following = good.evidence.ledger.answer_to(4)
    assert following is not None and following.first_audio_s is not None
    stop, restart = round(cut.decision_s * RATE_HZ), round(following.first_audio_s * RATE_HZ)
    assert not frames[stop:restart, 1].any()
    assert frames[stop - RATE_HZ // 10 : stop, 1].any()
    onset = round(cut.onset_s * RATE_HZ)
    assert np.abs(frames[onset : onset + RATE_HZ // 2, 0]).max() > 7000
    assert np.abs(frames[onset - RATE_HZ // 2 : onset - 1, 0]).max() < 100
    read_wav(tmp_path / "c.wav")


def test_every_event_is_recorded_with_a_time_that_never_goes_back(good: Held, tmp_path: Path) -> None:
    good.recorder.write(tmp_path / "events.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert len(lines) == len(good.recorder) > 500
    times = [line["t_ms"] for line in lines]
    assert times == sorted(times)
    out = [line for line in lines if line["direction"] == "out"]
    assert len(out) == len(good.server.received)
    assert all("audio" not in line["event"] for line in out)


def test_the_microphone_keeps_time_and_never_pauses(good: Held) -> None:
    spoken_s = good.microphone.position_s
    appends = [event for event in good.server.received if event["type"] == "input_audio_buffer.append"]
    assert len(appends) > spoken_s * 10
    last = good.evidence.ledger.turns[-1]
    assert spoken_s > last.end_s + 1.0


def test_playback_is_acknowledged(good: Held) -> None:
    acks = [event for event in good.server.received if event["type"] == "playback.ack"]
    first = [event["played_ms"] for event in acks if event["response_id"] == "r1"]
    assert first == sorted(first) and first[-1] == 1500


# -- each condition of failure


def test_a_turn_without_an_answer_fails() -> None:
    assert ("not_answered", 2) in hold(Manners(silent_turns=frozenset({2}))).codes


def test_a_turn_that_was_not_understood_fails() -> None:
    assert ("not_understood", 1) in hold(Manners(deaf_turns=frozenset({1}))).codes


def test_too_little_left_to_cut_fails() -> None:
    lengths = {1: 1500, 2: 1500, 3: 4500, 4: 1500}
    assert hold(Manners(answer_ms=lengths)).codes == [("too_little_unplayed", 3)]


def test_an_answer_that_is_over_before_the_interruption_fails() -> None:
    lengths = {1: 1500, 2: 1500, 3: 1000, 4: 1500}
    assert ("not_interrupted", 3) in hold(Manners(answer_ms=lengths)).codes


def test_an_answer_that_is_not_stopped_fails() -> None:
    codes = hold(Manners(stops=False, answer_ms={1: 1500, 2: 1500, 3: 8000, 4: 1500})).codes
    assert any(code in ("not_interrupted", "answer_went_on") and turn == 3 for code, turn in codes)


def test_an_answer_whose_audio_goes_on_fails() -> None:
    assert hold(Manners(runs_on_ms=800)).codes == [("answer_went_on", 3)]


def test_an_interrupted_answer_that_ends_as_completed_fails() -> None:
    assert hold(Manners(status_when_stopped="completed")).codes == [("answer_went_on", 3)]


def test_an_interrupted_answer_that_ends_as_failed_fails() -> None:
    assert hold(Manners(status_when_stopped="failed")).codes == [("answer_went_on", 3)]


def test_audio_after_the_terminal_fails() -> None:
    assert ("audio_after_terminal", 3) in hold(Manners(late_audio_ms=200)).codes


def test_a_response_without_a_terminal_fails() -> None:
    assert ("terminal_missing", 1) in hold(Manners(loses_terminal_of=1)).codes


def test_a_prompt_that_holds_what_nobody_heard_fails() -> None:
    held = hold(Manners(forgets_cut=True))
    heard = {**held.evidence.heard, "r3": "Once upon a"}
    evidence = msgspec.structs.replace(held.evidence, heard=heard)
    failures = find_failures(evidence, turn_reports(evidence), Plan())
    assert [(failure.code, failure.turn) for failure in failures] == [("prompt_mismatch", 4)]


def test_without_the_prompt_log_the_demo_fails() -> None:
    assert hold(prompts=False).codes == [("prompt_mismatch", 4)]


def test_an_error_event_fails() -> None:
    assert ("session_fault", None) in hold(Manners(error_in_turn=2)).codes


def test_a_session_that_ends_early_fails_and_names_what_was_not_reached() -> None:
    held = hold(Manners(closes_in_turn=2))
    assert ("session_fault", None) in held.codes
    assert {("not_answered", 2), ("not_answered", 3), ("not_answered", 4)} <= set(held.codes)
    assert held.evidence.ledger.ended_code == "replica_unavailable"


def test_words_that_were_misheard_are_counted_but_fail_nothing() -> None:
    held = hold(transcripts=("I do sink so.", *TEXTS[1:]))
    assert held.codes == []
    assert held.turns[0].wer == 0.25
    wer = [measure for measure in measures_of(held.turns, Plan()) if "word error" in measure.name]
    assert not wer[0].met
