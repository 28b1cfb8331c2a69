"""Where ordinary requests meet the engine: planned by the plugin, added, fed, read, held up, aborted.

Rules kept here:

* a request has one reader; whatever becomes of it, its reader gets an end: the last output, or an error;
* a reader that stops early makes the engine stop at every stage, and the engine is told again if a stage did not listen;
* output that nobody takes is bounded: from ``pause_bytes`` on nothing more is fed and pieces wait before later stages;
* no wait for the engine is longer than ``output_timeout_s``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from duologue.clock import Runtime
from duologue.config.turns import TurnLimits
from duologue.engine.duplex.plugin import Turn, TurnPlan, TurnRequests
from duologue.engine.messages import (
    AddRequest,
    EngineQueueMessage,
    ErrorMessage,
    OutputMessage,
    StreamingUpdate,
)
from duologue.errors import ClientFault, DuologueError, ErrorCode, StageFault
from duologue.log import init_logger
from duologue.outputs import SamplingParams
from duologue.server.engine import fault_of

logger = init_logger(__name__)

_ABORT_TRIES: Final = 3
_ABORT_PAUSE_S: Final = 0.5
_MESSAGE_BYTES: Final = 256  # what an output takes besides its text and audio


class TurnEngine(Protocol):
    """What the desk needs of the engine it stands before."""

    def post(self, message: EngineQueueMessage) -> None:
        """Send a one-way message."""
        ...

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Stop requests at every stage; returns when they are. Raises :class:`DuologueError`."""
        ...


class TurnStream:
    """The outputs of one ordinary request, in order. ``async for`` it, then :meth:`close` it, whatever happened."""

    def __init__(self, desk: TurnDesk, request_id: str, plan: TurnPlan) -> None:
        self.request_id = request_id
        self.plan = plan
        self._desk = desk
        self._pieces = deque(plan.pieces[1:])
        self._fed = True  # the entry stage works on a piece
        self._messages: deque[OutputMessage] = deque()
        self._unread_bytes = 0
        self._paused = False
        self._over = False
        self._fault: DuologueError | None = None
        self._changed = asyncio.Event()

    @property
    def unread_bytes(self) -> int:
        """What has arrived and was not taken."""
        return self._unread_bytes

    def __aiter__(self) -> TurnStream:
        return self

    async def __anext__(self) -> OutputMessage:
        """The next output. Raises what ended the request, after everything that came before it."""
        while not self._messages:
            if self._fault is not None:
                raise self._fault
            if self._over:
                raise StopAsyncIteration
            await self._wait()
        message = self._messages.popleft()
        self._unread_bytes -= _size(message)
        if self._unread_bytes < self._desk.limits.pause_bytes // 2:
            self._resume()
        return message

    def close(self) -> None:
        """Nobody reads any more. What still runs is stopped, without waiting for it. Idempotent."""
        self._messages.clear()
        self._pieces.clear()
        running, self._over = not self._over, True
        self._desk.forget(self.request_id, running=running)

    # -- from the desk

    def take(self, message: OutputMessage | ErrorMessage) -> None:
        """One message of the engine."""
        if self._over:
            return
        if isinstance(message, ErrorMessage):
            self.end(fault_of(message.code, message.message))
            return
        if message.output.finish_reason == "abort":
            self.end(StageFault(ErrorCode.REQUEST_ABORTED, "The engine has stopped this request."))
            return
        self._messages.append(message)
        self._unread_bytes += _size(message)
        self._over = message.finished
        self._changed.set()
        if self._unread_bytes > self._desk.limits.max_unread_bytes:
            self._desk.forget(self.request_id, running=not self._over)
            self.end(
                StageFault(ErrorCode.OUTPUT_BACKPRESSURE, "The answer was made faster than it is read; ask for less.")
            )
            return
        if message.stage_id == self.plan.entry_stage_id and message.output.segment_finished:
            self._fed = False
        if self._unread_bytes > self._desk.limits.pause_bytes:
            self._hold()
        else:
            self._feed()

    def end(self, fault: DuologueError) -> None:
        """The request is over; what has arrived can still be read, then ``fault`` is raised."""
        if self._fault is None:
            self._fault = fault
        self._over = True
        self._pieces.clear()
        self._changed.set()

    async def _wait(self) -> None:
        self._changed.clear()
        limit_s = self._desk.limits.output_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await self._changed.wait()
        except TimeoutError:
            raise StageFault(
                ErrorCode.TIMEOUT, f"The model has said nothing for {limit_s:g} s; try again later."
            ) from None

    def _hold(self) -> None:
        if not self._paused and not self._over:
            self._paused = True
            self._desk.set_paused(self.request_id, True)

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            if not self._over:
                self._desk.set_paused(self.request_id, False)
        self._feed()

    def _feed(self) -> None:
        """Give the entry stage its next piece once it has finished the last."""
        if self._pieces and not (self._fed or self._over):
            self._fed = True
            self._desk.post(StreamingUpdate(request_id=self.request_id, prompt=self._pieces.popleft()))


class TurnDesk:
    """All ordinary requests of one engine. ``planner`` ``None``: the model serves sessions only.

    ``pause`` holds a request's pieces before later stages, or lets them go; ``defaults`` gives the sampling parameters of
    the stages, one each.
    """

    def __init__(
        self,
        *,
        engine: TurnEngine,
        pause: Callable[[str, bool], None],
        planner: TurnRequests | None,
        defaults: Callable[[], Sequence[SamplingParams]],
        runtime: Runtime,
        limits: TurnLimits,
        input_rate_hz: int,
    ) -> None:
        self.limits = limits
        self.input_rate_hz = input_rate_hz
        self._engine = engine
        self._pause = pause
        self._planner = planner
        self._defaults = defaults
        self._runtime = runtime
        self._streams: dict[str, TurnStream] = {}
        self._dead: DuologueError | None = None
        self._aborts: dict[asyncio.Task[None], None] = {}

    @property
    def active(self) -> int:
        """Requests whose readers have not gone."""
        return len(self._streams)

    @property
    def longest_utterance_ms(self) -> int:
        """How long a recording may be to be recognised in one piece. Raises as :meth:`request` does."""
        return self._ability().longest_utterance_ms

    def request(self, turn: Turn) -> TurnStream:
        """Start a request.

        Raises :class:`ClientFault` for what the model cannot do, :class:`StageFault` when its plugin fails.
        """
        if self._dead is not None:
            raise self._dead
        plan = self._plan(turn)
        request_id = f"turn-{self._runtime.entropy(12).hex()}"
        stream = self._streams[request_id] = TurnStream(self, request_id, plan)
        shown = () if plan.report_stage_id is None else (plan.report_stage_id,)
        self._engine.post(
            AddRequest(
                request_id=request_id,
                prompt=plan.pieces[0],
                sampling_params=plan.sampling_params,
                entry_stage_id=plan.entry_stage_id,
                final_stage_id=plan.final_stage_id,
                shown_stage_ids=shown,
                resumable=len(plan.pieces) > 1,
            )
        )
        return stream

    def _ability(self) -> TurnRequests:
        if self._planner is None:
            raise ClientFault(ErrorCode.UNSUPPORTED, "The served model takes part in sessions only: use /v1/realtime.")
        return self._planner

    def _plan(self, turn: Turn) -> TurnPlan:
        planner = self._ability()
        try:
            plan = planner.plan_turn(turn, self._defaults())
        except DuologueError:
            raise
        except Exception:
            logger.exception("the plugin failed to plan a request")
            raise StageFault(ErrorCode.RUNTIME_PLUGIN_FAILED, "The model plugin failed to plan the request.") from None
        if not plan.pieces:
            raise ClientFault(ErrorCode.REQUEST_INVALID, "There is nothing to do in this request.")
        return plan

    # -- from the engine

    def take(self, message: EngineQueueMessage) -> None:
        """A message from the engine; ignored unless somebody reads what it is about."""
        if isinstance(message, OutputMessage | ErrorMessage):
            stream = self._streams.get(message.request_id)
            if stream is not None:
                stream.take(message)

    def died(self, fault: DuologueError) -> None:
        """The engine has stopped for good."""
        self._dead = fault
        for abort in tuple(self._aborts):
            abort.cancel()  # nothing is left to be stopped
        for stream in list(self._streams.values()):
            stream.end(fault)

    # -- from the streams

    def post(self, message: EngineQueueMessage) -> None:
        """To the engine."""
        self._engine.post(message)

    def set_paused(self, request_id: str, paused: bool) -> None:
        """To the engine."""
        self._pause(request_id, paused)

    def forget(self, request_id: str, *, running: bool) -> None:
        """A reader has gone, or must go."""
        if self._streams.pop(request_id, None) is not None and running:
            # A task of its own: the reader may be in the middle of being cancelled.
            abort = self._runtime.spawn(self._abort(request_id), name="abort-turn")
            self._aborts[abort] = None
            abort.add_done_callback(self._aborts.pop)

    async def _abort(self, request_id: str) -> None:
        for attempt in range(_ABORT_TRIES):
            if attempt:
                await asyncio.sleep(_ABORT_PAUSE_S)
            try:
                await self._engine.abort([request_id])
            except DuologueError as fault:
                if fault.code is ErrorCode.ENGINE_DEAD:
                    return
                logger.warning("a request was not stopped everywhere", extra={"request_id": request_id}, exc_info=fault)
            else:
                return


def _size(message: OutputMessage) -> int:
    output = message.output
    return len(output.audio) + len(output.text) + _MESSAGE_BYTES
