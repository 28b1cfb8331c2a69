"""Value types and the stage port between sessions and the orchestrator.

The value types hold exactly what their users construct and read. All are frozen; nothing in them is an in-process
object that could not be sent to another process (the bridge to stage code is the struct, not a reference).
"""

from __future__ import annotations

import abc
from collections.abc import Sequence

import msgspec

from duologue.outputs import Options, SamplingParams, StagePrompt


class DuplexModelSessionState:
    """Base of a plugin's own per-session state. The engine carries it and never looks inside."""

    __slots__ = ()


class DuplexFence(msgspec.Struct, frozen=True):
    """Where in a session's life something belongs. Ordered by (epoch, turn_id) within one session."""

    session_id: str
    epoch: int
    turn_id: int

    @property
    def position(self) -> tuple[int, int]:
        """(epoch, turn_id), for ordering."""
        return (self.epoch, self.turn_id)


class DuplexRequestIdentity(msgspec.Struct, frozen=True):
    """The session and the fence under which a stage last accepted input for a request."""

    session_id: str
    fence: DuplexFence


class DuplexOutputContext(msgspec.Struct, frozen=True, kw_only=True):
    """What the orchestrator knows about one stage output of a session."""

    identity: DuplexRequestIdentity
    final_stage_id: int
    segment_finished: bool
    segment_token_ids: tuple[int, ...] = ()
    segment_output_metadata: Options | None = None


class DuplexStageRequestContext(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the port needs to register and submit one session-owned stage request."""

    request_id: str
    session_id: str
    fence: DuplexFence
    stage_id: int
    final_stage_id: int
    sampling_params: Sequence[SamplingParams]
    stage_sampling_params: SamplingParams
    session_config: Options
    runtime_config: Options
    config_generation: int


class DuplexStageSubmission(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of input for a session-owned request. ``already_submitted``: the request exists at the stage."""

    context: DuplexStageRequestContext
    prompt: StagePrompt
    already_submitted: bool


class DuplexStageSubmissionResult(msgspec.Struct, frozen=True, kw_only=True):
    """Where a submission went."""

    request_id: str
    stage_id: int
    replica_id: int


class DuplexStagePort(abc.ABC):
    """How a session reaches the stages. Implemented by ``DuplexOrchestrator``; faked in tests of the shell."""

    @property
    @abc.abstractmethod
    def stage_count(self) -> int:
        """Number of stages in the pipeline."""

    def stage_name(self, stage_id: int) -> str:
        """The stage for people, in the log."""
        return f"stage{stage_id}"

    @abc.abstractmethod
    def sampling_defaults(self) -> tuple[object, ...]:
        """One default per stage; ``RuntimeError`` naming the first stage without a live replica."""

    @abc.abstractmethod
    def ensure_request(self, context: DuplexStageRequestContext) -> None:
        """Register or refresh a session-owned request. ``RuntimeError`` if the id belongs to a turn request."""

    @abc.abstractmethod
    async def submit(self, submission: DuplexStageSubmission) -> DuplexStageSubmissionResult:
        """Submit one piece. Pieces of one request must not be submitted concurrently."""

    @abc.abstractmethod
    async def cleanup(self, request_ids: list[str], *, abort: bool = False) -> None:
        """Forget requests, aborting them at the stages first if asked. Never releases the owning session."""

    @abc.abstractmethod
    async def abort_requests(self, request_ids: list[str]) -> None:
        """Stop requests at every stage that holds them."""

    def reserve_session(self, session_id: str) -> bool:
        """Reserve a replica group for a session; false when none is free. Default: placement is per request."""
        del session_id
        return True

    def recover_session(self, session_id: str) -> bool:
        """Give a session that lost a replica others, once there are some; false: not yet. Default: nothing is lost."""
        del session_id
        return True

    def release_session(self, session_id: str) -> None:
        """Give the replica group back. Idempotent."""
        del session_id

    def set_paused(self, request_id: str, paused: bool) -> None:
        """Hold or release the forwarding of a request's segments to later stages. Idempotent; unknown ids are ignored."""
        del request_id, paused
