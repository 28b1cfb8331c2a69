"""How the toy model takes part in conversations: what to submit for a turn, and what its outputs mean."""

from collections.abc import Sequence

from duologue.config.session import SessionConfig
from duologue.engine.duplex.contracts import DuplexOutputContext
from duologue.engine.duplex.plugin import (
    AppendPlan,
    AppendPlanRequest,
    ChatTurn,
    DuplexModelPlugin,
    DuplexModelSessionState,
    ModelCapabilities,
    Turn,
    TurnPlan,
)
from duologue.engine.duplex.results import Decision, Speech, TurnEnded
from duologue.errors import ClientFault, ErrorCode
from duologue.outputs import RequestOutput, SamplingParams, StagePrompt

ANSWER, SPEAK = 0, 1


class ToyPlugin(DuplexModelPlugin):
    """One request per committed turn (an *ephemeral* model). It remembers nothing between turns."""

    plugin_id = "toy"
    capabilities = ModelCapabilities(output_rate_hz=24_000)
    longest_utterance_ms = 30_000

    def create_session_state(self, config: SessionConfig) -> DuplexModelSessionState:
        return DuplexModelSessionState()

    def validate_config(self, config: SessionConfig) -> None:
        pass  # raise ClientFault here for settings that the model can't serve

    def sampling_params(self, defaults: Sequence[SamplingParams], config: SessionConfig) -> tuple[SamplingParams, ...]:
        return tuple(defaults)

    def plan_append(self, state: DuplexModelSessionState, request: AppendPlanRequest) -> AppendPlan:
        prompt = StagePrompt(audio=request.audio, audio_rate_hz=request.rate_hz, final=request.final)
        return AppendPlan(prompt=prompt, final_stage_id=ANSWER if request.config.output_modality == "text" else SPEAK)

    def decide(
        self, state: DuplexModelSessionState, stage_id: int, output: RequestOutput, context: DuplexOutputContext
    ) -> Decision:
        if stage_id < context.final_stage_id:
            return Decision(forward=True)
        said = Speech(text=output.text, audio=output.audio, rate_hz=output.audio_rate_hz)
        ended = (TurnEnded(),) if output.finished else ()
        return Decision(results=(said, *ended) if output.text or output.audio else ended)

    def plan_turn(self, turn: Turn, defaults: Sequence[SamplingParams]) -> TurnPlan:
        """The same model for `POST /v1/chat/completions`; leave this out to serve conversations only."""
        if not isinstance(turn, ChatTurn):
            raise ClientFault(ErrorCode.UNSUPPORTED, "The toy model only chats.")
        text = turn.messages[-1].text if turn.messages and not turn.audio else ""
        prompt = StagePrompt(text=text, audio=turn.audio, audio_rate_hz=turn.rate_hz)
        final = ANSWER if turn.modality == "text" else SPEAK
        return TurnPlan(pieces=(prompt,), entry_stage_id=ANSWER, final_stage_id=final)
