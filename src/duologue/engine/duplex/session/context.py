"""What the components of one session share: its parts, its tracked tasks, and where its life stands.

Rules kept here: nothing in this module changes the session; components reach it only by posting items through
:class:`RunnerServices`, so that every change happens in ``DuplexEngineSession.step``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Literal, Protocol

from duologue.clock import Runtime
from duologue.config.stage_config import ModelConfig
from duologue.engine.duplex.commands import DuplexCommand
from duologue.engine.duplex.contracts import DuplexStagePort
from duologue.engine.duplex.core.items import Item
from duologue.engine.duplex.core.session import DuplexEngineSession
from duologue.engine.duplex.events import SessionEvent
from duologue.engine.duplex.plugin import DuplexModelPlugin, DuplexModelSessionState
from duologue.errors import ErrorCode

CloseKind = Literal["closed", "expired"]


@dataclass(slots=True)
class DuplexRunState:
    """Where the session's life stands, as its shell sees it. Written by the runner after each step, read elsewhere.

    ``closing``: no way back. ``closed_emitted``: the one terminal has left or is claimed. ``closed_deferred``: the
    manager sends it, once the stages are clean. ``runtime_closed``: the core is done. ``stream_request_id``: the request
    that was submitted to last. ``concurrent_turn_requests_released``: no model of ours releases its input gate early,
    so this stays false.
    """

    closing: bool = False
    closed_emitted: bool = False
    closed_deferred: bool = False
    close_reason: str | None = None
    runtime_closed: bool = False
    stream_request_id: str | None = None
    concurrent_turn_requests_released: bool = False


@dataclass(slots=True)
class DuplexSessionTasks:
    """Tasks that work for the session and touch nothing of it. A response or a silence unit is state, not a task.

    ``tail`` is the submission in flight (there is at most one), ``appends`` holds it until it has really ended;
    ``background`` is everything else (aborts, clean-ups).
    """

    appends: set[asyncio.Task[None]] = field(default_factory=set)
    background: set[asyncio.Task[None]] = field(default_factory=set)
    tail: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self.appends) + len(self.background)

    def all(self) -> list[asyncio.Task[None]]:
        """Every task that has not ended, in no particular order."""
        return [*self.appends, *self.background]


class RunnerServices(Protocol):
    """What a component may ask of the runner."""

    def apply(self, item: Item) -> None:
        """Tell the session what happened; effects follow at once, or after the step in progress."""
        ...

    def fail(self, code: ErrorCode, message: str, *, request_id: str | None = None, session_ends: bool = False) -> None:
        """The one failure path: error, failed response, and the session's end if it ends."""
        ...

    def plugin_failed(self, hook: str, exc: BaseException, *, request_id: str | None = None) -> None:
        """A hook of the plugin raised."""
        ...

    def spawn_task(
        self, coro: Coroutine[object, object, None], *, name: str, append: bool = False
    ) -> asyncio.Task[None]:
        """Run in a tracked task, cancelled when the session is over. ``append``: it is the submission in flight."""
        ...

    def cleaned(self) -> None:
        """The stages hold nothing of the closing session any more."""
        ...


class SessionManager(Protocol):
    """What a session asks of its manager."""

    def emit(self, session_id: str, number: int, event: SessionEvent) -> None:
        """Put one event on the output queue."""
        ...

    def invalidate(self, session_id: str, response_id: str) -> None:
        """Tell the consumer to forget what it has not yet sent of a response."""
        ...

    def answer(self, control_id: str, generation: int, code: ErrorCode | None, message: str) -> None:
        """Answer a correlated operation that the session decided."""
        ...

    def end_session(self, session_id: str, kind: str, reason: str, fault: ErrorCode | None) -> None:
        """The session wants to end: close it and free its slot."""
        ...

    def session_cleaned(self, session_id: str) -> None:
        """Free the slot: called before the terminal may leave."""
        ...

    def session_ended(self, session_id: str) -> None:
        """The session has said all that it had to say."""
        ...

    def unregister_request(self, request_id: str) -> None:
        """The id no longer belongs to the session: its late output is swallowed."""
        ...


@dataclass(slots=True, frozen=True)
class DuplexSessionContext:
    """Read-mostly bundle with which one session's components are built."""

    session: DuplexEngineSession
    model_state: DuplexModelSessionState
    plugin: DuplexModelPlugin
    stage_port: DuplexStagePort
    manager: SessionManager
    tasks: DuplexSessionTasks
    run: DuplexRunState
    services: RunnerServices
    runtime: Runtime
    session_id: str
    model_config: ModelConfig | None = None


__all__ = [
    "CloseKind",
    "DuplexCommand",
    "DuplexRunState",
    "DuplexSessionContext",
    "DuplexSessionTasks",
    "RunnerServices",
    "SessionManager",
]
