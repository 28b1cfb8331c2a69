"""The scripted models' plugins, watched, and made to raise where a plan says.

Rules kept here: a fault is counted per client and hook, so that it strikes the same call whatever other clients do; a
client is recognised by the mark that it puts into its instructions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from duologue.config.session import SessionConfig
from duologue.engine.duplex.contracts import DuplexOutputContext
from duologue.engine.duplex.plugin import (
    AppendPlan,
    AppendPlanRequest,
    DuplexModelPlugin,
    DuplexModelSessionState,
    ModelCapabilities,
)
from duologue.engine.duplex.results import Decision
from duologue.engine.stages.edge import NOTHING, Edge, EdgeInput, EdgeResult
from duologue.errors import ClientFault, ErrorCode
from duologue.models.scripted import ResidentPlugin, Script, ScriptedPlugin, ScriptedState
from duologue.models.scripted.plugin import SCRIPTED_EDGES
from duologue.outputs import RequestOutput, SamplingParams
from duologue.sim.observation import Observations
from duologue.sim.plan import Deployment, HookFault, Mishap
from duologue.sim.stages import OUTPUT_RATE_HZ

_MARK = re.compile(r"\[(\w+)\]")


def mark(client: str) -> str:
    """What a client's instructions begin with."""
    return f"[{client}]"


@dataclass(slots=True)
class HookFaults:
    """The faults planned for hooks, by client."""

    faults: dict[str, tuple[HookFault, ...]]
    seen: Observations
    healed: bool = False
    counts: dict[tuple[str, str], int] = field(default_factory=dict)

    def strike(self, hook: str, client: str) -> Mishap | None:
        """A hook is called: raise if the plan says so; ``misfit`` is for the caller to act out."""
        faults = self.faults.get(client)
        if faults is None or self.healed:
            return None
        number = self.counts[client, hook] = self.counts.get((client, hook), 0) + 1
        for fault in faults:
            if fault.hook == hook and fault.nth == number:
                self.seen.trace.count(f"hook.{hook}.{fault.how}")
                self.seen.trace.note(client, "fault", f"{hook} {fault.how}")
                if fault.how == "refuse":
                    raise ClientFault(ErrorCode.INVALID_RUNTIME_CONFIG, "The plan refused this.")
                if fault.how == "raise":
                    raise RuntimeError(f"the plan told {hook} to raise")
                return fault.how
        return None

    def strike_session(self, hook: str, session_id: str, request_id: str) -> None:
        """The same, for a hook that knows its session, and works for one of its requests."""
        if not self.faults:
            return
        try:
            self.strike(hook, self.seen.key_of_session.get(session_id, "?"))
        except RuntimeError:
            self.seen.failed.append((self.seen.trace.now(), request_id))
            raise


def _marked(config: SessionConfig) -> str:
    found = _MARK.match(config.instructions)
    return found.group(1) if found else "?"


@dataclass(slots=True)
class WatchedState(ScriptedState):
    """A session's state, with the name of its client."""

    client: str = "?"


class _Watched(DuplexModelPlugin):
    """Hooks that are watched and may be struck, over whatever plugin comes next in line."""

    hooks: HookFaults
    seen: Observations

    def create_session_state(self, config: SessionConfig) -> WatchedState:
        client = _marked(config)
        self.hooks.strike("create_session_state", client)
        return WatchedState(client=client)

    def validate_config(self, config: SessionConfig) -> None:
        self.hooks.strike("validate_config", _marked(config))
        super().validate_config(config)  # type: ignore[safe-super]

    def sampling_params(self, defaults: Sequence[SamplingParams], config: SessionConfig) -> tuple[SamplingParams, ...]:
        struck = self.hooks.strike("sampling_params", _marked(config))
        params = super().sampling_params(defaults, config)  # type: ignore[safe-super]
        return params[:-1] if struck == "misfit" else params

    def plan_append(self, state: DuplexModelSessionState, request: AppendPlanRequest) -> AppendPlan:
        self.hooks.strike_session("plan_append", request.session_id, request.request_id)
        self.seen.plan(request, accepted=False)
        return super().plan_append(state, request)  # type: ignore[safe-super]

    def commit_append(self, state: DuplexModelSessionState, request: AppendPlanRequest) -> None:
        self.seen.plan(request, accepted=True)
        self.hooks.strike_session("commit_append", request.session_id, request.request_id)
        super().commit_append(state, request)

    def decide(
        self, state: DuplexModelSessionState, stage_id: int, output: RequestOutput, context: DuplexOutputContext
    ) -> Decision:
        self.hooks.strike_session("decide", context.identity.session_id, output.request_id)
        return super().decide(state, stage_id, output, context)  # type: ignore[safe-super]


class SimEphemeral(_Watched, ScriptedPlugin):
    """The scripted plugin of the ephemeral family."""

    def __init__(self, plan: Deployment, hooks: HookFaults, seen: Observations) -> None:
        super().__init__(Script(streams_input=plan.streams_input))
        self.hooks, self.seen = hooks, seen
        self.capabilities = ModelCapabilities(
            family="ephemeral",
            output_rate_hz=OUTPUT_RATE_HZ,
            supports_text_turns=plan.text_turns,
            supports_barge_in=plan.barge_in,
            streams_input=plan.streams_input,
            stream_interval_ms=320,
            transcribes_input=plan.transcribes,
            calls_functions=plan.tools,
            takes_images=plan.images,
        )


class SimResident(_Watched, ResidentPlugin):
    """The scripted plugin of the resident family."""

    def __init__(self, plan: Deployment, hooks: HookFaults, seen: Observations) -> None:
        super().__init__(Script(unit_ms=plan.unit_ms, rebuilds=plan.rebuilds, context_units=plan.context_units))
        self.hooks, self.seen = hooks, seen
        self.capabilities = ModelCapabilities(
            family="resident",
            input_rate_hz=16_000,
            output_rate_hz=OUTPUT_RATE_HZ,
            supports_client_commit=plan.client_commit,
            supports_barge_in=plan.barge_in,
            unit_ms=plan.unit_ms,
            chunk_period_ms=max(plan.unit_ms, 80),
            max_silence_units=plan.silence_units,
            calls_functions=plan.tools,
            compacts=plan.compacts,
            context_units=plan.context_units,
        )

    def silence_unit(self, state: DuplexModelSessionState) -> bytes:
        assert isinstance(state, WatchedState)
        self.hooks.strike("silence_unit", state.client)
        return super().silence_unit(state)


def plugin_for(plan: Deployment, hooks: HookFaults, seen: Observations) -> DuplexModelPlugin:
    """The plugin of a deployment."""
    return (SimEphemeral if plan.family == "ephemeral" else SimResident)(plan, hooks, seen)


def edges_for(plan: Deployment, hooks: HookFaults) -> list[Edge]:
    """The edges of a deployment; ``edgeN`` is the hook that feeds stage N."""
    if plan.family == "resident":
        return []
    return [msgspec.structs.replace(_watched(edge, hooks), prewarm=plan.prewarm) for edge in SCRIPTED_EDGES]


def _watched(edge: Edge, hooks: HookFaults) -> Edge:
    inner: Callable[[EdgeInput], EdgeResult] = edge.processor

    def processor(source: EdgeInput) -> EdgeResult:
        client = hooks.seen.client_of(source.request_id)
        match hooks.strike(f"edge{edge.target}", client):
            case "lose":
                return NOTHING
            case "misfit":
                return None
            case _:
                return inner(source)

    return msgspec.structs.replace(edge, processor=processor)
