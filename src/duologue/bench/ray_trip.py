"""What a round trip through the ``ray`` backend costs: ``python -m duologue.bench.ray_trip``. Needs the extra ``ray``.

Starts a cluster of two nodes on this machine, puts one replica on the node that is not the head, and prints how long the
start took, then the median and the 99th percentile of a round trip with 4 KB and with 1 MiB of audio, next to the same
through a worker process, in microseconds.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

from duologue.bench.round_trip import WARM_UP, client_echo, samples_us
from duologue.clock import AsyncioRuntime
from duologue.config.pipeline import RayPlacement
from duologue.engine.stages.contract import StageClient
from duologue.engine.stages.process import ProcessClient, WorkerSpec
from duologue.engine.stages.ray_client import RayClient, load_ray

ROUNDS = 500
SIZES = {"4 KB": 4_096, "1 MiB": 1_048_576}
_SPEC = WorkerSpec(factory="duologue.bench.echo:EchoWorkerStage", name="echo")


async def measure(address: str) -> None:
    """Print the table."""
    placement = RayPlacement(address=address, cpus=0, resources={"far": 1})
    for label, size_bytes in SIZES.items():
        for name in ("process", "ray"):
            runtime = AsyncioRuntime()
            client: StageClient = ProcessClient(_SPEC, runtime=runtime)
            if name == "ray":
                client = RayClient(_SPEC, placement, runtime=runtime)
            async with client_echo(client, size_bytes) as round_trip:
                await samples_us(round_trip, WARM_UP)
                samples = await samples_us(round_trip, ROUNDS)
            await runtime.aclose()
            late = samples[len(samples) * 99 // 100]
            print(f"{label:6s}  {name:8s}  {statistics.median(samples):9.0f}  {late:9.0f}", flush=True)


def main() -> None:
    ray: Any = load_ray()
    start = time.perf_counter()
    cluster: Any = load_ray("ray.cluster_utils").Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    try:
        cluster.add_node(num_cpus=1, resources={"far": 4})
        print(f"two nodes in {time.perf_counter() - start:.1f} s")
        print("size    backend   median us     p99 us")
        asyncio.run(measure(cluster.address))
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
