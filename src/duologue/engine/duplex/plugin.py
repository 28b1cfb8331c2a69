"""The model plugin: all model policy, behind a handful of methods.

Required methods are on :class:`DuplexModelPlugin`; each optional ability is a ``Protocol`` of its own, resolved once when
the plugin is loaded. Hooks are synchronous and must not block: heavy work belongs to a stage. A hook that raises ends
its own session (or, for an ephemeral model, fails its own response) and nothing else.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Literal, Protocol, runtime_checkable

import msgspec

from duologue.config.session import SessionConfig
from duologue.engine.duplex.contracts import DuplexFence, DuplexOutputContext
from duologue.engine.duplex.contracts import DuplexModelSessionState as DuplexModelSessionState
from duologue.engine.duplex.results import Decision
from duologue.errors import ClientFault, ErrorCode
from duologue.outputs import ChatMessage, Image, RequestOutput, Role, SamplingParams, StagePrompt, ToolCall

Messages = tuple[ChatMessage, ...]


class ModelCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a model can do, in so far as anybody acts on it.

    ``family``: *resident* keeps one resumable request per epoch and decides itself when to speak; *ephemeral* gets one
    request per committed turn. ``streams_input``: an ephemeral model takes a turn's audio while it is being spoken (and
    may answer with partial transcripts), a piece about every ``stream_interval_ms``. ``transcribes_input``: a request can be
    asked for a transcript alone (``respond`` false). ``unit_ms``: the fixed unit of a resident model (appends are cut to it;
    0: any length). ``max_silence_units``: how many silence units one owner may be given. ``frame_locked``: the clock of a
    resident model is that of its input, one unit per unit of time; when input stops, silence stands in for it, outside an
    answer too, up to that number. ``calls_functions``: it may ask for the functions of ``config.menu``
    (:class:`~duologue.engine.duplex.results.FunctionCall`); else tools are refused.
    ``takes_images``: items may hold pictures; else they are refused. ``compacts``: a resident model whose
    context fills (:class:`~duologue.engine.duplex.results.ContextUsed`) can be rolled over: the next request comes with
    ``rebuild`` and ``compact`` set. ``context_units``: so many units (of ``chunk_period_ms``, if it takes any length) its
    context holds at the least, what it says meanwhile included (0: it has no limit, or cannot tell). With it a burst
    of input waits until the model has told (``ContextUsed.heard``) that there is room.
    """

    family: Literal["resident", "ephemeral"] = "ephemeral"
    input_rate_hz: int = 16_000
    output_rate_hz: int = 24_000
    supports_client_commit: bool = True
    supports_barge_in: bool = True
    supports_text_turns: bool = False
    streams_input: bool = False
    stream_interval_ms: int = 640
    transcribes_input: bool = False
    chunk_period_ms: int = 1_000
    unit_ms: int = 0
    max_silence_units: int = 8
    frame_locked: bool = False
    compacts: bool = False
    context_units: int = 0
    fixed_voice_after_audio: bool = True
    calls_functions: bool = False
    takes_images: bool = False

    def check(self, config: SessionConfig, where: str) -> None:
        """Raise :class:`ClientFault` for settings that the model has no ability for; ``where`` they stand is in ``param``."""
        if config.tools and not self.calls_functions:
            raise ClientFault(
                ErrorCode.TOOLS_UNSUPPORTED,
                "This model cannot call functions; leave tools empty, or serve a language model that can.",
                param=f"{where}.tools",
            )


class HistoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of the conversation as the model should know it; an assistant's text is what was heard.

    ``calls``: functions that the assistant asked for. Each is followed by an entry of role ``tool`` with its ``call_id``:
    the result, or a sentence that says why there is none (yet).
    """

    item_id: str
    role: Role
    text: str
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    images: tuple[Image, ...] = ()

    @property
    def message(self) -> ChatMessage:
        """The same for a language model."""
        return ChatMessage(self.role, self.text, self.calls, self.call_id, self.images)


class AppendPlanRequest(msgspec.Struct, frozen=True):
    """One piece of input that the core wants submitted.

    ``audio`` is PCM16 mono at ``rate_hz`` (the model's input rate); it may be empty in a text turn. ``history`` holds the
    conversation before this turn. ``seq`` counts from 1 per epoch, ``turn_seq`` from 1 per turn. ``final``: nothing more
    follows for this turn. ``respond`` false: only a transcript is wanted. ``rebuild``: the first piece of a request that
    takes the place of one lost with its replica (see :class:`Rebuild`) or, with ``compact``, of one whose context
    was filling. ``out_of_band``: an answer beside the conversation, at the same time as one in it: it must not use what a
    stage keeps for the session; ``seq`` is 0.

    ``pause``: speech breaks off at the end of this piece, so it may be the last (a model may prepare its answer; nobody has
    asked for it yet). ``quiet``: there is no speech in this piece, by the detector's word. ``silence``: a unit that stands in
    for input where there is none, to keep the model's clock or, ``final``, to ask for an answer.

    ``result``: this piece is no audio but what became of a function call that this very request of a resident model asked
    for (role ``tool``, with its ``call_id``): the result, or a sentence that says why there is none. It takes no time of
    the model's clock, comes in order with the audio around it, and once: a request that begins later has it in ``history``.
    """

    session_id: str
    request_id: str
    fence: DuplexFence
    seq: int
    turn_seq: int
    audio: bytes
    rate_hz: int
    final: bool
    respond: bool
    silence: bool
    force_listen: bool
    history: tuple[HistoryEntry, ...]
    config: SessionConfig
    instructions: str
    rebuild: bool = False
    out_of_band: bool = False
    compact: bool = False
    pause: bool = False
    quiet: bool = False
    result: HistoryEntry | None = None


class AppendPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to submit: the stage-0 prompt, and the last stage this request should reach (``None``: the pipeline's)."""

    prompt: StagePrompt
    final_stage_id: int | None = None


class DuplexModelPlugin(abc.ABC):
    """Model policy. One instance serves every session; per-session state lives in :class:`DuplexModelSessionState`."""

    plugin_id: str
    capabilities: ModelCapabilities

    @abc.abstractmethod
    def create_session_state(self, config: SessionConfig) -> DuplexModelSessionState:
        """Fresh state for a new session."""

    @abc.abstractmethod
    def validate_config(self, config: SessionConfig) -> None:
        """Raise :class:`duologue.errors.ClientFault` if this model cannot serve ``config``. Must not mutate.

        ``config`` is a session's, or one response's: the session's with what its ``response.create`` overrides. ``param`` is
        in the session's terms (``session.audio.output.voice``) in both cases.
        """

    @abc.abstractmethod
    def sampling_params(self, defaults: Sequence[SamplingParams], config: SessionConfig) -> tuple[SamplingParams, ...]:
        """One per stage."""

    @abc.abstractmethod
    def plan_append(self, state: DuplexModelSessionState, request: AppendPlanRequest) -> AppendPlan:
        """Turn one piece of input into a stage-0 prompt. Must not mutate ``state``."""

    def commit_append(self, state: DuplexModelSessionState, request: AppendPlanRequest) -> None:
        """The stage accepted ``request``: the place for bookkeeping."""
        del state, request

    @abc.abstractmethod
    def decide(
        self,
        state: DuplexModelSessionState,
        stage_id: int,
        output: RequestOutput,
        context: DuplexOutputContext,
    ) -> Decision:
        """What one stage output means. Called in output order; may update ``state``."""


@runtime_checkable
class SilenceContinuation(Protocol):
    """A resident model that must be fed silence to keep its clock."""

    def silence_unit(self, state: DuplexModelSessionState) -> bytes:
        """PCM16 at the model's input rate: one unit of silence."""
        ...


@runtime_checkable
class Rebuild(Protocol):
    """A resident model whose sessions survive the loss of a replica.

    What a model needs to go on is in ``history`` of the next request (what was said and heard, in words) and in whatever
    the plugin kept in its session state. A model of the ephemeral family gets all it needs with every request, so its
    sessions survive without this ability.
    """

    def can_rebuild(self, state: DuplexModelSessionState) -> bool:
        """Whether this session can go on elsewhere. If so, the request in place of a lost one comes with ``rebuild`` set."""
        ...


class ChatTurn(msgspec.Struct, frozen=True, kw_only=True):
    """An answer to a conversation, outside any session.

    ``messages`` hold no system messages: their text is in ``instructions``. ``audio`` (PCM16 mono at ``rate_hz``, the
    model's input rate) is what the user says last, after ``messages``; empty if that was text. ``None`` leaves a setting
    to the model.
    """

    messages: Messages
    instructions: str = ""
    audio: bytes = b""
    rate_hz: int = 0
    modality: Literal["text", "audio"] = "text"
    voice: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()


class SpeechTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A text to be read aloud."""

    text: str
    voice: str | None = None
    speed: float = 1.0
    instructions: str = ""


class TranscriptionTurn(msgspec.Struct, frozen=True, kw_only=True):
    """Speech to be written down: PCM16 mono at ``rate_hz`` (the model's input rate), one utterance."""

    audio: bytes
    rate_hz: int
    language: str | None = None
    prompt: str = ""


Turn = ChatTurn | SpeechTurn | TranscriptionTurn
"""What an ordinary request asks for."""


class TurnPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How an ordinary request goes through the stages.

    ``pieces`` enter one after the other, each when the entry stage has finished the one before; only the last is
    ``final``. ``sampling_params``: one per stage, or none. The outputs of ``final_stage_id`` are the answer; for a
    transcription its last one holds the whole text. The last output of ``report_stage_id`` tells how the answer ended and
    (as metadata ``prompt_tokens``, ``cached_tokens``, ``generated_tokens``) what it cost; ``None``: nobody tells.
    ``language``: the code of the language that is recognised, where it is known.
    """

    pieces: tuple[StagePrompt, ...]
    entry_stage_id: int
    final_stage_id: int
    sampling_params: tuple[SamplingParams, ...] = ()
    report_stage_id: int | None = None
    language: str = ""


@runtime_checkable
class TurnRequests(Protocol):
    """A plugin whose pipeline also serves ordinary requests, beside sessions.

    ``longest_utterance_ms``: longer recordings are cut in pauses, so that sessions never wait long for the stage.
    """

    longest_utterance_ms: int

    def plan_turn(self, turn: Turn, defaults: Sequence[SamplingParams]) -> TurnPlan:
        """Entry, end and input of a request. ``defaults`` has one entry per stage. Must not mutate anything.

        Raises :class:`duologue.errors.ClientFault` for what the model cannot do; ``param`` is in OpenAI's terms.
        """
        ...
