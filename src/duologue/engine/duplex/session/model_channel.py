"""Between the session and the stages: plans and submits appends, stops and forgets requests.

Rules kept here:

* every ``SubmitAppend`` is answered exactly once, by ``AppendAccepted`` or ``AppendFailed``, in ``submit_timeout_s``;
* a submission that does not wait costs no task;
* a request that is stopped while its submission is in flight is stopped again once that submission has ended: an abort
  always reaches the stage;
* a request that could not be stopped or forgotten is kept until it could: nothing is lost, the reaper retries;
* a request that ended by itself while a piece of it was on its way is forgotten once that piece has arrived, or has not:
  what is said of the piece must be true, since one that was not taken is given to the next request;
* an id stops being the session's before it is stopped, so that late output of it reaches nobody;
* whatever was begun at a stage and never dropped is dropped with the session, whether the session remembers it or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass

from duologue.clock import TimerHandle
from duologue.config.session import SessionConfig
from duologue.engine.duplex.contracts import DuplexStageRequestContext, DuplexStageSubmission
from duologue.engine.duplex.core.effects import SubmitAppend
from duologue.engine.duplex.core.items import AppendAccepted, AppendFailed
from duologue.engine.duplex.plugin import AppendPlan, AppendPlanRequest, SilenceContinuation
from duologue.engine.duplex.session.context import DuplexSessionContext
from duologue.engine.duplex.session.emitter import SessionEmitter
from duologue.engine.lanes import drive
from duologue.errors import DuologueError, ErrorCode, StageFault
from duologue.log import init_logger
from duologue.outputs import Options, SamplingParams

logger = init_logger(__name__)


CLEANUP_ATTEMPT_S = 30.0
"""A clean-up that takes longer is given up and, later, tried again."""


class PluginFault(Exception):
    """A plugin hook raised (its exception is the cause)."""

    def __init__(self, hook: str) -> None:
        super().__init__(hook)
        self.hook = hook


@dataclass(slots=True, eq=False)
class _Submission:
    """The one submission in flight that really waits. ``rest`` is what is left to run of it."""

    effect: SubmitAppend
    request: AppendPlanRequest
    submitted_at: float
    rest: Coroutine[object, object, object]
    task: asyncio.Task[None] | None = None
    timer: TimerHandle | None = None
    error: Exception | None = None
    running: bool = False
    stopped: bool = False
    timed_out: bool = False

    async def run(self) -> None:
        """Wait for the port; what it raises is an answer, not a failure of this task."""
        self.running = True
        if self.stopped and self.task is not None:
            self.task.cancel()
        try:
            await self.rest
        except Exception as exc:
            self.error = exc

    def stop(self) -> None:
        """The session does not want it any more."""
        self.stopped = True
        # Before its first step a task can only be thrown away, and the port would not see that it was cancelled.
        if self.running and self.task is not None:
            self.task.cancel()

    def give_up(self) -> None:
        """It took too long."""
        self.timed_out = True
        self.stop()


class ModelChannel:
    """One session's way to its stages (see module docstring)."""

    def __init__(
        self,
        ctx: DuplexSessionContext,
        out: SessionEmitter,
        *,
        close_from_runtime: Callable[[str], None],
        schedule_silence_continuation: Callable[[], None],
        abort_request: Callable[[str], None],
        submit_timeout_s: float = 30.0,
    ) -> None:
        self._ctx = ctx
        self.out = out
        self.close_from_runtime = close_from_runtime
        self.schedule_silence_continuation = schedule_silence_continuation
        self.abort_request = abort_request
        self._submit_timeout_s = submit_timeout_s
        plugin = ctx.plugin
        self._silence = plugin if isinstance(plugin, SilenceContinuation) else None
        self._generation = -1
        self._config: SessionConfig | None = None
        self._sampling: tuple[SamplingParams, ...] = ()
        self._session_config: Options = {}
        self._context: DuplexStageRequestContext | None = None
        self._in_flight: _Submission | None = None
        self._begun: dict[str, None] = {}
        self._unclean: dict[str, bool] = {}
        self._cleaning = False
        self._again = False
        self._stopped = False
        self._closing = False
        self.tasks_spawned = 0
        self.submissions = 0

    # Appends

    def submit(self, effect: SubmitAppend) -> None:
        """Plan and submit one piece of input."""
        self.submissions += 1
        try:
            request = self._plan_request(effect)
            submission = self._plan(effect, request)
            self._ctx.stage_port.ensure_request(submission.context)
        except PluginFault as fault:
            # The fault first: it names the cause, and a resident model's session ends with it.
            self._ctx.services.plugin_failed(fault.hook, fault.__cause__ or fault, request_id=effect.request_id)
            self._refuse(effect, ErrorCode.RUNTIME_PLUGIN_FAILED, "The model plugin could not plan the input.")
            return
        except Exception as exc:
            # Nothing was registered for it: ids of other owners are refused here, and must not be touched.
            self._refuse(effect, *self._reason(exc))
            return
        self._ctx.run.stream_request_id = effect.request_id
        self._start(effect, request, submission)

    def _plan_request(self, effect: SubmitAppend) -> AppendPlanRequest:
        audio = effect.audio
        if effect.silence and self._silence is not None:
            try:
                audio = self._silence.silence_unit(self._ctx.model_state)
            except Exception as exc:
                raise PluginFault("silence_unit") from exc
        # By position, since the interpreter takes a call with many names through a dictionary, at twenty times the price.
        return AppendPlanRequest(
            self._ctx.session_id,
            effect.request_id,
            effect.fence,
            effect.seq,
            effect.turn_seq,
            audio,
            self._ctx.plugin.capabilities.input_rate_hz,
            effect.final,
            effect.respond,
            effect.silence,
            effect.force_listen,
            effect.history,
            effect.config,
            effect.instructions,
            rebuild=effect.rebuild,
            out_of_band=effect.out_of_band,
            compact=effect.compact,
            pause=effect.pause,
            quiet=effect.quiet,
            result=effect.result,
        )

    def _plan(self, effect: SubmitAppend, request: AppendPlanRequest) -> DuplexStageSubmission:
        if effect.config_generation != self._generation or effect.config != self._config:
            self.configure(effect.config, effect.config_generation)  # a response may have settings of its own
        try:
            plan = self._ctx.plugin.plan_append(self._ctx.model_state, request)
            if not isinstance(plan, AppendPlan):
                raise TypeError(f"plan_append must return an AppendPlan, got {type(plan).__name__}")
        except Exception as exc:
            raise PluginFault("plan_append") from exc
        context = self._context_for(effect, plan.final_stage_id)
        return DuplexStageSubmission(context=context, prompt=plan.prompt, already_submitted=not effect.first)

    def _context_for(self, effect: SubmitAppend, final_stage_id: int | None) -> DuplexStageRequestContext:
        """What the port must know; the same object as last time while nothing in it has changed."""
        if final_stage_id is None:
            final_stage_id = self._ctx.stage_port.stage_count - 1
        last = self._context
        if (
            last is not None
            and last.request_id == effect.request_id
            and last.fence == effect.fence
            and last.config_generation == effect.config_generation
            and last.final_stage_id == final_stage_id
        ):
            return last
        self._context = DuplexStageRequestContext(
            request_id=effect.request_id,
            session_id=self._ctx.session_id,
            fence=effect.fence,
            stage_id=0,
            final_stage_id=final_stage_id,
            sampling_params=self._sampling,
            stage_sampling_params=self._sampling[0],
            session_config=self._session_config,
            runtime_config={},
            config_generation=effect.config_generation,
        )
        return self._context

    def configure(self, config: SessionConfig, generation: int) -> None:
        """Sampling and the stages' view of the settings follow ``config``.

        Raises :class:`PluginFault`, or :class:`StageFault` when a stage has no live replica.
        """
        try:
            defaults = self._ctx.stage_port.sampling_defaults()
        except RuntimeError as exc:
            raise StageFault(ErrorCode.REPLICA_UNAVAILABLE, f"The model cannot be reached now: {exc}.") from exc
        params = tuple(entry for entry in defaults if isinstance(entry, SamplingParams))
        try:
            sampling = self._ctx.plugin.sampling_params(params, config)
        except Exception as exc:
            raise PluginFault("sampling_params") from exc
        if len(sampling) != len(defaults):
            raise PluginFault("sampling_params") from ValueError(
                f"sampling_params gave {len(sampling)} entries for {len(defaults)} stages; give one per stage"
            )
        self._sampling = sampling
        self._session_config = _stage_view(config)
        self._generation = generation
        self._config = config
        self._context = None

    def _start(self, effect: SubmitAppend, request: AppendPlanRequest, submission: DuplexStageSubmission) -> None:
        submitted_at = self._ctx.runtime.now()
        if effect.first:
            self._begun[effect.request_id] = None
        try:
            rest = drive(self._ctx.stage_port.submit(submission))
        except Exception as exc:
            self._refuse_with(effect, exc)
            return
        if rest is None:
            self._accept(effect, request, submitted_at)
            return
        self.tasks_spawned += 1
        waiting = self._in_flight = _Submission(effect, request, submitted_at, rest)
        task = waiting.task = self._ctx.services.spawn_task(waiting.run(), name="append", append=True)
        self._ctx.tasks.tail = task
        waiting.timer = self._ctx.runtime.call_at(submitted_at + self._submit_timeout_s, waiting.give_up)
        # A callback and not code around the wait: a task that is cancelled before it ran never enters its code.
        task.add_done_callback(lambda _: self._submission_ended(waiting))

    def _submission_ended(self, waiting: _Submission) -> None:
        effect = waiting.effect
        self._in_flight = self._ctx.tasks.tail = None
        waiting.rest.close()
        if waiting.timer is not None:
            waiting.timer.cancel()
        ended = effect.request_id in self._unclean and not waiting.stopped
        cancelled = waiting.task is not None and waiting.task.cancelled()
        if waiting.stopped or cancelled:
            # The stage may have taken it after it was told to stop.
            if effect.first or not waiting.timed_out:
                self.abort((effect.request_id,))
            self._refuse(effect, *self._why_cancelled(waiting))
        elif waiting.error is not None:
            self._refuse_with(effect, waiting.error)
        else:
            self._accept(effect, waiting.request, waiting.submitted_at)
        if ended:
            self.retry()
        self._report_if_clean()

    def _why_cancelled(self, waiting: _Submission) -> tuple[ErrorCode, str]:
        if waiting.timed_out:
            return ErrorCode.TIMEOUT, f"The model did not take the input within {self._submit_timeout_s:g} s."
        return ErrorCode.STALE_FENCE, "The input was withdrawn while it was being submitted."

    def _accept(self, effect: SubmitAppend, request: AppendPlanRequest, submitted_at: float) -> None:
        failure: Exception | None = None
        try:
            # Before the session hears of it: what it submits next must not reach the plugin first.
            self._ctx.plugin.commit_append(self._ctx.model_state, request)
        except Exception as exc:
            failure = exc
        self._ctx.services.apply(AppendAccepted(number=effect.number, submitted_at=submitted_at))
        if failure is not None:
            self._ctx.services.plugin_failed("commit_append", failure, request_id=effect.request_id)

    def _refuse_with(self, effect: SubmitAppend, exc: BaseException) -> None:
        self._refuse(effect, *self._reason(exc))
        if effect.first:
            # The port may have registered a request that the session will never hear of again.
            self.abort((effect.request_id,))

    def _reason(self, exc: BaseException) -> tuple[ErrorCode, str]:
        if isinstance(exc, DuologueError):
            return exc.code, exc.message
        logger.warning("An append was not taken", exc_info=exc, extra={"session_id": self._ctx.session_id})
        return ErrorCode.RUNTIME_APPEND_FAILED, f"The model did not take the input ({type(exc).__name__})."

    def _refuse(self, effect: SubmitAppend, code: ErrorCode, message: str) -> None:
        self._ctx.services.apply(AppendFailed(number=effect.number, code=code, message=message))

    # Stopping and forgetting

    def abort(self, request_ids: Iterable[str]) -> None:
        """Stop requests at every stage and forget them."""
        self._drop(request_ids, abort=True)

    def release(self, request_ids: Iterable[str]) -> None:
        """Forget requests that ended by themselves, each once nothing is on its way to it."""
        self._drop(request_ids, abort=False)

    def set_paused(self, request_id: str, paused: bool) -> None:
        """Hold or release a request before later stages."""
        self._ctx.stage_port.set_paused(request_id, paused)

    def cleanup_session(self, request_ids: Iterable[str], *, external: bool) -> None:
        """The session is closing: everything that the stages still hold goes.

        ``external``: someone else is cleaning these very requests and will say how it went.
        """
        self._closing = True
        for request_id in dict.fromkeys([*request_ids, *self._begun]):
            self._mark(request_id, abort=True)
        if self._awaited is not None:
            self._mark(self._awaited, abort=True)
        if not external:
            self.retry()

    def stop(self) -> None:
        """The engine stops: nothing is submitted to its end, and no cleaning is begun any more."""
        self._stopped = True
        if self._in_flight is not None:
            self._in_flight.stop()

    def forget(self, request_ids: Iterable[str]) -> None:
        """Someone else cleaned these requests."""
        for request_id in request_ids:
            self._unclean.pop(request_id, None)
        self._report_if_clean()

    def _drop(self, request_ids: Iterable[str], *, abort: bool) -> None:
        for request_id in request_ids:
            self._mark(request_id, abort=abort)
        self.retry()

    def _mark(self, request_id: str, *, abort: bool) -> None:
        self._ctx.manager.unregister_request(request_id)
        self._begun.pop(request_id, None)
        self._unclean[request_id] = abort or self._unclean.get(request_id, False)
        waiting = self._in_flight
        if abort and waiting is not None and waiting.effect.request_id == request_id and not waiting.stopped:
            waiting.stop()

    @property
    def _awaited(self) -> str | None:
        """The request that ended by itself while a submission for it is in flight, which goes on to its answer."""
        waiting = self._in_flight
        if waiting is None or waiting.stopped or waiting.effect.request_id not in self._unclean:
            return None
        return waiting.effect.request_id

    @property
    def closing(self) -> bool:
        """Whether the last cleaning has begun."""
        return self._closing

    @property
    def idle(self) -> bool:
        """Whether no submission is in flight."""
        return self._in_flight is None

    @property
    def unclean(self) -> tuple[str, ...]:
        """Requests that the stages may still hold although the session no longer wants them."""
        return tuple(self._unclean)

    def retry(self) -> None:
        """Clean what is not clean yet. One clean-up at a time; called again by the reaper after a failure."""
        if self._stopped:
            return
        if self._cleaning:
            self._again = True
            return
        if not self._unclean or [*self._unclean] == [self._awaited]:
            self._report_if_clean()
            return
        self._cleaning = True
        task = self._ctx.services.spawn_task(self._clean(), name="cleanup")
        timer = self._ctx.runtime.call_at(self._ctx.runtime.now() + CLEANUP_ATTEMPT_S, task.cancel)

        def ended(_: object) -> None:
            timer.cancel()
            self._cleaning = False
            again, self._again = self._again, False
            if again:
                self.retry()
            else:
                self._report_if_clean()

        task.add_done_callback(ended)

    async def _clean(self) -> None:
        failed: set[str] = set()
        while pending := {
            key: abort for key, abort in self._unclean.items() if key not in failed and key != self._awaited
        }:
            for abort in (True, False):
                ids = [key for key, wanted in pending.items() if wanted is abort]
                if not ids:
                    continue
                try:
                    await self._ctx.stage_port.cleanup(ids, abort=abort)
                except Exception:
                    logger.warning(
                        "Session %s: cleaning %d requests failed", self._ctx.session_id, len(ids), exc_info=True
                    )
                    failed.update(ids)
                else:
                    for key in ids:
                        # Asked to abort while it was only being forgotten: not done yet.
                        if self._unclean.get(key) is abort:
                            del self._unclean[key]

    def _report_if_clean(self) -> None:
        if self._closing and not self._unclean and not self._cleaning and self._in_flight is None:
            self._ctx.services.cleaned()


def _stage_view(config: SessionConfig) -> Options:
    """The settings that stage code may want to see."""
    return {
        "model": config.model,
        "voice": config.voice,
        "speed": config.speed,
        "language": config.language,
        "output_modality": config.output_modality,
        **config.extra,
    }
