"""Ordinary requests beside sessions: they take no slot, they get the same answers, and nobody disturbs the other."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from duologue.audio.format import AudioFormat
from duologue.clock import Runtime
from duologue.config.session import ServerVad, SessionConfig
from duologue.engine.duplex.commands import AppendAudio
from duologue.engine.duplex.events import ResponseDone
from duologue.engine.duplex.messages import CloseSessionMessage, OpenSession, SessionCommand, SessionEventMessage
from duologue.models.scripted.script import Script
from duologue.models.scripted.sound import silence, tone
from duologue.server.engine import SessionOutput
from duologue.sim.loop import run, virtual
from tests.unit.server.turns.world import Answer, World, chat_body, form, world

RATE_HZ = 16_000
SCRIPT = Script(transcripts=tuple(f"words {level}" for level in range(12)), sentences=3, sentence_ms=800)
SPOKEN = {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}}
CONFIG = SessionConfig(input_format=AudioFormat(encoding="pcm16", rate_hz=RATE_HZ), turn_detection=ServerVad())


@dataclass
class Talker:
    """A session whose user says something again and again."""

    place: World
    number: int
    done: list[ResponseDone] = field(default_factory=list)

    @property
    def session_id(self) -> str:
        return f"session-{self.number}"

    def take(self, output: SessionOutput) -> None:
        if isinstance(output, SessionEventMessage) and isinstance(output.event, ResponseDone):
            self.done.append(output.event)

    async def talk(self, turns: int) -> None:
        front = self.place.front
        front.subscribe(self.session_id, self.take)
        await front.control(
            OpenSession(
                session_id=self.session_id, control_id=f"open-{self.number}", config=CONFIG, seed=str(self.number)
            )
        )
        for _ in range(turns):
            speech = tone(600, rate_hz=RATE_HZ, level=self.number % 12) + silence(4_000, rate_hz=RATE_HZ)
            size = RATE_HZ // 10 * 2
            for start in range(0, len(speech), size):
                command = AppendAudio(audio=speech[start : start + size])
                front.post(SessionCommand(session_id=self.session_id, command=command))
                await asyncio.sleep(0.1)
        await front.control(CloseSessionMessage(session_id=self.session_id, control_id=f"close-{self.number}"))
        front.unsubscribe(self.session_id)

    @property
    def heard(self) -> list[tuple[str, str]]:
        return [(event.status, event.full_text) for event in self.done]


def said(answer: Answer) -> Any:
    """An answer without what is new each time."""
    if "json" not in answer.headers["content-type"]:
        return bytes(answer.body)
    body = answer.json
    body.pop("id", None)
    body.pop("created", None)
    for choice in body.get("choices", ()):
        for name in ("id", "expires_at"):
            choice["message"].get("audio", {}).pop(name, None)
    return json.dumps(body, sort_keys=True)


async def ask_everything(place: World) -> list[Any]:
    answers = []
    for level in range(6):
        upload, media_type = form(tone(900, rate_hz=24_000, level=level), name="a.pcm")
        answers += await asyncio.gather(
            place.chat(f"question {level}"),
            place.chat(f"question {level}", **SPOKEN),
            place.speech(f"First {level}. Then this."),
            place.post("/v1/audio/transcriptions", upload, media_type=media_type),
        )
    assert {answer.status for answer in answers} == {200}
    return [said(answer) for answer in answers]


async def with_sessions(runtime: Runtime, count: int, *, requests: bool = True) -> tuple[list[Any], list[Any]]:
    """What the requests got and what the sessions heard, with as many sessions as there are slots."""
    async with world(runtime, SCRIPT, sessions=max(1, count)) as place:
        talkers = [Talker(place, number) for number in range(count)]
        talking = [asyncio.ensure_future(talker.talk(3)) for talker in talkers]
        await asyncio.sleep(1)
        answers = await ask_everything(place) if requests else []
        if count:
            assert place.orchestrator.session_manager.health().free == 0
            assert not any(task.done() for task in talking), "they still talk"
        await asyncio.gather(*talking)
        return answers, [talker.heard for talker in talkers]


def test_sixty_four_sessions_change_no_answer_and_no_answer_changes_a_session() -> None:
    alone, _ = run(lambda runtime: with_sessions(runtime, 0))
    beside, heard = run(lambda runtime: with_sessions(runtime, 64))
    _, undisturbed = run(lambda runtime: with_sessions(runtime, 64, requests=False))
    assert beside == alone
    assert heard == undisturbed
    assert all(len(turns) == 3 for turns in heard)
    assert {status for turns in heard for status, _ in turns} == {"completed"}


@virtual(limit_s=60)
async def test_a_session_may_be_opened_while_requests_wait(runtime: Runtime) -> None:
    async with world(runtime, Script(think_s=5.0), sessions=1) as place:
        calls = [place.call("/v1/chat/completions", json.dumps(chat_body(str(n))).encode()) for n in range(4)]
        await asyncio.sleep(1)
        talker = Talker(place, 1)
        await talker.talk(1)
        assert [(await call.task).status for call in calls] == [200] * 4
