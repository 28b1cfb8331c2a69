"""The scripted model of the resident family: one stage that hears unit after unit and decides for each to listen or speak."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
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
from duologue.engine.duplex.results import ContextUsed, Decision, FunctionCall, Listened, ModelResult, Speech, TurnEnded
from duologue.engine.stages.contract import AsyncStage, StageControl
from duologue.errors import ErrorCode
from duologue.models.scripted.plugin import ScriptedState, refuse_voice
from duologue.models.scripted.script import Script
from duologue.models.scripted.sound import QUIET_RMS, rms, silence, tone
from duologue.models.scripted.stages import OUTPUT_RATE_HZ
from duologue.outputs import RequestOutput, SamplingParams, Scalar, StageError, StagePrompt, StageRequest, ToolCall

INPUT_RATE_HZ = 16_000


@dataclass(slots=True)
class Ears:
    """What the model remembers. ``to_say``: units of the answer that are left; ``turn`` counts answers; ``context``: units
    that fill its context; ``heard``: pieces of this request; ``known``: ids of calls whose results came,
    of which ``results`` are still to be said."""

    spoken_units: int = 0
    quiet_units: int = 0
    to_say: int = 0
    turn: int = 0
    context: int = 0
    heard: int = 0
    known: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)


class ResidentModel(AsyncStage[Ears]):
    """Listens until somebody spoke and was quiet again, then answers, one unit per unit heard.

    The result of a function gets a unit of its own: behind what is being said, or at once if nothing is.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self.open_states = 0

    def open(self, request: StageRequest) -> Ears:
        del request
        self.open_states += 1
        return Ears()

    def close(self, state: Ears) -> None:
        del state
        self.open_states -= 1

    async def process(self, state: Ears, request: StageRequest, control: StageControl) -> AsyncIterator[RequestOutput]:
        del control
        script = self._script
        prompt = request.prompt
        await asyncio.sleep(script.unit_s)
        talking = state.to_say > 0
        self._read(state, prompt)
        if prompt.audio:
            self._hear(state, prompt)
        if state.to_say and script.fault(0, "speak") is not None:
            error = StageError(ErrorCode.RUNTIME_STREAM_FAILED.value, "The script told this stage to fail.")
            yield RequestOutput(request_id=request.request_id, error=error)
            return
        state.context += 1
        state.heard += 1
        if script.context_units and state.context > script.context_units:
            raise RuntimeError(f"the context of {script.context_units} units has overflowed")
        ears: dict[str, Scalar] = {"spoken": state.spoken_units, "quiet": state.quiet_units, "turn": state.turn}
        ears["context"], ears["known"] = state.context, " ".join(state.known)
        ears["heard"] = state.heard
        if not prompt.audio and (talking or not state.to_say):
            yield RequestOutput(request_id=request.request_id, segment_finished=True, metadata=ears)
            return
        if not state.to_say:
            yield RequestOutput(
                request_id=request.request_id,
                segment_finished=True,
                finished=prompt.final,
                metadata={"decision": "listen", **ears},
            )
            return
        said = script.answer_units - (state.to_say - len(state.results))
        calls: tuple[ToolCall, ...] = ()
        if state.to_say <= len(state.results):
            text = f"The result is {state.results.pop(0)}. "
        else:
            text = f"Unit {said + 1} of answer {state.turn}. "
            call = script.call(f"answer {state.turn}", prompt.menu)
            if call is not None and call.says == said:
                calls = (ToolCall(name=call.name, arguments=call.arguments),)
        state.to_say = 0 if prompt.options.get("force_listen") else state.to_say - 1
        yield RequestOutput(
            request_id=request.request_id,
            segment_finished=True,
            finished=prompt.final,
            text=text,
            audio=tone(script.unit_ms, rate_hz=OUTPUT_RATE_HZ),
            audio_rate_hz=OUTPUT_RATE_HZ,
            calls=calls,
            metadata={"decision": "speak" if state.to_say else "end", **ears},
        )

    def _read(self, state: Ears, prompt: StagePrompt) -> None:
        """What it is told and did not know: what it knew before, and results of functions."""
        known = prompt.options
        if known.get("rebuild") is True:
            state.spoken_units, state.quiet_units = int(known.get("spoken") or 0), int(known.get("quiet") or 0)
            state.turn = int(known.get("turn") or 0)
            state.context = int(known.get("context") or 0)
            state.known = str(known.get("known") or "").split()
        for message in prompt.messages:
            if message.call_id and message.call_id not in state.known and not message.text.startswith("No result"):
                state.known.append(message.call_id)
                state.results.append(message.text)
                state.to_say += 1

    def _hear(self, state: Ears, prompt: StagePrompt) -> None:
        if rms(prompt.audio) > QUIET_RMS:
            state.spoken_units += 1
            state.quiet_units = 0
        else:
            state.quiet_units += 1
        if not state.to_say and state.spoken_units and state.quiet_units >= self._script.quiet_units:
            state.spoken_units = 0
            state.to_say = self._script.answer_units
            state.turn += 1


class ResidentPlugin(DuplexModelPlugin):
    """Model policy of the resident family. A script with ``rebuilds`` lets sessions survive the loss of a replica."""

    plugin_id = "scripted-resident"

    def __init__(self, script: Script) -> None:
        self.script = script
        self.capabilities = ModelCapabilities(
            family="resident",
            input_rate_hz=INPUT_RATE_HZ,
            output_rate_hz=OUTPUT_RATE_HZ,
            supports_client_commit=False,
            unit_ms=script.unit_ms,
            chunk_period_ms=script.unit_ms,
            max_silence_units=64,
            compacts=script.compacts,
            context_units=script.context_units,
            calls_functions=bool(script.calls),
        )

    def create_session_state(self, config: SessionConfig) -> ScriptedState:
        del config
        return ScriptedState()

    def can_rebuild(self, state: DuplexModelSessionState) -> bool:
        del state
        return self.script.rebuilds

    def validate_config(self, config: SessionConfig) -> None:
        refuse_voice(config)

    def sampling_params(self, defaults: Sequence[SamplingParams], config: SessionConfig) -> tuple[SamplingParams, ...]:
        del config
        return tuple(defaults)

    def plan_append(self, state: DuplexModelSessionState, request: AppendPlanRequest) -> AppendPlan:
        assert isinstance(state, ScriptedState)
        known: dict[str, Scalar] = {**state.known, "rebuild": True} if request.rebuild else {}
        if request.compact:
            known["context"] = self.script.context_units // 4  # a summary of what was said
        told = request.history if request.result is None else (request.result,)
        return AppendPlan(
            prompt=StagePrompt(
                messages=tuple([entry.message for entry in told if entry.role == "tool"]) if told else (),
                audio=request.audio,
                audio_rate_hz=request.rate_hz,
                final=request.final,
                session_key=request.session_id,
                menu=request.config.menu,
                options={"force_listen": request.force_listen, **known},
            )
        )

    def commit_append(self, state: DuplexModelSessionState, request: AppendPlanRequest) -> None:
        del request
        assert isinstance(state, ScriptedState)
        state.accepted += 1

    def silence_unit(self, state: DuplexModelSessionState) -> bytes:
        """What the model hears while nobody sends anything."""
        del state
        return silence(self.script.unit_ms, rate_hz=INPUT_RATE_HZ)

    def decide(
        self, state: DuplexModelSessionState, stage_id: int, output: RequestOutput, context: DuplexOutputContext
    ) -> Decision:
        del stage_id, context
        assert isinstance(state, ScriptedState)
        state.outputs += 1
        state.known = dict(output.metadata)
        decision = state.known.pop("decision", None)
        results: list[ModelResult] = []
        if output.audio:
            results.append(Speech(text=output.text, audio=output.audio, rate_hz=output.audio_rate_hz))
        if output.calls:
            results += [FunctionCall(name=call.name, arguments=call.arguments) for call in output.calls]
        match decision:
            case "listen":
                results.append(Listened())
            case "end":
                results.append(TurnEnded())
        if self.script.context_units:
            filled, heard = state.known.get("context"), state.known.get("heard")
            if isinstance(filled, int) and isinstance(heard, int):
                results.append(ContextUsed(used=filled, limit=self.script.context_units, heard=heard))
        return Decision(results=tuple(results))
