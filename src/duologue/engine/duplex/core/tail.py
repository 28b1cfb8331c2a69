"""The append tail: submissions in wire order, one at a time.

Rules kept here: what was queued first is submitted first; while one is in flight the others wait as state, not as tasks;
a failure takes everything queued behind it along; a voided submission that is already in flight becomes an *orphan*,
whose acceptance must be undone; one whose request ended by itself stays in flight, since it may have to be made again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import msgspec

from duologue.engine.duplex.contracts import DuplexFence
from duologue.engine.duplex.core.history import Item
from duologue.engine.duplex.core.tables import APPEND, advance
from duologue.engine.duplex.plugin import HistoryEntry


class PendingAppend(msgspec.Struct, gc=False):
    """One piece of input on its way. ``audio`` is given up once the piece is settled.

    ``result``: what became of a function call, for the request that asked; such a piece has no audio. ``items``: the
    conversation that it comes after, if that is part of what is submitted. ``response_id``: the answer that the request of a
    resident model gave when the piece was made; one that is asked for later changes nothing in it. ``owner``: the item of the
    committed turn that a resident model hears of with it. ``forgotten``: should the stage not take it, it is not tried again.
    """

    request_id: str
    fence: DuplexFence
    audio: bytes
    final: bool
    respond: bool
    silence: bool = False
    force_listen: bool = False
    item_id: str | None = None
    pause: bool = False
    quiet: bool = False
    result: HistoryEntry | None = None
    items: tuple[Item, ...] | None = None
    response_id: str | None = None
    owner: str | None = None
    forgotten: bool = False
    number: int = 0
    state: str = "queued"

    @property
    def keeps_clock(self) -> bool:
        """Silence that only keeps the model's clock; a unit that asks for an answer is sent when the client asks."""
        return self.silence and not self.final


@dataclass(slots=True)
class AppendTail:
    """``numbers`` counts submissions of the session; ``orphans`` are in flight, by number, and nobody waits for them.

    ``queued_bytes`` is the audio in ``queue``, kept as a sum: a client that is ahead of its model may have thousands wait.
    """

    queue: deque[PendingAppend] = field(default_factory=deque)
    queued_bytes: int = 0
    in_flight: PendingAppend | None = None
    orphans: dict[int, PendingAppend] = field(default_factory=dict)
    beside: tuple[int, str] | None = None  # number and request of a submission that is of no turn
    numbers: int = 0
    accepted: int = 0
    failed: int = 0
    voided: int = 0

    @property
    def idle(self) -> bool:
        return self.in_flight is None and not self.queue

    @property
    def blocked(self) -> bool:
        """Whether something is on its way to the stage: an orphan too, since order must hold across it."""
        return self.in_flight is not None or bool(self.orphans) or self.beside is not None

    def begin_beside(self, request_id: str) -> int:
        """A submission that is of no turn is on its way; returns its number."""
        self.numbers += 1
        self.beside = (self.numbers, request_id)
        return self.numbers

    def settle_beside(self, number: int) -> str | None:
        """The answer to such a submission; its request, ``None`` if it is the answer to another."""
        if self.beside is None or self.beside[0] != number:
            return None
        request_id, self.beside = self.beside[1], None
        return request_id

    @property
    def held_bytes(self) -> int:
        """Audio bytes that the tail holds."""
        return self.queued_bytes + (len(self.in_flight.audio) if self.in_flight is not None else 0)

    def unsettled(self) -> list[PendingAppend]:
        """What no stage has accepted yet, in order."""
        return [self.in_flight, *self.queue] if self.in_flight is not None else list(self.queue)

    def enqueue(self, append: PendingAppend) -> None:
        self.queue.append(append)
        self.queued_bytes += len(append.audio)

    def put_back(self, append: PendingAppend) -> None:
        """``append``, which was refused, is the next to be submitted."""
        self.queue.appendleft(append)
        self.queued_bytes += len(append.audio)

    def next(self) -> PendingAppend | None:
        """The append to submit now, if one is due; it is in flight from here on."""
        if not self.queue or self.blocked:
            return None
        append = self.queue.popleft()
        self.queued_bytes -= len(append.audio)
        self.begin(append)
        return append

    def begin(self, append: PendingAppend) -> None:
        """``append``, which nothing is in front of, is in flight from here on."""
        self.numbers += 1
        append.number = self.numbers
        append.state = advance(APPEND, append.state, "submitted")
        self.in_flight = append

    def settle(self, number: int, *, accepted: bool) -> PendingAppend | None:
        """The answer to submission ``number``; ``None`` if it was voided meanwhile (see :meth:`orphan`)."""
        append = self.in_flight
        if append is None or append.number != number:
            return None
        append.state = advance(APPEND, append.state, "accepted" if accepted else "rejected")
        self.in_flight = None
        if accepted:
            self.accepted += 1
        else:
            self.failed += 1
        return append

    def orphan(self, number: int, *, accepted: bool) -> PendingAppend | None:
        """The answer to an orphan's submission; returns the orphan, whose request must be aborted (again)."""
        append = self.orphans.pop(number, None)
        if append is not None:
            append.state = advance(APPEND, append.state, "accepted" if accepted else "rejected")
        return append

    def readdress(self, old: str, new: str, items: tuple[Item, ...]) -> None:
        """What is queued for one request goes to another, which begins with ``items``: results are among these."""
        kept: deque[PendingAppend] = deque()
        first: tuple[Item, ...] | None = items
        for append in self.queue:
            if append.request_id == old and append.result is not None:
                append.state = advance(APPEND, append.state, "voided")
                self.voided += 1
                self.queued_bytes -= len(append.audio)
                continue
            if append.request_id == old:
                append.request_id, append.items, first = new, first, None
            kept.append(append)
        self.queue = kept

    def forget(self, unwanted: set[int]) -> None:
        """Of what is queued, the pieces at these places are not submitted."""
        kept: deque[PendingAppend] = deque()
        for place, append in enumerate(self.queue):
            if place in unwanted:
                append.state = advance(APPEND, append.state, "voided")
                self.queued_bytes -= len(append.audio)
                self.voided += 1
            else:
                kept.append(append)
        self.queue = kept

    def void(self, request_id: str | None = None, *, in_flight: bool = True) -> int:
        """Drop what is queued (of one request, or all), and what is ``in_flight``; returns the audio bytes dropped."""
        kept: deque[PendingAppend] = deque()
        dropped = 0
        for append in self.queue:
            if request_id is None or append.request_id == request_id:
                append.state = advance(APPEND, append.state, "voided")
                dropped += len(append.audio)
                self.voided += 1
            else:
                kept.append(append)
        self.queue = kept
        self.queued_bytes -= dropped
        current = self.in_flight if in_flight else None
        if current is not None and (request_id is None or current.request_id == request_id):
            current.state = advance(APPEND, current.state, "voided")
            dropped += len(current.audio)
            self.orphans[current.number] = current
            current.audio = b""
            self.in_flight = None
            self.voided += 1
        return dropped
