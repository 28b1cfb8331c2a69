"""Ordinary requests and sessions on one engine: with 64 people talking, requests get the very same results."""

from __future__ import annotations

import asyncio

from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.events import ResponseDone
from duologue.engine.messages import AddRequest, ErrorMessage, OutputMessage
from duologue.models.scripted import Script, ephemeral_pipeline, tone
from duologue.outputs import RequestOutput, StagePrompt
from duologue.sim.loop import VirtualRuntime, run
from tests.unit.session.world import RATE_HZ, Client, engine

TALKERS = 64
REQUESTS = 40
SCRIPT = Script(transcripts=tuple(f"words {level}" for level in range(12)), sentences=3, sentence_ms=400)
Results = dict[str, list[tuple[int, RequestOutput, bool]]]


async def ask(runtime: VirtualRuntime, talkers: int) -> tuple[Results, list[Client]]:
    """The messages of every request, while ``talkers`` sessions are talked to."""
    config = DuplexSessionRuntimeConfig(max_sessions=TALKERS)
    async with engine(runtime, ephemeral_pipeline(runtime, SCRIPT, replicas=2), config=config) as world:
        clients = [world.open(session_id=f"s{number}") for number in range(talkers)]

        async def talk(client: Client, number: int) -> None:
            await asyncio.sleep(number / 50)
            for turn in range(2):
                await client.say(600, level=(number + turn) % 12)
                await client.until(ResponseDone, turn + 1)

        async def request(number: int) -> None:
            await asyncio.sleep(number / 10)
            audio = tone(300 + 20 * number, rate_hz=RATE_HZ, level=number % 12)
            prompt = StagePrompt(audio=audio, audio_rate_hz=RATE_HZ)
            world.engine.post(AddRequest(request_id=f"r{number}", prompt=prompt, shown_stage_ids=(0, 1, 2)))

        await asyncio.gather(
            *(talk(client, number) for number, client in enumerate(clients)),
            *(request(number) for number in range(REQUESTS)),
        )
        await asyncio.sleep(20)
        results: Results = {}
        for message in world.others:
            assert not isinstance(message, ErrorMessage), message
            if isinstance(message, OutputMessage):
                output = message.output
                results.setdefault(message.request_id, []).append((message.stage_id, output, message.finished))
        return results, clients


def test_requests_get_the_same_results_with_64_sessions_as_with_none() -> None:
    async def scenario(runtime: VirtualRuntime) -> None:
        alone, _ = await ask(runtime, 0)
        beside, clients = await ask(runtime, TALKERS)
        assert set(alone) == {f"r{number}" for number in range(REQUESTS)}
        assert all(messages[-1][2] for messages in alone.values())
        assert beside == alone
        assert len({output.text for _, output, _ in alone["r1"]}) > 1, "they say something"
        answers = [event for client in clients for event in client.of(ResponseDone)]
        assert len(answers) == 2 * TALKERS
        assert {answer.status for answer in answers} == {"completed"}

    run(scenario, limit_s=600)
