"""The session's mouth: the last look at an event before it leaves the engine.

Rules kept here:

* nothing leaves after the session's one terminal;
* content of an epoch that has ended never leaves (a second line behind the core, which withdraws it: ``dropped_stale``
  counts how often that line was needed);
* numbers grow by one per event, whoever emits it: the core, or the shell once the core is done or broken;
* what is open here (a response created and not done) can be ended here, if the core no longer can.
"""

from __future__ import annotations

from collections.abc import Callable

from duologue.engine.duplex.core.effects import Emit
from duologue.engine.duplex.events import (
    ErrorRaised,
    ResponseAudio,
    ResponseCreated,
    ResponseDone,
    ResponseText,
    SessionClosed,
    SessionEvent,
    SessionExpired,
    SessionTerminal,
)
from duologue.engine.duplex.session.context import DuplexSessionContext
from duologue.errors import ErrorCode
from duologue.log import init_logger

logger = init_logger(__name__)


class SessionEmitter:
    """Where one session's events leave (see module docstring)."""

    __slots__ = (
        "_ctx",
        "_open_responses",
        "_response_over",
        "dropped_after_terminal",
        "dropped_stale",
        "last_number",
        "promote_deferred_overlap",
        "terminal",
    )

    def __init__(
        self,
        ctx: DuplexSessionContext,
        *,
        promote_deferred_overlap: Callable[[], None],
        response_over: Callable[[str], None] | None = None,
    ) -> None:
        """``response_over`` hears of each response that has its terminal."""
        self._ctx = ctx
        self._response_over = response_over or _nobody
        self.promote_deferred_overlap = promote_deferred_overlap
        self._open_responses: dict[str, ResponseCreated] = {}
        self.last_number = 0
        self.terminal: SessionTerminal | None = None
        self.dropped_stale = 0
        self.dropped_after_terminal = 0

    def emit(self, effect: Emit) -> None:
        """Send an event of the core under the core's number."""
        self.last_number = effect.number
        self._send(effect.number, effect.event)

    def emit_terminal(self, event: SessionTerminal) -> None:
        """Send the terminal that the manager claimed, after everything that the core said."""
        self._emit_own(event)

    def fail_open_responses(self, code: ErrorCode, message: str) -> None:
        """The core is broken: end what it left open. Error first, then one failed terminal per response."""
        open_responses = tuple(self._open_responses.values())
        self._emit_own(ErrorRaised(code=code, message=message))
        for created in open_responses:
            self._ctx.manager.invalidate(self._ctx.session_id, created.response_id)
            self._emit_own(
                ResponseDone(
                    response_id=created.response_id,
                    epoch=created.epoch,
                    status="failed",
                    error=code,
                    error_message=message,
                    modality=created.modality,
                    metadata=created.metadata,
                )
            )

    def invalidate(self, response_id: str) -> None:
        """What was emitted of this response and not yet sent must not be."""
        self._ctx.manager.invalidate(self._ctx.session_id, response_id)

    @property
    def open_responses(self) -> tuple[str, ...]:
        """Ids of responses created and not done, oldest first."""
        return tuple(self._open_responses)

    def _emit_own(self, event: SessionEvent) -> None:
        self.last_number += 1
        self._send(self.last_number, event)

    def _send(self, number: int, event: SessionEvent) -> None:
        if self.terminal is not None:
            self.dropped_after_terminal += 1
            logger.error(
                "Event after the terminal dropped",
                extra={"session_id": self._ctx.session_id, "event": type(event).__name__},
            )
            return
        match event:
            case ResponseAudio() | ResponseText():
                created = self._open_responses.get(event.response_id)
                if created is None or (event.epoch < self._ctx.session.epoch and not created.out_of_band):
                    self.dropped_stale += 1
                    return
            case ResponseCreated():
                self._open_responses[event.response_id] = event
            case ResponseDone():
                self._open_responses.pop(event.response_id, None)
                self._response_over(event.response_id)
            case SessionClosed() | SessionExpired():
                self.terminal = event
                self._ctx.run.closed_emitted = True
            case _:
                pass
        self._ctx.manager.emit(self._ctx.session_id, number, event)


def _nobody(response_id: str) -> None:
    del response_id
