"""The cascade as a pipeline: three stages, each in a worker process of its own by default."""

from __future__ import annotations

from duologue.config.pipeline import EdgeConfig, PipelineConfig, StageConfig
from duologue.outputs import Options, SamplingParams

_STAGES = "duologue.models.cascade.stages"
_EDGES = "duologue.models.cascade.edges"
_MODEL_OPTIONS = (
    "language_model",
    "endpoint_model",
    "api_key_variable",
    "slots",
    "context_tokens",
    "threads",
    "kv_cache_bytes",
)
OPTIONS = ("models_dir", "partials", *_MODEL_OPTIONS)
"""Options of ``model.options`` that the cascade knows."""


def cascade_pipeline(options: Options) -> PipelineConfig:
    """The pipeline for ``options``. ``ValueError`` names an unknown one."""
    for name in options:
        if name not in OPTIONS:
            raise ValueError(f"model.options.{name} is not an option of 'cascade'; use {', '.join(OPTIONS)}")
    folder = {name: options[name] for name in ("models_dir",) if name in options}
    partials = {name: options[name] for name in ("partials",) if name in options}
    model = {name: options[name] for name in _MODEL_OPTIONS if name in options}
    return PipelineConfig(
        stages=(
            StageConfig(name="recognise", factory=f"{_STAGES}:RecogniseStage", options={**folder, **partials}),
            StageConfig(
                name="respond",
                factory=f"{_STAGES}:RespondStage",
                options={**folder, **model},
                sampling=SamplingParams(max_tokens=160, temperature=0.3),
            ),
            StageConfig(name="speak", factory=f"{_STAGES}:SpeakStage", final_output=True),
        ),
        edges=(
            EdgeConfig(source="recognise", target="respond", processor=f"{_EDGES}:words_to_model"),
            EdgeConfig(source="respond", target="speak", processor=f"{_EDGES}:sentence_to_voice"),
        ),
    )
