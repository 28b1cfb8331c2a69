"""Companions (classifier-free guidance): both predictions meet in one later stage, or the request fails as one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duologue.engine.companions import MAX_COMPANIONS, CompanionTracker
from duologue.engine.messages import AbortRequest, AddCompanionRequest, StreamingUpdate
from duologue.engine.stages.contract import Stage, StageControl
from duologue.outputs import CompanionOutput, RequestOutput, StagePrompt, StageRequest
from duologue.sim.loop import VirtualRuntime, run, virtual
from tests.unit.engine.rig import Rig, Script, StageSpec, echo, running, said

SCALE = 3.0
RATE_HZ = 16_000


def prediction(text: str) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    """What the model predicts for a prompt: a wave whose shape the text gives."""
    phase = np.arange(64) * (1 + sum(text.encode()) % 7) / 10
    return (1_000 * np.sin(phase)).astype(np.int16)


def predict(after_s: float = 0.0) -> Script:
    """A model that predicts for each prompt, in two halves."""

    def script(request: StageRequest) -> list[RequestOutput | float]:
        wave = prediction(request.prompt.text).tobytes()
        half = len(wave) // 2
        final = request.prompt.final
        return [
            after_s,
            said(request, audio=wave[:half], audio_rate_hz=RATE_HZ, token_ids=(1,)),
            said(
                request,
                audio=wave[half:],
                audio_rate_hz=RATE_HZ,
                token_ids=(2,),
                finished=final,
                segment_finished=not final,
                metadata={"prompt": request.prompt.text},
            ),
        ]

    return script


class Guide(Stage[None]):
    """Combines the conditional prediction with the unconditional one, which came as a companion."""

    def __init__(self) -> None:
        self.roles: list[tuple[str, ...]] = []

    def open(self, request: StageRequest) -> None:
        return None

    def process(self, state: None, request: StageRequest, control: StageControl) -> Iterator[RequestOutput]:
        prompt = request.prompt
        self.roles.append(tuple(companion.role for companion in prompt.companions))
        if not prompt.audio:
            return
        cond = np.frombuffer(prompt.audio, np.int16).astype(np.float64)
        (uncond,) = (np.frombuffer(one.audio, np.int16) for one in prompt.companions if one.role == "uncond")
        guided = uncond + SCALE * (cond - uncond)
        yield said(
            request, audio=guided.astype(np.int16).tobytes(), audio_rate_hz=RATE_HZ, segment_finished=not prompt.final
        )


class GuideSpec(StageSpec):
    """The second stage of the rig: a guide."""

    def stage(self) -> Guide:
        self.guide = Guide()
        return self.guide


def expected(cond: str, uncond: str) -> bytes:
    low, high = prediction(uncond).astype(np.float64), prediction(cond)
    wave: np.ndarray[tuple[int], np.dtype[np.int16]] = (low + SCALE * (high - low)).astype(np.int16)
    return wave.tobytes()


def audio(rig: Rig, request_id: str) -> bytes:
    return b"".join(message.output.audio for message in rig.outputs(request_id))


def accompany(rig: Rig, companion_id: str, parent_id: str, role: str = "uncond", text: str = "") -> None:
    rig.orchestrator.post(
        AddCompanionRequest(request_id=companion_id, parent_id=parent_id, role=role, prompt=StagePrompt(text=text))
    )


@pytest.mark.parametrize(("parent_s", "companion_s"), [(0.0, 0.0), (0.1, 2.0), (2.0, 0.1)])
@pytest.mark.parametrize("parent_first", [True, False])
def test_both_predictions_meet_whoever_is_first(parent_s: float, companion_s: float, parent_first: bool) -> None:
    def script(request: StageRequest) -> list[RequestOutput | float]:
        return list(predict(parent_s if request.request_id == "r" else companion_s)(request))

    async def scenario(runtime: VirtualRuntime) -> None:
        model, guide = StageSpec(script), GuideSpec()
        async with running(Rig(runtime, [model, guide])) as rig:
            rig.add("r", "a cat", companion_roles=("uncond",))
            if not parent_first:
                await asyncio.sleep(3)
            accompany(rig, "r.uncond", "r", text="nothing")
            await asyncio.sleep(max(parent_s, companion_s) - 0.01)
            if parent_first:
                assert guide.guide.roles == [], "nothing is handed on before both are done"
            await asyncio.sleep(1)
            assert audio(rig, "r") == expected("a cat", "nothing")
            assert rig.endings() == {"r": 1}
            assert rig.outputs("r.uncond") == rig.errors("r.uncond") == [], "a companion says nothing to clients"
            assert rig.leftovers() == {}

    run(scenario)


@virtual
async def test_an_undeclared_companion_counts_if_it_comes_in_time(runtime: VirtualRuntime) -> None:
    async with running(Rig(runtime, [StageSpec(predict(0.5)), GuideSpec()])) as rig:
        rig.add("r", "a cat")
        accompany(rig, "r.uncond", "r", text="nothing")
        await asyncio.sleep(0.2)
        accompany(rig, "r.style", "r", role="style", text="oil")
        await asyncio.sleep(2)
        assert rig.stages[1].guide.roles == [("uncond", "style")]  # type: ignore[attr-defined]
        assert audio(rig, "r") == expected("a cat", "nothing")
        accompany(rig, "late", "r")
        await asyncio.sleep(0.1)
        assert "no request 'r'" in rig.errors("late")[0].message


@virtual
async def test_a_companion_that_comes_after_the_handover_is_refused_and_harms_nobody(runtime: VirtualRuntime) -> None:
    stages = [StageSpec(), StageSpec(lambda request: [5.0, *echo(request)])]
    async with running(Rig(runtime, stages)) as rig:
        rig.add("r", "x")
        await asyncio.sleep(1)
        accompany(rig, "late", "r")
        assert "already been handed on" in rig.errors("late")[0].message
        await asyncio.sleep(10)
        assert rig.text("r") == "x"


@virtual
async def test_a_parent_waits_for_its_companions_only_so_long(runtime: VirtualRuntime) -> None:
    async with running(Rig(runtime, [StageSpec(predict(0.5)), GuideSpec()])) as rig:
        rig.add("r", "a cat", companion_roles=("uncond", "style"), companion_wait_s=2.0)
        accompany(rig, "r.uncond", "r")
        await asyncio.sleep(2.4)
        assert rig.endings() == {}, "it waits from when it is ready itself"
        await asyncio.sleep(0.2)
        (error,) = rig.errors("r")
        assert (error.code, error.http_status) == ("timeout", 504)
        assert "'style' did not finish" in error.message
        assert "'uncond'" not in error.message
        assert rig.leftovers() == {}


@virtual
async def test_a_companion_that_hangs_is_stopped_with_its_parent(runtime: VirtualRuntime) -> None:
    def script(request: StageRequest) -> list[RequestOutput | float]:
        return list(predict(1_000.0 if request.request_id == "r.uncond" else 0.0)(request))

    async with running(Rig(runtime, [StageSpec(script), GuideSpec()])) as rig:
        rig.add("r", "a cat", companion_roles=("uncond",), companion_wait_s=1.0)
        accompany(rig, "r.uncond", "r")
        await asyncio.sleep(1.5)
        assert [error.code for error in rig.errors("r")] == ["timeout"]
        assert rig.leftovers() == {}


def failing(name: str) -> Script:
    def script(request: StageRequest) -> list[RequestOutput | float]:
        if request.request_id == name:
            raise RuntimeError("no prediction")
        return list(predict(1.0)(request))

    return script


@pytest.mark.parametrize("who", ["r", "r.uncond"])
def test_a_failure_of_either_side_fails_the_request_once(who: str) -> None:
    async def scenario(runtime: VirtualRuntime) -> None:
        model = StageSpec(failing(who))
        async with running(Rig(runtime, [model, GuideSpec()])) as rig:
            rig.add("r", "a cat", companion_roles=("uncond",))
            accompany(rig, "r.uncond", "r")
            rig.add("other", "a dog", companion_roles=("uncond",))
            accompany(rig, "other.uncond", "other", text="nothing")
            await asyncio.sleep(0.5)
            (error,) = rig.errors("r")
            assert "no prediction" in error.message
            assert ("companion 'uncond' failed" in error.message) == (who == "r.uncond")
            assert rig.leftovers().get("stage0.bindings") == 2, "the other side is stopped"
            await asyncio.sleep(2)
            assert audio(rig, "other") == expected("a dog", "nothing")
            assert rig.endings() == {"r": 1, "other": 1}
            assert rig.leftovers() == {}

    run(scenario)


@virtual
async def test_the_same_ids_can_be_submitted_again_after_a_failure_with_the_full_set(runtime: VirtualRuntime) -> None:
    attempts = 0

    def script(request: StageRequest) -> list[RequestOutput | float]:
        nonlocal attempts
        attempts += request.request_id == "r.uncond"
        if request.request_id == "r.uncond" and attempts == 1:
            raise RuntimeError("at first")
        return list(predict(0.1)(request))

    async with running(Rig(runtime, [StageSpec(script), GuideSpec()])) as rig:
        for _ in range(2):
            rig.add("r", "a cat", companion_roles=("uncond",))
            accompany(rig, "r.uncond", "r", text="nothing")
            await asyncio.sleep(1)
        assert rig.endings() == {"r": 2}
        assert audio(rig, "r") == expected("a cat", "nothing")


@virtual
async def test_every_piece_carries_the_full_set_and_a_new_companion_takes_its_place(runtime: VirtualRuntime) -> None:
    guide = GuideSpec()
    async with running(Rig(runtime, [StageSpec(predict(0.1)), guide])) as rig:
        rig.add("r", "one", resumable=True, final=False, companion_roles=("uncond",))
        accompany(rig, "u1", "r", text="nothing")
        await asyncio.sleep(1)
        rig.orchestrator.post(StreamingUpdate(request_id="r", prompt=StagePrompt(text="two", final=False)))
        await asyncio.sleep(1)
        accompany(rig, "u2", "r", text="something else")
        rig.orchestrator.post(StreamingUpdate(request_id="r", prompt=StagePrompt(text="three")))
        await asyncio.sleep(1)
        pairs = (("one", "nothing"), ("two", "nothing"), ("three", "something else"))
        assert audio(rig, "r") == b"".join(expected(cond, uncond) for cond, uncond in pairs)
        assert set(guide.guide.roles) == {("uncond",)}
        assert rig.leftovers() == {}


@virtual
async def test_aborts_of_either_side_end_both(runtime: VirtualRuntime) -> None:
    model = StageSpec(predict(5.0))
    async with running(Rig(runtime, [model, GuideSpec()])) as rig:
        for name in ("r", "s"):
            rig.add(name, "a cat", companion_roles=("uncond",))
            accompany(rig, f"{name}.uncond", name)
        await asyncio.sleep(0.1)
        rig.orchestrator.post(AbortRequest(request_ids=("r",), control_id="1"))
        rig.orchestrator.post(AbortRequest(request_ids=("s.uncond",), control_id="2"))
        await asyncio.sleep(0.1)
        assert rig.outputs("r")[-1].output.finish_reason == "abort"
        (error,) = rig.errors("s")
        assert (error.code, "companion 'uncond'" in error.message) == ("request_aborted", True)
        assert rig.endings() == {"r": 1, "s": 1}
        assert [(answer.control_id, answer.error_code, len(answer.value)) for answer in rig.answers()] == [
            ("1", None, 1),
            ("2", None, 0),
        ]
        assert rig.leftovers() == {}
        assert model.ledger.balanced()


@virtual
async def test_an_abort_lets_go_a_parent_that_waits(runtime: VirtualRuntime) -> None:
    async with running(Rig(runtime, [StageSpec(predict()), GuideSpec()])) as rig:
        rig.add("r", "a cat", companion_roles=("never",))
        await asyncio.sleep(1)
        rig.orchestrator.post(AbortRequest(request_ids=("r",)))
        await asyncio.sleep(0.01)
        assert rig.leftovers() == {}
        assert rig.endings() == {"r": 1}


@virtual
async def test_a_companion_follows_its_parent_to_its_replica(runtime: VirtualRuntime) -> None:
    async with running(Rig(runtime, [StageSpec(predict(1.0), replicas=3), GuideSpec()])) as rig:
        for number in range(6):
            rig.add(f"r{number}", "x", companion_roles=("uncond",))
            if number % 2:
                accompany(rig, f"c{number}", f"r{number}")
        pool = rig.orchestrator.stage_pools[0]
        assert all(pool.replica_of(f"c{n}") == pool.replica_of(f"r{n}") is not None for n in (1, 3, 5))
        for number in (0, 2, 4):
            accompany(rig, f"c{number}", f"r{number}")
        await asyncio.sleep(5)
        assert len(rig.endings()) == 6


@virtual
async def test_companions_that_make_no_sense_are_refused_by_name(runtime: VirtualRuntime) -> None:
    async with running(Rig(runtime, [StageSpec(predict(1.0)), GuideSpec()])) as rig:
        rig.add("r", "x", companion_roles=("uncond",))
        accompany(rig, "c", "r")
        assert rig.orchestrator.held() == {"pieces": 0, "companions": 1, "session_keys": 0}
        accompany(rig, "again", "r")
        accompany(rig, "grandchild", "c")
        rig.add("alone", "x", final_stage_id=0)
        accompany(rig, "useless", "alone")
        rig.add("twice", "x", companion_roles=("a", "a"))
        rig.add("many", "x", companion_roles=tuple("abcdefghi"))
        rig.add("never", "x", companion_roles=("a",), companion_wait_s=0.0)
        rig.add("nowhere", "x", companion_roles=("a",), final_stage_id=0)
        refused = {name: rig.errors(name)[0].message for name in rig.endings()}
        assert set(refused) == {"again", "grandchild", "useless", "twice", "many", "never", "nowhere"}
        assert "already has a companion with role 'uncond'" in refused["again"]
        assert "could have a companion" in refused["grandchild"]
        assert "no later stage would use" in refused["useless"]
        assert "got a, a" in refused["twice"]
        assert "at most 8 roles, got 9" in refused["many"]
        assert "companion_wait_s must be above 0" in refused["never"]
        await asyncio.sleep(5)
        assert rig.leftovers() == {}


def test_a_parent_has_a_bounded_number_of_companions() -> None:
    tracker = CompanionTracker()
    for number in range(MAX_COMPANIONS):
        tracker.add("p", f"role{number}", f"c{number}")
        assert tracker.running == number + 1
    with pytest.raises(ValueError, match="the most there may be"):
        tracker.add("p", "more", "c")
    with pytest.raises(ValueError, match="already accompanies 'p'"):
        tracker.add("q", "role", "c0")
    assert tracker.cleanup_parent("c0") == []
    assert tracker.parent_of("c0") is None
    assert tracker.cleanup_parent("p") == [f"c{number}" for number in range(1, MAX_COMPANIONS)]
    assert len(tracker) == 0


@settings(max_examples=30)
@given(seed=st.integers(0, 100_000))
def test_in_any_order_of_events_every_request_ends_once_as_one(seed: int) -> None:
    async def scenario(runtime: VirtualRuntime) -> None:
        chance = random.Random(seed)

        def script(request: StageRequest) -> list[RequestOutput | float]:
            if chance.random() < 0.1:
                raise RuntimeError("mood")
            return list(predict(chance.random())(request))

        model = StageSpec(script, replicas=2, blocking=chance.random() < 0.3)
        names = [f"r{number}" for number in range(10)]
        async with running(Rig(runtime, [model, GuideSpec()])) as rig:
            for name in names:
                declared = chance.random() < 0.9
                rig.add(name, name, companion_wait_s=1.0, companion_roles=("uncond",) if declared else ())
                if not declared or chance.random() < 0.9:
                    accompany(rig, f"{name}.u", name, text="u")
                await asyncio.sleep(chance.choice([0.0, 0.2]))
                if chance.random() < 0.3:
                    victim = f"{chance.choice(names)}{chance.choice(['', '.u'])}"
                    rig.orchestrator.post(AbortRequest(request_ids=(victim,)))
                live = [client for client in model.clients if client.healthy]
                if live and chance.random() < 0.1:
                    chance.choice(live).die(ConnectionError("seed"))
            await asyncio.sleep(30)
            ends = rig.endings()
            assert {name: ends[name] for name in names} == dict.fromkeys(names, 1)
            whole = [name for name in names if audio(rig, name)]
            assert all(audio(rig, name) == expected(name, "u") for name in whole)
            assert rig.leftovers() == {}

    run(scenario, seed=seed, shuffle=True, limit_s=200)


def test_outputs_are_looked_at_and_not_consumed() -> None:
    async def scenario(runtime: VirtualRuntime) -> None:
        tracker = CompanionTracker()
        tracker.expect("p", ("b", "a"), 1.0)
        tracker.add("p", "a", "c1")
        tracker.add("p", "b", "c2")
        tracker.finish("c1", CompanionOutput(role="a", text="x"))
        tracker.finish("c2", CompanionOutput(role="b", text="y"))
        first = await tracker.bundle("p", runtime)
        assert [one.role for one in first] == ["b", "a"], "in the order in which the roles were named"
        assert await tracker.bundle("p", runtime) == first

    run(scenario)
