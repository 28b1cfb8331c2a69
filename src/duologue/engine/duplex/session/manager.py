"""Duplex session manager: admission, control operations, leases, the end of sessions, and their events on the way out.

Rules kept here:

* a slot is held while a session is admitted, open and closing; it is free again before the terminal leaves, so that a
  replacement that follows a terminal is never refused;
* when the stages are not clean ``close_timeout_s`` after the close began, the terminal leaves with ``slot_released``
  false and the slot stays in quarantine until they are;
* one owner of the terminal: this manager claims it before it begins a close, check and claim without a wait in between;
* closing is synchronous: whatever arrives after a close, in the same loop turn, finds the session closing;
* control operations of one session are handled strictly in arrival order, a close in progress included; sessions do not
  wait for each other; each operation is answered exactly once;
* nothing that one session does can end the reaper, the manager or another session.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from typing import cast

from duologue.clock import AsyncioRuntime, Runtime
from duologue.config.stage_config import DuplexSessionRuntimeConfig, ModelConfig
from duologue.engine.duplex import messages
from duologue.engine.duplex.commands import AppendAudio
from duologue.engine.duplex.contracts import DuplexStagePort
from duologue.engine.duplex.core import items
from duologue.engine.duplex.core.session import DuplexEngineSession
from duologue.engine.duplex.events import ErrorRaised, SessionEvent
from duologue.engine.duplex.plugin import DuplexModelPlugin
from duologue.engine.duplex.session.context import CloseKind
from duologue.engine.duplex.session.detection import DetectionService
from duologue.engine.duplex.session.model_channel import PluginFault
from duologue.engine.duplex.session.operations import ControlOperations
from duologue.engine.duplex.session.recovery import SessionRecovery
from duologue.engine.duplex.session.registry import SessionHealth, SessionRecord, SessionRegistry
from duologue.engine.duplex.session.runner import DuplexSessionRunner
from duologue.engine.duplex.session.waiting import WaitingRoom
from duologue.engine.messages import EngineQueueMessage
from duologue.engine.orchestrator import MessageSink
from duologue.errors import AdmissionFault, ClientFault, DuologueError, ErrorCode
from duologue.ids import parse_stage_request_id
from duologue.log import init_logger

logger = init_logger(__name__)


class DuplexSessionManager:
    """All sessions of one engine (see module docstring). Everything happens on the orchestrator's loop."""

    def __init__(
        self,
        *,
        plugin: DuplexModelPlugin,
        stage_port: DuplexStagePort,
        output_sink: MessageSink,
        result_sink: MessageSink,
        runtime_config: DuplexSessionRuntimeConfig,
        model_config: ModelConfig | None = None,
        log_stats: bool = False,
        runtime: Runtime | None = None,
        detection: DetectionService | None = None,
    ) -> None:
        self.plugin = plugin
        self.stage_port = stage_port
        self.output_sink = output_sink
        self.result_sink = result_sink
        self.runtime_config = runtime_config
        self.model_config = model_config
        self.log_stats = log_stats
        self.runtime: Runtime = AsyncioRuntime() if runtime is None else runtime
        self.detection = detection
        self._registry = SessionRegistry()
        self._operations = ControlOperations(result_sink)
        self.recovery = SessionRecovery(stage_port, self.runtime, self._registry.open_runner)
        self._waiting = WaitingRoom(self.runtime, runtime_config, self._operate, self._operations.refuse, self._put)
        self._leaving: dict[str, SessionRecord] = {}
        self._stopping = False
        self.engine_fault: ErrorCode | None = None
        self._terminal_sent = asyncio.Event()

    # Messages

    def accepts(self, msg: EngineQueueMessage) -> bool:
        """Whether the message is about a session."""
        return isinstance(msg, messages.DuplexMessage)

    def dispatch(self, msg: EngineQueueMessage) -> None:
        """Handle a message that :meth:`accepts` takes, at once."""
        match msg:
            case messages.SessionCommand():
                self._command(msg)
            case messages.OutputTaken():
                self._taken(msg)
            case (
                messages.OpenSession()
                | messages.CloseSessionMessage()
                | messages.ResumeSession()
                | messages.DetachSession()
                | messages.TouchSession()
            ):
                if self._operations.begin(msg.control_id):
                    self._operate(msg)
            case _:
                raise TypeError(f"{type(msg).__name__} is not a session message")

    def _command(self, msg: messages.SessionCommand) -> None:
        record = self._registry.get(msg.session_id)
        if record is not None and record.runner is not None and not record.terminal_sent:
            record.runner.submit(msg.command)
        elif not isinstance(msg.command, AppendAudio) or msg.command.event_id is not None:
            # Number 0: it is not of the session, whose last event was its terminal. Audio streams on for a while after
            # that; nobody waits for an answer to it.
            message = f"There is no session {msg.session_id}."
            event_id = msg.command.event_id
            self._put(
                msg.session_id, 0, ErrorRaised(code=ErrorCode.UNKNOWN_SESSION, message=message, event_id=event_id)
            )

    def _taken(self, msg: messages.OutputTaken) -> None:
        record = self._registry.get(msg.session_id)
        if record is not None and record.runner is not None:
            record.runner.apply(items.OutputTaken(number=msg.number))

    def _operate(self, msg: messages.ControlMessage) -> None:
        record = self._registry.get(msg.session_id)
        if record is not None and record.ending:
            record.waiting.append(msg)
            return
        try:
            self._carry_out(msg, record)
        except DuologueError as fault:
            self._operations.refuse(msg.control_id, fault.code, fault.message)
        except Exception as exc:
            logger.exception("Control operation failed", extra={"session_id": msg.session_id})
            self._operations.refuse(
                msg.control_id, ErrorCode.INTERNAL_ERROR, f"The operation failed ({type(exc).__name__})."
            )

    def _carry_out(self, msg: messages.ControlMessage, record: SessionRecord | None) -> None:
        match msg:
            case messages.OpenSession():
                self._open(msg)
            case messages.CloseSessionMessage():
                self._close(msg, record)
            case messages.ResumeSession():
                self._resume(msg, record)
            case messages.DetachSession():
                self._detach(msg, record)
            case messages.TouchSession():
                self._touch(msg, record)

    # Admission

    def _open(self, msg: messages.OpenSession) -> None:
        try:
            self._admit(msg)
        except AdmissionFault as full:
            if full.code is not ErrorCode.RESOURCE_EXHAUSTED:
                raise
            self._waiting.join(msg, full)
            return
        record = SessionRecord(msg.session_id, resumable=msg.resumable)
        self._registry.add(record)
        try:
            runner = self._build(msg, record)
        except BaseException:
            self._roll_back(record)
            raise
        record.phase = "open"
        runner.start()
        value = messages.OpenedSession(
            session_id=msg.session_id, generation=runner.session.generation, config=runner.session.config
        )
        self._operations.succeed(msg.control_id, value)

    def _admit(self, msg: messages.OpenSession) -> None:
        limit, session_id = self.runtime_config.max_sessions, msg.session_id
        if self._stopping:
            raise AdmissionFault(ErrorCode.SHUTTING_DOWN, "The server is shutting down; connect to another one.")
        if self._registry.get(session_id) is not None:
            raise AdmissionFault(ErrorCode.SESSION_EXISTS, f"Session {session_id} exists; choose another id.")
        if len(self._registry) >= limit or self._waiting.must_wait(msg):
            raise AdmissionFault(
                ErrorCode.RESOURCE_EXHAUSTED, f"All {limit} session slots are taken; try again when one is free."
            )
        if not self.stage_port.reserve_session(session_id):
            raise AdmissionFault(
                ErrorCode.RESOURCE_EXHAUSTED, "No replica group has room for a session; try again later."
            )

    def _build(self, msg: messages.OpenSession, record: SessionRecord) -> DuplexSessionRunner:
        plugin = self.plugin
        try:
            plugin.capabilities.check(msg.config, "session")
            plugin.validate_config(msg.config)
            model_state = plugin.create_session_state(msg.config)
        except DuologueError:
            raise
        except Exception as exc:
            raise self._plugin_fault("refused the session with an exception", exc) from exc
        session = DuplexEngineSession(
            session_id=msg.session_id,
            config=msg.config,
            runtime_config=self.runtime_config,
            capabilities=plugin.capabilities,
            seed=msg.seed or self.runtime.entropy(16).hex(),
            model_state=model_state,
            now=self.runtime.now(),
        )
        runner = DuplexSessionRunner(
            session=session,
            plugin=plugin,
            stage_port=self.stage_port,
            manager=self,
            model_config=self.model_config,
            runtime=self.runtime,
            detection=self.detection,
            runtime_config=self.runtime_config,
            reports_output=msg.takes_output,
            log_stats=self.log_stats,
        )
        try:
            runner.model.configure(msg.config, session.config_generation)
        except PluginFault as fault:
            raise self._plugin_fault(f"failed in {fault.hook}", fault.__cause__ or fault) from fault
        record.runner = runner
        return runner

    def _plugin_fault(self, what: str, exc: BaseException) -> AdmissionFault:
        logger.error("Model plugin %s", what, exc_info=exc)
        return AdmissionFault(ErrorCode.RUNTIME_PLUGIN_FAILED, f"The model plugin {what} ({type(exc).__name__}).")

    def _roll_back(self, record: SessionRecord) -> None:
        if record.runner is not None:
            record.runner.dispose()
        self._registry.remove(record)
        self.stage_port.release_session(record.session_id)

    # Lease

    def _resume(self, msg: messages.ResumeSession, record: SessionRecord | None) -> None:
        runner = self._open_runner(record, ErrorCode.SESSION_RESUME_EXPIRED, msg.session_id)
        runner.apply(items.ResumeRequested(control_id=msg.control_id, expected_generation=msg.expected_generation))

    def _detach(self, msg: messages.DetachSession, record: SessionRecord | None) -> None:
        runner = self._open_runner(record, ErrorCode.UNKNOWN_SESSION, msg.session_id)
        current = runner.session.generation
        if msg.expected_generation is not None and msg.expected_generation != current:
            raise ClientFault(
                ErrorCode.SESSION_RESUME_CONFLICT,
                f"The connection of generation {msg.expected_generation} does not own the session: {current} does.",
            )
        assert record is not None
        if record.resumable:
            runner.apply(items.Detached(expected_generation=msg.expected_generation))
        else:
            self._begin_close(record, "closed", "disconnected")
        self._operations.succeed(msg.control_id, current)

    def _touch(self, msg: messages.TouchSession, record: SessionRecord | None) -> None:
        runner = self._open_runner(record, ErrorCode.UNKNOWN_SESSION, msg.session_id)
        runner.apply(items.Touched())
        self._operations.succeed(msg.control_id, runner.session.generation)

    def _open_runner(self, record: SessionRecord | None, code: ErrorCode, session_id: str) -> DuplexSessionRunner:
        if record is None or record.runner is None or record.phase != "open":
            raise ClientFault(code, f"There is no session {session_id}; open a new one.")
        return record.runner

    # The end of a session

    def _close(self, msg: messages.CloseSessionMessage, record: SessionRecord | None) -> None:
        if record is None or record.phase == "quarantined":
            self._waiting.leave(msg.session_id, shutdown=msg.reason == "shutdown")
            self._operations.succeed(msg.control_id, None)
            return
        record.closers.append(msg.control_id)
        self._begin_close(record, "closed", msg.reason)

    def end_session(self, session_id: str, kind: str, reason: str, fault: ErrorCode | None) -> None:
        """The session wants to end."""
        record = self._registry.get(session_id)
        if record is not None:
            self._begin_close(record, cast(CloseKind, kind), reason, fault)

    def _begin_close(self, record: SessionRecord, kind: CloseKind, reason: str, fault: ErrorCode | None = None) -> None:
        runner = record.runner
        if record.phase != "open" or runner is None:
            return
        record.phase = "closing"
        self.recovery.forget(record.session_id)
        record.kind, record.reason, record.fault = kind, reason, fault
        deadline = self.runtime.now() + self.runtime_config.close_timeout_s
        record.close_timer = self.runtime.call_at(deadline, self._close_timed_out, record)
        runner.begin_close(kind, reason, fault=fault, emit_terminal=False)

    def _close_timed_out(self, record: SessionRecord) -> None:
        record.close_timer = None
        if record.phase != "closing" or record.runner is None:
            return
        record.phase = "quarantined"
        logger.error("Slot in quarantine: the stages are not clean", extra={"session_id": record.session_id})
        self._send_terminal(record, slot_released=False)

    def session_cleaned(self, session_id: str) -> None:
        """The stages are clean: the slot is free from here on. The terminal follows, see :meth:`session_ended`."""
        record = self._registry.get(session_id)
        if record is None:
            return
        self._registry.remove(record)
        self._leaving[session_id] = record
        self.stage_port.release_session(session_id)
        self._waiting.departed()
        if record.close_timer is not None:
            record.close_timer.cancel()
            record.close_timer = None

    def session_ended(self, session_id: str) -> None:
        """The session has said all that it had to say, and its slot is free."""
        record = self._leaving.pop(session_id, None)
        if record is None or record.runner is None:
            return
        if not record.terminal_sent:
            self._send_terminal(record, slot_released=True)

    def _send_terminal(self, record: SessionRecord, *, slot_released: bool) -> None:
        runner = record.runner
        assert runner is not None
        record.terminal_sent = True
        try:
            runner.ending.send_claimed(record.terminal(slot_released))
        except Exception:
            # Whoever waits for this end must not wait for ever because the way out is broken.
            logger.exception("The terminal could not be sent", extra={"session_id": record.session_id})
        closers, record.closers = record.closers, []
        for control_id in closers:
            self._operations.succeed(control_id, None)
        waiting, record.waiting = record.waiting, deque()
        for msg in waiting:
            self._operate(msg)
        self._terminal_sent.set()

    # Requests of sessions

    def runner_for_request_id(self, request_id: str) -> DuplexSessionRunner | None:
        """The runner of the session that a stage request belongs to."""
        record = self._registry.owner(request_id)
        return None if record is None else record.runner

    def register_request(self, request_id: str, session_id: str) -> None:
        """The request belongs to the session; ignored if there is no such session."""
        self._registry.register(request_id, session_id)

    def unregister_request(self, request_id: str) -> None:
        """The request belongs to no session any more. Idempotent."""
        self._registry.unregister(request_id)

    def close_sessions_for_request_ids(
        self, request_ids: Iterable[str], *, abort: bool = False, cleanup_in_progress: bool = False
    ) -> dict[str, list[str]]:
        """Begin to close the sessions that own these requests; returns their other requests, which must go too.

        ``cleanup_in_progress``: the caller cleans them and reports with :meth:`finalize_closed_sessions` or
        :meth:`defer_request_cleanups`; until then the session does not. ``abort`` is accepted and implied.
        """
        del abort
        closed: dict[str, list[str]] = {}
        for request_id in request_ids:
            record = self._registry.owner(request_id) or self._by_stale_id(request_id)
            if record is None or record.runner is None or record.session_id in closed:
                continue
            stale = [*record.request_ids, *record.runner.model.unclean]
            record.runner.ending.external_cleanup = cleanup_in_progress
            self._begin_close(record, "expired", "request_cleanup")
            stale = list(dict.fromkeys([*stale, *record.runner.model.unclean]))
            if cleanup_in_progress:
                record.external_ids = tuple(stale)
            closed[record.session_id] = stale
        return closed

    def _by_stale_id(self, request_id: str) -> SessionRecord | None:
        """The session that let go of this request because the failure that cleans it is ending the session."""
        parsed = parse_stage_request_id(request_id)
        record = None if parsed is None else self._registry.get(parsed.session_id)
        return record if record is not None and record.ending else None

    def defer_request_cleanups(self, session_ids: Iterable[str]) -> None:
        """The caller's cleanup failed: the reaper takes over."""
        for session_id in session_ids:
            record = self._registry.get(session_id)
            if record is not None and record.runner is not None:
                record.runner.ending.external_cleanup = False
                record.external_ids = ()

    def finalize_closed_sessions(self, session_ids: Iterable[str]) -> None:
        """The caller's cleanup succeeded."""
        for session_id in session_ids:
            record = self._registry.get(session_id)
            if record is None or record.runner is None:
                continue
            record.runner.ending.external_cleanup = False
            ids, record.external_ids = record.external_ids, ()
            record.runner.model.forget(ids)

    # Events and answers on their way out

    def emit(self, session_id: str, number: int, event: SessionEvent) -> None:
        """Put one event on the output queue."""
        self._put(session_id, number, event)

    def invalidate(self, session_id: str, response_id: str) -> None:
        """Content of this response that no socket has taken yet must not be sent any more."""
        self.output_sink.put_nowait(messages.OutputInvalidated(session_id=session_id, response_id=response_id))

    def answer(self, control_id: str, generation: int, code: ErrorCode | None, message: str) -> None:
        """Answer an operation that the session decided: its lease generation, or why not."""
        if code is None:
            self._operations.succeed(control_id, generation)
        else:
            self._operations.refuse(control_id, code, message)

    def _put(self, session_id: str, number: int, event: SessionEvent) -> None:
        self.output_sink.put_nowait(messages.SessionEventMessage(session_id=session_id, number=number, event=event))

    # Upkeep

    async def reaper_loop(self, shutdown_event: asyncio.Event) -> None:
        """Every ``reaper_interval_s``: expire leases, retry what could not be cleaned. Ends with the event."""
        while not shutdown_event.is_set():
            try:
                await asyncio.wait_for(shutdown_event.wait(), self.runtime_config.reaper_interval_s)
            except TimeoutError:
                self.reap()

    def reap(self) -> None:
        """One round of the reaper. A session that fails in it fails alone."""
        self._waiting.call()
        for record in self._registry.records():
            try:
                self._reap_one(record)
            except Exception:
                logger.exception("Reaping failed", extra={"session_id": record.session_id})

    def _reap_one(self, record: SessionRecord) -> None:
        runner = record.runner
        if runner is None:
            return
        if record.phase == "open":
            reason = runner.session.lease_expiry(self.runtime.now())
            if reason is not None:
                self._begin_close(record, "expired", reason)
                return
        runner.ending.retry()

    async def shutdown(self) -> None:
        """Every session gets its terminal; returns when all have it, at the latest ``close_timeout_s`` later.

        The terminals tell of :attr:`engine_fault`, if the engine stops for one and not because it was asked to.
        """
        self._stopping = True
        self._waiting.close()
        records = self._registry.records()
        fault = self.engine_fault
        for record in records:
            self._begin_close(record, "closed", "shutdown" if fault is None else fault.value, fault)
        while any(not record.terminal_sent for record in records):
            self._terminal_sent.clear()
            await self._terminal_sent.wait()
        runners = [record.runner for record in records if record.runner is not None]
        await asyncio.gather(*(runner.shutdown() for runner in runners), return_exceptions=True)
        for record in self._registry.records():
            # Its stages are not clean, and nobody tries again: they are closed next, with all that they hold.
            self._registry.remove(record)
            self.stage_port.release_session(record.session_id)

    # What is here

    def runner(self, session_id: str) -> DuplexSessionRunner | None:
        """The runner of a session that holds a slot."""
        record = self._registry.get(session_id)
        return None if record is None else record.runner

    def health(self) -> SessionHealth:
        """Slots by what holds them."""
        return self._registry.health(self.runtime_config.max_sessions, len(self._waiting))

    def tables(self) -> Mapping[str, int]:
        """Sizes of everything that must be empty at quiescence, by name."""
        waiting = {"unplaced": len(self.recovery), "waiting": len(self._waiting)}
        unanswered = {"operations": len(self._operations)}
        return {**self._registry.tables(), "leaving_sessions": len(self._leaving), **waiting, **unanswered}
