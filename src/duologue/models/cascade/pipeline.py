"""The cascade as a pipeline: three stages, each in a worker process of its own, or behind an HTTP endpoint on the loop.

Rule kept here: an option alone decides where a model runs; what it is asked, and the edges, stay the same.
"""

from __future__ import annotations

from duologue.config.pipeline import EdgeConfig, PipelineConfig, StageConfig
from duologue.models.cascade.vllm_model import SCHEME as VLLM
from duologue.outputs import Options, SamplingParams

_STAGES = "duologue.models.cascade.stages"
_REMOTE = "duologue.models.cascade.remote"
_HTTP = "duologue.engine.stages.http"
_EDGES = "duologue.models.cascade.edges"
_LOCAL_MODEL = ("models_dir", "language_model", "slots", "context_tokens", "threads")
_ENDPOINTS = ("api_key_variable", "endpoint_model", "endpoint_images")
_RECOGNISER = ("recogniser", "recogniser_model")
_SYNTHESISER = ("synthesiser", "synthesiser_model", "synthesiser_voice", "synthesiser_rate_hz")
OPTIONS = ("partials", *_LOCAL_MODEL, *_ENDPOINTS, *_RECOGNISER, *_SYNTHESISER)
"""Options of ``model.options`` that the cascade knows."""

_SAMPLING = SamplingParams(max_tokens=160, temperature=0.3)
_VLLM_START_S = 600.0


def cascade_pipeline(options: Options) -> PipelineConfig:
    """The pipeline for ``options``. ``ValueError`` names an unknown one, or one that has no use with the others."""
    for name in options:
        if name not in OPTIONS:
            raise ValueError(f"model.options.{name} is not an option of 'cascade'; use {', '.join(OPTIONS)}")
    return PipelineConfig(
        stages=(_recognise(options), _respond(options), _speak(options)),
        edges=(
            EdgeConfig(source="recognise", target="respond", processor=f"{_EDGES}:words_to_model"),
            EdgeConfig(source="respond", target="speak", processor=f"{_EDGES}:sentence_to_voice", paced=True),
        ),
    )


def on_endpoint(options: Options) -> bool:
    """Whether the language model is behind an OpenAI-compatible endpoint."""
    model = options.get("language_model")
    return isinstance(model, str) and model.startswith(("http://", "https://"))


def _recognise(options: Options) -> StageConfig:
    if "recogniser" in options:
        named = {"recogniser": "base_url", "recogniser_model": "model", "api_key_variable": "api_key_variable"}
        return StageConfig(
            name="recognise",
            factory=f"{_HTTP}:TranscriptionStage",
            backend="http",
            options={"base_url": _url(options, "recogniser"), "language": "en", **_renamed(options, named)},
        )
    _refuse_without(options, "recogniser", _RECOGNISER)
    return StageConfig(
        name="recognise", factory=f"{_STAGES}:RecogniseStage", options=_chosen(options, ("models_dir", "partials"))
    )


def _respond(options: Options) -> StageConfig:
    model = options.get("language_model")
    if on_endpoint(options):
        named = {
            "language_model": "base_url",
            "endpoint_model": "model",
            "api_key_variable": "api_key_variable",
            "context_tokens": "context_tokens",
        }
        return StageConfig(
            name="respond",
            factory=f"{_REMOTE}:RemoteRespondStage",
            backend="http",
            options=_renamed(options, named),
            sampling=_SAMPLING,
        )
    on_vllm = isinstance(model, str) and model.startswith(VLLM)
    return StageConfig(
        name="respond",
        factory=f"{_STAGES}:RespondStage",
        backend="vllm" if on_vllm else "process",
        options=_chosen(options, _LOCAL_MODEL),
        sampling=_SAMPLING,
        start_timeout_s=_VLLM_START_S if on_vllm else 120.0,
    )


def _speak(options: Options) -> StageConfig:
    if "synthesiser" in options:
        named = {
            "synthesiser": "base_url",
            "synthesiser_model": "model",
            "synthesiser_voice": "voice",
            "synthesiser_rate_hz": "rate_hz",
            "api_key_variable": "api_key_variable",
        }
        return StageConfig(
            name="speak",
            factory=f"{_HTTP}:SpeechStage",
            backend="http",
            options={"base_url": _url(options, "synthesiser"), **_renamed(options, named)},
            final_output=True,
        )
    _refuse_without(options, "synthesiser", _SYNTHESISER)
    return StageConfig(name="speak", factory=f"{_STAGES}:SpeakStage", final_output=True)


def _chosen(options: Options, names: tuple[str, ...]) -> Options:
    return {name: options[name] for name in names if name in options}


def _renamed(options: Options, names: dict[str, str]) -> Options:
    return {ours: options[name] for name, ours in names.items() if name in options}


def _url(options: Options, name: str) -> str:
    value = options[name]
    if not isinstance(value, str) or not value.startswith(("http://", "https://")):
        raise ValueError(
            f"model.options.{name} must be the base URL of an OpenAI-compatible endpoint such as "
            f"http://127.0.0.1:8000/v1, got {value!r}"
        )
    return value


def _refuse_without(options: Options, name: str, names: tuple[str, ...]) -> None:
    for other in names:
        if other in options:
            raise ValueError(f"model.options.{other} has no use without model.options.{name}")
