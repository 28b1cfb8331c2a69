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
from typing import TYPE_CHECKING, Final

from duologue.config.stage_config import ModelConfig
from duologue.engine.companions import MAX_COMPANIONS
from duologue.engine.messages import AddCompanionRequest, AddRequest
from duologue.engine.stages.edge import Topology
from duologue.errors import ClientFault, ErrorCode
from duologue.metrics.stats import StageRequestStats
from duologue.outputs import CompanionOutput, Options, RequestOutput, SamplingParams, StagePrompt, StageRequest

if TYPE_CHECKING:
    from duologue.clock import TimerHandle

LONGEST_WAIT_S: Final = 600.0

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


@dataclass(slots=True)
class Shown:
    """What the client of a request has got from one final stage so far, without audio."""

    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)

    def partial(self, request_id: str) -> RequestOutput:
        """All of it as one output of a request that was aborted."""
        return RequestOutput(
            request_id=request_id,
            text="".join(self.text),
            token_ids=tuple(self.token_ids),
            finished=True,
            finish_reason="abort",
        )


@dataclass
class OrchestratorRequestState:
    """Bookkeeping of one request.

    ``session_owned``: outputs and failures belong to a session, not to a client queue. ``submitted``: stages that got
    the request; ``fed``: stages that an edge made a piece for; ``finished``: stages that are done with it.
    ``final_outputs``: stages whose outputs go to the client; the request ends when all of them have finished.
    ``shown``: what went there. ``parent_id``: the request that this one accompanies; ``inherited_replica``: where that
    one runs.
    ``held``: pieces for later stages that wait because the request is paused, or their stage still works on the last one
    (``working``: such stages). ``lane``: what still has to happen for this request, in order, while ``busy``.
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
    shown: dict[int, Shown] = field(default_factory=dict)
    parent_id: str | None = None
    inherited_replica: int | None = None
    running: bool = False
    deadline: TimerHandle | None = None
    paused: bool = False
    held: deque[tuple[int, StagePrompt]] = field(default_factory=deque)
    working: set[int] = field(default_factory=set)
    patience: TimerHandle | None = None
    lane: deque[LaneJob] = field(default_factory=deque)
    busy: bool = False

    def stats(self, stage_id: int) -> StageRequestStats:
        """Statistics of this request at ``stage_id``, created on first use."""
        stats = self.stage_stats.get(stage_id)
        if stats is None:
            stats = self.stage_stats[stage_id] = StageRequestStats(stage_id=stage_id, request_id=self.request_id)
        return stats

    def show(self, stage_id: int, output: RequestOutput) -> None:
        """Note what the client gets from a final stage."""
        shown = self.shown.get(stage_id)
        if shown is None:
            shown = self.shown[stage_id] = Shown()
        if output.text:
            shown.text.append(output.text)
        if output.token_ids:
            shown.token_ids.extend(output.token_ids)

    def companion_output(self, role: str) -> CompanionOutput:
        """All that this companion produced, for its parent."""
        segment = self.streaming.segment(self.entry_stage_id)
        return CompanionOutput(
            role=role,
            text="".join(segment.text),
            token_ids=tuple(segment.token_ids),
            audio=b"".join(segment.audio),
            audio_rate_hz=segment.audio_rate_hz,
            metadata=segment.output_metadata or {},
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
    _check_sampling(len(message.sampling_params), count)
    _check_roles(message, has_handoff=final != message.entry_stage_id)
    if message.timeout_s is not None and not message.timeout_s > 0:
        raise _misfit("timeout_s", message.timeout_s, "must be above 0 or null")
    return OrchestratorRequestState(
        request_id=message.request_id,
        prompt=message.prompt,
        sampling_params_list=list(message.sampling_params),
        final_stage_id=final,
        entry_stage_id=message.entry_stage_id,
        streaming=RequestStreaming(enabled=message.resumable),
        final_outputs=frozenset(reachable) & (final_stages | {final} | frozenset(message.shown_stage_ids)),
    )


def admit_companion(
    message: AddCompanionRequest, parent: OrchestratorRequestState | None, stage_count: int
) -> OrchestratorRequestState:
    """The state of a companion of ``parent``: it runs at the parent's entry stage alone and shows nothing to clients.

    Raises :class:`ClientFault` (``request_invalid``) when there is nothing that it could accompany.
    """
    parent_id = message.parent_id
    if parent is None or parent.session_owned or parent.parent_id is not None:
        raise _refusal("parent_id", f"There is no request {parent_id!r} that could have a companion.")
    entry = parent.entry_stage_id
    if parent.final_stage_id == entry:
        raise _refusal(
            "parent_id", f"Request {parent_id!r} ends at stage {entry}; no later stage would use a companion."
        )
    if parent.fed and not parent.streaming.enabled:
        raise _refusal("parent_id", f"Request {parent_id!r} has already been handed on; name its roles when adding it.")
    _check_sampling(len(message.sampling_params), stage_count)
    stats = parent.stage_stats.get(entry)
    return OrchestratorRequestState(
        request_id=message.request_id,
        prompt=message.prompt,
        sampling_params_list=list(message.sampling_params) or parent.sampling_params_list,
        final_stage_id=entry,
        entry_stage_id=entry,
        parent_id=parent_id,
        inherited_replica=None if stats is None else stats.replica_id,
    )


def _check_sampling(given: int, count: int) -> None:
    if given not in (0, count):
        raise _misfit("sampling_params", given, f"must be one per stage ({count}) or none")


def _check_roles(message: AddRequest, *, has_handoff: bool) -> None:
    roles = message.companion_roles
    if len(roles) > MAX_COMPANIONS:
        raise _misfit("companion_roles", len(roles), f"must name at most {MAX_COMPANIONS} roles")
    if len(set(roles)) < len(roles):
        raise _refusal("companion_roles", f"companion_roles must differ, got {', '.join(roles)}.")
    if roles and not has_handoff:
        raise _refusal("companion_roles", "companion_roles need a later stage that uses them; the request has none.")
    if not 0 < message.companion_wait_s <= LONGEST_WAIT_S:
        raise _misfit("companion_wait_s", message.companion_wait_s, f"must be above 0 and at most {LONGEST_WAIT_S:g}")


def _misfit(name: str, value: float, rule: str) -> ClientFault:
    return _refusal(name, f"{name} {rule}, got {value}.")


def _refusal(name: str, message: str) -> ClientFault:
    return ClientFault(ErrorCode.REQUEST_INVALID, message, param=name)
