"""`duologue talk` against a server in memory, and what it does with a loudspeaker."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from duologue.audio import write_wav
from duologue.cli.exchange import TalkOptions, settings
from duologue.cli.fault import CommandError
from duologue.cli.sound import Speaker, follow
from duologue.cli.talk import Outcome, converse, run_talk
from duologue.client import PlaybackTracker, connect
from duologue.sim.loop import virtual
from duologue.wire.objects import Response
from duologue.wire.server_events import AudioDelta, OutputCleared, ResponseDone, SpeechStarted
from tests.unit.demo.speech_server import RATE_HZ, Manners, SpeechServer

SECOND = (8000 * np.sin(2 * np.pi * 220 * np.arange(RATE_HZ) / RATE_HZ)).astype("<i2").tobytes()


async def talk(server: SpeechServer, options: TalkOptions, pcm16: bytes = SECOND) -> tuple[Outcome, list[str]]:
    said: list[str] = []
    session_settings = settings(options, RATE_HZ)
    async with connect("ws://h", session=session_settings, opener=server.open) as session:
        return await converse(session, pcm16, RATE_HZ, options, say=said.append), said


@virtual
async def test_a_file_is_spoken_and_answered() -> None:
    server = SpeechServer(["Who are you?"], ["A machine."])
    outcome, said = await talk(server, TalkOptions(url="ws://h"))
    assert outcome.status == "completed"
    assert len(outcome.audio) == 2 * RATE_HZ * 1500 // 1000
    assert said == ["you: Who are you?"]
    appends = [event for event in server.received if event["type"] == "input_audio_buffer.append"]
    assert len(appends) > 25


@virtual
async def test_without_an_answer_it_gives_up_in_time() -> None:
    server = SpeechServer(["Who?"], ["-"], Manners(silent_turns=frozenset({1})))
    start_s = asyncio.get_running_loop().time()
    outcome, _ = await talk(server, TalkOptions(url="ws://h", timeout_s=5.0))
    assert outcome.status is None
    assert asyncio.get_running_loop().time() - start_s < 8.0


@virtual
async def test_an_answer_that_was_withdrawn_is_not_the_answer() -> None:
    server = SpeechServer(["One", "two"], ["First.", "Second."], Manners(answer_ms={1: 5000, 2: 1000}))
    pause = bytes(2 * RATE_HZ * 1200 // 1000)
    outcome, _ = await talk(server, TalkOptions(url="ws://h"), SECOND + pause + SECOND)
    assert outcome.status == "completed"
    assert len(outcome.audio) == 2 * RATE_HZ


@virtual
async def test_at_full_speed_the_end_of_the_file_ends_the_turn() -> None:
    server = SpeechServer(["Who?"], ["-"], Manners(silent_turns=frozenset({1})))
    outcome, _ = await talk(server, TalkOptions(url="ws://h", realtime=False, timeout_s=2.0))
    assert outcome.status is None
    update = server.received[0]["session"]
    assert update["audio"]["input"]["turn_detection"] is None
    kinds = [event["type"] for event in server.received]
    assert kinds.count("input_audio_buffer.append") == 1
    commit = next(event for event in server.received if event["type"] == "input_audio_buffer.commit")
    assert commit["response_create"] is True


def test_the_loudspeaker_gets_exactly_what_it_asks_for() -> None:
    speaker = Speaker()
    speaker.put(b"abcd")
    speaker.put(b"ef")
    assert speaker.take(3) == b"abc"
    assert speaker.take(5) == b"def\0\0"
    speaker.put(b"gh")
    speaker.clear()
    assert speaker.take(2) == b"\0\0"


class Session:
    """Keeps what was truncated."""

    def __init__(self) -> None:
        self.cuts: list[tuple[str, int]] = []

    async def truncate(self, item_id: str, audio_end_ms: int) -> None:
        self.cuts.append((item_id, audio_end_ms))


def delta(response_id: str, size: int) -> AudioDelta:
    return AudioDelta(response_id=response_id, item_id=f"i{response_id}", delta=bytes(size))


@virtual
async def test_the_loudspeaker_falls_silent_when_the_user_speaks() -> None:
    loop = asyncio.get_running_loop()
    session: Any = Session()
    speaker, tracker = Speaker(), PlaybackTracker(now=loop.time, rate_hz=RATE_HZ)
    await follow(delta("r1", 2 * RATE_HZ), session, speaker, tracker)
    await asyncio.sleep(0.25)
    await follow(SpeechStarted(item_id="u", audio_start_ms=0), session, speaker, tracker)
    assert session.cuts == [("ir1", 250)]
    await follow(delta("r1", 100), session, speaker, tracker)
    assert speaker.take(4) == bytes(4) and not speaker._chunks
    for end in (
        OutputCleared(response_id="r2"),
        ResponseDone(response=Response(id="r2", status="cancelled")),
    ):
        await follow(delta("r2", 100), session, speaker, tracker)
        await follow(end, session, speaker, tracker)
        assert not speaker._chunks


@pytest.mark.parametrize(
    ("heard", "said"), [(b"", "no answer within 3 s"), (bytes(480), "the answer was not over after 3 s")]
)
def test_it_is_told_whether_there_was_no_answer_or_no_end_of_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, heard: bytes, said: str
) -> None:
    async def interrupted(options: TalkOptions, pcm16: bytes, rate_hz: int) -> Outcome:
        return Outcome(audio=heard, status=None)

    monkeypatch.setattr("duologue.cli.talk._talk", interrupted)
    write_wav(tmp_path / "question.wav", SECOND, RATE_HZ)
    with pytest.raises(CommandError, match=said):
        run_talk(TalkOptions(url="ws://h", wav=tmp_path / "question.wav", timeout_s=3.0))
