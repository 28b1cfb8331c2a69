"""A scripted pipeline on an orchestrator in virtual time, and a record of all that it says and does."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from duologue.engine.messages import (
    AddRequest,
    EngineQueueMessage,
    ErrorMessage,
    OutputMessage,
    ResultMessage,
    Shutdown,
)
from duologue.engine.orchestrator import Orchestrator
from duologue.engine.stage_pool import DEFAULT_RESTART, StagePool
from duologue.engine.stages.contract import AnyStage, AsyncStage, Stage, StageControl
from duologue.engine.stages.edge import Edge, pass_on
from duologue.engine.stages.inproc import InprocClient
from duologue.engine.stages.supervisor import RestartPolicy
from duologue.outputs import RequestOutput, StagePrompt, StageRequest
from duologue.sim.loop import VirtualRuntime

Script = Callable[[StageRequest], Sequence[RequestOutput | float]]
"""What a stage says to a piece: outputs, and pauses in seconds between them."""


def said(request: StageRequest, text: str = "", **fields: object) -> RequestOutput:
    """An output for ``request``."""
    return RequestOutput(request_id=request.request_id, text=text, **fields)  # type: ignore[arg-type]


def echo(request: StageRequest) -> list[RequestOutput | float]:
    """Repeat the piece; finish with the last one."""
    final = request.prompt.final
    return [said(request, request.prompt.text, finished=final, segment_finished=not final)]


@dataclass(eq=False)
class Ledger:
    """What a stage was asked to do, over all its replicas."""

    pieces: list[StageRequest] = field(default_factory=list)
    opened: Counter[str] = field(default_factory=Counter)
    closed: Counter[str] = field(default_factory=Counter)

    def texts(self, request_id: str) -> list[str]:
        return [piece.prompt.text for piece in self.pieces if piece.request_id == request_id]

    def finals(self, request_id: str) -> list[bool]:
        return [piece.prompt.final for piece in self.pieces if piece.request_id == request_id]

    def balanced(self) -> bool:
        """Whether every state that was opened was closed, once."""
        return self.opened == self.closed


class Scripted(AsyncStage[str]):
    """Asynchronous stage code that follows a script."""

    def __init__(self, ledger: Ledger, script: Script) -> None:
        self.ledger = ledger
        self.script = script

    def open(self, request: StageRequest) -> str:
        self.ledger.opened[request.request_id] += 1
        return request.request_id

    async def process(self, state: str, request: StageRequest, control: StageControl) -> AsyncIterator[RequestOutput]:
        self.ledger.pieces.append(request)
        for step in self.script(request):
            if isinstance(step, RequestOutput):
                yield step
            else:
                await asyncio.sleep(step)

    def close(self, state: str) -> None:
        self.ledger.closed[state] += 1


class ScriptedBlocking(Stage[str]):
    """The same, blocking: pauses are left out."""

    def __init__(self, ledger: Ledger, script: Script) -> None:
        self.ledger = ledger
        self.script = script

    def open(self, request: StageRequest) -> str:
        self.ledger.opened[request.request_id] += 1
        return request.request_id

    def process(self, state: str, request: StageRequest, control: StageControl) -> Iterator[RequestOutput]:
        self.ledger.pieces.append(request)
        for step in self.script(request):
            if isinstance(step, RequestOutput):
                yield step

    def close(self, state: str) -> None:
        self.ledger.closed[state] += 1


class Outbox:
    """An output queue that keeps everything."""

    def __init__(self) -> None:
        self.messages: list[EngineQueueMessage] = []

    def put_nowait(self, message: EngineQueueMessage, /) -> None:
        self.messages.append(message)


@dataclass(eq=False)
class StageSpec:
    """One stage of a rig."""

    script: Script = echo
    replicas: int = 1
    blocking: bool = False
    final_output: bool = False
    restart: RestartPolicy | None = DEFAULT_RESTART
    ledger: Ledger = field(default_factory=Ledger)
    clients: list[InprocClient] = field(default_factory=list)

    def stage(self) -> AnyStage:
        return ScriptedBlocking(self.ledger, self.script) if self.blocking else Scripted(self.ledger, self.script)


class Rig:
    """An orchestrator over scripted stages, and what came out of it."""

    def __init__(
        self,
        runtime: VirtualRuntime,
        stages: Sequence[StageSpec],
        *,
        edges: Sequence[Edge] | None = None,
        kind: type[Orchestrator] = Orchestrator,
        async_chunk: bool = False,
    ) -> None:
        self.runtime = runtime
        self.stages = list(stages)
        self.outbox = Outbox()
        self.results = Outbox()
        if edges is None:
            edges = [Edge(source=n, target=n + 1, processor=pass_on) for n in range(len(stages) - 1)]
        self.orchestrator = kind(
            stage_pools=[self._pool(number, spec) for number, spec in enumerate(stages)],
            edges=edges,
            output_async_queue=self.outbox,
            rpc_async_queue=self.results,
            runtime=runtime,
            async_chunk=async_chunk,
        )

    def _pool(self, stage_id: int, spec: StageSpec) -> StagePool:
        def make_client(_replica_id: int) -> InprocClient:
            client = InprocClient(spec.stage(), runtime=self.runtime)
            spec.clients.append(client)
            return client

        return StagePool(
            stage_id=stage_id,
            make_client=make_client,
            runtime=self.runtime,
            replicas=spec.replicas,
            final_output=spec.final_output,
            restart=spec.restart,
        )

    def add(self, request_id: str, text: str = "", **fields: object) -> None:
        """Post a request."""
        prompt = StagePrompt(text=text, final=bool(fields.pop("final", True)), **fields.pop("prompt", {}))  # type: ignore[arg-type]
        self.orchestrator.post(AddRequest(request_id=request_id, prompt=prompt, **fields))  # type: ignore[arg-type]

    def outputs(self, request_id: str) -> list[OutputMessage]:
        return [m for m in self.outbox.messages if isinstance(m, OutputMessage) and m.request_id == request_id]

    def text(self, request_id: str) -> str:
        """Everything that the client of a request got, as text."""
        return "".join(message.output.text for message in self.outputs(request_id))

    def errors(self, request_id: str) -> list[ErrorMessage]:
        return [m for m in self.outbox.messages if isinstance(m, ErrorMessage) and m.request_id == request_id]

    def endings(self) -> Counter[str]:
        """How many last messages each request got."""
        return Counter(
            message.request_id
            for message in self.outbox.messages
            if isinstance(message, ErrorMessage) or (isinstance(message, OutputMessage) and message.finished)
        )

    def answers(self) -> list[ResultMessage]:
        return [message for message in self.results.messages if isinstance(message, ResultMessage)]

    def leftovers(self) -> dict[str, int]:
        """Tables that are not empty."""
        return {name: size for name, size in self.orchestrator.tables().items() if size}


@asynccontextmanager
async def running(rig: Rig) -> AsyncIterator[Rig]:
    """``rig`` serving; on leaving it is shut down, and must have left nothing behind."""
    run = rig.runtime.spawn(rig.orchestrator.run(), name="orchestrator")
    await asyncio.sleep(0.001)
    yield rig
    rig.orchestrator.post(Shutdown())
    await run
    assert rig.leftovers() == {}
    for number, spec in enumerate(rig.stages):
        assert spec.ledger.balanced(), f"stage {number} did not close what it opened"
