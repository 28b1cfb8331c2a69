"""The scripted model of the ephemeral family: one request per turn through recognise, answer and speak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

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
    Decision,
    FunctionCall,
    Speech,
    TokensUsed,
    TurnEnded,
    UserTranscript,
    cut_short,
)
from duologue.engine.stages.edge import NOTHING, Edge, EdgeInput, EdgeResult
from duologue.errors import ClientFault, ErrorCode
from duologue.models.scripted import turns
from duologue.models.scripted.script import Script
from duologue.models.scripted.stages import ANSWER, OUTPUT_RATE_HZ, RECOGNISE, SPEAK
from duologue.outputs import Options, RequestOutput, SamplingParams, StagePrompt

REFUSED_VOICE = turns.REFUSED_VOICE
"""The one voice that a scripted model does not have."""


@dataclass(slots=True)
class ScriptedState(DuplexModelSessionState):
    """``accepted``: appends that stages took; ``outputs``: outputs that were judged; ``known``: what a resident model knew
    after the last unit that it answered."""

    accepted: int = 0
    outputs: int = 0
    known: Options = field(default_factory=dict)


class ScriptedPlugin(DuplexModelPlugin):
    """Model policy of the scripted pipeline."""

    plugin_id = "scripted"
    longest_utterance_ms = turns.LONGEST_UTTERANCE_MS

    def __init__(self, script: Script) -> None:
        self.script = script
        self.capabilities = ModelCapabilities(
            family="ephemeral",
            output_rate_hz=OUTPUT_RATE_HZ,
            supports_text_turns=True,
            streams_input=script.streams_input,
            stream_interval_ms=script.stream_interval_ms,
            transcribes_input=True,
            calls_functions=True,
        )

    def create_session_state(self, config: SessionConfig) -> ScriptedState:
        del config
        return ScriptedState()

    def validate_config(self, config: SessionConfig) -> None:
        refuse_voice(config)

    def sampling_params(self, defaults: Sequence[SamplingParams], config: SessionConfig) -> tuple[SamplingParams, ...]:
        recognise, answer, speak = defaults
        most = config.max_output_tokens or turns.UNLIMITED
        return (recognise, msgspec.structs.replace(answer, max_tokens=most), speak)

    def plan_append(self, state: DuplexModelSessionState, request: AppendPlanRequest) -> AppendPlan:
        del state
        if not request.respond:
            final_stage_id = RECOGNISE
        elif request.config.output_modality == "text":
            final_stage_id = ANSWER
        else:
            final_stage_id = SPEAK
        asked = next((entry.text for entry in reversed(request.history) if entry.role in ("user", "tool")), "")
        told = bool(request.history) and request.history[-1].role == "tool"
        prompt = StagePrompt(
            text=asked,
            messages=tuple(entry.message for entry in request.history),
            audio=request.audio,
            audio_rate_hz=request.rate_hz,
            final=request.final,
            session_key="" if request.out_of_band else request.session_id,
            menu=None if told and not request.audio else request.config.menu,
        )
        return AppendPlan(prompt=prompt, final_stage_id=final_stage_id)

    def plan_turn(self, turn: Turn, defaults: Sequence[SamplingParams]) -> TurnPlan:
        return turns.plan(turn, defaults)

    def commit_append(self, state: DuplexModelSessionState, request: AppendPlanRequest) -> None:
        del request
        assert isinstance(state, ScriptedState)
        state.accepted += 1

    def decide(
        self, state: DuplexModelSessionState, stage_id: int, output: RequestOutput, context: DuplexOutputContext
    ) -> Decision:
        assert isinstance(state, ScriptedState)
        state.outputs += 1
        if stage_id == RECOGNISE:
            return _heard(output, context)
        if stage_id < context.final_stage_id:
            return Decision(results=(*_asked_for(output), *_counted(output), *cut_short(output)), forward=True)
        return _answered(output)


def _heard(output: RequestOutput, context: DuplexOutputContext) -> Decision:
    spoken = not output.finished or output.metadata.get("spoken") is True
    results = (UserTranscript(text=output.text, final=output.finished),) if spoken else ()
    return Decision(results=results, forward=output.finished and context.final_stage_id > RECOGNISE)


def _answered(output: RequestOutput) -> Decision:
    speech: tuple[Speech, ...] = ()
    if output.text or output.audio:
        speech = (Speech(text=output.text, audio=output.audio, rate_hz=output.audio_rate_hz, marks=output.marks),)
    ended = (TurnEnded(),) if output.finished else ()
    return Decision(results=(*speech, *_asked_for(output), *_counted(output), *cut_short(output), *ended))


def _asked_for(output: RequestOutput) -> tuple[FunctionCall, ...]:
    return tuple(FunctionCall(name=call.name, arguments=call.arguments) for call in output.calls)


def _counted(output: RequestOutput) -> tuple[TokensUsed, ...]:
    read, written = output.metadata.get("prompt_tokens"), output.metadata.get("generated_tokens")
    if not isinstance(read, int) or not isinstance(written, int):
        return ()
    return (TokensUsed(input_tokens=read, output_tokens=written),)


def refuse_voice(config: SessionConfig) -> None:
    """Scripted models refuse one voice, so that a refusal can be tested."""
    if config.voice == REFUSED_VOICE:
        raise ClientFault(
            ErrorCode.INVALID_RUNTIME_CONFIG,
            f"The scripted model has no voice {REFUSED_VOICE!r}; choose any other.",
            param="session.audio.output.voice",
        )


def words_to_answerer(source: EdgeInput) -> EdgeResult:
    """From recognise to answer: nothing was said, nothing is asked.

    The words are those of the last output alone: partial transcripts before it are guesses, not pieces of it.
    """
    words = source.output.text
    if not words:
        return NOTHING
    entry = source.entry_prompt
    return StagePrompt(text=words, messages=entry.messages, session_key=entry.session_key, menu=entry.menu)


def sentence_to_speaker(source: EdgeInput) -> EdgeResult:
    """From answer to speak: one sentence."""
    return StagePrompt(text=source.text, session_key=source.entry_prompt.session_key) if source.text else NOTHING


SCRIPTED_EDGES = (
    Edge(source=RECOGNISE, target=ANSWER, processor=words_to_answerer),
    Edge(source=ANSWER, target=SPEAK, processor=sentence_to_speaker, paced=True),
)
