"""What the orchestrator keeps about one request, and how a piece of input for a stage is built.

Rules kept here:

* one state per request id, registered before anything is submitted and dropped by the one cleanup funnel;
* segments are per stage: a segment's end is not the request's end, and content is kept from boundary to boundary only
  where a later stage will need it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field

from duologue.config.stage_config import ModelConfig
from duologue.engine.messages import AddRequest
from duologue.engine.stages.edge import Topology
from duologue.errors import ClientFault, ErrorCode
from duologue.log import init_logger
from duologue.metrics.stats import StageRequestStats
from duologue.outputs import Options, RequestOutput, SamplingParams, StagePrompt, StageRequest

logger = init_logger(__name__)

LaneJob = Callable[[], Coroutine[object, object, None]]


@dataclass(slots=True)
class StageSegment:
    """What one stage has produced for one request since its last boundary.

    ``finished``: the latest output was a boundary; the content stays readable until the next output arrives.
    ``kept``: the edge asked for more, so the next output continues this content instead of starting afresh.
    """

    finished: bool = False
    token_ids: list[int] = field(default_factory=list)
    output_metadata: Options | None = None
    text: list[str] = field(default_factory=list)
    audio: list[bytes] = field(default_factory=list)
    audio_rate_hz: int = 0
    index: int = 0
    kept: bool = False

    def absorb(self, output: RequestOutput, *, content: bool) -> None:
        """Take in one output; ``content`` false leaves text and audio out (nobody downstream will ask)."""
        if self.finished:
            self.index += 1
            if not self.kept:
                self.token_ids = []
                self.text.clear()
                self.audio.clear()
            self.kept = False
        self.finished = output.finished or output.segment_finished
        self.token_ids.extend(output.token_ids)
        self.output_metadata = output.metadata
        if content:
            if output.text:
                self.text.append(output.text)
            if output.audio:
                self.audio.append(output.audio)
                self.audio_rate_hz = output.audio_rate_hz


@dataclass(slots=True)
class RequestStreaming:
    """Streaming state of one request. ``bridge_states`` holds what an extension keeps beside a request, by its name."""

    enabled: bool = False
    segments: dict[int, StageSegment] = field(default_factory=dict)
    bridge_states: dict[str, object] = field(default_factory=dict)

    def segment(self, stage_id: int) -> StageSegment:
        """The segment state of ``stage_id``, created on first use."""
        segment = self.segments.get(stage_id)
        if segment is None:
            segment = self.segments[stage_id] = StageSegment()
        return segment


@dataclass
class OrchestratorRequestState:
    """Bookkeeping of one request.

    ``session_owned``: outputs and failures belong to a session, not to a client queue. ``submitted``: stages that got
    the request; ``fed``: stages that an edge made a piece for; ``finished``: stages that are done with it.
    ``final_outputs``: stages whose outputs go to the client; the request ends when all of them have finished.
    ``held``: pieces for later stages that wait because the request is paused. ``lane``: what still has to happen for
    this request, in order, while ``busy``.
    """

    request_id: str
    prompt: StagePrompt | None
    sampling_params_list: list[SamplingParams]
    final_stage_id: int
    session_owned: bool = False
    entry_stage_id: int = 0
    streaming: RequestStreaming = field(default_factory=RequestStreaming)
    stage_submit_ts: dict[int, float] = field(default_factory=dict)
    stage_stats: dict[int, StageRequestStats] = field(default_factory=dict)
    pinned_replicas: dict[int, int] = field(default_factory=dict)
    submitted: set[int] = field(default_factory=set)
    fed: set[int] = field(default_factory=set)
    finished: set[int] = field(default_factory=set)
    final_outputs: frozenset[int] = frozenset()
    running: bool = False
    paused: bool = False
    held: deque[tuple[int, StagePrompt]] = field(default_factory=deque)
    lane: deque[LaneJob] = field(default_factory=deque)
    busy: bool = False

    def stats(self, stage_id: int) -> StageRequestStats:
        """Statistics of this request at ``stage_id``, created on first use."""
        stats = self.stage_stats.get(stage_id)
        if stats is None:
            stats = self.stage_stats[stage_id] = StageRequestStats(stage_id=stage_id, request_id=self.request_id)
        return stats

    def log_stats(self) -> None:
        """Write what this request cost at each stage into the log."""
        for stage_id, stats in sorted(self.stage_stats.items()):
            logger.info(
                "stage statistics",
                extra={
                    "request_id": self.request_id,
                    "stage_id": stage_id,
                    "replica_id": stats.replica_id,
                    "outputs": stats.outputs,
                    "output_tokens": stats.output_tokens,
                    "audio_s": round(stats.audio_s, 3),
                    "first_output_s": stats.first_output_s,
                },
            )


def build_engine_core_request_from_tokens(
    request_id: str,
    prompt: StagePrompt,
    params: SamplingParams,
    model_config: ModelConfig | None,
    resumable: bool = False,
) -> StageRequest:
    """One piece of input for a stage.

    Raises :class:`ClientFault` (``request_invalid``) when the prompt alone exceeds the model's context.
    """
    limit = model_config.max_model_len if model_config is not None else 0
    if limit and len(prompt.token_ids) > limit:
        raise ClientFault(
            ErrorCode.REQUEST_INVALID,
            f"The prompt has {len(prompt.token_ids)} tokens; the model takes at most {limit}. Shorten it.",
            param="prompt",
        )
    return StageRequest(
        request_id=request_id, external_req_id=request_id, prompt=prompt, params=params, resumable=resumable
    )


def admit(message: AddRequest, topology: Topology, final_stages: frozenset[int]) -> OrchestratorRequestState:
    """The state of a new turn-based request. ``final_stages`` are those that always show their outputs to clients.

    Raises :class:`ClientFault` (``request_invalid``) when the request does not fit the pipeline.
    """
    count = topology.stage_count
    final = count - 1 if message.final_stage_id is None else message.final_stage_id
    if not 0 <= message.entry_stage_id < count:
        raise _misfit("entry_stage_id", message.entry_stage_id, f"must be between 0 and {count - 1}")
    reachable = topology.reachable(message.entry_stage_id, final)
    if final not in reachable:
        raise _misfit("final_stage_id", final, f"must be a stage that stage {message.entry_stage_id} leads to")
    given = len(message.sampling_params)
    if given not in (0, count):
        raise _misfit("sampling_params", given, f"must be one per stage ({count}) or none")
    return OrchestratorRequestState(
        request_id=message.request_id,
        prompt=message.prompt,
        sampling_params_list=list(message.sampling_params),
        final_stage_id=final,
        entry_stage_id=message.entry_stage_id,
        streaming=RequestStreaming(enabled=message.resumable),
        final_outputs=frozenset(reachable) & (final_stages | {final} | frozenset(message.shown_stage_ids)),
    )


def _misfit(name: str, value: int, rule: str) -> ClientFault:
    return ClientFault(ErrorCode.REQUEST_INVALID, f"{name} {rule}, got {value}.", param=name)
