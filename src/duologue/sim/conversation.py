"""What one client saw and sent of one session: its memory while it talks, and the evidence of the checkers afterwards.

Rules kept here: every frame that a client read is here once, with the connection it came through; what the server read from
the client is here in the order in which it read it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
from msgspec import UNSET

from duologue.sim.plan import Choices, Dialect
from duologue.wire import server_events as wire


class Heard(msgspec.Struct, frozen=True, gc=False):
    """One frame that the client read. ``event`` is ``None`` for a type that it does not know."""

    at: float
    connection: int
    event: wire.ServerEvent | None


class Read(msgspec.Struct, frozen=True, gc=False):
    """One frame that the server read: its event type, and audio if it carried some."""

    at: float
    connection: int
    kind: str
    event_id: str | None
    audio: bytes


@dataclass(slots=True)
class Attempt:
    """One connection of a conversation. ``asked``: the sequence number after which a resume wanted events."""

    number: int
    how: str
    asked: int = 0
    token: str = ""
    resumed: bool = False
    closed: tuple[int, str] | None = None
    lost: bool = False  # the plan broke it: what was in flight is gone


@dataclass(slots=True)
class Conversation:
    """One session as its client knows it."""

    name: str
    client: str
    dialect: Dialect
    choices: Choices
    heard: list[Heard] = field(default_factory=list)
    read: list[Read] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    session_id: str = ""
    token: str = ""
    old_tokens: list[str] = field(default_factory=list)
    generation: int = 0
    last_seq: int = 0
    acks: list[tuple[float, int]] = field(default_factory=list)  # when, and the events up to which
    terminal: wire.ServerEvent | None = None
    refused: str | None = None  # the code with which opening was refused
    complained: str | None = None  # the last error while it waits for a slot, which may be why it is refused
    replaced: bool = False
    responses: list[str] = field(default_factory=list)
    active: dict[str, str] = field(default_factory=dict)  # response id -> item id
    items: list[str] = field(default_factory=list)
    audio_ms: dict[str, float] = field(default_factory=dict)  # by response id
    sent_ids: int = 0
    closes_sent: int = 0
    gap: bool = False  # events were lost for good, and the server said so

    @property
    def over(self) -> bool:
        """Whether the client knows that the session has ended."""
        return self.terminal is not None or self.refused is not None

    def blame(self, code: str | None) -> None:
        """An error before the session is there: as a rule it refuses the opening.

        What waits for a slot may be wrong or too much by itself: then it shows when the socket is shut.
        """
        if code == "input_backpressure" or any(isinstance(entry.event, wire.SessionQueued) for entry in self.heard):
            self.complained = code
        else:
            self.refused = code

    def shut(self) -> None:
        """The socket on which it was to be opened is closed."""
        if not self.session_id:
            self.refused = self.refused or self.complained

    def next_id(self) -> str:
        """An id for the next event."""
        self.sent_ids += 1
        return f"{self.client}_{self.sent_ids}"

    @property
    def acked(self) -> int:
        """The number up to which the client has acknowledged events that it saw."""
        return max((number for _, number in self.acks if 0 <= number <= self.last_seq), default=0)

    def take(self, event: wire.ServerEvent, attempt: Attempt) -> bool:
        """Learn from one event; false if the client has had it already."""
        seq = event.server_event_seq
        if isinstance(seq, int):
            if seq <= self.last_seq:
                return False
            self.last_seq = seq
        self._learn(event, attempt)
        return True

    def _learn(self, event: wire.ServerEvent, attempt: Attempt) -> None:
        match event:
            case wire.SessionCreated():
                self.refused = None  # what was found wrong before was an event, not the opening
                self.session_id = _text(event.session.session_id) or _text(event.session.id)
                self.token = _text(event.resume_token)
            case wire.SessionResumed():
                attempt.resumed = True
                self.old_tokens.append(self.token)
                self.token, self.generation = event.resume_token, event.generation
            case wire.ResyncRequired():
                self.gap = True
                self.last_seq = max(self.last_seq, event.next_server_event_seq - 1)  # nobody will send what is missing
            case wire.SessionClosed() | wire.SessionExpired():
                self.terminal = event
            case wire.SessionReplaced():
                self.replaced = True
            case wire.ItemAdded():
                self.items.append(_text(event.item.id))
            case wire.ItemDeleted():
                if event.item_id in self.items:
                    self.items.remove(event.item_id)
            case _:
                self._take_response(event)

    def _take_response(self, event: wire.ServerEvent) -> None:
        match event:
            case wire.ResponseCreated():
                self.responses.append(event.response.id)
                self.active[event.response.id] = f"item_{event.response.id}"
            case wire.ResponseDone():
                self.active.pop(event.response.id, None)
            case wire.AudioDelta():
                played = len(event.delta) * 1000 / self.output_bytes_per_s
                self.audio_ms[event.response_id] = self.audio_ms.get(event.response_id, 0.0) + played
            case _:
                pass

    @property
    def output_bytes_per_s(self) -> int:
        """Of the output format."""
        size = {"pcm16": 2, "pcmu": 1, "pcma": 1}[self.choices.output_format]
        return self.choices.output_rate_hz * size


def _text(value: object) -> str:
    return "" if value is UNSET or value is None else str(value)
