"""How one session ends: in order, once, and with its slot free before its client hears of it.

Rules kept here:

* the close begins synchronously; cleaning the stages follows, then the slot is freed, then the terminal leaves;
* one owner of the terminal: whoever begins the close says who sends it (the session, or the manager, who claims it); the
  claim is a check and a set without a wait in between;
* the terminal follows every effect of the step in which the session ended, never in the middle of it;
* a session that broke an invariant is not asked to end itself: what it left open is ended for it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from duologue.engine.duplex.core.items import CleanupEnded, CloseRequested, TerminalClaimed
from duologue.engine.duplex.events import SessionTerminal
from duologue.engine.duplex.session.context import CloseKind
from duologue.errors import ErrorCode
from duologue.log import init_logger

if TYPE_CHECKING:
    from duologue.engine.duplex.session.runner import DuplexSessionRunner

logger = init_logger(__name__)


class SessionEnding:
    """The end of one runner's session. ``external_cleanup``: someone else is cleaning its requests."""

    __slots__ = ("_clean", "_cleaned", "_finished", "_runner", "broken", "external_cleanup")

    def __init__(self, runner: DuplexSessionRunner) -> None:
        self._runner = runner
        self._clean = False
        self._finished = False
        self._cleaned = asyncio.Event()
        self.broken = False
        self.external_cleanup = False

    def begin(
        self, kind: CloseKind, reason: str, *, fault: ErrorCode | None, message: str, emit_terminal: bool
    ) -> None:
        """The way to the end, synchronous: when this returns nothing is accepted any more."""
        runner = self._runner
        run = runner.run
        if not emit_terminal:
            run.closed_deferred = True
        if run.close_reason is None:
            run.close_reason = reason
        if self.broken:
            self._clean_broken()
        else:
            runner.apply(CloseRequested(kind=kind, reason=reason, fault=fault, message=message))

    def break_off(self, exc: BaseException) -> None:
        """The session contradicts itself, or the shell failed it."""
        if self.broken:
            return
        self.broken = True
        runner = self._runner
        session_id = runner.session.session_id
        logger.error("Session broken", exc_info=exc, extra={"session_id": session_id})
        try:
            runner.out.fail_open_responses(ErrorCode.INTERNAL_ERROR, "A fault in the server ended this session.")
        except Exception:
            # The way out itself is broken: the session must not stay alive for that.
            logger.exception("A broken session could not say so", extra={"session_id": session_id})
        runner.run.closing = True
        runner.run.runtime_closed = True
        runner.dispose()
        if runner.run.close_reason is None:
            runner.manager.end_session(session_id, "closed", "internal_error", ErrorCode.INTERNAL_ERROR)
        else:
            self._clean_broken()

    def _clean_broken(self) -> None:
        if not self._runner.model.closing:
            self._runner.model.cleanup_session(self._broken_request_ids(), external=self.external_cleanup)

    def _broken_request_ids(self) -> tuple[str, ...]:
        try:
            return self._runner.session.live_request_ids()
        except Exception:
            logger.exception("A broken session does not know its requests")
            return ()

    def claim(self) -> None:
        """The caller sends the terminal: the session must not, from here on."""
        run = self._runner.run
        run.closed_deferred = True
        if not run.closed_emitted:
            run.closed_emitted = True
            self._runner.apply(TerminalClaimed())

    def send_claimed(self, event: SessionTerminal) -> None:
        """Send the terminal in the session's place. Does nothing if one has left."""
        if self._runner.out.terminal is None:
            self.claim()
            self._runner.run.closed_deferred = False
            self._runner.out.emit_terminal(event)

    def cleaned(self) -> None:
        """The stages hold nothing of the session any more."""
        self._clean = True
        self.finish_if_clean()

    def finish_if_clean(self) -> None:
        """Free the slot, let the terminal go. Called after every step, and when the stages are clean between steps."""
        runner = self._runner
        if not self._clean or self._finished or runner.stepping:
            return
        self._finished = True
        session_id = runner.session.session_id
        runner.manager.session_cleaned(session_id)
        if not runner.run.closed_deferred:
            runner.apply(CleanupEnded(released=True))
        self._cleaned.set()
        runner.manager.session_ended(session_id)
        runner.dispose()

    def retry(self) -> None:
        """Try again what could not be cleaned."""
        runner = self._runner
        if self.external_cleanup or self._finished:
            return
        if runner.run.close_reason is not None and not runner.model.closing:
            # The session should have asked for it; nothing else would free the slot.
            runner.model.cleanup_session(self._broken_request_ids(), external=False)
        else:
            runner.model.retry()

    async def wait(self, timeout_s: float) -> None:
        """Return when the stages are clean, or ``timeout_s`` later (then the terminal says that the slot is not free)."""
        if self._cleaned.is_set():
            return
        runner = self._runner
        late = asyncio.Event()
        timer = runner.runtime.call_at(runner.runtime.now() + timeout_s, late.set)
        waits = [asyncio.ensure_future(event.wait()) for event in (self._cleaned, late)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            for wait in waits:
                wait.cancel()
        if not self._cleaned.is_set() and not runner.run.closed_deferred:
            runner.apply(CleanupEnded(released=False))
