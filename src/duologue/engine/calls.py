"""Calls into stage code over all replicas at once (collective RPC), each with a result of its own.

Rules kept here: the whole call takes at most its time-out, whatever a replica does; one replica's failure is its own
result and nobody else's; the order of results is that of stages and replica ids.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from duologue.engine.faults import as_fault
from duologue.engine.messages import CollectiveRpc, ReplicaResult
from duologue.engine.requests import LONGEST_WAIT_S
from duologue.engine.stage_pool import StagePool
from duologue.engine.stages.contract import StageClient
from duologue.errors import ClientFault, ErrorCode, StageFault

if TYPE_CHECKING:
    from duologue.clock import Runtime


async def call_replicas(
    pools: Sequence[StagePool], message: CollectiveRpc, runtime: Runtime
) -> tuple[ReplicaResult, ...]:
    """Carry out a collective call. Raises :class:`ClientFault` for a stage or a time-out that can't be."""
    if not 0 < message.timeout_s <= LONGEST_WAIT_S:
        raise _refusal("timeout_s", message.timeout_s, f"must be above 0 and at most {LONGEST_WAIT_S:g}")
    stage_ids = range(len(pools)) if message.stage_ids is None else sorted(set(message.stage_ids))
    for stage_id in stage_ids:
        if not 0 <= stage_id < len(pools):
            raise _refusal("stage_ids", stage_id, f"must name stages between 0 and {len(pools) - 1}")
    calls = {
        (stage_id, replica_id): runtime.spawn(_call(client, stage_id, replica_id, message), name="replica-call")
        for stage_id in stage_ids
        for replica_id, client in pools[stage_id].clients().items()
    }
    if not calls:
        return ()
    try:
        await asyncio.wait(calls.values(), timeout=message.timeout_s)
        return tuple(call.result() if call.done() else _late(where, message.timeout_s) for where, call in calls.items())
    finally:
        for call in calls.values():
            call.cancel()


async def _call(client: StageClient, stage_id: int, replica_id: int, message: CollectiveRpc) -> ReplicaResult:
    try:
        value = await client.call(message.method, message.args)
    except Exception as error:
        fault = as_fault(error, f"{message.method!r} at replica {replica_id} of stage {stage_id}")
        return ReplicaResult(
            stage_id=stage_id, replica_id=replica_id, error_code=fault.code.value, error_message=fault.message
        )
    return ReplicaResult(stage_id=stage_id, replica_id=replica_id, value=value)


def _late(where: tuple[int, int], timeout_s: float) -> ReplicaResult:
    stage_id, replica_id = where
    fault = StageFault(
        ErrorCode.TIMEOUT, f"Replica {replica_id} of stage {stage_id} did not answer within {timeout_s:g} s."
    )
    return ReplicaResult(
        stage_id=stage_id, replica_id=replica_id, error_code=fault.code.value, error_message=fault.message
    )


def _refusal(name: str, value: float, rule: str) -> ClientFault:
    return ClientFault(ErrorCode.REQUEST_INVALID, f"{name} {rule}, got {value}.", param=name)
