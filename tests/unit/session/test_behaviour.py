"""Rules of the reference that stay, each test named after its section; others stand with what they are about.

`tests/arch/kept.py` lists all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from duologue.audio.format import AudioFormat
from duologue.config.session import SessionConfig, SessionPatch
from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.commands import AppendAudio, CloseSession, CommitAudio, Heartbeat, UpdateSession
from duologue.engine.duplex.events import (
    ErrorRaised,
    HeartbeatAcknowledged,
    InputCommitted,
    ResponseAudio,
    ResponseDone,
    SessionClosed,
    SessionCreated,
    SessionEvent,
    SessionExpired,
    SessionUpdated,
)
from duologue.engine.duplex.plugin import AppendPlan, AppendPlanRequest, DuplexModelSessionState
from duologue.engine.messages import EngineQueueMessage
from duologue.errors import ERRORS, ClientFault, ErrorCode, StageFault
from duologue.models.scripted import Script, ScriptedFault, ephemeral_pipeline, resident_pipeline, silence, tone
from duologue.models.scripted.resident import ResidentPlugin
from duologue.sim.loop import VirtualRuntime, virtual
from tests.unit.session.desk import Desk, desk
from tests.unit.session.world import MANUAL, RATE_HZ, VAD, World, engine

ONE = DuplexSessionRuntimeConfig(max_sessions=1)


class Gate:
    """A stage that takes nothing until it is told to, and what it was given: one unit at a time."""

    def __init__(self, there: Desk) -> None:
        self.ok, self.open = True, asyncio.Event()
        there.port.on_submit = self._wait

    async def _wait(self) -> None:
        await self.open.wait()
        if not self.ok:
            self.ok = True
            raise StageFault(ErrorCode.RUNTIME_APPEND_FAILED, "No.")

    async def pass_on(self, *, ok: bool = True) -> None:
        self.ok = ok
        self.open.set()
        await asyncio.sleep(0.5)


class Instructed(ResidentPlugin):
    """A resident model that puts the instructions it is given into its prompts."""

    def __init__(self) -> None:
        super().__init__(Script(unit_ms=80))
        self.heard: list[tuple[str, bytes]] = []

    def plan_append(self, state: DuplexModelSessionState, request: AppendPlanRequest) -> AppendPlan:
        if request.audio.strip(b"\0"):
            self.heard.append((request.instructions, request.audio[:2]))
        return super().plan_append(state, request)


def unit(level: int) -> AppendAudio:
    return AppendAudio(audio=bytes([level, 0]) * (RATE_HZ * 80 // 1000))


def instructed(text: str) -> UpdateSession:
    return UpdateSession(patch=SessionPatch(instructions=text), event_id=text)


@virtual
async def test_behaviour_08_tail_what_follows_a_change_of_settings_is_heard_under_it(runtime: VirtualRuntime) -> None:
    """Through the runner: what is sent after the change waits with it, the format it is in too."""
    plugin = Instructed()
    there = desk(runtime, plugin=plugin)
    gate = Gate(there)
    for level in (1, 2, 3):
        there.runner.submit(unit(level))
    there.runner.submit(instructed("new"))
    louder = SessionPatch(input_format=AudioFormat(encoding="pcm16", rate_hz=8_000))
    there.runner.submit(UpdateSession(patch=louder))
    there.runner.submit(AppendAudio(audio=b"\x04\0" * 1_000))  # more than a unit at the new rate
    there.runner.submit(Heartbeat())
    await asyncio.sleep(1.0)
    assert len(plugin.heard) == 1 and len(there.of(SessionUpdated)) == 1 and there.of(HeartbeatAcknowledged)
    await gate.pass_on()
    assert [instructions for instructions, _ in plugin.heard] == ["", "", "", "new"]
    assert [event.config.instructions for event in there.of(SessionUpdated)] == ["", "new", "new"]
    assert not there.of(ErrorRaised) and there.runner.control.waiting_commands == 0


@virtual
async def test_behaviour_08_tail_what_a_failed_tail_takes_along_is_named_and_the_session_lives(
    runtime: VirtualRuntime,
) -> None:
    plugin = Instructed()
    there = desk(runtime, plugin=plugin)
    gate = Gate(there)
    for level in (1, 2):
        there.runner.submit(unit(level))
    there.runner.submit(instructed("new"))
    there.runner.submit(unit(3))
    there.runner.submit(instructed("newer"))
    await gate.pass_on(ok=False)
    codes = [(error.code, error.event_id) for error in there.of(ErrorRaised)]
    assert codes == [(ErrorCode.RUNTIME_APPEND_FAILED, None), (ErrorCode.SESSION_UPDATE_ABORTED, "new")]
    assert [level[0] for _, level in plugin.heard] == [1, 1, 2, 3]  # given back, and submitted with the next
    assert there.runner.session.config.instructions == "newer" and not there.runner.closing


@pytest.mark.parametrize("ok", [True, False])
@virtual
async def test_behaviour_08_tail_a_commit_waits_for_the_turn_before_it(ok: bool, runtime: VirtualRuntime) -> None:
    there = desk(runtime)
    gate = Gate(there)
    for name in ("one", "two"):
        there.runner.submit(AppendAudio(audio=tone(600, rate_hz=RATE_HZ)))
        there.runner.submit(CommitAudio(create_response=True, event_id=name))
    await asyncio.sleep(0.1)
    assert len(there.of(InputCommitted)) == 1
    await gate.pass_on(ok=ok)
    aborted = [error.event_id for error in there.of(ErrorRaised) if error.code is ErrorCode.COMMIT_ABORTED]
    assert aborted == ([] if ok else ["two"]) and len(there.of(InputCommitted)) == 1 + ok
    there.runner.submit(CommitAudio(create_response=True, event_id="again"))
    await asyncio.sleep(0.1)
    assert len(there.of(InputCommitted)) == 2 and not there.runner.closing


@virtual
async def test_behaviour_04_open_says_created_then_updated_and_answers_after_them(
    runtime: VirtualRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine(runtime, ephemeral_pipeline(runtime)) as world:
        said: list[object] = []
        take = World.take

        def watch(world: World, message: EngineQueueMessage) -> None:
            said.append(getattr(message, "event", message))
            take(world, message)

        monkeypatch.setattr(World, "take", watch)
        client = world.open()
        assert [type(entry).__name__ for entry in said] == ["SessionCreated", "SessionUpdated", "ResultMessage"]
        assert client.of(SessionCreated)[0].config == client.of(SessionUpdated)[0].config == VAD
        assert world.engine.session_manager.runner("s1").session.generation == 0  # type: ignore[union-attr]
        world.close(client)


@virtual
async def test_behaviour_04_open_beyond_the_limit_is_refused_and_may_be_tried_again(runtime: VirtualRuntime) -> None:
    async with engine(runtime, ephemeral_pipeline(runtime), config=ONE) as world:
        first = world.open()
        assert world.try_open(session_id="s2").error_code == "resource_exhausted"
        assert ERRORS[ErrorCode.RESOURCE_EXHAUSTED].retryable
        world.close(first)
        await first.until(SessionClosed)
        world.close(world.open(session_id="s3"))
        del world.clients["s2"]


@pytest.mark.parametrize("hook", ["validate_config", "create_session_state", "sampling_params"])
@pytest.mark.parametrize("fault", [RuntimeError("no"), ClientFault(ErrorCode.INVALID_SESSION_CONFIG, "No.")])
@virtual
async def test_behaviour_04_open_that_fails_is_rolled_back(
    hook: str, fault: Exception, runtime: VirtualRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = ephemeral_pipeline(runtime)

    def refuse(*_: object) -> None:
        raise fault

    async with engine(runtime, pipeline, config=ONE) as world:
        with monkeypatch.context() as patch:
            patch.setattr(pipeline.plugin, hook, refuse)
            assert world.try_open().error_code is not None
        assert world.clients.pop("s1").events == [] and world.everything() == {}
        client = world.open()
        await client.say()
        assert (await client.until(ResponseDone)).status == "completed"
        world.close(client)


@virtual
async def test_behaviour_04_slot_is_held_until_the_stages_are_clean(runtime: VirtualRuntime) -> None:
    """While it closes too; the terminal comes after that, and not before."""
    async with engine(runtime, ephemeral_pipeline(runtime, Script(sentences=9)), config=ONE) as world:
        client = world.open()
        client.append(tone(400, rate_hz=RATE_HZ))
        client.send(CommitAudio(create_response=True))
        await client.until(ResponseAudio)
        order: list[str] = []
        cleanup = world.engine.cleanup

        async def slow(request_ids: list[str], *, abort: bool) -> None:
            await cleanup(request_ids, abort=abort)
            order.append("clean")

        world.engine.cleanup = slow  # type: ignore[method-assign,assignment]
        free = world.engine.session_manager.health().free
        client.send(CloseSession())
        assert (free, world.engine.session_manager.health().free) == (0, 0) and not client.terminals
        assert world.try_open(session_id="s2").error_code == "resource_exhausted"
        terminal = await client.until(SessionClosed)
        assert order and terminal.slot_released and world.engine.session_manager.health().free == 1
        del world.clients["s2"]


@virtual
async def test_behaviour_04_close_is_irreversible_and_may_be_repeated(runtime: VirtualRuntime) -> None:
    async with engine(runtime, ephemeral_pipeline(runtime)) as world:
        client = world.open(resumable=True)
        first, second = world.close(client), world.close(client)
        client.send(CommitAudio(event_id="late"))
        await client.until(SessionClosed)
        assert [world.results[name].error_code for name in (first, second)] == [None, None]
        assert len(client.terminals) == 1


def _order(events: list[SessionEvent]) -> list[str]:
    return [type(e).__name__ for e in events if isinstance(e, ErrorRaised | ResponseDone | SessionExpired)]


FAMILIES: list[tuple[Callable[..., object], int, SessionConfig, list[str]]] = [
    (resident_pipeline, 0, VAD, ["ErrorRaised", "ResponseDone", "SessionExpired"]),
    (ephemeral_pipeline, 2, MANUAL, ["ErrorRaised", "ResponseDone"]),
]


@pytest.mark.parametrize(("build", "stage", "config", "expected"), FAMILIES)
@virtual
async def test_behaviour_14_a_failure_in_mid_answer_is_told_in_order(
    build: Callable[..., object],
    stage: int,
    config: SessionConfig,
    expected: list[str],
    runtime: VirtualRuntime,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Error, failed response, and for a resident model the end of the session, which says why."""
    script = Script(sentences=9, sentence_ms=1_000, answer_units=40)
    pipeline = build(runtime, script)
    async with engine(runtime, pipeline) as world:  # type: ignore[arg-type]
        client = world.open(config)
        await client.hear(tone(600, rate_hz=RATE_HZ))
        if config is MANUAL:
            client.send(CommitAudio(create_response=True))
        else:
            await client.hear(silence(700, rate_hz=RATE_HZ))
        await client.until(ResponseAudio)
        pipeline.stages[stage]._script = Script(  # type: ignore[attr-defined]
            faults=(ScriptedFault(stage_id=stage, kind="error", when="speak" if stage == 0 else ""),)
        )
        while not client.of(ResponseDone):
            await client.hear(silence(200, rate_hz=RATE_HZ))
        if "SessionExpired" in expected:
            assert (await client.until(SessionExpired)).reason == "request_cleanup"
        assert _order(client.events) == expected
        assert client.of(ResponseDone)[0].status == "failed"
        if not client.terminals:
            world.close(client)
