"""One runner with the real core on a fake port and a fake manager: the shell alone, every call recorded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from duologue.config.session import SessionConfig
from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.contracts import (
    DuplexFence,
    DuplexOutputContext,
    DuplexRequestIdentity,
    DuplexStagePort,
    DuplexStageRequestContext,
    DuplexStageSubmission,
    DuplexStageSubmissionResult,
)
from duologue.engine.duplex.core.session import DuplexEngineSession
from duologue.engine.duplex.events import SessionEvent
from duologue.engine.duplex.plugin import DuplexModelPlugin
from duologue.engine.duplex.session.detection import DetectionService, ScriptedDetection
from duologue.engine.duplex.session.runner import DuplexSessionRunner
from duologue.errors import ErrorCode
from duologue.models.scripted import Script, ScriptedPlugin
from duologue.outputs import RequestOutput, SamplingParams
from duologue.sim.loop import VirtualRuntime
from tests.unit.session.world import MANUAL

EventT = TypeVar("EventT")


@dataclass(slots=True)
class FakePort(DuplexStagePort):
    """``on_submit`` and ``on_cleanup`` are awaited, if set; they may wait or raise."""

    ensured: list[DuplexStageRequestContext] = field(default_factory=list)
    submitted: list[DuplexStageSubmission] = field(default_factory=list)
    cleaned: list[tuple[tuple[str, ...], bool]] = field(default_factory=list)
    paused: list[tuple[str, bool]] = field(default_factory=list)
    on_submit: Callable[[], Awaitable[None]] | None = None
    on_cleanup: Callable[[], Awaitable[None]] | None = None
    live: bool = True

    @property
    def stage_count(self) -> int:
        return 3

    def sampling_defaults(self) -> tuple[object, ...]:
        if not self.live:
            raise RuntimeError("stage 1 has no live replica")
        return (SamplingParams(), SamplingParams(), SamplingParams())

    def ensure_request(self, context: DuplexStageRequestContext) -> None:
        self.ensured.append(context)

    async def submit(self, submission: DuplexStageSubmission) -> DuplexStageSubmissionResult:
        self.submitted.append(submission)
        if self.on_submit is not None:
            await self.on_submit()
        return DuplexStageSubmissionResult(request_id=submission.context.request_id, stage_id=0, replica_id=0)

    async def cleanup(self, request_ids: list[str], *, abort: bool = False) -> None:
        self.cleaned.append((tuple(request_ids), abort))
        if self.on_cleanup is not None:
            await self.on_cleanup()

    async def abort_requests(self, request_ids: list[str]) -> None:
        raise AssertionError("cleanup with abort is the one way")

    def set_paused(self, request_id: str, paused: bool) -> None:
        self.paused.append((request_id, paused))


@dataclass(slots=True)
class FakeManager:
    """Records. ``on_emit`` is called with each event."""

    events: list[SessionEvent] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    invalidated: list[str] = field(default_factory=list)
    answers: list[tuple[str, int, ErrorCode | None]] = field(default_factory=list)
    ended: list[tuple[str, str, ErrorCode | None]] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    on_emit: Callable[[SessionEvent], None] | None = None

    def emit(self, session_id: str, number: int, event: SessionEvent) -> None:
        self.events.append(event)
        self.numbers.append(number)
        self.steps.append(type(event).__name__)
        if self.on_emit is not None:
            self.on_emit(event)

    def invalidate(self, session_id: str, response_id: str) -> None:
        self.invalidated.append(response_id)

    def answer(self, control_id: str, generation: int, code: ErrorCode | None, message: str) -> None:
        self.answers.append((control_id, generation, code))

    def end_session(self, session_id: str, kind: str, reason: str, fault: ErrorCode | None) -> None:
        self.ended.append((kind, reason, fault))

    def session_cleaned(self, session_id: str) -> None:
        self.steps.append("slot free")

    def session_ended(self, session_id: str) -> None:
        self.steps.append("ended")

    def unregister_request(self, request_id: str) -> None:
        self.steps.append(f"unregistered {request_id}")


@dataclass(slots=True)
class Desk:
    """One session's shell and what it does."""

    runner: DuplexSessionRunner
    port: FakePort
    manager: FakeManager
    runtime: VirtualRuntime

    def of(self, kind: type[EventT]) -> list[EventT]:
        return [event for event in self.manager.events if isinstance(event, kind)]

    def output(self, request_id: str, stage_id: int, final_stage_id: int = 2, **fields: object) -> bool:
        """Push one stage output; returns whether it must not be forwarded."""
        context = DuplexOutputContext(
            identity=DuplexRequestIdentity(session_id="s1", fence=self.fence),
            final_stage_id=final_stage_id,
            segment_finished=False,
        )
        output = RequestOutput(request_id=request_id, **fields)  # type: ignore[arg-type]
        return self.runner.on_stage_output(stage_id, output, None, request_id=request_id, context=context)

    @property
    def fence(self) -> DuplexFence:
        return self.runner.session.fence

    @property
    def last_request(self) -> str:
        return self.port.submitted[-1].context.request_id


def desk(
    runtime: VirtualRuntime,
    *,
    config: SessionConfig = MANUAL,
    plugin: DuplexModelPlugin | None = None,
    limits: DuplexSessionRuntimeConfig | None = None,
    detection: DetectionService | None = None,
    reports_output: bool = False,
) -> Desk:
    """A session that is open."""
    plugin = ScriptedPlugin(Script()) if plugin is None else plugin
    limits = DuplexSessionRuntimeConfig() if limits is None else limits
    port, manager = FakePort(), FakeManager()
    session = DuplexEngineSession(
        session_id="s1",
        config=config,
        runtime_config=limits,
        capabilities=plugin.capabilities,
        seed="seed",
        model_state=plugin.create_session_state(config),
        now=runtime.now(),
    )
    runner = DuplexSessionRunner(
        session=session,
        plugin=plugin,
        stage_port=port,
        manager=manager,
        runtime=runtime,
        detection=ScriptedDetection() if detection is None else detection,
        runtime_config=limits,
        reports_output=reports_output,
    )
    runner.start()
    return Desk(runner, port, manager, runtime)
