"""Policy of the native model: a resident, frame-locked model that decides by itself when to speak.

Rules kept here: one unit is one frame; a request that the session opens anew begins with nothing remembered, unless it
takes the place of one that was lost with its replica: then it is given what the lost one knew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
from duologue.models.native.shape import FRAME_BYTES, FRAME_MS, RATE_HZ
from duologue.outputs import RequestOutput, SamplingParams, StagePrompt

MODEL_NAME = "native"
LONGEST_SILENCE_UNITS = 100


@dataclass(slots=True)
class NativeState(DuplexModelSessionState):
    """``speaking``: the last decision; ``begun``: a word of this answer was said."""

    request_id: str = ""
    speaking: bool | None = None
    begun: bool = False


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
        del state
        prompt = StagePrompt(
            audio=request.audio,
            audio_rate_hz=request.rate_hz,
            final=request.final,
            session_key=request.session_id,
            options={"force_listen": request.force_listen},
        )
        return AppendPlan(prompt=prompt)

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
            state.request_id, state.speaking, state.begun = output.request_id, None, False
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
