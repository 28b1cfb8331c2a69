"""Effects: what to do. Imperatives that the shell carries out in order; each that has an answer carries a number.

The shell answers every numbered effect with exactly one item, also when the work fails or times out; the core may by
then have lost interest, which is its own business.
"""

from __future__ import annotations

import msgspec

from duologue.config.session import SessionConfig, SessionPatch
from duologue.engine.duplex.contracts import DuplexFence
from duologue.engine.duplex.events import SessionEvent
from duologue.engine.duplex.plugin import HistoryEntry
from duologue.errors import ErrorCode


class _Effect(msgspec.Struct, frozen=True, kw_only=True):
    pass


class Emit(_Effect, frozen=True, kw_only=True):
    """Hand ``event`` to the consumer. Numbers count from 1; ``OutputTaken(number)`` comes back (cumulative)."""

    number: int
    event: SessionEvent


class Detect(_Effect, frozen=True, kw_only=True, gc=False):
    """Score speech in ``pcm`` (16 kHz PCM16, whole 512-sample frames). One is in flight at a time.

    ``reset``: forget the recurrent state first. Answer: ``SpeechScored`` or ``DetectorFailed``.
    """

    number: int
    pcm: bytes
    reset: bool


class ClassifyTurn(_Effect, frozen=True, kw_only=True):
    """Judge whether the turn in ``pcm`` (16 kHz PCM16, its last 8 s, with the silence after it) is complete.

    Answer: ``TurnClassified`` or ``DetectorFailed``.
    """

    number: int
    pcm: bytes


class SubmitAppend(_Effect, frozen=True, gc=False):
    """Plan and submit one piece of input. One is in flight at a time. Answer: ``AppendAccepted`` or ``AppendFailed``.

    ``first``: the request does not exist at the stage yet. ``rebuild``: it takes the place of one that is gone,
    ``compact``: and shall begin with less than that held. ``out_of_band``: it is beside the conversation, and has no
    sequence number. ``result``: this piece is what became of a function call, and no audio.
    """

    number: int
    request_id: str
    fence: DuplexFence
    seq: int
    turn_seq: int
    audio: bytes
    first: bool
    final: bool
    respond: bool
    silence: bool
    force_listen: bool
    history: tuple[HistoryEntry, ...]
    config: SessionConfig
    config_generation: int
    instructions: str
    rebuild: bool = False
    out_of_band: bool = False
    compact: bool = False
    pause: bool = False
    quiet: bool = False
    result: HistoryEntry | None = None


class AbortRequests(_Effect, frozen=True, kw_only=True):
    """Stop these requests at every stage and forget them. No answer; a failure is retried by the shell."""

    request_ids: tuple[str, ...]


class ReleaseRequests(_Effect, frozen=True, kw_only=True):
    """Forget requests that ended by themselves. No answer."""

    request_ids: tuple[str, ...]


class SetPaused(_Effect, frozen=True, kw_only=True):
    """Ask that a request's segments are held (or released) before later stages. No answer."""

    request_id: str
    paused: bool


class InvalidateOutput(_Effect, frozen=True, kw_only=True):
    """Content of this response that is not taken yet must never be sent. No answer."""

    response_id: str


class JudgeConfig(_Effect, frozen=True, kw_only=True):
    """May the session change to ``config``? Answer, in the same loop turn: ``ConfigJudged``."""

    number: int
    config: SessionConfig
    patch: SessionPatch


class ApplyConfig(_Effect, frozen=True, kw_only=True):
    """``config`` is now in force: formats, detector and sampling follow it. No answer."""

    config: SessionConfig
    generation: int


class AnswerControl(_Effect, frozen=True, kw_only=True):
    """Result of a correlated operation: the lease generation, or why not."""

    control_id: str
    generation: int
    code: ErrorCode | None = None
    message: str = ""


class CleanupSession(_Effect, frozen=True, kw_only=True):
    """The session is closing: abort and forget these requests, then answer ``CleanupEnded``."""

    request_ids: tuple[str, ...]


class EndSession(_Effect, frozen=True, kw_only=True):
    """The session asks to be closed by its manager (fault or client command): it cannot free its own slot."""

    kind: str
    reason: str
    fault: ErrorCode | None


Effect = (
    Emit
    | Detect
    | ClassifyTurn
    | SubmitAppend
    | AbortRequests
    | ReleaseRequests
    | SetPaused
    | InvalidateOutput
    | JudgeConfig
    | ApplyConfig
    | AnswerControl
    | CleanupSession
    | EndSession
)
