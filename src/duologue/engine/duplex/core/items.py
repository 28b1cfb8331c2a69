"""Items: what happened. Past-tense facts that :meth:`DuplexEngineSession.step` takes, each with all it needs to be judged.

A fact that was started under a fence carries what the gate needs to decide whether it is stale (a request id, or the
number of the effect that asked for it). Nothing here holds a reference to something that changes.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from duologue.engine.duplex.commands import DuplexCommand, OverlapHint
from duologue.engine.duplex.contracts import DuplexFence
from duologue.engine.duplex.results import ModelResult
from duologue.errors import ErrorCode


class _Item(msgspec.Struct, frozen=True, kw_only=True):
    pass


class Opened(_Item, frozen=True, kw_only=True):
    """The session was admitted. Once, first."""


class CommandReceived(_Item, frozen=True, kw_only=True):
    """Any client command but audio, which arrives decoded as :class:`AudioAppended`."""

    command: DuplexCommand


class CommandRefused(_Item, frozen=True, kw_only=True):
    """The shell could not accept a command (undecodable audio, say): tell the client, nothing else changes."""

    code: ErrorCode
    message: str
    event_id: str | None = None
    param: str | None = None


class AudioAppended(_Item, frozen=True, kw_only=True, gc=False):
    """Decoded input. ``pcm`` is PCM16 at the model's rate; ``detector_pcm`` the same at 16 kHz (``None``: ``pcm`` itself).

    Either may be empty: a resampler gives its samples when it has them. ``is_speech``: the client's word, which outranks
    the detector's. ``following_bytes``: so much of the same append follows in items of its own; it is accepted or refused
    with this one.
    """

    pcm: bytes
    detector_pcm: bytes | None = None
    event_id: str | None = None
    overlap_hint: OverlapHint | None = None
    force_listen: bool = False
    force_barge_in: bool = False
    is_speech: bool | None = None
    following_bytes: int = 0


class SpeechScored(_Item, frozen=True, kw_only=True, gc=False):
    """Verdict on ``Detect(number)``: one speech probability per 32 ms frame."""

    number: int
    probabilities: tuple[float, ...]


class DetectorFailed(_Item, frozen=True, kw_only=True):
    """``Detect(number)`` or ``ClassifyTurn(number)`` could not be done."""

    number: int
    kind: Literal["speech", "turn_end"]
    message: str


class TurnClassified(_Item, frozen=True, kw_only=True):
    """Verdict on ``ClassifyTurn(number)``: probability that the turn is complete."""

    number: int
    probability: float


class AppendAccepted(_Item, frozen=True, kw_only=True, gc=False):
    """The stage took ``SubmitAppend(number)``. ``submitted_at``: the instant just before submitting."""

    number: int
    submitted_at: float


class AppendFailed(_Item, frozen=True, kw_only=True):
    """``SubmitAppend(number)`` was not taken."""

    number: int
    code: ErrorCode
    message: str


class ModelSpoke(_Item, frozen=True, kw_only=True):
    """Typed results of one stage output. ``finished``: the request is over at its final stage."""

    request_id: str
    fence: DuplexFence
    results: tuple[ModelResult, ...]
    finished: bool


class StageFailed(_Item, frozen=True, kw_only=True):
    """A stage gave up on a request of this session (``None``: on the session as a whole)."""

    request_id: str | None
    code: ErrorCode
    message: str
    session_ends: bool = False


class ReplicaLost(_Item, frozen=True, kw_only=True):
    """A replica that this session used is gone, and the session can be rebuilt at another.

    ``pinned``: the session had it reserved, so no request can be placed before the session is.
    """

    message: str
    pinned: bool = False


class Replaced(_Item, frozen=True, kw_only=True):
    """The session has a new placement after :class:`ReplicaLost`: its requests find live replicas."""


class OutputTaken(_Item, frozen=True, kw_only=True):
    """The consumer handed every event up to ``number`` to the socket."""

    number: int


class ConfigJudged(_Item, frozen=True, kw_only=True):
    """The shell's verdict on ``JudgeConfig(number)``; ``code`` ``None`` is yes."""

    number: int
    code: ErrorCode | None = None
    message: str = ""
    param: str | None = None


class Attached(_Item, frozen=True, kw_only=True):
    """A connection takes this session's output."""


class Detached(_Item, frozen=True, kw_only=True):
    """The connection is gone. ``expected_generation`` must be the current one, if given."""

    expected_generation: int | None = None


class ResumeRequested(_Item, frozen=True, kw_only=True):
    """Compare-and-swap on the lease generation."""

    control_id: str
    expected_generation: int


class Touched(_Item, frozen=True, kw_only=True):
    """A sign of life: none of a client's commands, or the arrival of one that has to wait for what was sent before it."""

    command: DuplexCommand | None = None


class CloseRequested(_Item, frozen=True, kw_only=True):
    """End the session. ``kind`` chooses the terminal."""

    kind: Literal["closed", "expired"]
    reason: str
    fault: ErrorCode | None = None
    message: str = ""


class CleanupEnded(_Item, frozen=True, kw_only=True):
    """Stage cleanup of a closing session succeeded, or did not in time (``released`` false)."""

    released: bool


class TerminalClaimed(_Item, frozen=True, kw_only=True):
    """Someone else emits the terminal: the core must not."""


class TimerFired(_Item, frozen=True, kw_only=True):
    """The deadline that ``next_deadline`` named may have passed."""


Item = (
    Opened
    | CommandReceived
    | CommandRefused
    | AudioAppended
    | SpeechScored
    | DetectorFailed
    | TurnClassified
    | AppendAccepted
    | AppendFailed
    | ModelSpoke
    | StageFailed
    | ReplicaLost
    | Replaced
    | OutputTaken
    | ConfigJudged
    | Attached
    | Detached
    | ResumeRequested
    | Touched
    | CloseRequested
    | CleanupEnded
    | TerminalClaimed
    | TimerFired
)
