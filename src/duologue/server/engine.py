"""The small port through which the server reaches an engine, and the port over a ``DuplexOrchestrator``.

Rules kept here:

* ``post`` is synchronous and keeps order; ``control`` is one correlated operation that returns or raises once;
* whoever waits for the engine, or for the next try, hears of its death at once: nothing here outlives it;
* a session's sink is called synchronously, in order, from whatever the engine is doing: it only queues;
* when the engine dies, every session still gets a terminal and every operation an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from duologue.clock import Runtime
from duologue.engine.duplex.events import SessionClosed
from duologue.engine.duplex.messages import (
    ControlMessage,
    OpenSession,
    OutputInvalidated,
    SessionEventMessage,
)
from duologue.engine.messages import AbortRequest, EngineQueueMessage, ResultMessage
from duologue.errors import (
    ERRORS,
    AdmissionFault,
    ClientFault,
    DuologueError,
    ErrorCode,
    Fault,
    SessionFault,
    StageFault,
)
from duologue.log import init_logger
from duologue.server.models import ModelCard
from duologue.server.turns.port import TurnPort, TurnService

logger = init_logger(__name__)

SessionOutput = SessionEventMessage | OutputInvalidated
SessionSink = Callable[[SessionOutput], None]

CONTROL_TIMEOUT_S = 10.0
PAUSES_S: Final = (0.5, 1.0, 2.0, 4.0, 5.0, 5.0, 5.0)  # beside the time-out, before an operation is asked for again


class PoolHealth(msgspec.Struct, frozen=True, kw_only=True):
    """One stage's replicas."""

    name: str
    replicas: int
    available: int


class EngineHealth(msgspec.Struct, frozen=True, kw_only=True):
    """How the engine is. Slots in quarantine count as used.

    ``held``: how much of what is bounded its sessions and requests hold; ``acted``: how often each limit acted.
    """

    alive: bool
    pools: tuple[PoolHealth, ...] = ()
    slots_limit: int = 0
    slots_used: int = 0
    slots_quarantined: int = 0
    sessions_waiting: int = 0
    held: Mapping[str, int] = {}
    acted: Mapping[str, int] = {}

    @property
    def ready(self) -> bool:
        """Whether a new session could be served, slots aside."""
        return self.alive and all(pool.available > 0 for pool in self.pools)


class EnginePort(Protocol):
    """An engine as the server sees it. All calls come from the engine's own loop."""

    def post(self, message: EngineQueueMessage) -> None:
        """Send a one-way message. Order is kept."""
        ...

    async def control(self, message: ControlMessage) -> object:
        """Carry out one correlated operation and return its value. Raises :class:`DuologueError`.

        A time-out leaves the outcome unknown. Everything but opening is idempotent under its id, so it is repeated until
        the outcome is known or nothing was heard for too long.
        """
        ...

    def subscribe(self, session_id: str, sink: SessionSink) -> None:
        """From now on ``sink`` gets this session's events, in order, synchronously."""
        ...

    def unsubscribe(self, session_id: str) -> None:
        """Stop; harmless if nothing was subscribed."""
        ...

    def turns(self) -> TurnPort:
        """Ordinary requests. Raises :class:`ClientFault` (``unsupported``) where there are none."""
        ...

    def models(self) -> Sequence[ModelCard]:
        """What is served; the first is the default."""
        ...

    def health(self) -> EngineHealth:
        """How the engine is now."""
        ...


class Orchestrator(Protocol):
    """What :class:`EngineFront` needs of an orchestrator."""

    def post(self, message: EngineQueueMessage) -> None:
        """Queue one message."""
        ...


class _Queue:
    """A queue that is no queue: what is put on it is handled at once."""

    __slots__ = ("_take",)

    def __init__(self, take: Callable[[EngineQueueMessage], None]) -> None:
        self._take = take

    def put_nowait(self, message: EngineQueueMessage) -> None:
        self._take(message)


def fault_of(code: str, message: str) -> DuologueError:
    """The exception for an error that came back as a code."""
    try:
        known = ErrorCode(code)
    except ValueError:
        known = ErrorCode.INTERNAL_ERROR
    kinds: dict[Fault, type[DuologueError]] = {
        Fault.CLIENT: ClientFault,
        Fault.ADMISSION: AdmissionFault,
        Fault.SESSION: SessionFault,
        Fault.STAGE: StageFault,
    }
    return kinds[ERRORS[known].fault](known, message or ERRORS[known].summary)


class EngineFront:
    """The port over an orchestrator on the same loop. ``outputs`` and ``results`` are the queues to build it with."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        models: Sequence[ModelCard],
        health: Callable[[], EngineHealth],
        control_timeout_s: float = CONTROL_TIMEOUT_S,
        wait_s: float = 0.0,
    ) -> None:
        """``wait_s``: so much longer a session may take to open, because it may have to wait for a slot."""
        self.outputs = _Queue(self._output)
        self.results = _Queue(self._result)
        self._runtime = runtime
        self._models = tuple(models)
        self._health = health
        self._timeout_s = control_timeout_s
        self._wait_s = wait_s
        self._orchestrator: Orchestrator | None = None
        self._sinks: dict[str, SessionSink] = {}
        self._numbers: dict[str, int] = {}
        self._waiting: dict[str, asyncio.Future[object]] = {}
        self._turns: TurnService | None = None
        self._aborts = 0
        self._dead = False

    def attach(self, orchestrator: Orchestrator) -> None:
        """The orchestrator exists; from now on messages are posted to it."""
        self._orchestrator = orchestrator

    def serve_turns(self, turns: TurnService) -> None:
        """From now on there are ordinary requests too."""
        self._turns = turns

    def turns(self) -> TurnPort:
        if self._turns is None:
            raise ClientFault(ErrorCode.UNSUPPORTED, "This server answers sessions only: use /v1/realtime.")
        return self._turns

    def post(self, message: EngineQueueMessage) -> None:
        if self._orchestrator is not None and not self._dead:
            self._orchestrator.post(message)

    async def control(self, message: ControlMessage) -> object:
        if isinstance(message, OpenSession):
            return await self._ask(message.control_id, message, (self._timeout_s + self._wait_s,))
        waits_s = tuple(self._timeout_s + pause_s for pause_s in (*PAUSES_S, 0.0))
        return await self._ask(message.control_id, message, waits_s)

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Stop ordinary requests at every stage; returns when they are. Raises :class:`DuologueError`."""
        self._aborts += 1
        control_id = f"abort-{self._aborts}"
        message = AbortRequest(request_ids=tuple(request_ids), control_id=control_id)
        await self._ask(control_id, message, (self._timeout_s,))

    async def _ask(self, control_id: str, message: EngineQueueMessage, waits_s: Sequence[float]) -> object:
        """The answer to ``message``, which is sent once before each wait. One that comes late is an answer too."""
        if self._dead or self._orchestrator is None:
            raise SessionFault(ErrorCode.ENGINE_DEAD, ERRORS[ErrorCode.ENGINE_DEAD].summary)
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        post, runtime, waits, timer = self._orchestrator.post, self._runtime, iter(waits_s), None

        def ask() -> None:
            nonlocal timer
            if answer.done():
                return
            if (wait_s := next(waits, None)) is not None:
                timer = runtime.call_at(runtime.now() + wait_s, ask)
                post(message)
                return
            fault = f"The engine did not answer within {sum(waits_s):g} s; try again."
            answer.set_exception(StageFault(ErrorCode.TIMEOUT, fault))

        self._waiting[control_id] = answer
        ask()
        try:
            return await answer
        finally:
            if timer is not None:
                timer.cancel()
            if answer.done() and not answer.cancelled():
                answer.exception()  # it has been heard, also if whoever asked is cancelled at this moment
            if self._waiting.get(control_id) is answer:
                del self._waiting[control_id]

    def subscribe(self, session_id: str, sink: SessionSink) -> None:
        self._sinks[session_id] = sink

    def unsubscribe(self, session_id: str) -> None:
        self._sinks.pop(session_id, None)
        self._numbers.pop(session_id, None)

    def models(self) -> Sequence[ModelCard]:
        return self._models

    def health(self) -> EngineHealth:
        health = self._health()
        return msgspec.structs.replace(health, alive=health.alive and not self._dead)

    def died(self) -> None:
        """The orchestrator has stopped for good: end what is still open. Idempotent."""
        self._dead = True
        fault = SessionFault(ErrorCode.ENGINE_DEAD, ERRORS[ErrorCode.ENGINE_DEAD].summary)
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(fault)
        for session_id in list(self._sinks):
            event = SessionClosed(reason="engine_dead", slot_released=True, fault=ErrorCode.ENGINE_DEAD)
            number = self._numbers.get(session_id, 0) + 1
            self._output(SessionEventMessage(session_id=session_id, number=number, event=event))
        if self._turns is not None:
            self._turns.died(fault)

    def _output(self, message: EngineQueueMessage) -> None:
        if not isinstance(message, SessionEventMessage | OutputInvalidated):
            if self._turns is not None:
                self._turns.take(message)
            return
        sink = self._sinks.get(message.session_id)
        if sink is None:
            return
        if isinstance(message, SessionEventMessage):
            self._numbers[message.session_id] = message.number
        sink(message)

    def _result(self, message: EngineQueueMessage) -> None:
        if not isinstance(message, ResultMessage):
            return
        answer = self._waiting.get(message.control_id)
        if answer is None or answer.done():
            return
        if message.error_code is None:
            answer.set_result(message.value)
        else:
            answer.set_exception(fault_of(message.error_code, message.error_message))
