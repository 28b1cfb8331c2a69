"""The native model as a pipeline: one stage that hears and speaks, in a worker process unless told otherwise."""

from __future__ import annotations

from duologue.config.pipeline import PipelineConfig, StageConfig
from duologue.outputs import Options

OPTIONS = ("models_dir", "seed", "backend", "replicas")
"""Options of ``model.options`` that the native model knows."""


def native_pipeline(options: Options) -> PipelineConfig:
    """The pipeline for ``options``. ``ValueError`` names an unknown one, or one with a value that it cannot have."""
    for name in options:
        if name not in OPTIONS:
            raise ValueError(f"model.options.{name} is not an option of 'native'; use {', '.join(OPTIONS)}")
    backend = options.get("backend", "process")
    if backend not in ("process", "inproc"):
        raise ValueError(f"model.options.backend must be 'process' or 'inproc' for 'native', got {backend!r}")
    replicas = options.get("replicas", 1)
    if not isinstance(replicas, int):
        raise ValueError(f"model.options.replicas must be a whole number, got {replicas!r}")
    seed = options.get("seed", 0)
    if not isinstance(seed, int) or seed < 0:
        raise ValueError(f"model.options.seed must be a whole number, 0 or more, got {seed!r}")
    return PipelineConfig(
        stages=(
            StageConfig(
                name="converse",
                factory="duologue.models.native.stage:NativeStage",
                backend="inproc" if backend == "inproc" else "process",
                replicas=replicas,
                options={name: options[name] for name in ("models_dir", "seed") if name in options},
                final_output=True,
            ),
        ),
    )
