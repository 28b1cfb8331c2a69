"""The front end: decoding in wire order, detection, settings."""

from __future__ import annotations

import asyncio
import random

import msgspec
import pytest

from duologue.audio.format import AudioFormat
from duologue.config.session import ServerVad, SessionConfig, SessionPatch
from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.commands import (
    AppendAudio,
    BargeIn,
    CancelResponse,
    ClearAudio,
    CloseSession,
    CommitAudio,
    Heartbeat,
    RetrieveItem,
    UpdateSession,
)
from duologue.engine.duplex.core.items import Replaced, ReplicaLost
from duologue.engine.duplex.events import (
    ErrorRaised,
    HeartbeatAcknowledged,
    InputCleared,
    InputCommitted,
    ResponseDone,
    SpeechStarted,
    SpeechStopped,
)
from duologue.engine.duplex.session.detection import BatchedDetection, ScriptedDetection
from duologue.errors import ErrorCode
from duologue.models.scripted import Script, silence, tone
from duologue.models.scripted.resident import ResidentPlugin
from duologue.sim.loop import VirtualRuntime, virtual
from tests.unit.session.desk import Desk, desk
from tests.unit.session.world import MANUAL, RATE_HZ, VAD


def committed(there: Desk) -> bytes:
    """The audio of the last turn that was submitted."""
    request_id = there.last_request
    return b"".join(entry.prompt.audio for entry in there.port.submitted if entry.context.request_id == request_id)


def ask(there: Desk) -> None:
    there.runner.submit(CommitAudio(create_response=True))


@virtual
async def test_any_chunking_gives_the_same_samples(runtime: VirtualRuntime) -> None:
    config = msgspec.structs.replace(MANUAL, input_format=AudioFormat("pcm16", 24_000))
    audio = tone(1_000, rate_hz=24_000)
    heard = []
    for seed in range(4):
        there = desk(runtime, config=config)
        chance = random.Random(seed)
        rest = audio
        while rest:
            size = len(rest) if seed == 0 else chance.randrange(1, 3_000)
            there.runner.submit(AppendAudio(audio=rest[:size]))
            rest = rest[size:]
        ask(there)
        heard.append(committed(there))
    assert len(set(heard)) == 1
    assert len(heard[0]) == pytest.approx(16_000 * 2, abs=8)


@virtual
async def test_a_commit_takes_what_the_filters_hold_and_a_clear_forgets_it(runtime: VirtualRuntime) -> None:
    config = msgspec.structs.replace(MANUAL, input_format=AudioFormat("pcm16", 48_000))
    there = desk(runtime, config=config)
    there.runner.submit(AppendAudio(audio=tone(1_000, rate_hz=48_000)))
    ask(there)
    whole = committed(there)
    assert len(whole) == pytest.approx(32_000, abs=4)
    again = desk(runtime, config=config)
    again.runner.submit(AppendAudio(audio=tone(500, rate_hz=48_000) + b"\x01"))
    again.runner.submit(ClearAudio())
    again.runner.submit(AppendAudio(audio=tone(1_000, rate_hz=48_000)))
    ask(again)
    assert committed(again) == whole


@virtual
async def test_a_long_append_keeps_its_place_and_lets_others_in_between(runtime: VirtualRuntime) -> None:
    there = desk(runtime)
    audio = tone(10_000, rate_hz=RATE_HZ)
    there.runner.submit(AppendAudio(audio=audio))
    there.runner.submit(Heartbeat())
    there.runner.submit(AppendAudio(audio=b"\x05\x00" * 100))
    ask(there)
    assert there.of(HeartbeatAcknowledged) == []
    assert there.runner.control.waiting_commands > 0
    turns = 0
    while there.runner.control.waiting_commands:
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 3
    assert len(there.of(HeartbeatAcknowledged)) == 1
    assert committed(there) == audio + b"\x05\x00" * 100


@virtual
async def test_whoever_sends_is_there_although_what_is_sent_has_to_wait(runtime: VirtualRuntime) -> None:
    """Decision 21: anything that a user does counts as activity, when it is done."""

    there = desk(runtime, plugin=ResidentPlugin(Script()), limits=DuplexSessionRuntimeConfig(idle_ttl_s=10.0))
    there.runner.submit(AppendAudio(audio=tone(500, rate_hz=RATE_HZ)))
    there.runner.apply(ReplicaLost(message="It is gone."))  # until there is another one nothing is heard
    there.runner.submit(AppendAudio(audio=tone(500, rate_hz=RATE_HZ)))
    there.runner.submit(UpdateSession(patch=SessionPatch(instructions="later")))
    await asyncio.sleep(8)
    there.runner.submit(AppendAudio(audio=tone(500, rate_hz=RATE_HZ)))
    assert there.runner.control.waiting_commands == 1
    expiry = there.runner.session.lease_expiry
    assert expiry(runtime.now() + 9.9) is None
    assert expiry(runtime.now() + 10.0) == "idle_ttl_expired"


@virtual
async def test_what_is_sent_after_the_end_is_not_tried_for_ever(runtime: VirtualRuntime) -> None:
    there = desk(runtime, plugin=ResidentPlugin(Script()))
    there.runner.submit(AppendAudio(audio=tone(500, rate_hz=RATE_HZ)))
    there.runner.apply(ReplicaLost(message="It is gone."))
    there.runner.submit(UpdateSession(patch=SessionPatch(instructions="later")))
    await there.runner.shutdown()
    there.runner.submit(RetrieveItem(item_id="item"))
    assert there.runner.session.holding
    there.runner.apply(Replaced())
    assert not there.runner.session.holding
    runtime.loop.stall_turns = 1_000
    await asyncio.sleep(0.1)


@virtual
async def test_what_stops_something_does_not_wait_behind_a_long_append(runtime: VirtualRuntime) -> None:
    there = desk(runtime)
    there.runner.submit(AppendAudio(audio=tone(500, rate_hz=RATE_HZ)))
    ask(there)
    there.runner.submit(AppendAudio(audio=tone(60_000, rate_hz=RATE_HZ)))
    there.runner.submit(CancelResponse())
    assert there.of(ResponseDone)[0].status == "cancelled"
    assert there.runner.control.waiting_commands > 0
    there.runner.submit(Heartbeat())
    there.runner.submit(BargeIn())
    await asyncio.sleep(0.1)
    assert there.runner.control.waiting_commands == 0
    assert len(there.of(HeartbeatAcknowledged)) == 1, "only audio and commits are dropped with the input"
    there.runner.submit(CommitAudio(event_id="e1"))
    assert there.of(ErrorRaised)[-1].code == ErrorCode.INPUT_AUDIO_BUFFER_EMPTY


@virtual
async def test_what_waits_behind_a_long_append_is_told_that_the_session_ends(runtime: VirtualRuntime) -> None:
    there = desk(runtime)
    there.runner.submit(AppendAudio(audio=tone(60_000, rate_hz=RATE_HZ)))
    there.runner.submit(CommitAudio(event_id="commit"))
    there.runner.submit(RetrieveItem(item_id="item_1", event_id="retrieve"))
    there.runner.submit(CloseSession())
    assert there.runner.control.waiting_commands == 0
    await asyncio.sleep(1.0)
    assert [(error.event_id, error.code) for error in there.of(ErrorRaised)] == [
        (event_id, ErrorCode.SESSION_CLOSED) for event_id in ("commit", "retrieve")
    ]
    assert not there.of(InputCommitted)


@virtual
async def test_an_accepted_update_changes_how_audio_is_read_and_a_refused_one_does_not(runtime: VirtualRuntime) -> None:
    there = desk(runtime)
    floats = AudioFormat("float32", RATE_HZ)
    there.runner.submit(UpdateSession(patch=SessionPatch(input_format=floats, voice="refused"), event_id="e1"))
    assert there.of(ErrorRaised)[0].event_id == "e1"
    assert there.runner.control.input_format == MANUAL.input_format
    there.runner.submit(UpdateSession(patch=SessionPatch(input_format=floats)))
    assert there.runner.control.input_format == floats
    there.runner.submit(AppendAudio(audio=bytes(4 * RATE_HZ)))
    ask(there)
    assert committed(there) == bytes(2 * RATE_HZ)


@virtual
async def test_a_change_of_format_loses_no_sample(runtime: VirtualRuntime) -> None:
    there = desk(runtime, config=msgspec.structs.replace(MANUAL, input_format=AudioFormat("pcm16", 48_000)))
    there.runner.submit(AppendAudio(audio=tone(500, rate_hz=48_000)))
    there.runner.submit(UpdateSession(patch=SessionPatch(input_format=AudioFormat("pcm16", 8_000))))
    there.runner.submit(AppendAudio(audio=tone(500, rate_hz=8_000)))
    ask(there)
    assert len(committed(there)) == pytest.approx(32_000, abs=8)


@virtual
async def test_an_empty_append_changes_nothing(runtime: VirtualRuntime) -> None:
    there = desk(runtime)
    there.runner.submit(AppendAudio(audio=b""))
    there.runner.submit(AppendAudio(audio=b"\x01"))
    there.runner.submit(CommitAudio(event_id="e1"))
    assert there.of(ErrorRaised)[0].code == ErrorCode.INPUT_AUDIO_BUFFER_EMPTY


# Detection


@virtual
async def test_without_a_detector_input_goes_on_and_the_client_is_told_once(runtime: VirtualRuntime) -> None:
    there = desk(runtime, config=VAD)
    there.runner.control._detection = None
    for _ in range(10):
        there.runner.submit(AppendAudio(audio=tone(200, rate_hz=RATE_HZ)))
    assert [event.code for event in there.of(ErrorRaised)] == [ErrorCode.SERVER_VAD_UNAVAILABLE]
    ask(there)
    assert len(there.of(InputCommitted)) == 1
    assert len(committed(there)) == 2 * 2 * RATE_HZ


@virtual
async def test_a_detector_that_fails_later_is_off_from_then_on(runtime: VirtualRuntime) -> None:
    there = desk(runtime, config=VAD, detection=ScriptedDetection(fail_after=3))
    for _ in range(10):
        there.runner.submit(AppendAudio(audio=tone(64, rate_hz=RATE_HZ)))
    assert [event.code for event in there.of(ErrorRaised)] == [ErrorCode.SERVER_VAD_UNAVAILABLE]


class Loudness:
    """A scorer that takes its time, counts its calls and can be told to fail."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.fail = False

    def score(self, batch: object) -> list[object]:
        entries = list(batch)  # type: ignore[call-overload]
        self.batches.append([len(frames) for _, frames in entries])
        if self.fail:
            raise RuntimeError("no model")
        return [abs(frames).max(axis=1) for _, frames in entries]


@virtual
async def test_decision_24_frames_of_many_sessions_share_a_call(runtime: VirtualRuntime) -> None:
    scorer = Loudness()
    service = BatchedDetection(runtime, scorer)  # type: ignore[arg-type]
    desks = [desk(runtime, config=VAD, detection=service) for _ in range(5)]
    for there in desks:
        there.runner.submit(AppendAudio(audio=tone(320, rate_hz=RATE_HZ, level=11)))
    await asyncio.sleep(0.01)
    assert scorer.batches == [[10] * 5]
    assert all(there.of(SpeechStarted) for there in desks)


@virtual
async def test_a_long_request_is_cut_so_that_others_get_their_turn(runtime: VirtualRuntime) -> None:
    scorer = Loudness()
    service = BatchedDetection(runtime, scorer)  # type: ignore[arg-type]
    answers: list[tuple[str, int]] = []
    long, short = service.open_stream(), service.open_stream()
    long.score(bytes(1024 * 100), reset=False, answer=lambda verdict: answers.append(("long", len(verdict))))  # type: ignore[arg-type]
    long.score(bytes(1024), reset=False, answer=lambda verdict: answers.append(("long", len(verdict))))  # type: ignore[arg-type]
    short.score(bytes(1024 * 2), reset=False, answer=lambda verdict: answers.append(("short", len(verdict))))  # type: ignore[arg-type]
    await asyncio.sleep(0.01)
    assert answers == [("short", 2), ("long", 100), ("long", 1)]
    assert max(max(batch) for batch in scorer.batches) == 32


@virtual
async def test_a_failing_scorer_answers_everybody_and_closed_streams_are_not_answered(runtime: VirtualRuntime) -> None:
    scorer = Loudness()
    service = BatchedDetection(runtime, scorer)  # type: ignore[arg-type]
    answers: list[object] = []
    first, second = service.open_stream(), service.open_stream()
    scorer.fail = True
    first.score(bytes(1024), reset=False, answer=answers.append)
    second.score(bytes(1024), reset=False, answer=answers.append)
    second.close()
    await asyncio.sleep(0.01)
    assert [type(answer) for answer in answers] == [RuntimeError]
    scorer.fail = False
    third = service.open_stream()
    first.score(bytes(1024), reset=True, answer=answers.append)
    third.score(bytes(1024), reset=True, answer=answers.append)
    await asyncio.sleep(0)
    assert scorer.batches == [[1]], "the call is under way"
    third.close()
    await asyncio.sleep(0.01)
    assert scorer.batches == [[1], [1, 1]]
    assert answers[1:] == [(0.0,)]


@virtual
async def test_events_are_the_same_inline_and_batched(runtime: VirtualRuntime) -> None:
    audio = tone(700, rate_hz=RATE_HZ, level=11) + silence(800, rate_hz=RATE_HZ)
    config = SessionConfig(input_format=MANUAL.input_format, turn_detection=ServerVad(create_response=False))
    seen = []
    for detection in (ScriptedDetection(), BatchedDetection(runtime, Loudness())):  # type: ignore[arg-type]
        there = desk(runtime, config=config, detection=detection)
        for start in range(0, len(audio), 640):
            there.runner.submit(AppendAudio(audio=audio[start : start + 640]))
            await asyncio.sleep(0.02)
        seen.append([event for event in there.manager.events if isinstance(event, SpeechStarted | SpeechStopped)])
        assert there.of(InputCleared) == []
    assert len(seen[0]) == 2
    assert seen[0] == seen[1]
