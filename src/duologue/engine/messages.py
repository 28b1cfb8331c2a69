"""Messages on the engine's queues. The base is open: the duplex side adds its own without being known here."""

from __future__ import annotations

from typing import Any

import msgspec

from duologue.outputs import Options, RequestOutput, SamplingParams, StagePrompt


class EngineQueueMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Base of everything that travels on the engine's request and output queues."""


class AddRequest(EngineQueueMessage, frozen=True, kw_only=True):
    """A turn-based request. ``sampling_params`` one per stage (empty: the stages' defaults).

    ``final_stage_id`` ``None`` is the last stage; ``entry_stage_id`` > 0 bypasses earlier ones. The outputs of
    ``shown_stage_ids`` go to the client too, as far as the request passes these stages.

    ``companion_roles``: nothing is handed on from the entry stage before companions in these roles are done, which may
    be added before or after; the request fails if that takes longer than ``companion_wait_s`` once it is itself ready.

    A request that has not ended after ``timeout_s`` fails; ``None``: whoever added it sees to its end.
    """

    request_id: str
    prompt: StagePrompt
    sampling_params: tuple[SamplingParams, ...] = ()
    entry_stage_id: int = 0
    final_stage_id: int | None = None
    shown_stage_ids: tuple[int, ...] = ()
    resumable: bool = False
    companion_roles: tuple[str, ...] = ()
    companion_wait_s: float = 30.0
    timeout_s: float | None = 600.0


class StreamingUpdate(EngineQueueMessage, frozen=True, kw_only=True):
    """One more piece of a resumable turn-based request. Unknown ids are dropped, never re-created."""

    request_id: str
    prompt: StagePrompt


class AddCompanionRequest(EngineQueueMessage, frozen=True, kw_only=True):
    """A classifier-free-guidance companion of ``parent_id``: the same entry stage, another prompt.

    It says nothing to clients, not even its end: its parent does. ``sampling_params`` empty: its parent's. A role whose
    companion is done may be given again; pieces that the parent hands on later wait for the new one.
    """

    request_id: str
    parent_id: str
    role: str
    prompt: StagePrompt
    sampling_params: tuple[SamplingParams, ...] = ()


class AbortRequest(EngineQueueMessage, frozen=True, kw_only=True):
    """Stop requests.

    With ``control_id`` the abort is acknowledged on the result queue, with one :class:`OutputMessage` for each final
    stage of each request: all text and tokens that the client had got from there (audio is not kept).
    """

    request_ids: tuple[str, ...]
    control_id: str | None = None


class CollectiveRpc(EngineQueueMessage, frozen=True, kw_only=True):
    """Call a method of the stage code in every replica of the named stages (``None``: all).

    Answered within ``timeout_s`` with a tuple of :class:`ReplicaResult`, one per live replica, by stage and replica id.
    """

    control_id: str
    method: str
    args: tuple[Any, ...] = ()
    stage_ids: tuple[int, ...] | None = None
    timeout_s: float = 10.0


class ReplicaResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one replica answered to a call. ``error_code`` ``None`` means success."""

    stage_id: int
    replica_id: int
    value: Any = None
    error_code: str | None = None
    error_message: str = ""


class RegisterReplica(EngineQueueMessage, frozen=True, kw_only=True):
    """Start one more replica of a stage. Answered with its id once it takes work."""

    control_id: str
    stage_id: int


class UnregisterReplica(EngineQueueMessage, frozen=True, kw_only=True):
    """Take a replica out for good; its id stays a hole. Answered with ``None`` once it is gone.

    It gets no new requests from now on. Those that it has may end within ``drain_s``; what is left then fails.
    """

    control_id: str
    stage_id: int
    replica_id: int
    drain_s: float = 10.0


class Shutdown(EngineQueueMessage, frozen=True, kw_only=True):
    """Stop the engine in order."""


class OutputMessage(EngineQueueMessage, frozen=True, kw_only=True):
    """One output of a stage for a client. ``finished``: the last message of this request."""

    request_id: str
    stage_id: int
    output: RequestOutput
    finished: bool = False


class StageMetricsMessage(EngineQueueMessage, frozen=True, kw_only=True):
    """What one request cost at a stage whose output its client does not get: sent once, when that stage has finished."""

    request_id: str
    stage_id: int
    values: Options


class ErrorMessage(EngineQueueMessage, frozen=True, kw_only=True):
    """The request is over with an error. ``code`` is one of ``duologue.errors.ErrorCode``'s values."""

    request_id: str
    code: str
    message: str
    http_status: int = 500
    stage_id: int | None = None


class ResultMessage(EngineQueueMessage, frozen=True, kw_only=True):
    """Answer to a correlated operation. ``error_code`` ``None`` means success."""

    control_id: str
    value: Any = None
    error_code: str | None = None
    error_message: str = ""
