"""Turn-taking as a client meets it: every parameter, through the socket's side of the server and the whole engine."""

from __future__ import annotations

import asyncio
import base64
import math
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from duologue.engine.duplex.session.detection import FRAME_BYTES, ScriptedDetection
from duologue.models.scripted import Script, silence, tone
from duologue.sim.loop import VirtualRuntime, virtual
from duologue.sim.network import Pipe
from tests.unit.server.test_hour import Served, served

Frame = dict[str, Any]
SCRIPT = Script(
    transcripts=("a question", "ja genau"), sentences=3, sentence_ms=1_000, chunk_ms=500, streams_input=True
)


class Graded(ScriptedDetection):
    """A detector that is the surer the louder it is: level 0 of a tone is 0.46, level 1 0.57, level 3 0.89."""

    def verdict(self, pcm: bytes) -> tuple[float, ...]:
        frames = [array("h", pcm[start : start + FRAME_BYTES]) for start in range(0, len(pcm), FRAME_BYTES)]
        return tuple(min(1.0, math.sqrt(sum(s * s for s in frame) / len(frame)) / 3_276.8) for frame in frames)


class Caller:
    """One client of the GA dialect at 24 kHz, or of the duplex dialect at 16 kHz."""

    def __init__(self, there: Served, pipe: Pipe, rate_hz: int) -> None:
        self.there = there
        self.pipe = pipe
        self.rate_hz = rate_hz
        self.frames: list[tuple[float, Frame]] = []

    def send(self, type: str, **fields: object) -> None:
        self.pipe.up.put(msgspec.json.encode({"type": type, **fields}))

    async def read(self) -> None:
        while (frame := await self.pipe.down.get()) is not None:
            self.frames.append((self.there.runtime.now(), msgspec.json.decode(frame)))

    async def hear(self, pcm: bytes, *, chunk_ms: float = 20) -> None:
        size = int(self.rate_hz * chunk_ms / 1000) * 2
        for start in range(0, len(pcm), size):
            piece = pcm[start : start + size]
            self.send("input_audio_buffer.append", audio=base64.b64encode(piece).decode())
            await asyncio.sleep(len(piece) / 2 / self.rate_hz)

    async def speak(self, duration_ms: int, *, level: int = 4) -> None:
        await self.hear(tone(duration_ms, rate_hz=self.rate_hz, level=level))

    async def rest(self, duration_ms: int) -> None:
        await self.hear(silence(duration_ms, rate_hz=self.rate_hz))

    def of(self, type: str) -> list[Frame]:
        return [frame for _, frame in self.frames if frame["type"] == type]

    def at(self, type: str) -> float:
        return next(at for at, frame in self.frames if frame["type"] == type)

    @property
    def items(self) -> list[Any]:
        (attachment,) = self.there.hub.sessions
        runner = self.there.engine.session_manager.runner(attachment.session_id)
        assert runner is not None
        return runner.session._state.history.items


@asynccontextmanager
async def calling(
    runtime: VirtualRuntime,
    detection: dict[str, object] | None,
    *,
    duplex: bool = False,
    script: Script = SCRIPT,
    turn_end: float = 1.0,
    **session: object,
) -> AsyncIterator[Caller]:
    async with served(runtime, "ephemeral", script=script, detection=Graded(turn_end=turn_end)) as there:
        pipe = there.connect("model=m&duplex=1" if duplex else "model=m")
        caller = Caller(there, pipe, 16_000 if duplex else 24_000)
        reading = runtime.spawn(caller.read(), name="reader")
        if duplex:
            caller.send("session.update", session={"turn_detection": detection, **session})
        else:
            audio = {"input": {"turn_detection": detection}}
            caller.send("session.update", session={"type": "realtime", "audio": audio, **session})
        await asyncio.sleep(0.1)
        yield caller
        assert caller.of("error") == []
        pipe.client.hang_up()
        await reading


def server_vad(**fields: object) -> dict[str, object]:
    return {"type": "server_vad", **fields}


@pytest.mark.parametrize(
    ("threshold", "level", "heard"), [(0.5, 0, False), (0.5, 1, True), (0.8, 1, False), (0.8, 3, True)]
)
@virtual
async def test_threshold(threshold: float, level: int, heard: bool, runtime: VirtualRuntime) -> None:
    async with calling(runtime, server_vad(threshold=threshold)) as caller:
        await caller.speak(500, level=level)
        assert bool(caller.of("input_audio_buffer.speech_started")) == heard


@pytest.mark.parametrize("silence_ms", [200, 500, 1_200])
@virtual
async def test_silence_duration(silence_ms: int, runtime: VirtualRuntime) -> None:
    async with calling(runtime, server_vad(silence_duration_ms=silence_ms)) as caller:
        await caller.speak(600)
        ended = runtime.now()
        await caller.rest(silence_ms + 200)
        assert -0.032 <= caller.at("input_audio_buffer.speech_stopped") - ended - silence_ms / 1000 <= 0.08
        stopped = caller.of("input_audio_buffer.speech_stopped")[0]["audio_end_ms"]
        assert abs(stopped - 600 - silence_ms) <= 64
        assert caller.of("response.created")


@virtual
async def test_prefix_padding_is_real_audio(runtime: VirtualRuntime) -> None:
    lengths = {}
    for padding in (0, 300, 900):
        async with calling(runtime, server_vad(prefix_padding_ms=padding)) as caller:
            await caller.rest(1_024)
            await caller.speak(640)
            await caller.rest(700)
            started = caller.of("input_audio_buffer.speech_started")[0]["audio_start_ms"]
            assert abs(started - (1_024 - padding)) <= 32
            lengths[padding] = next(item.audio_ms for item in caller.items if item.role == "user")
    assert abs(lengths[300] - lengths[0] - 300) <= 1 and abs(lengths[900] - lengths[0] - 900) <= 1


@virtual
async def test_events_do_not_depend_on_how_the_audio_was_cut(runtime: VirtualRuntime) -> None:
    found = []
    for chunk_ms in (7, 20, 100, 333):
        async with calling(runtime, server_vad(create_response=False)) as caller:
            pcm = b"".join(
                tone(450, rate_hz=24_000) + silence(quiet_ms, rate_hz=24_000) for quiet_ms in (700, 300, 900)
            )
            await caller.hear(pcm, chunk_ms=chunk_ms)
            await asyncio.sleep(0.5)
            edges = [
                (frame["type"], frame.get("audio_start_ms"), frame.get("audio_end_ms"))
                for _, frame in caller.frames
                if frame["type"].startswith("input_audio_buffer.speech")
            ]
            found.append((edges, [item.audio_ms for item in caller.items]))
    assert len(found[0][0]) == 4 and all(other == found[0] for other in found)


@virtual
async def test_create_response_off(runtime: VirtualRuntime) -> None:
    async with calling(runtime, server_vad(create_response=False)) as caller:
        await caller.speak(600)
        await caller.rest(900)
        assert caller.of("input_audio_buffer.committed") and not caller.of("response.created")
        caller.send("response.create")
        await caller.rest(200)
        assert caller.of("response.created")


@pytest.mark.parametrize("interrupt", [True, False])
@virtual
async def test_interrupt_response(interrupt: bool, runtime: VirtualRuntime) -> None:
    """Off: what was said over the answer waits for its end, and is answered then."""
    async with calling(runtime, server_vad(interrupt_response=interrupt)) as caller:
        await caller.speak(600)
        await caller.rest(1_200)
        assert caller.of("response.output_audio.delta")
        await caller.speak(700)
        await caller.rest(6_000)
        done = [frame["response"]["status"] for frame in caller.of("response.done")]
        assert done == (["cancelled", "completed"] if interrupt else ["completed", "completed"])
        assert len(caller.of("input_audio_buffer.committed")) == 2
        if interrupt:
            assert caller.of("response.done")[0]["response"]["status_details"]["reason"] == "turn_detected"


@virtual
async def test_idle_timeout(runtime: VirtualRuntime) -> None:
    """Counted from the end of what was played."""
    async with calling(runtime, server_vad(idle_timeout_ms=5_000)) as caller:
        await caller.speak(600)
        await caller.rest(12_000)
        first = caller.at("response.output_audio.delta")
        assert 3.0 + 5.0 - 0.05 <= caller.at("input_audio_buffer.timeout_triggered") - first <= 3.0 + 5.0 + 0.6
        assert len(caller.of("response.created")) == 2


@pytest.mark.parametrize(("eagerness", "pause_ms"), [("high", 192), ("auto", 1_536), ("medium", 1_536), ("low", 6_144)])
@virtual
async def test_semantic_eagerness(eagerness: str, pause_ms: int, runtime: VirtualRuntime) -> None:
    """The classifier is not sure (0.4): the more eager, the sooner that is enough."""
    async with calling(runtime, {"type": "semantic_vad", "eagerness": eagerness}, turn_end=0.4) as caller:
        await caller.speak(640)
        ended = runtime.now()
        await caller.rest(7_000)
        assert -0.032 <= caller.at("input_audio_buffer.speech_stopped") - ended - pause_ms / 1000 <= 0.08


@pytest.mark.parametrize(("language", "interrupted"), [("de", False), ("en", True)])
@virtual
async def test_acknowledgements_by_language(language: str, interrupted: bool, runtime: VirtualRuntime) -> None:
    transcription = {"language": language}
    async with calling(
        runtime, server_vad(silence_duration_ms=300), duplex=True, input_audio_transcription=transcription
    ) as caller:
        await caller.speak(600, level=4)
        await caller.rest(1_000)
        assert caller.of("response.output_audio.delta")
        await caller.speak(480, level=5)
        await caller.rest(3_500)
        decisions = [frame["action"] for frame in caller.of("overlap.decision")]
        assert decisions[-1] == ("barge_in" if interrupted else "drop")
        assert (caller.of("response.done")[0]["response"]["status"] == "cancelled") == interrupted
        assert len(caller.of("input_audio_buffer.speech_started")) == (2 if interrupted else 1)


@virtual
async def test_what_was_truncated_reads_the_same_on_the_wire_and_in_the_prompt(runtime: VirtualRuntime) -> None:
    async with calling(runtime, server_vad(), duplex=True) as caller:
        await caller.speak(600)
        await caller.rest(4_500)
        (done,) = caller.of("response.done")
        item_id, response_id = done["response"]["output"][0]["id"], done["response"]["id"]
        texts = []
        for end_ms in (2_600, 1_250, 9_100):
            caller.send("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=end_ms)
            caller.send("playback.ack", response_id=response_id, played_ms=3_000)  # late: it brings nothing back
            caller.send("conversation.item.retrieve", item_id=item_id)
            await caller.rest(100)
            shown = caller.of("conversation.item.retrieved")[-1]["item"]["content"][0]["transcript"]
            (item,) = [item for item in caller.items if item.item_id == item_id]
            assert shown == item.heard_text()
            texts.append(shown)
        assert [frame["audio_end_ms"] for frame in caller.of("conversation.item.truncated")] == [2_600, 1_250, 1_250]
        assert len(texts[0]) > len(texts[1]) > 0 and texts[1] == texts[2] and texts[0].startswith(texts[1])
