"""Stage code that only the heavy backends are asked to run."""

from __future__ import annotations

from collections.abc import Iterator

import ray

from duologue.engine.stages.contract import Stage, StageControl
from duologue.outputs import RequestOutput, StageRequest


class Where(Stage[None]):
    """Says on which node it runs."""

    def open(self, request: StageRequest) -> None:
        return None

    def process(self, state: None, request: StageRequest, control: StageControl) -> Iterator[RequestOutput]:
        node = ray.get_runtime_context().get_node_id()
        yield RequestOutput(request_id=request.request_id, text=node, finished=True)
