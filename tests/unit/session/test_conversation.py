"""Whole spoken conversations through the engine: every layer is the real one, only the models are scripted."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from functools import partial

import msgspec
import pytest

from duologue.config.session import SemanticVad
from duologue.engine.duplex.commands import (
    BargeIn,
    CancelInput,
    CancelResponse,
    ClearAudio,
    ClearOutput,
    CloseSession,
    CommitAudio,
    CreateResponse,
)
from duologue.engine.duplex.events import (
    InputCommitted,
    InputTranscribed,
    ResponseAudio,
    ResponseCreated,
    ResponseDone,
    ResponseText,
    SessionClosed,
    SpeechStarted,
    SpeechStopped,
)
from duologue.engine.duplex.plugin import AppendPlan, AppendPlanRequest, DuplexModelSessionState
from duologue.engine.duplex.session.detection import ScriptedDetection
from duologue.engine.stages.contract import StageControl
from duologue.models.scripted import Script, ScriptedPipeline, ephemeral_pipeline, resident_pipeline, silence, tone
from duologue.outputs import RequestOutput, StageRequest
from duologue.sim.loop import VirtualRuntime, run, virtual
from tests.unit.session.world import MANUAL, RATE_HZ, VAD, Client, engine


@virtual
async def test_a_spoken_turn_is_answered(runtime: VirtualRuntime) -> None:
    async with engine(runtime, ephemeral_pipeline(runtime, Script(transcripts=("hello there",)))) as world:
        client = world.open()
        await client.say()
        done = await client.until(ResponseDone)
        assert done.status == "completed"
        assert done.full_text == "Sentence 1 about hello there. Sentence 2 about hello there."
        assert sum(len(event.audio) for event in client.of(ResponseAudio)) == 24_000 * 2 * 800 // 1000
        transcript = client.of(InputTranscribed)[-1]
        assert (transcript.text, transcript.final) == ("hello there", True)
        order = [SpeechStarted, SpeechStopped, InputCommitted, ResponseCreated, ResponseAudio, ResponseDone]
        positions = [client.kinds.index(kind.__name__) for kind in order]
        assert positions == sorted(positions)
        client.send(CloseSession())
        await client.until(SessionClosed)
        assert world.everything() == {}


STORY = Script(transcripts=("tell me a story", "stop"), sentences=6, sentence_ms=1_000, streams_input=True)


@virtual
async def test_speech_during_an_answer_stops_it_everywhere(runtime: VirtualRuntime) -> None:
    pipeline = ephemeral_pipeline(runtime, STORY)
    async with engine(runtime, pipeline) as world:
        client = world.open()
        await client.say(level=0)
        await client.until(ResponseAudio, 10)
        await client.say(level=1)
        first = await client.until(ResponseDone)
        assert (first.status, first.reason) == ("cancelled", "turn_detected")
        second = await client.until(ResponseDone, 2)
        assert second.status == "completed"
        assert second.full_text.startswith("Sentence 1 about stop.")
        heard = [event for event in client.of(ResponseAudio) if event.response_id == first.response_id]
        assert sum(event.duration_ms for event in heard) < 2_500
        client.send(CloseSession())
        await client.until(SessionClosed)


@virtual
async def test_field_F15_a_cancelled_answer_is_not_computed_any_further(runtime: VirtualRuntime) -> None:
    pipeline = ephemeral_pipeline(runtime, Script(sentences=50, sentence_ms=1_000))
    answerer, speaker = pipeline.stages[1], pipeline.stages[2]
    async with engine(runtime, pipeline) as world:
        client = world.open()
        await client.say()
        await client.until(ResponseAudio)
        client.send(CancelResponse())
        done = await client.until(ResponseDone, limit_s=0.01)
        assert (done.status, done.reason) == ("cancelled", "client_cancelled")
        await asyncio.sleep(0.001)
        counts = (answerer.sentences, speaker.chunks)  # type: ignore[attr-defined]
        await asyncio.sleep(5.0)
        assert (answerer.sentences, speaker.chunks) == counts  # type: ignore[attr-defined]
        assert pipeline.open_states == 0
        assert world.engine.request_states == {}


@virtual
async def test_field_F17_a_cancelled_turn_stays_in_the_conversation(runtime: VirtualRuntime) -> None:
    script = Script(transcripts=("my name is Ada", "what is my name"), sentences=6, sentence_ms=1_000)
    pipeline = ephemeral_pipeline(runtime, script)
    plans = []
    plan_append = pipeline.plugin.plan_append
    pipeline.plugin.plan_append = lambda state, request: plans.append(request) or plan_append(state, request)  # type: ignore[method-assign,func-returns-value]
    async with engine(runtime, pipeline) as world:
        client = world.open()
        await client.say(level=0)
        await client.until(ResponseAudio, 12)
        client.send(CancelResponse())
        await client.say(level=1)
        await client.until(ResponseDone, 2)
    history = [(entry.role, entry.text) for entry in plans[-1].history]
    assert history[0] == ("user", "my name is Ada")
    assert history[1][0] == "assistant"
    assert "Sentence 1 about my name is Ada.".startswith(history[1][1][:20])
    assert "Sentence 3" not in history[1][1]


@virtual
async def test_an_explicit_commit_is_answered_when_asked(runtime: VirtualRuntime) -> None:
    async with engine(runtime, ephemeral_pipeline(runtime)) as world:
        client = world.open(MANUAL)
        client.append(tone(500, rate_hz=RATE_HZ))
        client.send(CommitAudio())
        await client.until(InputCommitted)
        await asyncio.sleep(1.0)
        assert client.of(ResponseCreated) == []
        client.send(CreateResponse())
        assert (await client.until(ResponseDone)).status == "completed"


@virtual
async def test_a_text_answer_is_text_and_skips_the_voice(runtime: VirtualRuntime) -> None:
    pipeline = ephemeral_pipeline(runtime)
    async with engine(runtime, pipeline) as world:
        client = world.open(msgspec.structs.replace(VAD, output_modality="text"))
        await client.say()
        done = await client.until(ResponseDone)
        assert "".join(event.text for event in client.of(ResponseText)) == done.full_text
        assert client.of(ResponseAudio) == []
        assert pipeline.stages[2].chunks == 0  # type: ignore[attr-defined]


@virtual
async def test_partial_transcripts_come_while_the_user_speaks(runtime: VirtualRuntime) -> None:
    script = Script(transcripts=("one two three four five",), streams_input=True)
    async with engine(runtime, ephemeral_pipeline(runtime, script)) as world:
        client = world.open()
        await client.say(1_500)
        await client.until(ResponseDone)
        transcripts = client.of(InputTranscribed)
        assert [event.final for event in transcripts].count(True) == 1
        assert len(transcripts) > 2
        assert all("one two three four five".startswith(event.text) for event in transcripts)


@virtual
async def test_a_pause_begins_an_answer_that_nobody_hears_of_if_the_user_goes_on(runtime: VirtualRuntime) -> None:
    pipeline = ephemeral_pipeline(runtime, Script(sentences=9, think_s=0.05, transcripts=("one", "two")))
    detection = ScriptedDetection(turn_end=0.1)
    async with engine(runtime, pipeline, detection=detection) as world:
        client = world.open(msgspec.structs.replace(VAD, turn_detection=SemanticVad()))
        await client.say(500, level=0, pause_ms=400)
        begun = pipeline.stages[1].sentences  # type: ignore[attr-defined]
        assert begun > 0, "the answer begins on the quiet"
        await client.say(500, level=1, pause_ms=100)
        assert client.of(ResponseCreated) == client.of(InputCommitted) == []
        assert pipeline.stages[1].sentences < 9  # type: ignore[attr-defined]
        detection.turn_end = 0.9
        await client.hear(silence(1_000, rate_hz=RATE_HZ))
        done = await client.until(ResponseDone)
        assert done.full_text.startswith("Sentence 1 about two.")
        assert len(client.of(InputCommitted)) == len(client.of(ResponseCreated)) == 1
        await asyncio.sleep(0.01)
        assert world.engine.request_states == {}


@virtual
async def test_a_resident_model_answers_by_itself_and_stops_for_the_user(runtime: VirtualRuntime) -> None:
    async with engine(runtime, resident_pipeline(runtime, Script(answer_units=20))) as world:
        client = world.open()
        await client.say(600, pause_ms=1_000)
        created = await client.until(ResponseCreated)
        await client.until(ResponseAudio, 4)
        await client.say(600, pause_ms=1_000)
        done = await client.until(ResponseDone)
        assert (done.response_id, done.status) == (created.response_id, "cancelled")
        await client.until(ResponseCreated, 2)


@virtual
async def test_a_resident_answer_ends_without_more_audio_from_the_client(runtime: VirtualRuntime) -> None:
    async with engine(runtime, resident_pipeline(runtime, Script(answer_units=10))) as world:
        client = world.open()
        await client.say(600, pause_ms=600)
        done = await client.until(ResponseDone)
        assert done.status == "completed"
        assert done.full_text.rstrip().endswith("Unit 10 of answer 1.")


class Voices:
    """A voice that can be heard: the audio of an answer spells the voice that its own request was given."""

    def __init__(self, pipeline: ScriptedPipeline) -> None:
        self._plan, self._speak = pipeline.plugin.plan_append, pipeline.stages[2].process
        self._voices: dict[str, str] = {}
        pipeline.plugin.plan_append = self.plan_append  # type: ignore[method-assign]
        pipeline.stages[2].process = self.process  # type: ignore[method-assign]

    def plan_append(self, state: DuplexModelSessionState, request: AppendPlanRequest) -> AppendPlan:
        self._voices[request.request_id] = request.config.voice or ""
        return self._plan(state, request)

    async def process(
        self, state: object, request: StageRequest, control: StageControl
    ) -> AsyncIterator[RequestOutput]:
        voice = self._voices[request.request_id].encode()
        async for output in self._speak(state, request, control):
            spelt = (voice * len(output.audio))[: len(output.audio)]
            yield msgspec.structs.replace(output, audio=spelt)


async def _conversations(runtime: VirtualRuntime, speakers: Sequence[int]) -> dict[int, list[object]]:
    """The four voices: each says something else at its own pace, and cancels its first answer."""
    pipeline = ephemeral_pipeline(runtime, msgspec.structs.replace(STORY, transcripts=()))
    Voices(pipeline)
    async with engine(runtime, pipeline) as world:
        clients = {
            n: world.open(msgspec.structs.replace(VAD, voice=f"voice {n}"), session_id=f"s{n}") for n in speakers
        }
        start = runtime.now()

        async def talk(number: int, client: Client) -> None:
            await asyncio.sleep(0.03 * number)
            await client.say(600 + 40 * number, level=number)
            await client.until(ResponseAudio, 10)
            client.send(CancelResponse())
            await client.say(level=number + 4)
            await client.until(ResponseDone, 2)

        await asyncio.gather(*(talk(*pair) for pair in clients.items()))
        await asyncio.sleep(2.0)
        return {
            number: [(round(at - start, 6), event) for at, event in zip(client.times, client.events, strict=True)]
            for number, client in clients.items()
        }


def test_field_F59_a_conversation_is_the_same_alone_and_in_company() -> None:
    """Four voices, interleaved: each is what it is alone, to the sample and the instant, and no two are alike."""
    together = run(partial(_conversations, speakers=range(4)))
    for number, seen in together.items():
        alone = run(partial(_conversations, speakers=[number]))
        assert seen == alone[number], f"voice {number}"
    heard = [b"".join(e.audio for _, e in seen if isinstance(e, ResponseAudio)) for seen in together.values()]
    assert all(heard) and len(set(heard)) == 4


@pytest.mark.parametrize("seed", range(40))
def test_a_cancel_at_any_instant_leaves_nothing_behind(seed: int) -> None:
    async def main(runtime: VirtualRuntime) -> None:
        chance = random.Random(seed)
        resident = seed % 4 == 3
        script = Script(sentences=3, sentence_ms=300, streams_input=seed % 2 == 0, answer_units=8)
        pipeline = resident_pipeline(runtime, script) if resident else ephemeral_pipeline(runtime, script)
        async with engine(runtime, pipeline) as world:
            client = world.open()
            speaking = runtime.spawn(client.say(500), name="speaking")
            for _ in range(chance.randrange(1, 4)):
                await asyncio.sleep(chance.random() * 1.5)
                client.send(chance.choice([CancelResponse(), BargeIn(), CancelInput(), ClearOutput(), ClearAudio()]))
            await speaking
            await client.say(500)
            await asyncio.sleep(6.0)
            assert client.of(ResponseCreated), "the last turn must be answered, whatever was cancelled before"
            assert len(client.of(ResponseCreated)) == len(client.of(ResponseDone))
            if not resident:
                assert world.engine.request_states == {}
                assert pipeline.open_states == 0

    run(main, seed=seed)


@pytest.mark.parametrize("paced", [True, False])
@virtual
async def test_field_F20_a_commit_behind_which_nothing_waits_is_answered(paced: bool, runtime: VirtualRuntime) -> None:
    """Five seconds in pieces of 80 ms, at the pace of speech or all at once."""
    async with engine(runtime, ephemeral_pipeline(runtime, Script(streams_input=True))) as world:
        client = world.open(MANUAL)
        pcm = tone(5_000, rate_hz=RATE_HZ)
        size = RATE_HZ * 80 // 1000 * 2
        for start in range(0, len(pcm), size):
            client.append(pcm[start : start + size])
            if paced:
                await asyncio.sleep(0.08)
        client.send(CommitAudio(create_response=True))
        assert (await client.until(ResponseDone, limit_s=5.0)).status == "completed"
        world.close(client)


@virtual
async def test_field_F31_raw_audio_is_read_by_its_negotiated_format(runtime: VirtualRuntime) -> None:
    async with engine(runtime, ephemeral_pipeline(runtime, Script(transcripts=()))) as world:
        client = world.open(MANUAL)
        await client.hear(tone(1_000, rate_hz=RATE_HZ, level=5), chunk_ms=100)
        client.send(CommitAudio(create_response=True))
        assert (await client.until(ResponseDone)).status == "completed"
        assert client.of(InputTranscribed)[-1].text == "utterance 5 of 1000 ms"
        world.close(client)


@virtual
async def test_field_F29_what_was_cut_leaves_nothing_at_any_stage(runtime: VirtualRuntime) -> None:
    """Five hundred sessions that are cut at the fifth piece of audio."""
    pipeline = ephemeral_pipeline(runtime, Script(sentences=20, sentence_ms=1_000))
    async with engine(runtime, pipeline) as world:
        for number in range(500):
            client = world.open(MANUAL, session_id=f"s{number}")
            client.append(tone(400, rate_hz=RATE_HZ))
            client.send(CommitAudio(create_response=True))
            await client.until(ResponseAudio, 5)
            world.close(client)
            await client.until(SessionClosed)
            assert world.everything() == {} and pipeline.open_states == 0
