"""How soon the embedded pipeline answers: ``python -m duologue.bench.talkers [SESSIONS ...]`` (Linux, models set up).

Starts the server in a process of its own. For each number of sessions, that many talkers ask the same questions at the same
time over WebSockets at real-time pace, and the time from the last sample of speech to the first audio of the answer is taken,
beside the word error rate of what was understood. One run holds all numbers, so they can be compared with each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
import time
from collections.abc import Sequence

from duologue.bench.process import embedded_server
from duologue.client import ClientSession, connect
from duologue.models.cascade.synthesiser import Synthesiser
from duologue.models.cascade.voice import USER, speak
from duologue.wire.server_events import AudioDelta, TranscriptionCompleted

RATE_HZ = 16_000  # what the duplex dialect takes unless told otherwise
PIECE_S = 0.04
QUESTIONS = ("What is the capital of France?", "How many legs does a spider have?", "What colour is the sky?")


class Talker:
    """One client: says its questions, notes when each is answered."""

    def __init__(self, session: ClientSession, questions: Sequence[bytes]) -> None:
        self._session = session
        self._questions = questions
        self.delays_s: list[float] = []
        self.heard: list[str] = []
        self._said_at: float | None = None

    async def talk(self) -> None:
        listener = asyncio.create_task(self._listen())
        await self._say(bytes(RATE_HZ))
        for question in self._questions:
            await self._say(question)
            self._said_at = time.monotonic()
            await self._say(bytes(RATE_HZ * 2 * 5))
        listener.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await listener

    async def _say(self, pcm: bytes) -> None:
        size = int(RATE_HZ * PIECE_S) * 2
        due = time.monotonic()
        for start in range(0, len(pcm), size):
            await self._session.append(pcm[start : start + size])
            due += PIECE_S
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _listen(self) -> None:
        async for event in self._session.events():
            match event:
                case AudioDelta() if self._said_at is not None:
                    self.delays_s.append(time.monotonic() - self._said_at)
                    self._said_at = None
                case TranscriptionCompleted():
                    self.heard.append(event.transcript)
                case _:
                    pass


async def _round(url: str, sessions: int, questions: Sequence[bytes]) -> None:
    async with contextlib.AsyncExitStack() as stack:
        talkers = [Talker(await stack.enter_async_context(connect(url)), questions) for _ in range(sessions)]
        await asyncio.gather(*(talker.talk() for talker in talkers))
    delays = sorted(delay * 1000 for talker in talkers for delay in talker.delays_s)
    right = sum(
        text.strip() == asked for talker in talkers for text, asked in zip(talker.heard, QUESTIONS, strict=False)
    )
    asked = sessions * len(QUESTIONS)
    print(
        f"{sessions} at once: first audio {statistics.median(delays):.0f} ms median "
        f"({delays[0]:.0f} to {delays[-1]:.0f}), {len(delays)} of {asked} answered, {right} understood to the letter"
    )


async def measure(counts: Sequence[int]) -> None:
    """Print a line for each number of sessions."""
    voice = Synthesiser()
    questions = [speak(voice, text, USER, rate_hz=RATE_HZ) for text in QUESTIONS]
    async with embedded_server(max(counts)) as server:
        await asyncio.sleep(20.0)  # the language model's slots are still being warmed
        for sessions in counts:
            await _round(server.url, sessions, questions)


def main() -> None:
    """Read the arguments and measure."""
    asyncio.run(measure([int(argument) for argument in sys.argv[1:]] or [1, 2]))


if __name__ == "__main__":
    main()
