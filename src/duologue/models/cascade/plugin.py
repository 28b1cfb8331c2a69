"""The cascade's policy: what is submitted for a turn, and what each stage's output means.

Rules kept here: the plugin keeps no state of its own, so a session can be moved or rebuilt from its history alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from duologue.config.session import SessionConfig
from duologue.engine.duplex.contracts import DuplexOutputContext
from duologue.engine.duplex.plugin import (
    AppendPlan,
    AppendPlanRequest,
    DuplexModelPlugin,
    DuplexModelSessionState,
    ModelCapabilities,
    Turn,
    TurnPlan,
)
from duologue.engine.duplex.results import (
    CutShort,
    Decision,
    FunctionCall,
    Speech,
    TokensUsed,
    TurnEnded,
    UserTranscript,
    cut_short,
)
from duologue.errors import ClientFault, ErrorCode
from duologue.models.cascade import turns
from duologue.models.cascade.edges import PAUSE, QUIET, RECOGNISE, RESPOND, SPEAK
from duologue.outputs import RequestOutput, SamplingParams, StagePrompt

VOICES = ("default", "hibari")
LANGUAGE = turns.LANGUAGE
_FORWARD = Decision(forward=True)


class CascadePlugin(DuplexModelPlugin):
    """Recognition, language model and voice as one conversational partner. English only."""

    plugin_id = "cascade"
    capabilities = ModelCapabilities(
        family="ephemeral",
        input_rate_hz=16_000,
        output_rate_hz=24_000,
        supports_text_turns=True,
        streams_input=True,
        transcribes_input=True,
        fixed_voice_after_audio=False,
    )
    longest_utterance_ms = turns.LONGEST_UTTERANCE_MS

    def __init__(self, *, calls_functions: bool = False, takes_images: bool = False) -> None:
        """``calls_functions``: the language model takes tools, as those behind OpenAI-compatible endpoints do.
        ``takes_images``: it takes pictures too, which the operator declares."""
        self.capabilities = msgspec.structs.replace(
            self.capabilities, calls_functions=calls_functions, takes_images=takes_images
        )

    def create_session_state(self, config: SessionConfig) -> DuplexModelSessionState:
        del config
        return DuplexModelSessionState()

    def validate_config(self, config: SessionConfig) -> None:
        """Any voice name is taken for the one voice there is, since stock clients always send one; languages are not."""
        if config.language is not None and config.language.split("-")[0].lower() != LANGUAGE:
            raise ClientFault(
                ErrorCode.INVALID_RUNTIME_CONFIG,
                f"The embedded models understand and speak English only, not {config.language!r}; use 'en' or omit it.",
                param="session.audio.input.transcription.language",
            )

    def sampling_params(self, defaults: Sequence[SamplingParams], config: SessionConfig) -> tuple[SamplingParams, ...]:
        recognise, respond, speak = defaults
        if config.temperature is not None:
            respond = msgspec.structs.replace(respond, temperature=config.temperature)
        if config.max_output_tokens is not None:
            respond = msgspec.structs.replace(respond, max_tokens=config.max_output_tokens)
        return (recognise, respond, msgspec.structs.replace(speak, speed=config.speed))

    def plan_append(self, state: DuplexModelSessionState, request: AppendPlanRequest) -> AppendPlan:
        del state
        text_only = request.config.output_modality == "text"
        final_stage_id = RECOGNISE if not request.respond else RESPOND if text_only else SPEAK
        prompt = StagePrompt(
            audio=request.audio,
            audio_rate_hz=request.rate_hz,
            messages=tuple(entry.message for entry in request.history),
            final=request.final,
            session_key="" if request.out_of_band else request.session_id,
            options={
                "instructions": request.instructions,
                "deltas": text_only,
                PAUSE: request.pause,
                QUIET: request.quiet,
            },
            menu=request.config.menu,
        )
        return AppendPlan(prompt=prompt, final_stage_id=final_stage_id)

    def plan_turn(self, turn: Turn, defaults: Sequence[SamplingParams]) -> TurnPlan:
        return turns.plan(turn, defaults)

    def decide(
        self, state: DuplexModelSessionState, stage_id: int, output: RequestOutput, context: DuplexOutputContext
    ) -> Decision:
        del state
        if stage_id == RECOGNISE:
            return _heard(output, context)
        if stage_id < context.final_stage_id:
            beside = _beside(output)
            return Decision(results=beside, forward=True) if beside else _FORWARD
        return _said(output)


def _heard(output: RequestOutput, context: DuplexOutputContext) -> Decision:
    """Words of the user. A request without audio has none."""
    spoken = output.metadata.get("spoken") is True
    results = (UserTranscript(text=output.text, final=output.finished),) if spoken else ()
    return Decision(results=results, forward=context.final_stage_id > RECOGNISE)


def _said(output: RequestOutput) -> Decision:
    """Words of the assistant, with their sound if there is any."""
    speech = (
        (Speech(text=output.text, audio=output.audio, rate_hz=output.audio_rate_hz, marks=output.marks),)
        if output.text or output.audio
        else ()
    )
    ended = (TurnEnded(),) if output.finished else ()
    return Decision(results=(*speech, *_beside(output), *ended))


def _beside(output: RequestOutput) -> tuple[FunctionCall | TokensUsed | CutShort, ...]:
    """What the language model says that is not for the voice: calls, what it counted, and that it was not done."""
    if not output.finished:
        return ()
    calls = tuple(FunctionCall(name=call.name, arguments=call.arguments) for call in output.calls)
    cut = cut_short(output)
    read, written = output.metadata.get("prompt_tokens"), output.metadata.get("generated_tokens")
    if not isinstance(read, int) or not isinstance(written, int):
        return (*calls, *cut)
    cached = output.metadata.get("cached_tokens")
    used = TokensUsed(input_tokens=read, output_tokens=written, cached_tokens=cached if isinstance(cached, int) else 0)
    return (*calls, used, *cut)
