"""Simulated stage code: recognise, answer, speak, and the one stage of a resident model. They note all that they see.

Rules kept here: what a request does depends on the run's seed, its client and how many requests of that client the stage
has seen, on nothing else, so that one client's requests never change another's; audio is cut from the answer tape and
never repeats within a client; a stage that is told to misbehave does so for that request only.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from duologue.engine.stages.contract import PREWARM, AsyncStage, StageControl
from duologue.errors import ErrorCode, StageFault
from duologue.outputs import Options, RequestOutput, Scalar, StageError, StagePrompt, StageRequest, ToolCall
from duologue.sim.observation import Fed, Observations
from duologue.sim.plan import Deployment, WorkFault
from duologue.sim.sample import Overflown
from duologue.sim.tape import spoken

RECOGNISE, ANSWER, SPEAK = 0, 1, 2
INPUT_RATE_HZ = 16_000
OUTPUT_RATE_HZ = 24_000
CALL_MS = 20
_WORDS = ("tell me a story", "what time is it", "go on", "play some jazz", "why is that", "I would like a ticket")
_ACKNOWLEDGEMENTS = ("mm-hm", "yeah", "okay", "right")


@dataclass(slots=True)
class StageDesk:
    """What every simulated stage of a deployment shares."""

    seed: int
    plan: Deployment
    seen: Observations
    faults: dict[str, tuple[WorkFault, ...]]
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    healed: bool = False
    open_states: int = 0
    counts: dict[tuple[str, int], int] = field(default_factory=dict)
    hanging: list[asyncio.Future[None]] = field(default_factory=list)

    def begin(self, stage: int, request: StageRequest) -> Job:
        """A new request: its dice and its fate."""
        self.open_states += 1
        client = self.seen.client_of(request.request_id)
        number = self.counts[client, stage] = self.counts.get((client, stage), 0) + 1
        dice = random.Random(f"{self.seed}:{client}:{stage}:{number}")
        fault = None
        if not self.healed:
            found = (fault for fault in self.faults.get(client, ()) if fault.stage == stage and fault.nth == number)
            fault = next(found, None)
        return Job(request.request_id, client, number, dice, fault)

    def calls(self, job: Job, prompt: StagePrompt) -> tuple[ToolCall, ...]:
        """The functions that an answer asks for: none, one, or two."""
        if prompt.menu is None:
            return ()
        turn = f":{job.turn}" if job.turn else ""
        dice = random.Random(f"{self.seed}:{job.client}:tools:{job.number}{turn}")
        return (ToolCall(name=prompt.menu.tools[0].name),) * dice.choice((0, 1, 1, 2))

    def end(self) -> None:
        """A request's state is closed."""
        self.open_states -= 1

    async def suffer(self, job: Job, stage: int) -> RequestOutput | None:
        """What the job's fault does now: raise, wait, or give an output in place of the real ones."""
        fault, job.fault = job.fault, None
        if fault is None:
            return None
        self.seen.trace.count(f"work.{fault.how}")
        self.seen.trace.note(job.client, "fault", f"stage {stage} {fault.how}")
        await self.delay(fault.ms)
        match fault.how:
            case "raise":
                raise RuntimeError("the plan told this stage to raise")
            case "refuse":
                raise StageFault(ErrorCode.RUNTIME_STREAM_FAILED, "The plan told this stage to refuse.")
            case "hang":
                await self._hang()
                return None
            case "lose":
                return RequestOutput(request_id=job.request_id, finished=True, finish_reason="stop")
            case "misfit":
                error = StageError("no_such_code", "The plan told this stage to report an unknown code.")
                return RequestOutput(request_id=job.request_id, error=error)
            case "foreign":
                return RequestOutput(request_id="someone-else", text="not yours", finished=True)
            case _:
                return None

    def overflowed(self, job: Job, limit: int) -> None:
        """A context is given more than fits into it."""
        self.seen.trace.count("context.overflow")
        self.seen.samples.append(Overflown(self.seen.trace.now(), job.client, limit))
        raise RuntimeError(f"the context of {limit} units has overflowed")

    async def delay(self, ms: float) -> None:
        """Something takes its time."""
        if ms:
            await self.pause(ms / 1000)

    async def _hang(self) -> None:
        if not self.healed:
            forever: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.hanging.append(forever)
            await forever
        raise StageFault(ErrorCode.REPLICA_UNAVAILABLE, "The stage hung and was given up.")

    def heal(self) -> None:
        """No more faults: what hangs is given up."""
        self.healed = True
        for forever in self.hanging:
            if not forever.done():
                forever.set_result(None)
        self.hanging.clear()


@dataclass(slots=True)
class Job:
    """One request at one stage."""

    request_id: str
    client: str
    number: int
    dice: random.Random
    fault: WorkFault | None
    audio: bytearray = field(default_factory=bytearray)
    pieces: int = 0
    to_say: int = 0
    turn: int = 0
    spoken_units: int = 0
    quiet_units: int = 0
    context: int = 0
    heard: int = 0  # pieces of this request
    known: dict[str, None] = field(default_factory=dict)  # calls whose results it was told


class _SimStage(AsyncStage[Job]):
    stage_id: int

    def __init__(self, desk: StageDesk) -> None:
        self._desk = desk

    async def load(self) -> None:
        await self._desk.delay(self._desk.plan.load_ms)

    async def shutdown(self) -> None:
        await self._desk.delay(self._desk.plan.load_ms)

    async def call(self, method: str, args: tuple[Any, ...]) -> object:
        await self._desk.delay(CALL_MS)
        return f"{method} {len(args)}"

    def open(self, request: StageRequest) -> Job:
        return self._desk.begin(self.stage_id, request)

    def close(self, state: Job) -> None:
        del state
        self._desk.end()

    def _hear(self, job: Job, prompt: StagePrompt) -> None:
        seen = self._desk.seen
        seen.fed(Fed(seen.trace.now(), self.stage_id, job.request_id, job.client, prompt))

    async def _think(self, job: Job) -> None:
        await self._desk.delay(job.dice.randint(*self._desk.plan.think_ms))

    async def _word(self, job: Job) -> None:
        plan = self._desk.plan
        await self._desk.delay(job.dice.randint(*(plan.answer_ms or plan.think_ms)))


class Recogniser(_SimStage):
    """Audio to words."""

    stage_id = RECOGNISE

    async def process(self, state: Job, request: StageRequest, control: StageControl) -> AsyncIterator[RequestOutput]:
        del control
        prompt = request.prompt
        self._hear(state, prompt)
        state.audio += prompt.audio
        state.pieces += 1
        if (instead := await self._desk.suffer(state, RECOGNISE)) is not None:
            yield instead
            return
        await self._think(state)
        words = self._words(state)
        if not prompt.final:
            partial = " ".join(words.split()[: state.pieces])
            if partial:
                yield RequestOutput(request_id=request.request_id, text=partial)
            return
        heard = bool(state.audio)
        yield RequestOutput(
            request_id=request.request_id,
            text=words if heard else (prompt.text or "silence"),
            finished=True,
            segment_finished=True,
            finish_reason="stop",
            metadata={"spoken": heard},
        )

    def _words(self, job: Job) -> str:
        loud, acknowledges = spoken(bytes(job.audio))
        if loud == 0:
            return ""
        words = _ACKNOWLEDGEMENTS if acknowledges else _WORDS
        return words[job.number % len(words)]


class Answerer(_SimStage):
    """Words to sentences, each a segment."""

    stage_id = ANSWER

    async def process(self, state: Job, request: StageRequest, control: StageControl) -> AsyncIterator[RequestOutput]:
        del control
        if request.prompt.options.get(PREWARM) is True:
            return
        self._hear(state, request.prompt)
        if (instead := await self._desk.suffer(state, ANSWER)) is not None:
            yield instead
            return
        calls = self._desk.calls(state, request.prompt)
        count = state.dice.randint(*self._desk.plan.sentences)
        for index in range(count):
            await self._word(state)
            last = index == count - 1
            yield RequestOutput(
                request_id=request.request_id,
                text=f"Sentence {index + 1} of answer {state.number}." + ("" if last else " "),
                segment_finished=True,
                finished=last,
                finish_reason="stop" if last else None,
                calls=calls if last else (),
            )


class Speaker(_SimStage):
    """Sentences to audio, chunk by chunk."""

    stage_id = SPEAK

    async def process(self, state: Job, request: StageRequest, control: StageControl) -> AsyncIterator[RequestOutput]:
        del control
        prompt = request.prompt
        if prompt.options.get(PREWARM) is True:
            return
        self._hear(state, prompt)
        if (instead := await self._desk.suffer(state, SPEAK)) is not None:
            yield instead
            return
        if not prompt.text:
            if prompt.final:
                yield RequestOutput(request_id=request.request_id, finished=True, finish_reason="stop")
            return
        plan = self._desk.plan
        left = OUTPUT_RATE_HZ * state.dice.randint(*plan.sentence_ms) // 1000
        text = prompt.text
        while left > 0:
            await self._think(state)
            size = min(OUTPUT_RATE_HZ * plan.chunk_ms // 1000, left)
            left -= size
            last = prompt.final and left == 0
            yield RequestOutput(
                request_id=request.request_id,
                text=text,
                audio=self._desk.seen.next_audio(state.client, size),
                audio_rate_hz=OUTPUT_RATE_HZ,
                segment_finished=left == 0,
                finished=last,
                finish_reason="stop" if last else None,
            )
            text = ""


class ResidentModel(_SimStage):
    """Listens until somebody spoke and was quiet again, then answers one unit per unit heard."""

    stage_id = 0

    async def process(self, state: Job, request: StageRequest, control: StageControl) -> AsyncIterator[RequestOutput]:
        del control
        prompt = request.prompt
        self._hear(state, prompt)
        if (instead := await self._desk.suffer(state, 0)) is not None:
            yield instead
            return
        plan = self._desk.plan
        await self._desk.delay(state.dice.randint(*plan.think_ms) / 4)
        talking, fresh = state.to_say > 0, state.turn
        self._read(state, prompt)
        if prompt.audio:
            self._listen(state, prompt)
        known = self._remembered(state)
        if not prompt.audio and (talking or not state.to_say):
            yield RequestOutput(request_id=request.request_id, segment_finished=True, metadata=known)
            return
        if not state.to_say:
            yield RequestOutput(
                request_id=request.request_id,
                segment_finished=True,
                finished=prompt.final,
                metadata={"decision": "listen", **known},
            )
            return
        calls = self._desk.calls(state, prompt) if state.turn != fresh else ()
        state.to_say = 0 if prompt.options.get("force_listen") else state.to_say - 1
        size = OUTPUT_RATE_HZ * max(plan.unit_ms, 20) // 1000
        yield RequestOutput(
            request_id=request.request_id,
            segment_finished=True,
            finished=prompt.final,
            text=f"Unit {state.to_say} of answer {state.turn}. ",
            audio=self._desk.seen.next_audio(state.client, size),
            audio_rate_hz=OUTPUT_RATE_HZ,
            calls=calls,
            metadata={"decision": "speak" if state.to_say else "end", **known},
        )

    def _read(self, job: Job, prompt: StagePrompt) -> None:
        """What a request that takes another's place is told, and results of functions, each of which is worth a unit."""
        known, limit = prompt.options, self._desk.plan.context_units
        if known.get("rebuild") is True:
            job.context = int(known.get("context") or 0)
            job.known = dict.fromkeys(str(known.get("known") or "").split())
        for message in prompt.messages:
            if message.call_id and message.call_id not in job.known and not message.text.startswith("No result"):
                job.known[message.call_id] = None
                job.to_say += 1
        job.context += 1
        job.heard += 1
        if limit and job.context > limit:
            self._desk.overflowed(job, limit)

    def _remembered(self, job: Job) -> Options:
        """What the plugin keeps for a request that takes this one's place."""
        known: dict[str, Scalar] = {}
        if self._desk.plan.context_units:
            known["context"], known["heard"] = job.context, job.heard
        if job.known:
            known["known"] = " ".join(job.known)
        return known

    def _listen(self, job: Job, prompt: StagePrompt) -> None:
        loud, _ = spoken(prompt.audio)
        if loud * 4 > len(prompt.audio) // 2:
            job.spoken_units += 1
            job.quiet_units = 0
        else:
            job.quiet_units += 1
        if not job.to_say and job.spoken_units and job.quiet_units >= 2:
            job.spoken_units = 0
            job.to_say = job.dice.randint(2, 12)
            job.turn += 1


STAGES: dict[str, tuple[type[_SimStage], ...]] = {
    "ephemeral": (Recogniser, Answerer, Speaker),
    "resident": (ResidentModel,),
}
