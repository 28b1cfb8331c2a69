"""Policy of the native model: a resident, frame-locked model that decides by itself when to speak.

Rules kept here: one unit is one frame; a request that the session opens anew begins with nothing remembered, unless it
takes the place of one that was lost with its replica: then it is given what the lost one knew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from duologue.config.session import SessionConfig
from duologue.engine.duplex.contracts import DuplexOutputContext
from duologue.engine.duplex.plugin import (
    AppendPlan,
    AppendPlanRequest,
    DuplexModelPlugin,
    DuplexModelSessionState,
    ModelCapabilities,
)
from duologue.engine.duplex.results import Decision, Listened, ModelResult, Speech, TurnEnded
from duologue.errors import ClientFault, ErrorCode
from duologue.models.native.network import RECALLED_FRAMES
from duologue.models.native.shape import DEFAULT_SHAPE, FRAME_BYTES, FRAME_MS, RATE_HZ
from duologue.outputs import RequestOutput, SamplingParams, Scalar, StagePrompt

MODEL_NAME = "native"
LONGEST_SILENCE_UNITS = 100


@dataclass(slots=True)
class NativeState(DuplexModelSessionState):
    """``speaking``: the last decision; ``begun``: a word of this answer was said.

    The rest is what a lost conversation is rebuilt from: the tokens of as many frames as can have an effect (one byte each),
    the audio of the last frames, audio that the stage took and has not answered, and the counters of the gate. ``early``
    frames were answered before their acceptance was told.
    """

    request_id: str = ""
    speaking: bool | None = None
    begun: bool = False
    frames: int = 0
    early: int = 0
    tokens: bytearray = field(default_factory=bytearray)
    recent: deque[bytes] = field(default_factory=lambda: deque(maxlen=RECALLED_FRAMES))
    unanswered: deque[bytes] = field(default_factory=deque)
    gate: tuple[float, float] = (0.0, 0.0)

    def begin(self, request_id: str) -> None:
        """Another request: nothing is remembered."""
        self.request_id, self.speaking, self.begun = request_id, None, False
        self.frames, self.early, self.gate = 0, 0, (0.0, 0.0)
        self.tokens.clear()
        self.recent.clear()
        self.unanswered.clear()

    def accepted(self, audio: bytes) -> None:
        """The stage took these frames."""
        for start in range(0, len(audio), FRAME_BYTES):
            frame = audio[start : start + FRAME_BYTES]
            if self.early:
                self.early -= 1
                self.recent.append(frame)
            else:
                self.unanswered.append(frame)

    def answered(self, output: RequestOutput) -> None:
        """One frame was heard and answered."""
        self.frames += 1
        self.tokens += bytes(output.token_ids)
        excess = len(self.tokens) - (DEFAULT_SHAPE.memory_frames - 1) * DEFAULT_SHAPE.tokens_per_frame
        if excess > 0:
            del self.tokens[:excess]
        if self.unanswered:
            self.recent.append(self.unanswered.popleft())
        else:
            self.early += 1
        heard, quiet = output.metadata.get("heard"), output.metadata.get("quiet")
        if isinstance(heard, float) and isinstance(quiet, float):
            self.gate = (heard, quiet)


class NativePlugin(DuplexModelPlugin):
    """See module docstring."""

    plugin_id = MODEL_NAME
    capabilities = ModelCapabilities(
        family="resident",
        input_rate_hz=RATE_HZ,
        output_rate_hz=RATE_HZ,
        supports_client_commit=False,
        unit_ms=FRAME_MS,
        chunk_period_ms=FRAME_MS,
        max_silence_units=LONGEST_SILENCE_UNITS,
        frame_locked=True,
    )

    def create_session_state(self, config: SessionConfig) -> NativeState:
        del config
        return NativeState()

    def validate_config(self, config: SessionConfig) -> None:
        if config.tools:
            raise ClientFault(
                ErrorCode.UNSUPPORTED, "The native model calls no functions; leave tools out.", param="session.tools"
            )

    def sampling_params(self, defaults: Sequence[SamplingParams], config: SessionConfig) -> tuple[SamplingParams, ...]:
        del config
        return tuple(defaults)

    def plan_append(self, state: DuplexModelSessionState, request: AppendPlanRequest) -> AppendPlan:
        assert isinstance(state, NativeState)
        tokens, audio = b"", request.audio
        options: dict[str, Scalar] = {"force_listen": request.force_listen}
        if request.rebuild:
            tokens = bytes(state.tokens)
            audio = b"".join([*state.recent, *state.unanswered, request.audio])
            heard, quiet = state.gate
            options |= {"recalled_frames": len(state.recent), "frames": state.frames, "heard": heard, "quiet": quiet}
        prompt = StagePrompt(
            audio=audio,
            audio_rate_hz=request.rate_hz,
            final=request.final,
            session_key=request.session_id,
            token_ids=tuple(tokens),
            options=options,
        )
        return AppendPlan(prompt=prompt)

    def commit_append(self, state: DuplexModelSessionState, request: AppendPlanRequest) -> None:
        assert isinstance(state, NativeState)
        if request.rebuild:
            state.request_id, state.speaking, state.begun, state.early = request.request_id, None, False, 0
        elif state.request_id != request.request_id:
            state.begin(request.request_id)
        state.accepted(request.audio)

    def can_rebuild(self, state: DuplexModelSessionState) -> bool:
        """Always: the tokens of a conversation are all that the network keeps of it."""
        del state
        return True

    def silence_unit(self, state: DuplexModelSessionState) -> bytes:
        """What the model hears while nobody sends anything."""
        del state
        return bytes(FRAME_BYTES)

    def decide(
        self, state: DuplexModelSessionState, stage_id: int, output: RequestOutput, context: DuplexOutputContext
    ) -> Decision:
        del stage_id, context
        assert isinstance(state, NativeState)
        if output.request_id != state.request_id:
            state.begin(output.request_id)
        state.answered(output)
        decision = output.metadata.get("decision")
        results: list[ModelResult] = []
        if output.audio:
            results.append(Speech(text=_spoken(state, output), audio=output.audio, rate_hz=output.audio_rate_hz))
        if decision == "end":
            results.append(TurnEnded())
            state.begun = False
        elif decision == "listen" and state.speaking is not False:
            results.append(Listened())  # said once: every frame would be a flood
        state.speaking = decision == "speak"
        return Decision(results=tuple(results))


def _spoken(state: NativeState, output: RequestOutput) -> str:
    if output.metadata.get("decision") == "end":
        return "." if state.begun else ""
    if not output.text:
        return ""
    first, state.begun = not state.begun, True
    return output.text[:1].upper() + output.text[1:] if first else f" {output.text}"
