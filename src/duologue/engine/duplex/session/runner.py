"""Engine-resident session runner: the shell of one session on the orchestrator's loop.

:class:`DuplexSessionRunner` gives the session its items and carries out its effects. Rules kept here:

* the session changes in :meth:`DuplexSessionRunner.apply` and nowhere else; an item is handled on the spot, unless an
  item is being handled already: then it follows. Nothing that awaits owns state, so nothing is checked again after it;
* effects are carried out in the order in which the session named them;
* an exception from the session, or from carrying out an effect, ends this session and nothing else: error, a failed
  terminal for each open response, the session's terminal;
* one timer, armed again only when an earlier deadline turns up; when it fires the session is asked for the next.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import ParamSpec, TypeVar, assert_never

from duologue.clock import AsyncioRuntime, Runtime, TimerHandle
from duologue.config.stage_config import DuplexSessionRuntimeConfig, ModelConfig
from duologue.engine.duplex.commands import DuplexCommand
from duologue.engine.duplex.contracts import DuplexFence, DuplexOutputContext, DuplexStagePort
from duologue.engine.duplex.core.effects import (
    AbortRequests,
    AnswerControl,
    ApplyConfig,
    ClassifyTurn,
    CleanupSession,
    Detect,
    Effect,
    Emit,
    EndSession,
    InvalidateOutput,
    JudgeConfig,
    ReleaseRequests,
    SetPaused,
    SubmitAppend,
)
from duologue.engine.duplex.core.items import (
    CommandReceived,
    Item,
    ModelSpoke,
    Opened,
    OutputTaken,
    StageFailed,
    TimerFired,
)
from duologue.engine.duplex.core.session import DuplexEngineSession
from duologue.engine.duplex.core.silence import compute_silence_continuation_deadline
from duologue.engine.duplex.plugin import DuplexModelPlugin, DuplexModelSessionState, Rebuild
from duologue.engine.duplex.results import Decision
from duologue.engine.duplex.session.context import (
    CloseKind,
    DuplexRunState,
    DuplexSessionContext,
    DuplexSessionTasks,
    SessionManager,
)
from duologue.engine.duplex.session.control import SessionControl
from duologue.engine.duplex.session.costs import ResponseCosts
from duologue.engine.duplex.session.detection import DetectionService
from duologue.engine.duplex.session.emitter import SessionEmitter
from duologue.engine.duplex.session.ending import SessionEnding
from duologue.engine.duplex.session.model_channel import ModelChannel
from duologue.engine.duplex.session.payload import item_from
from duologue.errors import DuologueError, ErrorCode, StageFault
from duologue.log import init_logger
from duologue.metrics.stats import StageRequestStats
from duologue.outputs import RequestOutput

logger = init_logger(__name__)

_P = ParamSpec("_P")
_OffloadT = TypeVar("_OffloadT")


class DuplexSessionRunner:
    """Owns one :class:`DuplexEngineSession` on the orchestrator's loop (see module docstring).

    ``reports_output``: the consumer says what it took (``OutputTaken``); otherwise every event counts as taken at once.
    ``log_stats``: one table per response in the log.
    """

    def __init__(
        self,
        *,
        session: DuplexEngineSession,
        plugin: DuplexModelPlugin,
        stage_port: DuplexStagePort,
        manager: SessionManager,
        model_config: ModelConfig | None = None,
        runtime: Runtime | None = None,
        detection: DetectionService | None = None,
        runtime_config: DuplexSessionRuntimeConfig | None = None,
        reports_output: bool = False,
        log_stats: bool = False,
    ) -> None:
        self.session = session
        self.plugin = plugin
        self.stage_port = stage_port
        self.manager = manager
        self.model_config = model_config
        self.model_state: DuplexModelSessionState = session.model_state
        self.run = DuplexRunState()
        self.tasks = DuplexSessionTasks()
        self.runtime: Runtime = AsyncioRuntime() if runtime is None else runtime
        self._limits = DuplexSessionRuntimeConfig() if runtime_config is None else runtime_config
        self.ctx = DuplexSessionContext(
            session=session,
            model_state=self.model_state,
            plugin=plugin,
            stage_port=stage_port,
            manager=manager,
            tasks=self.tasks,
            run=self.run,
            services=self,
            runtime=self.runtime,
            session_id=session.session_id,
            model_config=model_config,
        )
        self._costs = ResponseCosts(session, stage_port) if log_stats else None
        self.out = SessionEmitter(
            self.ctx,
            promote_deferred_overlap=self._promote_deferred_overlap_later,
            response_over=None if self._costs is None else self._costs.over,
        )
        self.model = ModelChannel(
            self.ctx,
            self.out,
            close_from_runtime=self._close_from_runtime,
            schedule_silence_continuation=self._schedule_silence_continuation,
            abort_request=self._abort_request_background,
            submit_timeout_s=self._limits.submit_timeout_s,
        )
        self.control = SessionControl(
            self.ctx,
            self.out,
            self.model,
            wait_for_append_tail=self._wait_for_append_tail,
            detection=detection,
            max_waiting_bytes=self._limits.max_pending_input_bytes_per_session,
        )
        self.ending = SessionEnding(self)
        self._reports_output = reports_output
        self._queue: deque[Item] = deque()
        self.stepping = False
        self._started = False
        self._taken = 0
        self._timer: TimerHandle | None = None
        self._timer_at = 0.0

    # What happened goes in, what to do comes out

    def apply(self, item: Item) -> None:
        """Tell the session what happened and carry out what it says. Never raises."""
        if self.ending.broken:
            return
        self._queue.append(item)
        if self.stepping:
            return
        self.stepping = True
        try:
            self._drain()
            self._arm()
        except Exception as exc:
            self._queue.clear()
            self.ending.break_off(exc)
        finally:
            self.stepping = False
        if self.control.held:
            self.control.go_on()
        self.ending.finish_if_clean()

    def _drain(self) -> None:
        queue = self._queue
        session = self.session
        now = self.runtime.now()
        while queue:
            for effect in session.step(queue.popleft(), now):
                self._execute(effect)
            if not queue and not self._reports_output and self._taken < self.out.last_number:
                self._taken = self.out.last_number
                queue.append(OutputTaken(number=self._taken))
        if session.phase in ("closing", "closed"):
            self._note_phase()
            if queue:
                self._drain()

    def _execute(self, effect: Effect) -> None:
        match effect:
            case Emit():
                self.out.emit(effect)
            case Detect():
                self.control.detect(effect)
            case SubmitAppend():
                self.model.submit(effect)
            case ClassifyTurn():
                self.control.classify(effect)
            case InvalidateOutput():
                self.out.invalidate(effect.response_id)
            case AbortRequests():
                self.model.abort(effect.request_ids)
            case ReleaseRequests():
                self.model.release(effect.request_ids)
            case SetPaused():
                self.model.set_paused(effect.request_id, effect.paused)
            case JudgeConfig():
                self.control.judge(effect)
            case ApplyConfig():
                self.control.configure(effect)
            case AnswerControl():
                self.manager.answer(effect.control_id, effect.generation, effect.code, effect.message)
            case CleanupSession():
                self.model.cleanup_session(effect.request_ids, external=self.ending.external_cleanup)
            case EndSession():
                self.manager.end_session(self.session.session_id, effect.kind, effect.reason, effect.fault)
            case _:
                assert_never(effect)

    def _note_phase(self) -> None:
        if not self.run.closing:
            self.run.closing = True
            self._queue.extend(CommandReceived(command=command) for command in self.control.stop_input())
        if self.session.phase == "closed":
            self.run.runtime_closed = True

    # The timer

    def _arm(self) -> None:
        deadline = self.session.next_deadline()
        if deadline is None or (self._timer is not None and self._timer_at <= deadline):
            return
        self._stop_timer()
        self._timer_at = deadline
        self._timer = self.runtime.call_at(deadline, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self.apply(TimerFired())

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # Life

    def start(self) -> None:
        """The session begins: it says so. Once."""
        if not self._started:
            self._started = True
            self.apply(Opened())

    def submit(self, command: DuplexCommand) -> None:
        """Take one client command, in wire order."""
        self.control.receive(command)

    def emit(self, payload: dict[str, object]) -> None:
        """Apply an internal event to the session (see ``payload.py`` for what it may be). ``ValueError`` if unknown."""
        self.apply(item_from(payload))

    @property
    def closed_emitted(self) -> bool:
        """Whether session.closed / session.expired already left this runner, or is claimed by the manager."""
        return self.run.closed_emitted

    @property
    def closing(self) -> bool:
        """Whether an irreversible close has begun (commands and control ops are refused)."""
        return self.run.closing

    def mark_closed_emitted(self) -> None:
        """Claim the session's one terminal event for the caller, who sends it once the stages are clean."""
        self.ending.claim()

    def begin_close(
        self,
        kind: CloseKind,
        reason: str,
        *,
        fault: ErrorCode | None = None,
        message: str = "",
        emit_terminal: bool = True,
    ) -> None:
        """The way to the end, synchronous: when this returns nothing is accepted any more."""
        self.ending.begin(kind, reason, fault=fault, message=message, emit_terminal=emit_terminal)

    async def close(self, reason: str, *, emit_closed: bool = True) -> None:
        """Close in order: end what is open, clean the stages, say so.

        Returns when the stages are clean, or ``close_timeout_s`` later. With ``emit_closed=False`` the manager sends
        the terminal itself.
        """
        self.begin_close("closed", reason, emit_terminal=emit_closed)
        await self.ending.wait(self._limits.close_timeout_s)

    async def expire(self, reason: str, *, emit_expired: bool = True) -> None:
        """The same with ``session.expired`` as terminal."""
        self.begin_close("expired", reason, emit_terminal=emit_expired)
        await self.ending.wait(self._limits.close_timeout_s)

    def cleaned(self) -> None:
        """The stages hold nothing of the closing session any more."""
        self.ending.cleaned()

    async def shutdown(self) -> None:
        """Stop everything that works for this session. Idempotent; says nothing to the client."""
        self.run.closing = True
        self.dispose()
        self.model.stop()
        for task in self.tasks.background:
            task.cancel()
        pending = self.tasks.all()
        if pending:
            # Never ask a task for its exception here: a cancelled one raises, and the steps after would not run.
            await asyncio.wait(pending)

    def dispose(self) -> None:
        """Nothing more happens by itself: no timer, no detection, no decoding."""
        self._stop_timer()
        self.control.close()

    # Stages

    def on_stage_output(
        self,
        stage_id: int,
        output: RequestOutput,
        metrics: StageRequestStats | None,
        *,
        request_id: str,
        context: DuplexOutputContext,
    ) -> bool:
        """Accept one stage output; true when it must not be forwarded."""
        if self._costs is not None and metrics is not None:
            self._costs.heard(request_id, metrics)
        if self.ending.broken or self.run.closing:
            return True
        if output.error is not None:
            self.on_stage_failure(stage_id, _stage_error(output), request_id=request_id)
            return True
        try:
            decision = self.plugin.decide(self.model_state, stage_id, output, context)
            if not isinstance(decision, Decision):
                raise TypeError(f"decide must return a Decision, got {type(decision).__name__}")
        except Exception as exc:
            self.plugin_failed("decide", exc, request_id=request_id)
            return True
        finished = output.finished and stage_id >= context.final_stage_id
        if decision.results or finished:
            self.apply(
                ModelSpoke(
                    request_id=request_id, fence=context.identity.fence, results=decision.results, finished=finished
                )
            )
        return not decision.forward

    def on_stage_failure(self, stage_id: int, exc: BaseException, *, request_id: str | None = None) -> None:
        """A stage failed a request of this session: fail the response it belongs to, at once.

        The response is the one of ``request_id``, else the active one. Order: error, failed ``response.done``, and for a
        resident model the session's terminal.
        """
        if isinstance(exc, DuologueError):
            code, message = exc.code, exc.message
        else:
            logger.error("Stage %d failed", stage_id, exc_info=exc, extra={"session_id": self.session.session_id})
            code = ErrorCode.RUNTIME_STREAM_FAILED
            message = f"Stage {stage_id} of the model failed ({type(exc).__name__})."
        self.fail(code, message, request_id=request_id)

    def bind_stage_request(self, stage_id: int, request_id: str, *, fence: DuplexFence) -> None:
        """A stage took a request. Raises ``DuplexFenceMismatchError`` if the session no longer wants it."""
        self.session.bind_stage_request(stage_id, request_id, fence=fence)

    # Failures

    def fail(self, code: ErrorCode, message: str, *, request_id: str | None = None, session_ends: bool = False) -> None:
        """The one failure path: error, failed response, and for a resident model (or if told so) the session's end."""
        self.apply(StageFailed(request_id=request_id, code=code, message=message, session_ends=session_ends))

    def plugin_failed(self, hook: str, exc: BaseException, *, request_id: str | None = None) -> None:
        """A hook of the plugin raised: an ephemeral model loses that response, a resident one its session."""
        logger.error("Model plugin failed in %s", hook, exc_info=exc, extra={"session_id": self.session.session_id})
        if request_id is not None:
            # The stages know nothing of this failure: the request still runs there.
            self.model.abort((request_id,))
        self.fail(
            ErrorCode.RUNTIME_PLUGIN_FAILED,
            f"The model plugin failed in {hook} ({type(exc).__name__}).",
            request_id=request_id,
        )

    def can_rebuild(self) -> bool:
        """Whether the session can go on when a replica of it is lost."""
        plugin = self.plugin
        if plugin.capabilities.family == "ephemeral":
            return True
        if not isinstance(plugin, Rebuild):
            return False
        try:
            return plugin.can_rebuild(self.model_state)
        except Exception:
            logger.exception("Model plugin failed in can_rebuild", extra={"session_id": self.session.session_id})
            return False

    # Work beside the session

    def spawn(self, coro: Awaitable[None], *, name: str) -> None:
        """Run in a tracked task; it is cancelled when the session is over."""
        self.spawn_task(_as_coroutine(coro), name=name)

    def spawn_task(
        self, coro: Coroutine[object, object, None], *, name: str, append: bool = False
    ) -> asyncio.Task[None]:
        """The same, with the task. ``append``: it is the submission in flight."""
        task = self.runtime.spawn(coro, name=f"{name} {self.session.session_id}")
        group = self.tasks.appends if append else self.tasks.background
        group.add(task)
        task.add_done_callback(group.discard)
        return task

    async def offload(self, fn: Callable[_P, _OffloadT], *args: _P.args, **kwargs: _P.kwargs) -> _OffloadT:
        """Run ``fn`` away from the loop and return its result."""
        return await self.runtime.offload(lambda: fn(*args, **kwargs))

    # What the documented components ask of their runner. None of these blocks or awaits.

    def _wait_for_append_tail(self) -> bool:
        """Whether no submission is in flight: waiting for it is state of the session."""
        return self.model.idle

    def _close_from_runtime(self, reason: str) -> None:
        self.manager.end_session(self.session.session_id, "closed", reason, None)

    def _schedule_silence_continuation(self) -> None:
        self._arm()

    def _abort_request_background(self, request_id: str) -> None:
        self.model.abort((request_id,))

    def _promote_deferred_overlap_later(self) -> None:
        self.apply(TimerFired())


async def _as_coroutine(awaitable: Awaitable[None]) -> None:
    await awaitable


def _stage_error(output: RequestOutput) -> DuologueError:
    error = output.error
    assert error is not None
    try:
        code = ErrorCode(error.code)
    except ValueError:
        code = ErrorCode.RUNTIME_STREAM_FAILED
    return StageFault(code, error.message)


__all__ = ["DuplexSessionRunner", "compute_silence_continuation_deadline"]
