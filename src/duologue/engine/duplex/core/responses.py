"""One answer of the assistant, from its creation to its one terminal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from duologue.config.session import Modality, SessionConfig
from duologue.engine.duplex.commands import ResponseOptions
from duologue.engine.duplex.contracts import DuplexFence
from duologue.engine.duplex.core.delays import AnswerClock
from duologue.engine.duplex.core.heard import SpokenText
from duologue.engine.duplex.core.history import Item
from duologue.engine.duplex.core.outbox import Outbox
from duologue.engine.duplex.core.playback import PlaybackClock
from duologue.engine.duplex.core.tables import RESPONSE, advance
from duologue.engine.duplex.events import ResponseStatus, Usage
from duologue.engine.duplex.plugin import HistoryEntry
from duologue.engine.duplex.results import CutReason

OPEN_STATES = frozenset({"created", "speaking", "draining"})


@dataclass(slots=True)
class Response:
    """``config`` is the configuration it was created under; a later update does not touch it.

    Where its audio lies on the playback line, and how much of it was sent, is known to its item, which outlives it.
    """

    response_id: str
    item: Item
    epoch: int
    turn_id: int
    config: SessionConfig
    modality: Modality
    options: ResponseOptions
    created_at: float
    state: str = "created"
    request_id: str | None = None
    spoken: SpokenText = field(default_factory=SpokenText)
    input_audio_ms: int = 0  # of the turns that it answers
    clock: AnswerClock | None = None
    announced: bool = False  # its creation left: only then does its terminal
    calls: list[Item] = field(default_factory=list)  # functions that it asks for
    usage: Usage = field(default_factory=Usage)
    cut_short: CutReason | None = None  # why the model did not say all of it

    @property
    def open(self) -> bool:
        """Whether its terminal is still to come."""
        return self.state in OPEN_STATES

    @property
    def has_content(self) -> bool:
        """Whether its message says anything so far."""
        return self.spoken.length > 0 or self.spoken.audio_samples > 0

    @property
    def generating(self) -> bool:
        return self.state in ("created", "speaking")

    @property
    def drained(self) -> tuple[ResponseStatus, CutReason | None]:
        """How it ends when all that the model said has been sent, and why so."""
        return ("completed", None) if self.cut_short is None else ("incomplete", self.cut_short)

    @property
    def metadata(self) -> Mapping[str, str]:
        return self.options.metadata

    def advance(self, event: str) -> None:
        self.state = advance(RESPONSE, self.state, event)


@dataclass(slots=True)
class Aside:
    """One response outside the conversation, and the request that works for it. ``history``: what it reads.

    ``ended``: the request is over, and what is left of its sound waits in ``line`` for its time, by ``clock``, which is of
    this response alone.
    """

    request_id: str
    fence: DuplexFence
    response: Response
    history: tuple[HistoryEntry, ...]
    submitted: bool = False
    ended: bool = False
    paused: bool = False
    line: Outbox = field(default_factory=Outbox)
    clock: PlaybackClock = field(default_factory=PlaybackClock)
