"""A replica on any backend, with everything that it pushed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from duologue.clock import AsyncioRuntime
from duologue.engine.stages.contract import StageClient
from duologue.engine.stages.factory import make_stage
from duologue.engine.stages.inproc import InprocClient
from duologue.engine.stages.process import ProcessClient, WorkerSpec
from duologue.outputs import RequestOutput, SamplingParams, StagePrompt, StageRequest
from tests.integration.backends.endpoint import fake_endpoint

REPOSITORY = Path(__file__).resolve().parents[3]
PATHS = f"{REPOSITORY / 'src'}:{REPOSITORY}"
STAGES = "tests.integration.backends.stages"
PATIENCE_S = 60.0  # only ever used up by a test that fails

SPEC = WorkerSpec(factory=f"{STAGES}:Blocking", name="worker", environment={"PYTHONPATH": PATHS}, close_timeout_s=2.0)

MAKERS: dict[str, Callable[[str, dict[str, object], AsyncioRuntime], StageClient]] = {}
"""Further backends, for those that need an environment of their own: name to what makes a client of a stage here."""


class Recorder:
    """The sink: outputs in order, and the death, if there was one."""

    def __init__(self) -> None:
        self.outputs: list[RequestOutput] = []
        self.deaths: list[BaseException] = []
        self._changed = asyncio.Event()

    def on_output(self, output: RequestOutput) -> None:
        self.outputs.append(output)
        self._changed.set()

    def on_dead(self, error: BaseException) -> None:
        self.deaths.append(error)
        self._changed.set()

    def of(self, request_id: str) -> list[RequestOutput]:
        return [output for output in self.outputs if output.request_id == request_id]

    def text_of(self, request_id: str) -> str:
        """All text of a request: how it is cut into outputs is the stage's business."""
        return "".join(output.text for output in self.of(request_id))

    def ended(self, request_id: str) -> bool:
        return any(output.finished or output.error is not None for output in self.of(request_id))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until ``condition`` holds; looked at whenever something is pushed."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


class Replica:
    """A started client and its recorder."""

    def __init__(self, client: StageClient, runtime: AsyncioRuntime) -> None:
        self.client = client
        self.runtime = runtime
        self.sink = Recorder()

    async def submit(self, request_id: str, text: str, *, final: bool = True, audio: bytes = b"") -> None:
        await self.client.submit(piece(request_id, text, final=final, audio=audio))

    async def update(self, request_id: str, text: str, *, final: bool = False) -> None:
        await self.client.update(piece(request_id, text, final=final))

    async def ask(self, request_id: str, text: str, *, audio: bytes = b"") -> list[RequestOutput]:
        """Submit a whole request and wait for its end."""
        await self.submit(request_id, text, audio=audio)
        await self.sink.until(lambda: self.sink.ended(request_id))
        return self.sink.of(request_id)


def piece(request_id: str, text: str, *, final: bool = True, audio: bytes = b"") -> StageRequest:
    return StageRequest(
        request_id=request_id,
        external_req_id=request_id,
        prompt=StagePrompt(text=text, final=final, audio=audio, audio_rate_hz=16_000 if audio else 0),
        params=SamplingParams(max_tokens=17),
        resumable=not final,
    )


@asynccontextmanager
async def replica(backend: str, stage: str, **changes: object) -> AsyncIterator[Replica]:
    """A running replica; closed in any case, and nothing of the runtime may be left."""
    if backend == "http":
        async with fake_endpoint() as fake, replica("inproc", stage, options={"base_url": fake.base_url}) as one:
            yield one
        return
    runtime = AsyncioRuntime()
    client: StageClient
    if backend == "process":
        spec = msgspec.structs.replace(SPEC, factory=f"{STAGES}:{stage}", **changes)
        client = ProcessClient(spec, runtime=runtime)
    elif backend in MAKERS:
        client = MAKERS[backend](f"{STAGES}:{stage}", changes, runtime)
    else:
        client = InprocClient(make_stage(f"{STAGES}:{stage}", changes.get("options", {})), runtime=runtime)  # type: ignore[arg-type]
    one = Replica(client, runtime)
    try:
        await client.start(one.sink)
        yield one
    finally:
        await client.close()
        await runtime.aclose()


run: Callable[[Coroutine[object, object, None]], None] = asyncio.run
"""What runs scenarios; replaced where replicas are kept from one test to the next, since they stay on one loop."""


def play(scenario: Callable[[], Coroutine[object, object, None]]) -> None:
    """Run a scenario on a real loop."""
    run(scenario())
