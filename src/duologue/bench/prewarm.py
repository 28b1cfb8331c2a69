"""How much sooner the embedded models speak when stages need not wait for each other: ``python -m duologue.bench.prewarm``.

A spoken question after a short conversation goes through recognition, language model and voice as an ordinary request, with
the weights that ``duologue setup`` fetched; every conversation is new, so that nothing of it is in a cache. Printed is the
median time from the request to its first audio

* ``whole``: each stage gets its input when the one before has finished, as without async chunks;
* ``pieces``: each sentence is handed on as it is complete;
* ``prewarm``: as ``pieces``, and later stages are opened ahead of their input, so that the language model reads the
  conversation while the question is recognised.

The three take turns, so that a busy machine disturbs all alike. Exit code 1 if ``prewarm`` takes more than 60 % of ``whole``.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import soxr  # type: ignore[import-untyped]

from duologue.clock import AsyncioRuntime
from duologue.engine.assembly import build_edges, build_pools
from duologue.engine.messages import AddRequest, EngineQueueMessage, ErrorMessage, OutputMessage, Shutdown
from duologue.engine.orchestrator import Orchestrator
from duologue.engine.stages.edge import Edge, EdgeInput, EdgeResult
from duologue.models.cascade.edges import RECOGNISE, SPEAK
from duologue.models.cascade.pipeline import cascade_pipeline
from duologue.outputs import ChatMessage, StagePrompt

ROUNDS: Final = 5
GOAL: Final = 0.6
PLACES: Final = ("a harbour", "a forest", "a mountain", "a desert", "an island", "a castle", "a river", "a market")
HEARD_RATE_HZ: Final = 16_000


@dataclass(frozen=True, slots=True)
class Heard:
    """What came of one request: seconds to its first audio, and how much was said."""

    first_audio_s: float
    audio_s: float
    text: str


class Desk:
    """Takes what the engine says of the one request under way."""

    def __init__(self) -> None:
        self.audio: list[bytes] = []
        self.text: list[str] = []
        self.rate_hz = 0
        self.first_at: float | None = None
        self.ended: asyncio.Future[None] | None = None
        self.now: Callable[[], float] = lambda: 0.0

    def put_nowait(self, message: EngineQueueMessage, /) -> None:
        if self.ended is None or self.ended.done():
            return
        if isinstance(message, ErrorMessage):
            self.ended.set_exception(RuntimeError(message.message))
        elif isinstance(message, OutputMessage):
            if message.output.audio:
                self.first_at = self.first_at or self.now()
                self.audio.append(message.output.audio)
                self.text.append(message.output.text)
                self.rate_hz = message.output.audio_rate_hz
            if message.finished:
                self.ended.set_result(None)


class Variant:
    """One running engine over the embedded models."""

    def __init__(self, name: str, edges: list[Edge], *, async_chunk: bool, runtime: AsyncioRuntime) -> None:
        self.name = name
        self.desk = Desk()
        self.desk.now = runtime.now
        self.heard: list[Heard] = []
        self._runtime = runtime
        self._orchestrator = Orchestrator(
            stage_pools=build_pools(cascade_pipeline({}), runtime, log_level="warning"),
            edges=edges,
            output_async_queue=self.desk,
            rpc_async_queue=self.desk,
            runtime=runtime,
            async_chunk=async_chunk,
        )

    async def start(self, stack: AsyncExitStack) -> None:
        """Load the models; ``stack`` stops them."""
        await self._orchestrator.start()
        running = self._runtime.spawn(self._orchestrator.run(), name=self.name)

        async def stop() -> None:
            self._orchestrator.post(Shutdown())
            await running

        stack.push_async_callback(stop)

    async def ask(self, request_id: str, prompt: StagePrompt, entry_stage_id: int = RECOGNISE) -> Heard:
        """Carry out one request."""
        desk = self.desk
        desk.audio, desk.text, desk.first_at = [], [], None
        desk.ended = asyncio.get_running_loop().create_future()
        start = self._runtime.now()
        self._orchestrator.post(AddRequest(request_id=request_id, prompt=prompt, entry_stage_id=entry_stage_id))
        await desk.ended
        if desk.first_at is None:
            raise RuntimeError("nothing was said")
        audio_s = sum(map(len, desk.audio)) / (2 * desk.rate_hz)
        return Heard(desk.first_at - start, audio_s, "".join(desk.text))


def whole(edge: Edge) -> Edge:
    """``edge``, but with nothing handed on before its source has finished."""

    def processor(source: EdgeInput) -> EdgeResult:
        return edge.processor(source) if source.final else None

    return msgspec.structs.replace(edge, processor=processor)


def opened_ahead(edge: Edge) -> Edge:
    """``edge`` with a target that is opened before its input exists."""
    return msgspec.structs.replace(edge, prewarm=True)


async def question(variant: Variant, number: int) -> StagePrompt:
    """A conversation and a question after it, spoken by the embedded voice."""
    place = PLACES[number % len(PLACES)]
    text = f"Can you tell me a story about a dog who lived near {place}?"
    await variant.ask(f"question-{number}", StagePrompt(text=text), entry_stage_id=SPEAK)
    spoken = np.frombuffer(b"".join(variant.desk.audio), "<i2").astype(np.float32)
    heard = soxr.resample(spoken, variant.desk.rate_hz, HEARD_RATE_HZ)
    audio = np.clip(np.rint(heard), -32768, 32767).astype("<i2").tobytes()
    said = (
        ChatMessage("user", f"Visit number {number + 1} to {place}: what should I see there?"),
        ChatMessage("assistant", "Go early, take the path along the old wall, and look back before the last bend."),
    )
    return StagePrompt(audio=audio, audio_rate_hz=HEARD_RATE_HZ, messages=said)


async def measure(rounds: int) -> float:
    """Print the figures; returns the ratio of ``prewarm`` to ``whole``."""
    runtime = AsyncioRuntime()
    edges = build_edges(cascade_pipeline({}))
    variants = [
        Variant("whole", [whole(edge) for edge in edges], async_chunk=False, runtime=runtime),
        Variant("pieces", edges, async_chunk=False, runtime=runtime),
        Variant("prewarm", [opened_ahead(edge) for edge in edges], async_chunk=True, runtime=runtime),
    ]
    async with AsyncExitStack() as stack:
        for variant in variants:
            await variant.start(stack)
        for number in range(rounds + 1):
            prompt = await question(variants[0], number)
            for variant in variants:
                heard = await variant.ask(f"{variant.name}-{number}", prompt)
                if number:  # the first round warms caches
                    variant.heard.append(heard)
    await runtime.aclose()
    medians = {one.name: statistics.median(heard.first_audio_s for heard in one.heard) for one in variants}
    for variant in variants:
        times = sorted(heard.first_audio_s * 1e3 for heard in variant.heard)
        median_ms, ratio = medians[variant.name] * 1e3, medians[variant.name] / medians["whole"]
        spread = f"{times[0]:.0f} to {times[-1]:.0f}"
        said_s = statistics.median(heard.audio_s for heard in variant.heard)
        print(
            f"{variant.name:>8}: first audio after {median_ms:6.0f} ms ({spread}), {ratio:.2f} of whole; "
            f"said {said_s:.1f} s"
        )
    return medians["prewarm"] / medians["whole"]


def main() -> int:
    """``[ROUNDS]``: how often each is measured."""
    ratio = asyncio.run(measure(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS))
    return 0 if ratio <= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
