"""The assistant's own voice comes back through the microphone."""

from __future__ import annotations

import asyncio

import msgspec
import numpy as np

from duologue.config.session import ServerVad
from duologue.engine.duplex.events import ErrorRaised, InputCommitted, ResponseAudio, ResponseCreated, ResponseDone
from duologue.models.scripted import Script, ephemeral_pipeline, silence, tone
from duologue.sim.loop import VirtualRuntime, virtual
from tests.unit.session.world import RATE_HZ, VAD, Client, engine

CHUNK_MS = 20
CHUNK_BYTES = RATE_HZ * CHUNK_MS // 1000 * 2
LATE_CHUNKS = 8  # 160 ms
GATED = msgspec.structs.replace(VAD, overlap_silence_rms=0.05)
QUESTION = tone(800, rate_hz=RATE_HZ, level=6) + silence(200, rate_hz=RATE_HZ)
DEAF = msgspec.structs.replace(VAD, turn_detection=ServerVad(interrupt_response=False))


def echo_of(event: ResponseAudio) -> bytes:
    """What the microphone hears of it: a quarter as loud, at its own rate."""
    samples = np.frombuffer(event.audio, "<i2").astype(np.float32)
    at = np.arange(0, len(samples), event.rate_hz / RATE_HZ)
    return (np.interp(at, np.arange(len(samples)), samples) / 4).astype("<i2").tobytes()


async def in_a_room(client: Client, said: bytes, seconds: float) -> None:
    """Speak ``said``; the loudspeaker is heard by the microphone, late, for as long as anything is played."""
    heard = len(client.of(ResponseAudio))
    queue, delay = b"", b""
    for _ in range(round(seconds * 1000 / CHUNK_MS)):
        fresh = client.of(ResponseAudio)[heard:]
        heard += len(fresh)
        queue += b"".join(echo_of(event) for event in fresh)
        playing, queue = queue[:CHUNK_BYTES], queue[CHUNK_BYTES:]
        delay += playing.ljust(CHUNK_BYTES, b"\0")
        own, said = said[:CHUNK_BYTES].ljust(CHUNK_BYTES, b"\0"), said[CHUNK_BYTES:]
        echo = b"" if len(delay) <= LATE_CHUNKS * CHUNK_BYTES else delay[:CHUNK_BYTES]
        delay = delay[len(echo) :]
        mixed = np.frombuffer(own, "<i2") + np.frombuffer(echo.ljust(CHUNK_BYTES, b"\0"), "<i2")
        client.append(mixed.astype("<i2").tobytes())
        await asyncio.sleep(CHUNK_MS / 1000)


@virtual
async def test_field_F23_with_the_gate_it_answers_three_questions_and_not_itself(runtime: VirtualRuntime) -> None:
    async with engine(runtime, ephemeral_pipeline(runtime, Script(sentences=4, sentence_ms=500))) as world:
        client = world.open(GATED, session_id="s1")
        for turn in range(1, 4):
            await in_a_room(client, QUESTION, 6.0)
            assert len(client.of(InputCommitted)) == len(client.of(ResponseCreated)) == turn
        assert [done.status for done in client.of(ResponseDone)] == ["completed"] * 3
        assert not client.of(ErrorRaised)


@virtual
async def test_field_F23_without_interruptions_no_echo_cuts_an_answer(runtime: VirtualRuntime) -> None:
    async with engine(runtime, ephemeral_pipeline(runtime, Script(sentences=4, sentence_ms=500))) as world:
        client = world.open(DEAF, session_id="s1")
        for _ in range(3):
            await in_a_room(client, QUESTION, 6.0)
        assert {done.status for done in client.of(ResponseDone)} == {"completed"}
