"""The embedded assistant as a person and a stock client meet it, wherever its language model runs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion

from duologue.client import connect
from duologue.wire.server_events import AudioDelta, ResponseDone, TranscriptDelta, TranscriptionCompleted
from tests.integration.http.host import PATIENCE_S, Host

QUESTION = "What is the capital of France?"
SPOKEN_RATE_HZ = 24_000
_SILENCE_S = 3


@dataclass
class SpokenTurn:
    """What was understood, and the answer."""

    heard: str = ""
    status: str = ""
    text: str = ""
    audio_bytes: int = 0


async def talk(place: Host, client: AsyncOpenAI) -> SpokenTurn:
    """Speak :data:`QUESTION` in the assistant's own voice into a session with its default turn detection."""
    spoken = await client.audio.speech.create(model="tts-1", voice="alloy", input=QUESTION, response_format="pcm")
    turn = SpokenTurn()
    async with asyncio.timeout(PATIENCE_S), connect(place.url, dialect="ga") as session:
        for pcm in (spoken.content, bytes(2 * SPOKEN_RATE_HZ * _SILENCE_S)):
            for start in range(0, len(pcm), 9_600):
                await session.append(pcm[start : start + 9_600])
        async for event in session.events():
            match event:
                case TranscriptionCompleted():
                    turn.heard = event.transcript
                case TranscriptDelta():
                    turn.text += event.delta
                case AudioDelta():
                    turn.audio_bytes += len(event.delta)
                case ResponseDone():
                    turn.status = event.response.status
                    break
                case _:
                    pass
    return turn


async def chat(client: AsyncOpenAI, question: str = QUESTION, max_tokens: int = 40) -> ChatCompletion:
    return await client.chat.completions.create(
        model="cascade",
        messages=[{"role": "user", "content": question}],
        temperature=0,
        max_tokens=max_tokens,
    )
