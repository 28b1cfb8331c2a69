"""Every session that this server holds, and what all connections share.

Rules kept here: a session is subscribed to before the engine hears of it, so that its first event cannot be lost; it is
here from then until its terminal has left or the engine has refused it; a key's sessions are counted here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from duologue.config.session import SessionConfig
from duologue.engine.duplex import events
from duologue.engine.duplex.messages import CloseSessionMessage, DetachSession
from duologue.errors import AdmissionFault, ErrorCode
from duologue.ids import session_id_from
from duologue.log import init_logger
from duologue.server.attachment import Attachment
from duologue.server.dialect_duplex import DuplexDialect
from duologue.server.dialect_ga import GaDialect
from duologue.server.engine import SessionSink
from duologue.server.hello import Hello
from duologue.server.journal import Journal
from duologue.server.models import ModelNames
from duologue.server.token import ResumeToken
from duologue.wire import MAX_EVENT_BYTES

logger = init_logger(__name__)


class ConnectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of connections and of what the server keeps for their sessions."""

    max_event_bytes: int = MAX_EVENT_BYTES
    max_early_events: int = 64  # held while the session is being opened
    max_early_bytes: int = 4 * 1024 * 1024
    max_local_frames: int = 64  # errors of the server's own that wait for the socket, before reading stops
    first_message_timeout_s: float = 10.0
    close_timeout_s: float = 5.0
    journal_bytes: int = 8 * 1024 * 1024
    journal_ttl_s: float = 60.0
    sessions_per_key: int | None = None


class Observer(Protocol):
    """What is told of what happens, for metrics."""

    def observed(self, event: events.SessionEvent) -> None:
        """A session said this."""
        ...

    def refused(self, code: ErrorCode) -> None:
        """The server itself raised this error."""
        ...


class NoObserver:
    """Tells nobody."""

    def observed(self, event: events.SessionEvent) -> None:
        del event

    def refused(self, code: ErrorCode) -> None:
        del code


class SessionHub:
    """The sessions, and everything that opening one needs."""

    def __init__(
        self,
        *,
        defaults: SessionConfig,
        names: ModelNames,
        entropy: Callable[[int], bytes],
        subscribe: Callable[[str, SessionSink], None],
        unsubscribe: Callable[[str], None],
        limits: ConnectionLimits | None = None,
        observer: Observer | None = None,
        resumable: bool = True,
    ) -> None:
        self.defaults = defaults
        self.names = names
        self.limits = limits or ConnectionLimits()
        self.observer: Observer = observer or NoObserver()
        self.draining = False
        self.on_change: Callable[[], object] = _nothing  # called when a session is gone
        self._entropy = entropy
        self._subscribe = subscribe
        self._unsubscribe = unsubscribe
        self._resumable = resumable
        self._sessions: dict[str, Attachment] = {}
        self._controls = 0

    @property
    def sessions(self) -> tuple[Attachment, ...]:
        """Every session, oldest first."""
        return tuple(self._sessions.values())

    def get(self, session_id: str) -> Attachment | None:
        """The session with this id, if the server holds it."""
        return self._sessions.get(session_id)

    def next_control_id(self) -> str:
        """An id for one correlated operation."""
        self._controls += 1
        return f"control-{self._controls}"

    def create(self, hello: Hello, config: SessionConfig, *, opened_by_update: bool) -> Attachment:
        """A new session, subscribed to, before the engine is asked. Raises :class:`AdmissionFault`."""
        self._admit(hello.key_id)
        session_id = session_id_from(self._entropy(16))
        duplex = hello.dialect == "duplex"
        resumable = duplex and self._resumable
        limits = self.limits
        dialect = DuplexDialect(session_id, config) if duplex else GaDialect(session_id, config)
        attachment = Attachment(
            dialect,
            key_id=hello.key_id,
            journal=Journal(max_bytes=limits.journal_bytes, ttl_s=limits.journal_ttl_s) if duplex else None,
            token=ResumeToken(self._entropy) if resumable else None,
            opened_by_update=opened_by_update,
        )
        attachment.observe = self.observer.observed
        attachment.on_orphan_end = self.remove
        self._sessions[session_id] = attachment
        self._subscribe(session_id, attachment.deliver)
        logger.info("session begins", extra={"session_id": session_id, "dialect": hello.dialect})
        return attachment

    def remove(self, attachment: Attachment) -> None:
        """The session is over for this server. Idempotent."""
        if self._sessions.get(attachment.session_id) is attachment:
            del self._sessions[attachment.session_id]
            self._unsubscribe(attachment.session_id)
            ending = attachment.terminal
            reason = "not opened" if ending is None else ending.reason
            logger.info("session is over", extra={"session_id": attachment.session_id, "reason": reason})
            self.on_change()

    def close_message(self, attachment: Attachment, reason: str) -> CloseSessionMessage:
        """The operation that ends a session."""
        return CloseSessionMessage(session_id=attachment.session_id, control_id=self.next_control_id(), reason=reason)

    def detach_message(self, attachment: Attachment) -> DetachSession:
        """The operation that tells that nobody is connected to a session."""
        return DetachSession(
            session_id=attachment.session_id,
            control_id=self.next_control_id(),
            expected_generation=attachment.generation,
        )

    def _admit(self, key_id: str) -> None:
        if self.draining:
            raise AdmissionFault(ErrorCode.SHUTTING_DOWN, "The server is shutting down; connect again in a moment.")
        limit = self.limits.sessions_per_key
        if limit is not None and sum(other.key_id == key_id for other in self._sessions.values()) >= limit:
            raise AdmissionFault(
                ErrorCode.RATE_LIMITED, f"This key has {limit} sessions, which is its limit: close one first."
            )


def _nothing() -> None:
    pass
