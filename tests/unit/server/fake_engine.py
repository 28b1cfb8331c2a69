"""An engine in memory behind the server's port: faithful in what it answers and in the order of it, silent otherwise.

It admits, numbers events, keeps leases (compare-and-swap, idempotent under a control id), merges settings and refuses
as the real one does; what the model would say, a test says for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from duologue.config.session import SessionConfig, merge
from duologue.engine.duplex import commands, events, messages
from duologue.engine.messages import EngineQueueMessage
from duologue.errors import AdmissionFault, ClientFault, ErrorCode
from duologue.server.engine import ControlMessage, EngineHealth, PoolHealth, SessionSink
from duologue.server.models import ModelCard


@dataclass(slots=True)
class FakeSession:
    session_id: str
    config: SessionConfig
    resumable: bool
    generation: int = 0
    resumed_by: str = ""
    detached: bool = False
    ended: bool = False
    number: int = 0
    taken: int = 0
    input_bytes: int = 0
    commands: list[commands.DuplexCommand] = field(default_factory=list)


class FakeEngine:
    """The port. ``slots`` limits sessions; ``hold`` keeps operations waiting until it is set."""

    def __init__(self, *, slots: int = 4, model: str = "fake", input_limit_bytes: int = 16 * 1024 * 1024) -> None:
        self.slots = slots
        self.sessions: dict[str, FakeSession] = {}
        self.posted: list[EngineQueueMessage] = []
        self.asked: list[ControlMessage] = []
        self.hold: asyncio.Event | None = None
        self.fault: Exception | None = None
        self.auto_answer = False
        self._model = model
        self._input_limit = input_limit_bytes
        self._sinks: dict[str, SessionSink] = {}

    # -- the port

    def post(self, message: EngineQueueMessage) -> None:
        self.posted.append(message)
        if isinstance(message, messages.OutputTaken):
            session = self.sessions[message.session_id]
            assert message.number > session.taken, "taken must grow"
            session.taken = message.number
        elif isinstance(message, messages.SessionCommand):
            self._command(message.session_id, message.command)

    async def control(self, message: ControlMessage) -> object:
        self.asked.append(message)
        if self.hold is not None:
            await self.hold.wait()
        if self.fault is not None:
            fault, self.fault = self.fault, None
            raise fault
        match message:
            case messages.OpenSession():
                return self._open(message)
            case messages.ResumeSession():
                return self._resume(message)
            case messages.DetachSession():
                return self._detach(message)
            case messages.CloseSessionMessage():
                return self._close(message.session_id, message.reason)
            case messages.TouchSession():
                return None

    def subscribe(self, session_id: str, sink: SessionSink) -> None:
        assert session_id not in self._sinks
        self._sinks[session_id] = sink

    def unsubscribe(self, session_id: str) -> None:
        self._sinks.pop(session_id, None)

    @property
    def subscriptions(self) -> int:
        return len(self._sinks)

    def models(self) -> Sequence[ModelCard]:
        return [ModelCard(id=self._model)]

    def health(self) -> EngineHealth:
        pool = PoolHealth(name="stage0", replicas=1, available=1)
        return EngineHealth(alive=True, pools=(pool,), slots_limit=self.slots, slots_used=len(self.sessions))

    # -- what a test says for the model

    @property
    def only(self) -> FakeSession:
        (session,) = self.sessions.values()
        return session

    def say(self, session_id: str, *said: events.SessionEvent) -> None:
        session = self.sessions[session_id]
        for event in said:
            session.number += 1
            sink = self._sinks.get(session_id)
            if isinstance(event, events.SessionClosed | events.SessionExpired):
                session.ended = True
                del self.sessions[session_id]
            if sink is not None:
                sink(messages.SessionEventMessage(session_id=session_id, number=session.number, event=event))

    def invalidate(self, session_id: str, response_id: str) -> None:
        sink = self._sinks.get(session_id)
        if sink is not None:
            sink(messages.OutputInvalidated(session_id=session_id, response_id=response_id))

    # -- how it behaves

    def _open(self, message: messages.OpenSession) -> messages.OpenedSession:
        if len(self.sessions) >= self.slots:
            raise AdmissionFault(ErrorCode.RESOURCE_EXHAUSTED, "All session slots are taken.")
        session = FakeSession(message.session_id, message.config, message.resumable)
        self.sessions[message.session_id] = session
        opened = (events.SessionCreated(config=message.config), events.SessionUpdated(config=message.config))
        self.say(message.session_id, *opened)
        return messages.OpenedSession(session_id=message.session_id, generation=0, config=message.config)

    def _resume(self, message: messages.ResumeSession) -> int:
        session = self.sessions.get(message.session_id)
        if session is None:
            raise ClientFault(ErrorCode.SESSION_RESUME_EXPIRED, "The session no longer exists.")
        if session.resumed_by != message.control_id:
            if session.generation != message.expected_generation:
                raise ClientFault(ErrorCode.SESSION_RESUME_CONFLICT, "Another connection resumed this session first.")
            session.generation += 1
            session.resumed_by = message.control_id
            session.detached = False
        return session.generation

    def _detach(self, message: messages.DetachSession) -> object:
        session = self.sessions.get(message.session_id)
        if session is None:
            return None
        if message.expected_generation not in (None, session.generation):
            raise ClientFault(ErrorCode.SESSION_RESUME_CONFLICT, "Another connection owns this session.")
        session.detached = True
        return None

    def _close(self, session_id: str, reason: str) -> object:
        if session_id in self.sessions:
            self.say(session_id, events.SessionClosed(reason=reason))
        return None

    def _command(self, session_id: str, command: commands.DuplexCommand) -> None:
        session = self.sessions.get(session_id)
        if session is None:
            return
        session.commands.append(command)
        try:
            self._act(session, command)
        except ClientFault as fault:
            self.say(
                session_id,
                events.ErrorRaised(
                    code=fault.code, message=fault.message, event_id=command.event_id, param=fault.param
                ),
            )

    def _act(self, session: FakeSession, command: commands.DuplexCommand) -> None:
        match command:
            case commands.UpdateSession():
                self._update(session, command)
            case commands.AppendAudio():
                self._append(session, len(command.audio))
            case commands.CommitAudio():
                self._commit(session)
            case commands.ClearAudio():
                self._clear(session)
            case commands.CancelResponse():
                raise ClientFault(ErrorCode.RESPONSE_NOT_ACTIVE, "No response is in progress.")
            case commands.Heartbeat():
                self.say(session.session_id, events.HeartbeatAcknowledged())
            case commands.CloseSession():
                self.say(session.session_id, events.SessionClosed(reason=command.reason))
            case commands.CreateResponse():
                self._answer(session, command)
            case commands.DeleteItem() | commands.RetrieveItem():
                raise ClientFault(ErrorCode.ITEM_NOT_FOUND, f"There is no item {command.item_id!r}.", param="item_id")
            case _:
                pass

    def _answer(self, session: FakeSession, command: commands.CreateResponse) -> None:
        if self.auto_answer:
            self.say(session.session_id, *answer("resp_1", "item_1", metadata=dict(command.options.metadata)))

    def _update(self, session: FakeSession, command: commands.UpdateSession) -> None:
        session.config = merge(session.config, command.patch)
        self.say(session.session_id, events.SessionUpdated(config=session.config))

    def _clear(self, session: FakeSession) -> None:
        session.input_bytes = 0
        self.say(session.session_id, events.InputCleared())

    def _append(self, session: FakeSession, size: int) -> None:
        if session.input_bytes + size > self._input_limit:
            raise ClientFault(
                ErrorCode.INPUT_BACKPRESSURE, f"The session holds {self._input_limit} bytes of input at most."
            )
        session.input_bytes += size

    def _commit(self, session: FakeSession) -> None:
        if session.input_bytes == 0:
            raise ClientFault(ErrorCode.INPUT_AUDIO_BUFFER_EMPTY, "There is no audio to commit.")
        session.input_bytes = 0
        item = user_item("item_user")
        self.say(session.session_id, events.InputCommitted(item=item))


def user_item(item_id: str, transcript: str | None = None) -> events.ItemView:
    part = events.AudioPart(transcript=transcript, duration_ms=800)
    return events.ItemView(item_id=item_id, role="user", status="completed", parts=(part,))


def assistant_item(item_id: str, text: str, status: events.ItemStatus = "completed") -> events.ItemView:
    part = events.AudioPart(transcript=text, duration_ms=160)
    return events.ItemView(item_id=item_id, role="assistant", status=status, parts=(part,))


def created(response_id: str, item_id: str, *, metadata: dict[str, str] | None = None) -> events.ResponseCreated:
    return events.ResponseCreated(
        response_id=response_id, item_id=item_id, epoch=0, turn_id=0, modality="audio", metadata=metadata or {}
    )


def audio(
    response_id: str, item_id: str, *, start_ms: int = 0, text: str = "", pcm: bytes = b"\x01\x00" * 1920
) -> events.ResponseAudio:
    return events.ResponseAudio(
        response_id=response_id,
        item_id=item_id,
        epoch=0,
        audio=pcm,
        rate_hz=24_000,
        start_ms=start_ms,
        duration_ms=len(pcm) // 48,
        text=text,
    )


def done(
    response_id: str,
    item_id: str,
    text: str = "",
    *,
    status: events.ResponseStatus = "completed",
    reason: events.CancelReason | None = None,
) -> events.ResponseDone:
    item_status: events.ItemStatus = "completed" if status == "completed" else "incomplete"
    return events.ResponseDone(
        response_id=response_id,
        epoch=0,
        status=status,
        reason=reason,
        item=assistant_item(item_id, text, item_status),
        full_text=text,
    )


def answer(response_id: str, item_id: str, *, metadata: dict[str, str] | None = None) -> list[events.SessionEvent]:
    """A whole response of two deltas."""
    return [
        created(response_id, item_id, metadata=metadata),
        events.ResponseSpeak(response_id=response_id),
        audio(response_id, item_id, text="Good "),
        audio(response_id, item_id, start_ms=80, text="morning."),
        done(response_id, item_id, "Good morning."),
    ]
