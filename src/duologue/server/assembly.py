"""From the operator's configuration to a running engine and the server's own settings.

Rules kept here: everything that can be refused is refused before anything is started; the detectors and the plugin are
loaded once and serve every session; the engine stops in order, within a bound, whatever it is doing.
"""

from __future__ import annotations

import asyncio
import difflib
import importlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from duologue.clock import Runtime
from duologue.config.pipeline import PipelineConfig
from duologue.config.service import DuologueConfig, is_loopback
from duologue.config.stage_config import ModelConfig
from duologue.config.turns import TurnLimits
from duologue.detect.speech import SpeechScorer
from duologue.detect.turn_end import TurnEndClassifier
from duologue.detect.weights import ModelUnavailableError, models_folder
from duologue.engine.assembly import build_edges, build_pools
from duologue.engine.duplex.plugin import DuplexModelPlugin, TurnRequests
from duologue.engine.duplex.session.detection import BatchedDetection, DetectionService, ScriptedDetection
from duologue.engine.duplex_orchestrator import DuplexOrchestrator
from duologue.engine.messages import Shutdown
from duologue.engine.stage_pool import StagePool
from duologue.engine.stages.edge import Edge
from duologue.log import init_logger
from duologue.metrics.meters import StageMeters
from duologue.outputs import Options, SamplingParams
from duologue.server.engine import EngineFront, EngineHealth, EnginePort, PoolHealth
from duologue.server.hello import LOCAL_ORIGINS
from duologue.server.models import ModelCard
from duologue.server.registry import ConnectionLimits
from duologue.server.serve import ServeConfig, ServeError
from duologue.server.turns.desk import TurnDesk

if TYPE_CHECKING:
    from duologue.models.scripted import Script

logger = init_logger(__name__)

ENGINE_STOP_S: Final = 10.0
BUILT_IN: Final = ("cascade", "native", "scripted")
"""Models that are chosen by name alone."""


class Model(msgspec.Struct, frozen=True):
    """What an engine is built from."""

    plugin: DuplexModelPlugin
    pools: list[StagePool]
    edges: Sequence[Edge]
    detection: DetectionService | None
    async_chunk: bool = False


def serve_config(config: DuologueConfig) -> ServeConfig:
    """The server's part of the configuration.

    Without a list of origins, pages of this machine may connect to a server that only this machine can reach.
    """
    server, limits, sessions = config.server, config.server.limits, config.sessions
    origins = server.allowed_origins or (LOCAL_ORIGINS if is_loopback(server.host) else ())
    return ServeConfig(
        host=server.host,
        port=server.port,
        api_keys=server.api_keys,
        allowed_origins=origins,
        tls_certificate=server.tls_certificate,
        tls_key=server.tls_key,
        session=config.session,
        turns=server.turns,
        resumable=server.resumable,
        drain_timeout_s=limits.drain_timeout_s,
        max_frame_bytes=limits.max_frame_bytes,
        ping_interval_s=limits.ping_interval_s,
        ping_timeout_s=limits.ping_timeout_s,
        limits=ConnectionLimits(
            max_event_bytes=limits.max_event_bytes,
            first_message_timeout_s=limits.first_message_timeout_s,
            close_timeout_s=limits.close_timeout_s,
            journal_bytes=sessions.resume_replay_max_bytes_per_session,
            journal_ttl_s=sessions.resume_replay_ttl_s,
            sessions_per_key=limits.sessions_per_key,
        ),
    )


@asynccontextmanager
async def engine(
    config: DuologueConfig,
    runtime: Runtime,
    *,
    meters: StageMeters | None = None,
    loading: Callable[[str], None] | None = None,
) -> AsyncIterator[EnginePort]:
    """A running engine; ``meters`` hears what its stages cost, ``loading`` what is about to be loaded, as text.

    Raises what its model or a stage raises when it cannot start.
    """
    tell = loading or _nobody
    tell(f"the model {config.model.plugin}")
    model = build_model(config, runtime)
    tell(f"the stages {', '.join(pool.name for pool in model.pools)}")
    name = config.session.model or model.plugin.plugin_id

    def health() -> EngineHealth:
        return _health(orchestrator)

    front = EngineFront(
        runtime=runtime,
        models=[ModelCard(id=name)],
        health=health,
        control_timeout_s=config.sessions.control_timeout_s,
        wait_s=config.sessions.max_wait_s if config.sessions.max_waiting_sessions else 0.0,
    )
    orchestrator = DuplexOrchestrator(
        stage_pools=model.pools,
        edges=model.edges,
        output_async_queue=front.outputs,
        rpc_async_queue=front.results,
        runtime=runtime,
        async_chunk=model.async_chunk,
        log_stats=config.logging.stats,
        meters=meters,
        plugin=model.plugin,
        duplex_session_config=config.sessions,
        model_config=ModelConfig(model=name),
        detection=model.detection,
    )
    front.attach(orchestrator)
    front.serve_turns(turn_desk(front, orchestrator, config.server.turns))
    await orchestrator.start()
    life = runtime.spawn(_run(orchestrator, front), name="engine")
    try:
        yield front
    finally:
        orchestrator.post(Shutdown())
        _, late = await asyncio.wait([life], timeout=ENGINE_STOP_S)
        if late:
            logger.error("the engine did not stop in time", extra={"timeout_s": ENGINE_STOP_S})
            life.cancel()
            await asyncio.wait([life], timeout=1.0)


def _nobody(what: str) -> None:
    del what


def turn_desk(front: EngineFront, orchestrator: DuplexOrchestrator, limits: TurnLimits) -> TurnDesk:
    """Ordinary requests on the engine of the sessions, as far as its plugin plans them."""
    plugin = orchestrator.plugin

    def defaults() -> list[SamplingParams]:
        # A stage without a live replica fails the requests that reach it, and only those.
        clients = [pool.stage_client for pool in orchestrator.stage_pools]
        return [SamplingParams() if client is None else client.default_sampling_params for client in clients]

    return TurnDesk(
        engine=front,
        pause=orchestrator.set_paused,
        planner=plugin if isinstance(plugin, TurnRequests) else None,
        defaults=defaults,
        runtime=orchestrator.runtime,
        limits=limits,
        input_rate_hz=plugin.capabilities.input_rate_hz,
    )


async def _run(orchestrator: DuplexOrchestrator, front: EngineFront) -> None:
    """The engine's life. Whatever ends it, the sessions that are left hear of it."""
    try:
        await orchestrator.run()
    except Exception:
        logger.exception("the engine has stopped after a fault")
    finally:
        front.died()


def _health(orchestrator: DuplexOrchestrator) -> EngineHealth:
    slots = orchestrator.session_manager.health()
    return EngineHealth(
        alive=orchestrator.alive,
        pools=tuple(
            PoolHealth(
                name=stage.name,
                replicas=len(stage.replicas),
                available=sum(replica.phase == "ready" for replica in stage.replicas),
            )
            for stage in orchestrator.health()
        ),
        slots_limit=slots.limit,
        slots_used=slots.limit - slots.free,
        slots_quarantined=slots.quarantined,
        sessions_waiting=slots.waiting,
        held={**slots.held, **orchestrator.held()},
        acted=slots.acted,
    )


def check_model(config: DuologueConfig) -> None:
    """Judge the choice of a model and its options as far as that takes no weights, no process and none of its own code.

    Raises :class:`ServeError`.
    """
    match config.model.plugin:
        case "scripted":
            _script(config.model.options)
        case "cascade":
            _cascade_stages(config)
        case "native":
            _native_stages(config)
        case name if ":" not in name:
            close = difflib.get_close_matches(name, BUILT_IN, n=1)
            hint = f": did you mean {close[0]!r}?" if close else f"; it is one of {', '.join(BUILT_IN)}."
            raise ServeError(f"model.plugin {name!r} is not built in and not written package.module:name{hint}")
        case name if config.pipeline is None:
            raise ServeError(f"model.plugin {name!r} needs a pipeline: add its stages under `pipeline`.")


def build_model(config: DuologueConfig, runtime: Runtime) -> Model:
    """Plugin, stage pools, edges and detectors as configured; no stage is started yet.

    Raises :class:`ServeError` for a model that cannot be had, ``ModelUnavailableError`` for missing weights.
    """
    check_model(config)
    match config.model.plugin:
        case "scripted":
            return _scripted(config.model.options, runtime)
        case "cascade":
            return _cascade(config, runtime)
        case "native":
            return _native(config, runtime)
        case _:
            return _custom(config, runtime)


def _pipeline(config: DuologueConfig, built_in: Callable[[Options], PipelineConfig]) -> PipelineConfig:
    """The pipeline of the configuration, or the model's own."""
    try:
        return config.pipeline or built_in(config.model.options)
    except ValueError as fault:
        raise ServeError(f"{fault}.") from None


def _cascade_stages(config: DuologueConfig) -> PipelineConfig:
    from duologue.models.cascade.pipeline import cascade_pipeline

    return _pipeline(config, cascade_pipeline)


def _cascade(config: DuologueConfig, runtime: Runtime) -> Model:
    from duologue.models.cascade.pipeline import on_endpoint
    from duologue.models.cascade.plugin import CascadePlugin

    pipeline = _cascade_stages(config)
    remote = on_endpoint(config.model.options)
    images = remote and config.model.options.get("endpoint_images") is True
    plugin = CascadePlugin(calls_functions=remote, takes_images=images)
    return _staged(plugin, pipeline, config, runtime, _detection(config.model.options, runtime))


def _native_stages(config: DuologueConfig) -> PipelineConfig:
    from duologue.models.native.pipeline import native_pipeline

    return _pipeline(config, native_pipeline)


def _native(config: DuologueConfig, runtime: Runtime) -> Model:
    from duologue.models.native.plugin import NativePlugin

    return _staged(NativePlugin(), _native_stages(config), config, runtime, _wanted_detection(config, runtime))


def _custom(config: DuologueConfig, runtime: Runtime) -> Model:
    """A plugin named ``package.module:name``: a callable that takes the options and returns the plugin."""
    name = config.model.plugin
    module, _, attribute = name.partition(":")
    try:
        factory = getattr(importlib.import_module(module), attribute)
        plugin = factory(**config.model.options)
    except (ImportError, AttributeError, TypeError) as fault:
        hint = " Is its folder on PYTHONPATH?" if isinstance(fault, ModuleNotFoundError) else ""
        raise ServeError(f"model.plugin {name!r} cannot be loaded: {fault}.{hint}") from fault
    if not isinstance(plugin, DuplexModelPlugin):
        raise ServeError(f"model.plugin {name!r} gave a {type(plugin).__name__}, not a DuplexModelPlugin.")
    assert config.pipeline is not None, "check_model has seen to it"
    return _staged(plugin, config.pipeline, config, runtime, _wanted_detection(config, runtime))


def _staged(
    plugin: DuplexModelPlugin,
    pipeline: PipelineConfig,
    config: DuologueConfig,
    runtime: Runtime,
    detection: DetectionService | None,
) -> Model:
    try:
        edges = build_edges(pipeline)
    except (ValueError, TypeError) as fault:
        raise ServeError(f"pipeline: {fault}.") from fault
    return Model(
        plugin=plugin,
        pools=build_pools(pipeline, runtime, log_level=config.logging.level),
        edges=edges,
        detection=detection,
        async_chunk=pipeline.async_chunk,
    )


def _wanted_detection(config: DuologueConfig, runtime: Runtime) -> DetectionService | None:
    """The detectors; ``None`` if their weights are not here and sessions begin without detection anyway."""
    try:
        return _detection(config.model.options, runtime)
    except ModelUnavailableError as fault:
        if config.session.turn_detection is not None:
            raise
        logger.info("no speech detection", extra={"reason": str(fault)})
        return None


def _detection(options: Options, runtime: Runtime) -> DetectionService:
    named = options.get("models_dir")
    folder: Path = models_folder(str(named) if named is not None else None)
    return BatchedDetection(runtime, SpeechScorer(folder), TurnEndClassifier(folder))


def _script(options: Options) -> Script:
    """What the scripted model says, of the options that are not ``family``."""
    from duologue.models.scripted import Script

    fields = dict(options)
    family = fields.pop("family", "ephemeral")
    if family not in ("ephemeral", "resident"):
        raise ServeError(f"model.options.family must be 'ephemeral' or 'resident', got {family!r}.")
    try:
        script = msgspec.convert(fields, Script)
    except msgspec.ValidationError as fault:
        raise ServeError(f"model.options: {fault}.") from None
    unknown = sorted(set(fields) - set(Script.__struct_fields__))
    if unknown:
        known = ", ".join(("family", *Script.__struct_fields__))
        raise ServeError(f"model.options.{unknown[0]} is not an option of 'scripted'; use {known}.")
    return script


def _scripted(options: Options, runtime: Runtime) -> Model:
    from duologue.models.scripted import ephemeral_pipeline, resident_pipeline

    resident = options.get("family") == "resident"
    pipeline = (resident_pipeline if resident else ephemeral_pipeline)(runtime, _script(options))
    return Model(
        plugin=pipeline.plugin, pools=pipeline.stage_pools, edges=pipeline.edges, detection=ScriptedDetection()
    )
