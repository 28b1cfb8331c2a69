"""From a configured pipeline to stage pools and edges. Nothing is started here, and no stage code is imported that runs
in a worker."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from duologue.config.pipeline import PipelineConfig, StageConfig
from duologue.engine.replicas import ReplicaFactory
from duologue.engine.stage_pool import StagePool
from duologue.engine.stages.contract import AsyncStage, StageClient
from duologue.engine.stages.edge import Edge, EdgeProcessor
from duologue.engine.stages.factory import edge_processor, make_stage
from duologue.engine.stages.inproc import InprocClient
from duologue.engine.stages.process import ProcessClient, WorkerSpec
from duologue.engine.stages.ray_client import RayClient
from duologue.engine.stages.vllm_engine import require_vllm
from duologue.errors import ErrorCode, StageFault

if TYPE_CHECKING:
    from duologue.clock import Runtime


def build_pools(pipeline: PipelineConfig, runtime: Runtime, *, log_level: str = "info") -> list[StagePool]:
    """One pool per stage, in order."""
    return [
        StagePool(
            stage_id=stage_id,
            make_client=replica_factory(stage, runtime, log_level=log_level),
            runtime=runtime,
            name=stage.name,
            replicas=stage.replicas,
            final_output=stage.final_output,
        )
        for stage_id, stage in enumerate(pipeline.stages)
    ]


def build_edges(
    pipeline: PipelineConfig, processors: Mapping[tuple[str, str], EdgeProcessor] | None = None
) -> list[Edge]:
    """The edges by stage number. ``processors`` replaces the named function of an edge, by (source, target).

    Raises ``ValueError`` or ``TypeError`` for a name that leads to no function.
    """
    return [
        Edge(
            source=pipeline.stage_id(edge.source),
            target=pipeline.stage_id(edge.target),
            processor=(processors or {}).get((edge.source, edge.target)) or edge_processor(edge.processor),
            prewarm=edge.prewarm,
            paced=edge.paced,
        )
        for edge in pipeline.edges
    ]


def replica_factory(stage: StageConfig, runtime: Runtime, *, log_level: str = "info") -> ReplicaFactory:
    """What makes the replicas of one stage, on the backend that it names."""
    match stage.backend:
        case "inproc":
            return partial(_inproc, stage, runtime)
        case "process":
            return partial(_process, stage, runtime, log_level)
        case "ray":
            return partial(_ray, stage, runtime, log_level)
        case "vllm":
            return partial(_vllm, stage, runtime, log_level)
        case "http":
            return partial(_http, stage, runtime)


def _inproc(stage: StageConfig, runtime: Runtime, replica_id: int) -> InprocClient:
    name = f"{stage.name}-{replica_id}"
    try:
        code = make_stage(stage.factory, stage.options)
    except (ImportError, TypeError, ValueError) as fault:
        raise StageFault(
            ErrorCode.REPLICA_UNAVAILABLE, f"{name} could not start its stage: {type(fault).__name__}: {fault}."
        ) from fault
    return InprocClient(
        code,
        runtime=runtime,
        default_sampling_params=stage.sampling,
        model_config=stage.model,
        start_timeout_s=stage.start_timeout_s,
        close_timeout_s=stage.close_timeout_s,
    )


def _process(stage: StageConfig, runtime: Runtime, log_level: str, replica_id: int) -> StageClient:
    return ProcessClient(_worker_spec(stage, log_level, replica_id), runtime=runtime)


def _vllm(stage: StageConfig, runtime: Runtime, log_level: str, replica_id: int) -> StageClient:
    require_vllm()  # said here, before a process is started in vain
    return _process(stage, runtime, log_level, replica_id)


def _http(stage: StageConfig, runtime: Runtime, replica_id: int) -> StageClient:
    client = _inproc(stage, runtime, replica_id)
    if not isinstance(client.stage, AsyncStage):
        raise StageFault(
            ErrorCode.REPLICA_UNAVAILABLE,
            f"The stage backend 'http' runs asynchronous stage code only, and {stage.factory} is not: choose process.",
        )
    return client


def _ray(stage: StageConfig, runtime: Runtime, log_level: str, replica_id: int) -> StageClient:
    return RayClient(_worker_spec(stage, log_level, replica_id), stage.ray, runtime=runtime)


def _worker_spec(stage: StageConfig, log_level: str, replica_id: int) -> WorkerSpec:
    return WorkerSpec(
        factory=stage.factory,
        options=stage.options,
        name=f"{stage.name}-{replica_id}",
        sampling=stage.sampling,
        model=stage.model,
        environment=dict(stage.environment),
        devices=stage.devices,
        start_timeout_s=stage.start_timeout_s,
        heartbeat_s=stage.heartbeat_s,
        heartbeat_timeout_s=stage.heartbeat_timeout_s,
        close_timeout_s=stage.close_timeout_s,
        log_level=log_level,
    )
