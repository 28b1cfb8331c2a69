"""Every name, kind, keyword and default that the documents fix exists under its documented path."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import logging
from collections.abc import Callable
from typing import Any

import pytest

from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine import duplex_orchestrator
from duologue.engine.duplex import contracts
from duologue.engine.duplex.core import session as core_session
from duologue.engine.duplex.core import silence
from duologue.engine.duplex.session import context, engine_session, manager, runner
from duologue.engine.duplex.session.runner import DuplexSessionRunner
from duologue.engine.duplex_orchestrator import DuplexOrchestrator, DuplexOrchestratorRequestState
from duologue.engine.orchestrator import Orchestrator, OrchestratorBase, OrchestratorRequestState

NAMES = {
    "duologue.config.stage_config": ["DuplexSessionRuntimeConfig", "ModelConfig"],
    "duologue.engine.duplex.contracts": [
        "DuplexFence",
        "DuplexOutputContext",
        "DuplexRequestIdentity",
        "DuplexStagePort",
        "DuplexStageRequestContext",
        "DuplexStageSubmission",
        "DuplexStageSubmissionResult",
    ],
    "duologue.engine.duplex.plugin": ["DuplexModelPlugin", "DuplexModelSessionState"],
    "duologue.engine.duplex.session.context": ["DuplexRunState", "DuplexSessionContext", "DuplexSessionTasks"],
    "duologue.engine.duplex.session.control": ["SessionControl"],
    "duologue.engine.duplex.session.emitter": ["SessionEmitter"],
    "duologue.engine.duplex.session.engine_session": ["DuplexEngineSession", "DuplexFenceMismatchError"],
    "duologue.engine.duplex.session.manager": ["DuplexSessionManager"],
    "duologue.engine.duplex.session.model_channel": ["ModelChannel"],
    "duologue.engine.duplex.session.runner": [
        "DuplexSessionRunner",
        "compute_silence_continuation_deadline",
        "logger",
    ],
    "duologue.engine.duplex_orchestrator": ["DuplexOrchestrator", "DuplexOrchestratorRequestState", "logger"],
    "duologue.engine.messages": ["EngineQueueMessage", "OutputMessage"],
    "duologue.engine.orchestrator": [
        "Orchestrator",
        "OrchestratorBase",
        "OrchestratorRequestState",
        "build_engine_core_request_from_tokens",
    ],
    "duologue.metrics.stats": ["StageRequestStats"],
}


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in NAMES.items() for name in names])
def test_the_documented_name_exists(module: str, name: str) -> None:
    assert hasattr(importlib.import_module(module), name)


@pytest.mark.parametrize("module", [duplex_orchestrator, runner])
def test_documented_modules_have_a_logger(module: Any) -> None:
    assert isinstance(module.logger, logging.Logger)
    assert module.logger.name == module.__name__


def test_names_defined_in_the_core_are_the_documented_ones() -> None:
    assert engine_session.DuplexEngineSession is core_session.DuplexEngineSession
    assert engine_session.DuplexFenceMismatchError is core_session.DuplexFenceMismatchError
    assert runner.compute_silence_continuation_deadline is silence.compute_silence_continuation_deadline
    assert duplex_orchestrator.__all__ == ["DuplexOrchestrator", "DuplexOrchestratorRequestState"]


# Signatures, as (name, kind, default) of each parameter but self


EMPTY = inspect.Parameter.empty
PLAIN = inspect.Parameter.POSITIONAL_OR_KEYWORD
KEYWORD = inspect.Parameter.KEYWORD_ONLY
VAR = inspect.Parameter.VAR_POSITIONAL
VAR_KEYWORD = inspect.Parameter.VAR_KEYWORD

Shape = list[tuple[str, Any, Any]]

RUNNER_METHODS: dict[str, tuple[bool, Shape]] = {
    "close": (True, [("reason", PLAIN, EMPTY), ("emit_closed", KEYWORD, True)]),
    "emit": (False, [("payload", PLAIN, EMPTY)]),
    "expire": (True, [("reason", PLAIN, EMPTY), ("emit_expired", KEYWORD, True)]),
    "mark_closed_emitted": (False, []),
    "offload": (True, [("fn", PLAIN, EMPTY), ("args", VAR, EMPTY), ("kwargs", VAR_KEYWORD, EMPTY)]),
    "on_stage_failure": (
        False,
        [("stage_id", PLAIN, EMPTY), ("exc", PLAIN, EMPTY), ("request_id", KEYWORD, None)],
    ),
    "on_stage_output": (
        False,
        [
            ("stage_id", PLAIN, EMPTY),
            ("output", PLAIN, EMPTY),
            ("metrics", PLAIN, EMPTY),
            ("request_id", KEYWORD, EMPTY),
            ("context", KEYWORD, EMPTY),
        ],
    ),
    "shutdown": (True, []),
    "spawn": (False, [("coro", PLAIN, EMPTY), ("name", KEYWORD, EMPTY)]),
    "start": (False, []),
    "submit": (False, [("command", PLAIN, EMPTY)]),
}

PORT_METHODS: dict[str, tuple[bool, Shape]] = {
    "abort_requests": (True, [("request_ids", PLAIN, EMPTY)]),
    "cleanup": (True, [("request_ids", PLAIN, EMPTY), ("abort", KEYWORD, False)]),
    "ensure_request": (False, [("context", PLAIN, EMPTY)]),
    "sampling_defaults": (False, []),
    "submit": (True, [("submission", PLAIN, EMPTY)]),
}

SEAMS: dict[str, tuple[bool, list[str]]] = {
    "_background_tasks": (False, []),
    "_cleanup_request_ids": (True, ["request_ids", "abort", "release_owners"]),
    "_dispatch_message": (True, ["msg"]),
    "_handle_forward_failure": (True, ["req_id", "next_stage_id", "req_state", "exc"]),
    "_intercept_stage_output": (
        True,
        ["stage_id", "replica_id", "output", "req_state", "stage_metrics", "submit_ts"],
    ),
    "_on_stage_submitted": (False, ["stage_id", "request_id", "replica_id", "req_state"]),
    "_shutdown_extensions": (True, []),
}


def shape(function: Callable[..., object]) -> Shape:
    parameters = list(inspect.signature(function).parameters.values())
    if parameters and parameters[0].name == "self":
        parameters = parameters[1:]
    return [(parameter.name, parameter.kind, parameter.default) for parameter in parameters]


@pytest.mark.parametrize("name", RUNNER_METHODS)
def test_the_runner_has_the_documented_method(name: str) -> None:
    method = inspect.getattr_static(DuplexSessionRunner, name)
    is_async, expected = RUNNER_METHODS[name]
    assert inspect.iscoroutinefunction(method) is is_async
    assert shape(method) == expected


@pytest.mark.parametrize("name", ["closed_emitted", "closing"])
def test_the_runner_has_the_documented_property(name: str) -> None:
    assert isinstance(inspect.getattr_static(DuplexSessionRunner, name), property)


@pytest.mark.parametrize("name", PORT_METHODS)
@pytest.mark.parametrize("owner", [contracts.DuplexStagePort, DuplexOrchestrator])
def test_the_stage_port_has_the_documented_method(owner: type, name: str) -> None:
    method = inspect.getattr_static(owner, name)
    is_async, expected = PORT_METHODS[name]
    assert inspect.iscoroutinefunction(method) is is_async
    assert shape(method) == expected


@pytest.mark.parametrize("owner", [contracts.DuplexStagePort, DuplexOrchestrator])
def test_the_stage_count_is_a_property(owner: type) -> None:
    assert isinstance(inspect.getattr_static(owner, "stage_count"), property)


@pytest.mark.parametrize("name", SEAMS)
@pytest.mark.parametrize("owner", [OrchestratorBase, DuplexOrchestrator])
def test_the_orchestrator_has_the_documented_seam(owner: type, name: str) -> None:
    method = inspect.getattr_static(owner, name)
    is_async, expected = SEAMS[name]
    assert inspect.iscoroutinefunction(method) is is_async
    assert [parameter[0] for parameter in shape(method)] == expected


def test_the_duplex_orchestrator_extends_the_turn_based_one_and_the_port() -> None:
    assert DuplexOrchestrator.__bases__ == (Orchestrator, contracts.DuplexStagePort)
    assert issubclass(Orchestrator, OrchestratorBase)
    parameters = dict((name, (kind, default)) for name, kind, default in shape(DuplexOrchestrator.__init__))
    assert parameters["plugin"] == (KEYWORD, EMPTY)
    assert parameters["duplex_session_config"] == (KEYWORD, EMPTY)
    assert parameters["model_config"] == (KEYWORD, None)
    assert parameters["args"][0] == VAR
    assert parameters["kwargs"][0] == VAR_KEYWORD


def test_request_states_have_the_documented_class_attributes() -> None:
    state = DuplexOrchestratorRequestState
    assert issubclass(state, OrchestratorRequestState)
    assert dataclasses.is_dataclass(state)
    assert (state.session_id, state.fence, state.config_generation) == ("", None, -1)
    fields = {field.name: field for field in dataclasses.fields(state)}
    assert fields["stage_fences"].default_factory is dict


def test_the_manager_takes_the_documented_keywords() -> None:
    parameters = {
        name: default for name, kind, default in shape(manager.DuplexSessionManager.__init__) if kind == KEYWORD
    }
    for name in ("plugin", "stage_port", "output_sink", "result_sink", "runtime_config"):
        assert parameters[name] is EMPTY
    # One snapshot of the documents passes log_stats, the other does not: both must work.
    assert parameters["model_config"] is None
    assert parameters["log_stats"] is False


MANAGER_METHODS: dict[str, tuple[bool, list[str]]] = {
    "accepts": (False, ["msg"]),
    "close_sessions_for_request_ids": (False, ["request_ids", "abort", "cleanup_in_progress"]),
    "defer_request_cleanups": (False, ["session_ids"]),
    "dispatch": (False, ["msg"]),
    "emit": (False, ["session_id", "number", "event"]),
    "finalize_closed_sessions": (False, ["session_ids"]),
    "reaper_loop": (True, ["shutdown_event"]),
    "register_request": (False, ["request_id", "session_id"]),
    "runner_for_request_id": (False, ["request_id"]),
    "shutdown": (True, []),
    "unregister_request": (False, ["request_id"]),
}


@pytest.mark.parametrize("name", MANAGER_METHODS)
def test_the_manager_has_the_documented_method(name: str) -> None:
    method = inspect.getattr_static(manager.DuplexSessionManager, name)
    is_async, expected = MANAGER_METHODS[name]
    assert inspect.iscoroutinefunction(method) is is_async
    assert [parameter[0] for parameter in shape(method)] == expected


def test_the_silence_deadline_has_the_documented_keywords() -> None:
    expected = [(name, KEYWORD, EMPTY) for name in ("chunk_period_s", "now", "last_submit", "current_deadline")]
    assert shape(runner.compute_silence_continuation_deadline) == expected


@pytest.mark.parametrize(
    ("cls", "keyword"),
    [
        ("control.SessionControl", "wait_for_append_tail"),
        ("model_channel.ModelChannel", "close_from_runtime"),
        ("model_channel.ModelChannel", "schedule_silence_continuation"),
        ("model_channel.ModelChannel", "abort_request"),
        ("emitter.SessionEmitter", "promote_deferred_overlap"),
    ],
)
def test_components_take_the_documented_callables(cls: str, keyword: str) -> None:
    module, name = cls.split(".")
    component = getattr(importlib.import_module(f"duologue.engine.duplex.session.{module}"), name)
    assert (keyword, KEYWORD, EMPTY) in shape(component.__init__)


def test_the_session_context_holds_what_components_are_built_with() -> None:
    names = [field.name for field in dataclasses.fields(context.DuplexSessionContext)]
    documented = ["session", "model_state", "plugin", "stage_port", "manager", "tasks", "run", "services"]
    assert names[: len(documented)] == documented


def test_the_run_state_has_the_documented_fields() -> None:
    assert [field.name for field in dataclasses.fields(context.DuplexRunState)] == [
        "closing",
        "closed_emitted",
        "closed_deferred",
        "close_reason",
        "runtime_closed",
        "stream_request_id",
        "concurrent_turn_requests_released",
    ]


VALUES: dict[str, list[str]] = {
    "DuplexFence": ["session_id", "epoch", "turn_id"],
    "DuplexOutputContext": [
        "identity",
        "final_stage_id",
        "segment_finished",
        "segment_token_ids",
        "segment_output_metadata",
    ],
    "DuplexRequestIdentity": ["session_id", "fence"],
    "DuplexStageRequestContext": [
        "request_id",
        "session_id",
        "fence",
        "stage_id",
        "final_stage_id",
        "sampling_params",
        "stage_sampling_params",
        "session_config",
        "runtime_config",
        "config_generation",
    ],
    "DuplexStageSubmission": ["context", "prompt", "already_submitted"],
    "DuplexStageSubmissionResult": ["request_id", "stage_id", "replica_id"],
}


@pytest.mark.parametrize("name", VALUES)
def test_value_types_have_exactly_the_documented_fields(name: str) -> None:
    cls = getattr(contracts, name)
    assert list(cls.__struct_fields__) == VALUES[name]
    assert cls.__struct_config__.frozen


RUNNER_ATTRIBUTES = [
    *("control", "ctx", "manager", "model", "model_config", "model_state"),
    *("out", "plugin", "run", "session", "stage_port", "tasks"),
]


def test_the_runner_has_the_documented_attributes() -> None:
    from duologue.models.scripted import Script, ScriptedPlugin
    from duologue.sim.loop import VirtualRuntime
    from duologue.sim.loop import run as run_virtually
    from tests.unit.session.desk import desk

    async def main(runtime: VirtualRuntime) -> None:
        there = desk(runtime, plugin=ScriptedPlugin(Script())).runner
        assert set(RUNNER_ATTRIBUTES) <= set(vars(there))
        assert there.ctx.session is there.session
        assert there.ctx.services is there
        assert there.ctx.run is there.run
        assert there.model_state is there.session.model_state
        assert there.control.model is there.model
        assert there.control.out is there.model.out is there.out
        assert isinstance(DuplexSessionRuntimeConfig().max_sessions, int)

    run_virtually(main)
