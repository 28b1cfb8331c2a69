"""A pipeline of stages, as configuration: which stage code runs where, and how the stages feed each other.

Rules kept here: values are checked when they are made, and every error names the key, the value and what is allowed;
stages are named, in order, and edges lead from a stage to a later one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

import msgspec

from duologue.config.stage_config import ModelConfig
from duologue.outputs import Options, SamplingParams

Backend = Literal["inproc", "process", "ray", "vllm", "http"]

_IMPORT_PATH = re.compile(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$")
_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_-]*$")


def check_import_path(key: str, value: str) -> None:
    """``ValueError`` unless ``value`` is written ``package.module:name``."""
    if not _IMPORT_PATH.match(value):
        raise ValueError(f"{key} must be written package.module:name, got {value!r}")


class RayPlacement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the ``ray`` backend puts the replicas of a stage.

    ``address``: the cluster; ``None``: the one that ``$RAY_ADDRESS`` names, else one started on this machine. ``node``: a
    node's id or IP address; ``None``: any that has what is asked for. ``cpus``, ``gpus`` and ``resources`` are per replica.
    """

    address: str | None = None
    node: str | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    resources: Mapping[str, float] = {}

    def __post_init__(self) -> None:
        for key, value in (("cpus", self.cpus), ("gpus", self.gpus), *self.resources.items()):
            if not value >= 0:
                raise ValueError(f"{key} must be 0 or more, got {value!r}")


class StageConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One stage. ``factory`` (``package.module:name``) is called with ``options`` as keywords, where the stage runs.

    ``final_output``: clients get this stage's outputs even if it is not the last. ``devices`` are GPUs as
    ``CUDA_VISIBLE_DEVICES`` names them ("0", or "0,1" for both); replicas in worker processes get them in turn.
    ``environment`` and the heartbeat concern worker processes and Ray actors only, ``ray`` the latter. Times in seconds.
    """

    name: str
    factory: str
    backend: Backend = "process"
    replicas: int = 1
    options: Options = {}
    sampling: SamplingParams = SamplingParams()
    model: ModelConfig = ModelConfig()
    final_output: bool = False
    devices: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}
    ray: RayPlacement = RayPlacement()
    start_timeout_s: float = 120.0
    heartbeat_s: float = 2.0
    heartbeat_timeout_s: float = 10.0
    close_timeout_s: float = 5.0

    def __post_init__(self) -> None:
        if not _NAME.match(self.name):
            raise ValueError(f"name must start with a letter and hold letters, digits, '_' and '-', got {self.name!r}")
        check_import_path("factory", self.factory)
        if not 1 <= self.replicas <= 64:
            raise ValueError(f"replicas must be between 1 and 64, got {self.replicas}")
        for key in ("start_timeout_s", "heartbeat_s", "heartbeat_timeout_s", "close_timeout_s"):
            if not getattr(self, key) > 0:
                raise ValueError(f"{key} must be greater than 0, got {getattr(self, key)!r}")
        if self.heartbeat_timeout_s < 2 * self.heartbeat_s:
            raise ValueError(
                f"heartbeat_timeout_s must be at least twice heartbeat_s ({self.heartbeat_s:g}), "
                f"got {self.heartbeat_timeout_s:g}"
            )


class EdgeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``source`` feeds ``target`` (stage names) through ``processor`` (``package.module:name``).

    ``prewarm``: with ``async_chunk`` the target is opened before its input exists. ``paced``: the target gets its next
    piece when it has finished the segment of the last one, which it must do for each piece.
    """

    source: str
    target: str
    processor: str = "duologue.engine.stages.edge:pass_on"
    prewarm: bool = False
    paced: bool = False

    def __post_init__(self) -> None:
        check_import_path("processor", self.processor)


class PipelineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The stages in order, and the edges between them."""

    stages: tuple[StageConfig, ...]
    edges: tuple[EdgeConfig, ...] = ()
    async_chunk: bool = False

    def __post_init__(self) -> None:
        names = [stage.name for stage in self.stages]
        if not names:
            raise ValueError("stages must name at least one stage")
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"stages must have different names, {name!r} is there twice")
        fed: set[str] = set()
        for edge in self.edges:
            self._check_edge(edge, names)
            if edge.target in fed:
                raise ValueError(f"stage {edge.target!r} is fed by two edges; it may have one source")
            fed.add(edge.target)

    def stage_id(self, name: str) -> int:
        """The position of a stage. ``KeyError`` for an unknown name."""
        for number, stage in enumerate(self.stages):
            if stage.name == name:
                return number
        raise KeyError(name)

    @staticmethod
    def _check_edge(edge: EdgeConfig, names: list[str]) -> None:
        for key in ("source", "target"):
            value = getattr(edge, key)
            if value not in names:
                raise ValueError(f"edges: {key} must be one of {', '.join(names)}, got {value!r}")
        if names.index(edge.source) >= names.index(edge.target):
            raise ValueError(f"edges: {edge.source!r} must stand before {edge.target!r} in stages to feed it")
