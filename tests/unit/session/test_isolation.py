"""One fault ends one session, or one answer of an ephemeral model: everybody else is as if it had not happened."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from duologue.config.session import SessionPatch
from duologue.engine.duplex.commands import UpdateSession
from duologue.engine.duplex.core.invariants import InvariantViolation
from duologue.engine.duplex.core.items import ModelSpoke
from duologue.engine.duplex.events import (
    ErrorRaised,
    ResponseAudio,
    ResponseDone,
    SessionClosed,
    SessionExpired,
    SessionUpdated,
)
from duologue.engine.duplex.messages import SessionEventMessage
from duologue.engine.messages import EngineQueueMessage
from duologue.errors import ErrorCode
from duologue.models.scripted import Script, ScriptedPipeline, ephemeral_pipeline, resident_pipeline
from duologue.sim.loop import VirtualRuntime, run
from tests.unit.session.world import Client, World, engine

Build = Callable[[VirtualRuntime, Script], ScriptedPipeline]
SCRIPT = Script(sentences=3, sentence_ms=500, answer_units=8)
VICTIM, WITNESS = "victim", "witness"
HOOKS = ["plan_append", "commit_append", "decide", "sampling_params", "silence_unit"]


class Sabotage(RuntimeError):
    """What the saboteur raises."""


def sabotage(pipeline: ScriptedPipeline, hook: str, after: int) -> Callable[[], None]:
    """From its ``after``-th call on behalf of the victim on, a hook of the plugin raises. Returns how to arm it."""
    plugin = pipeline.plugin
    original = getattr(plugin, hook)
    calls = {"count": 0, "armed": False}
    states: list[object] = []
    create = plugin.create_session_state

    def create_session_state(config: object) -> object:
        state = create(config)  # type: ignore[arg-type]
        states.append(state)
        return state

    def wrapper(*args: object) -> object:
        theirs = bool(states) and any(arg is states[0] for arg in args)
        if hook == "sampling_params":
            theirs = getattr(args[1], "instructions", "") == VICTIM
        if calls["armed"] and theirs:
            calls["count"] += 1
            if calls["count"] >= after:
                raise Sabotage(hook)
        return original(*args)

    plugin.create_session_state = create_session_state  # type: ignore[method-assign,assignment]
    setattr(plugin, hook, wrapper)

    def arm() -> None:
        calls["armed"] = True

    return arm


async def _world(
    runtime: VirtualRuntime, build: Build, spoil: Callable[[World, ScriptedPipeline], Callable[[], None]]
) -> tuple[Client, Client]:
    pipeline = build(runtime, SCRIPT)
    async with engine(runtime, pipeline) as world:
        arm = spoil(world, pipeline)
        victim, witness = world.open(session_id=VICTIM), world.open(session_id=WITNESS)
        arm()
        victim.send(UpdateSession(patch=SessionPatch(instructions=VICTIM)))
        witness.send(UpdateSession(patch=SessionPatch(instructions=WITNESS)))
        await asyncio.gather(victim.say(), witness.say())
        await asyncio.sleep(4.0)
        await asyncio.gather(victim.say(), witness.say())
        await asyncio.sleep(4.0)
        if victim.terminals:
            kept = {name: size for name, size in pipeline_tables(world, VICTIM).items() if size}
            assert kept == {}, "an ended session left something, long before the engine stops"
    return victim, witness


def pipeline_tables(world: World, session_id: str) -> dict[str, int]:
    """What the engine still holds for one session."""
    states = world.engine.request_states.values()
    return {
        "requests": sum(getattr(state, "session_id", "") == session_id for state in states),
        "slot": int(world.engine.session_manager.runner(session_id) is not None),
        "stage_states": max(0, world.pipeline.open_states - len(states)),
    }


def _trace(client: Client) -> list[object]:
    return list(zip(client.times, client.events, strict=True))


def _conversations(
    build: Build, spoil: Callable[[World, ScriptedPipeline], Callable[[], None]]
) -> tuple[Client, Client, Client]:
    """(victim, witness, witness of a run without the fault)."""
    victim, witness = run(lambda runtime: _world(runtime, build, spoil))
    _, undisturbed = run(lambda runtime: _world(runtime, build, lambda world, pipeline: lambda: None))
    return victim, witness, undisturbed


@pytest.mark.parametrize("after", [1, 2, 5])
@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_that_raises_ends_a_resident_session_and_no_other(hook: str, after: int) -> None:
    if hook == "sampling_params" and after > 1:
        after = 1  # it is asked once per configuration
    victim, witness, undisturbed = _conversations(
        resident_pipeline, lambda world, pipeline: sabotage(pipeline, hook, after)
    )
    assert _trace(witness) == _trace(undisturbed)
    assert witness.of(ResponseDone)[-1].status == "completed"
    assert victim.of(ErrorRaised)[0].code == ErrorCode.RUNTIME_PLUGIN_FAILED
    assert isinstance(victim.terminals[0], SessionExpired)
    failed = [event for event in victim.of(ResponseDone) if event.status == "failed"]
    assert len(failed) <= 1


@pytest.mark.parametrize(
    ("hook", "after"), [("plan_append", 1), ("plan_append", 2), ("commit_append", 1), ("decide", 1), ("decide", 5)]
)
def test_a_hook_that_raises_fails_an_ephemeral_answer_and_the_session_goes_on(hook: str, after: int) -> None:
    victim, witness, undisturbed = _conversations(
        ephemeral_pipeline, lambda world, pipeline: sabotage(pipeline, hook, after)
    )
    assert _trace(witness) == _trace(undisturbed)
    assert victim.of(ErrorRaised)
    assert {event.code for event in victim.of(ErrorRaised)} == {ErrorCode.RUNTIME_PLUGIN_FAILED}
    assert "failed" in [event.status for event in victim.of(ResponseDone)]
    assert victim.of(SessionClosed)[0].reason == "shutdown"


@pytest.mark.parametrize("build", [ephemeral_pipeline, resident_pipeline])
def test_a_broken_invariant_ends_its_session_in_order_and_no_other(build: Build) -> None:
    def spoil(world: World, pipeline: ScriptedPipeline) -> Callable[[], None]:
        del pipeline

        def arm() -> None:
            runner = world.engine.session_manager.runner(VICTIM)
            assert runner is not None
            session = runner.session
            step = session.step
            spoken = 0

            def broken(item: object, now: float) -> object:
                nonlocal spoken
                spoken += isinstance(item, ModelSpoke)
                if spoken == 4:
                    raise InvariantViolation("two and two are five")
                return step(item, now)  # type: ignore[arg-type]

            runner.session = _Proxy(session, broken)  # type: ignore[assignment]

        return arm

    victim, witness, undisturbed = _conversations(build, spoil)
    assert _trace(witness) == _trace(undisturbed)
    closed = victim.of(SessionClosed)[0]
    assert (closed.fault, closed.slot_released) == (ErrorCode.INTERNAL_ERROR, True)
    kinds = victim.kinds
    assert kinds[-1] == "SessionClosed" and "ErrorRaised" in kinds
    if victim.of(ResponseDone):
        assert kinds[-3:] == ["ErrorRaised", "ResponseDone", "SessionClosed"]
        assert victim.of(ResponseDone)[-1].status == "failed"


class _Proxy:
    """A session whose step is another's."""

    def __init__(self, session: object, step: object) -> None:
        self._session = session
        self.step = step

    def __getattr__(self, name: str) -> object:
        return getattr(self._session, name)


def test_a_plugin_that_refuses_settings_changes_nothing() -> None:
    async def main(runtime: VirtualRuntime) -> None:
        async with engine(runtime, ephemeral_pipeline(runtime)) as world:
            client = world.open()
            before = client.of(SessionUpdated)[-1].config
            client.send(UpdateSession(patch=SessionPatch(voice="refused", instructions="new"), event_id="e1"))
            error = client.of(ErrorRaised)[-1]
            assert (error.code, error.event_id) == (ErrorCode.INVALID_RUNTIME_CONFIG, "e1")
            assert error.param == "session.audio.output.voice"
            runner = world.engine.session_manager.runner("s1")
            assert runner is not None and runner.session.config == before
            client.send(UpdateSession(patch=SessionPatch(voice="other", instructions="new")))
            assert client.of(SessionUpdated)[-1].config.instructions == "new"

    run(main)


def test_a_plugin_that_cannot_judge_settings_refuses_them() -> None:
    async def main(runtime: VirtualRuntime) -> None:
        pipeline = ephemeral_pipeline(runtime)
        async with engine(runtime, pipeline) as world:
            client = world.open()

            def validate_config(config: object) -> None:
                raise Sabotage("validate_config")

            pipeline.plugin.validate_config = validate_config  # type: ignore[method-assign]
            client.send(UpdateSession(patch=SessionPatch(instructions="new"), event_id="e1"))
            assert client.of(ErrorRaised)[-1].code == ErrorCode.RUNTIME_PLUGIN_FAILED
            assert client.of(ErrorRaised)[-1].event_id == "e1"
            assert world.try_open(session_id="s2").error_code == ErrorCode.RUNTIME_PLUGIN_FAILED
            del world.clients["s2"]
            assert world.engine.session_manager.health().open == 1

    run(main)


def test_a_sink_that_fails_ends_the_session_that_spoke() -> None:
    async def main(runtime: VirtualRuntime) -> None:
        async with engine(runtime, ephemeral_pipeline(runtime)) as world:
            victim, witness = world.open(session_id=VICTIM), world.open(session_id=WITNESS)
            sink, refused = world.engine.session_manager.output_sink, 0

            class Broken:
                def put_nowait(self, message: EngineQueueMessage, /) -> None:
                    nonlocal refused
                    ours = isinstance(message, SessionEventMessage) and message.session_id == VICTIM
                    if ours and isinstance(message.event, ResponseAudio):  # type: ignore[attr-defined]
                        refused += 1
                        raise Sabotage("the queue is broken")
                    sink.put_nowait(message)

            world.engine.session_manager.output_sink = Broken()
            await asyncio.gather(victim.say(), witness.say())
            await witness.until(ResponseDone)
            assert refused == 1
            assert victim.of(SessionClosed)[0].fault == ErrorCode.INTERNAL_ERROR
            assert victim.of(ResponseDone)[0].status == "failed"
            assert witness.of(ResponseDone)[0].status == "completed"

    run(main)


@pytest.mark.parametrize("hook", ["plan_append", "decide"])
def test_a_hook_that_returns_nonsense_is_a_hook_that_failed(hook: str) -> None:
    async def main(runtime: VirtualRuntime) -> None:
        pipeline = ephemeral_pipeline(runtime)
        async with engine(runtime, pipeline) as world:
            client = world.open()
            original = getattr(pipeline.plugin, hook)
            setattr(pipeline.plugin, hook, lambda *args: "nonsense")
            await client.say()
            assert (await client.until(ResponseDone)).error == ErrorCode.RUNTIME_PLUGIN_FAILED
            setattr(pipeline.plugin, hook, original)
            await client.say()
            assert (await client.until(ResponseDone, 2)).status == "completed"

    run(main)


def test_a_session_that_cannot_name_its_deadline_is_broken_too() -> None:
    async def main(runtime: VirtualRuntime) -> None:
        async with engine(runtime, ephemeral_pipeline(runtime)) as world:
            client = world.open()
            runner = world.engine.session_manager.runner("s1")
            assert runner is not None

            def next_deadline() -> float | None:
                raise InvariantViolation("time has ended")

            proxy = _Proxy(runner.session, runner.session.step)
            proxy.next_deadline = next_deadline  # type: ignore[attr-defined]
            runner.session = proxy  # type: ignore[assignment]
            client.append(bytes(640))
            assert client.of(SessionClosed)[0].fault == ErrorCode.INTERNAL_ERROR
            assert world.everything() == {}

    run(main)


def test_a_terminal_that_cannot_be_sent_holds_up_nobody() -> None:
    async def main(runtime: VirtualRuntime) -> None:
        async with engine(runtime, ephemeral_pipeline(runtime)) as world:
            client, other = world.open(), world.open(session_id="other")
            manager = world.engine.session_manager
            sink = manager.output_sink

            class Broken:
                def put_nowait(self, message: EngineQueueMessage, /) -> None:
                    if isinstance(message, SessionEventMessage) and message.session_id == "s1":
                        raise Sabotage("the queue is broken")
                    sink.put_nowait(message)

            manager.output_sink = Broken()
            control_id = world.close(client)
            assert world.results[control_id].error_code is None
            assert manager.health().open == 1
            manager.output_sink = sink
            world.forget(client)
            assert other.terminals == []

    run(main)
