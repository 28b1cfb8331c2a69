"""A Ray cluster of two nodes on this machine, and replicas on the node that is not the head."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec
import ray
from ray.cluster_utils import Cluster

from duologue.clock import AsyncioRuntime
from duologue.config.pipeline import RayPlacement
from duologue.engine.stages.process import WorkerSpec
from duologue.engine.stages.ray_client import RayClient

SPEC = WorkerSpec(factory="", name="actor", close_timeout_s=10.0, start_timeout_s=180.0)


@dataclass(frozen=True)
class Nodes:
    """Ids of the two nodes; ``far`` has the resource ``far``, and is where replicas go."""

    address: str
    head: str
    far: str

    @property
    def placement(self) -> RayPlacement:
        return RayPlacement(address=self.address, cpus=0, resources={"far": 1})


@contextmanager
def two_nodes() -> Iterator[Nodes]:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        far = cluster.add_node(num_cpus=1, resources={"far": 64})
        yield Nodes(cluster.address, cluster.head_node.node_id, far.node_id)
    finally:
        ray.shutdown()
        cluster.shutdown()


def far_client(nodes: Nodes, factory: str, changes: dict[str, object], runtime: AsyncioRuntime) -> RayClient:
    spec = msgspec.structs.replace(SPEC, factory=factory, **changes)
    return RayClient(spec, nodes.placement, runtime=runtime)
