"""The scripted models put together: plugin, stages in pools of this process, and the edges between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from duologue.clock import Runtime
from duologue.engine.duplex.plugin import DuplexModelPlugin
from duologue.engine.stage_pool import StagePool
from duologue.engine.stages.contract import AsyncStage
from duologue.engine.stages.edge import Edge
from duologue.engine.stages.inproc import InprocClient
from duologue.models.scripted.plugin import SCRIPTED_EDGES, ScriptedPlugin
from duologue.models.scripted.resident import ResidentModel, ResidentPlugin
from duologue.models.scripted.script import Script
from duologue.models.scripted.stages import Answerer, Recogniser, Speaker


@dataclass(slots=True)
class ScriptedPipeline:
    """What an orchestrator is built from. ``clients[stage]`` are the replicas made so far, for fault injection."""

    plugin: DuplexModelPlugin
    stage_pools: list[StagePool]
    edges: Sequence[Edge]
    stages: list[AsyncStage[object]]
    clients: list[list[InprocClient]]

    @property
    def open_states(self) -> int:
        """Request states that stage code holds: 0 at quiescence."""
        return sum(int(getattr(stage, "open_states", 0)) for stage in self.stages)


def ephemeral_pipeline(runtime: Runtime, script: Script | None = None, *, replicas: int = 1) -> ScriptedPipeline:
    """Recognise, answer, speak."""
    script = Script() if script is None else script
    stages: list[AsyncStage[object]] = [Recogniser(script), Answerer(script), Speaker(script)]  # type: ignore[list-item]
    return _pipeline(runtime, ScriptedPlugin(script), stages, SCRIPTED_EDGES, replicas)


def resident_pipeline(runtime: Runtime, script: Script | None = None, *, replicas: int = 1) -> ScriptedPipeline:
    """One model that listens and speaks."""
    script = Script() if script is None else script
    stages: list[AsyncStage[object]] = [ResidentModel(script)]  # type: ignore[list-item]
    return _pipeline(runtime, ResidentPlugin(script), stages, (), replicas)


def _pipeline(
    runtime: Runtime,
    plugin: DuplexModelPlugin,
    stages: list[AsyncStage[object]],
    edges: Sequence[Edge],
    replicas: int,
) -> ScriptedPipeline:
    clients: list[list[InprocClient]] = [[] for _ in stages]

    def pool(stage_id: int) -> StagePool:
        def make_client(replica_id: int) -> InprocClient:
            del replica_id
            client = InprocClient(stages[stage_id], runtime=runtime)
            clients[stage_id].append(client)
            return client

        return StagePool(stage_id=stage_id, make_client=make_client, runtime=runtime, replicas=replicas)

    pools = [pool(stage_id) for stage_id in range(len(stages))]
    return ScriptedPipeline(plugin=plugin, stage_pools=pools, edges=edges, stages=stages, clients=clients)
