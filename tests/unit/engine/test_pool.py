"""Replicas: where requests go, what a death costs, and how a stage comes back."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.config.stage_config import ModelConfig
from duologue.engine.placement import MAX_SESSION_KEYS, SessionKeys, choose_replica, next_replica
from duologue.engine.requests import OrchestratorRequestState, build_engine_core_request_from_tokens
from duologue.engine.stages.contract import StageSink
from duologue.engine.stages.inproc import InprocClient
from duologue.engine.stages.supervisor import Backoff, RestartPolicy
from duologue.errors import ClientFault, StageFault
from duologue.outputs import RequestOutput, SamplingParams, StagePrompt, StageRequest
from duologue.sim.loop import VirtualRuntime, virtual
from tests.unit.engine.rig import Rig, StageSpec, echo, running

DEATH = ConnectionError("killed")


def slowly(request: StageRequest) -> list[RequestOutput | float]:
    return [1.0, *echo(request)]


def where(rig: Rig, stage_id: int = 0) -> dict[str, int | None]:
    """The replica of each running request."""
    pool = rig.orchestrator.stage_pools[stage_id]
    return {name: pool.replica_of(name) for name in rig.orchestrator.request_states}


@virtual
async def test_requests_go_round_and_stay_where_they_are(runtime: VirtualRuntime) -> None:
    async with running(Rig(runtime, [StageSpec(slowly, replicas=3)])) as rig:
        for number in range(6):
            rig.add(f"r{number}", "x", resumable=True, final=False)
        assert list(where(rig).values()) == [0, 1, 2, 0, 1, 2]
        await asyncio.sleep(5)
        assert list(where(rig).values()) == [0, 1, 2, 0, 1, 2]


@virtual
async def test_a_session_key_leads_to_the_replica_that_holds_its_context(runtime: VirtualRuntime) -> None:
    async with running(Rig(runtime, [StageSpec(slowly, replicas=3)])) as rig:
        for turn in range(4):
            for key in ("anna", "ben"):
                rig.add(f"{key}{turn}", "x", prompt={"session_key": key})
            rig.add(f"plain{turn}", "x")
            places = where(rig)
            assert (places[f"anna{turn}"], places[f"ben{turn}"]) == (0, 1)
            await asyncio.sleep(2)
        assert rig.leftovers() == {"stage0.session_keys": 2}
        rig.orchestrator.release_session_key("anna")
        rig.orchestrator.release_session_key("ben")
        rig.orchestrator.release_session_key("ben")
        assert rig.leftovers() == {}


@virtual
async def test_a_dead_replica_costs_its_own_requests_once_and_no_others(runtime: VirtualRuntime) -> None:
    spec = StageSpec(slowly, replicas=2)
    async with running(Rig(runtime, [spec, StageSpec()])) as rig:
        for number in range(6):
            rig.add(f"r{number}", f"{number}")
        await asyncio.sleep(0.5)
        spec.clients[0].die(DEATH)
        assert {error.request_id: error.code for name in where(rig) for error in rig.errors(name)} == {}
        assert sorted(where(rig)) == ["r1", "r3", "r5"]
        rig.add("late", "late")
        assert where(rig)["late"] == 1, "the survivor takes new work at once"
        await asyncio.sleep(5)
        for name in ("r0", "r2", "r4"):
            (error,) = rig.errors(name)
            assert (error.code, error.http_status) == ("replica_unavailable", 503)
            assert "killed" in error.message
        assert [rig.text(name) for name in ("r1", "r3", "r5", "late")] == ["1", "3", "5", "late"]
        assert rig.endings() == dict.fromkeys([*(f"r{n}" for n in range(6)), "late"], 1)
        assert rig.leftovers() == {}


@virtual
async def test_a_dead_replica_comes_back_under_a_new_id(runtime: VirtualRuntime) -> None:
    spec = StageSpec(slowly, replicas=2)
    async with running(Rig(runtime, [spec])) as rig:
        pool = rig.orchestrator.stage_pools[0]
        spec.clients[0].die(DEATH)
        assert pool.live_replica_ids == [1]
        await asyncio.sleep(0.49)
        assert pool.live_replica_ids == [1]
        await asyncio.sleep(0.02)
        assert pool.live_replica_ids == [1, 2]
        health = rig.orchestrator.health()[0]
        assert (health.ready, health.restarts, [one.replica_id for one in health.replicas]) == (True, 1, [1, 2])
        rig.add("r", "x")
        await asyncio.sleep(2)
        assert rig.text("r") == "x"


@virtual
async def test_a_successor_fills_the_slot_of_the_one_that_died(runtime: VirtualRuntime) -> None:
    filled: list[tuple[int, int]] = []

    class Slotted(InprocClient):
        number = 0

        def fill(self, slot: int) -> None:
            filled.append((self.number, slot))

    spec = StageSpec(replicas=2)
    rig = Rig(runtime, [spec])

    def make_client(replica_id: int) -> InprocClient:
        client = Slotted(spec.stage(), runtime=runtime)
        client.number = replica_id
        spec.clients.append(client)
        return client

    rig.orchestrator.stage_pools[0].replicas.make_client = make_client
    async with running(rig):
        for victim in (0, 2):
            spec.clients[victim].die(DEATH)
            await asyncio.sleep(2)
        assert filled == [(0, 0), (1, 1), (2, 0), (3, 0)]


@virtual
async def test_without_a_live_replica_requests_are_refused_and_health_says_so(runtime: VirtualRuntime) -> None:
    spec = StageSpec()
    async with running(Rig(runtime, [spec])) as rig:
        pool = rig.orchestrator.stage_pools[0]
        spec.clients[0].die(DEATH)
        assert pool.stage_client is None
        assert not pool.health().ready
        rig.add("r", "x")
        assert [error.code for error in rig.errors("r")] == ["replica_unavailable"]
        with pytest.raises(StageFault, match="No replica of stage stage0 is up"):
            _ = pool.default_sampling_params
        await asyncio.sleep(1)
        rig.add("again", "x")
        await asyncio.sleep(1)
        assert rig.text("again") == "x"


@virtual
async def test_a_replica_that_dies_downstream_fails_what_it_held_not_what_it_had_finished(
    runtime: VirtualRuntime,
) -> None:
    first = StageSpec()
    async with running(Rig(runtime, [first, StageSpec(slowly)])) as rig:
        rig.add("r", "x")
        await asyncio.sleep(0.5)
        first.clients[0].die(DEATH)
        await asyncio.sleep(2)
        assert rig.text("r") == "x", "the first stage was done with it when it died"


@virtual
async def test_a_context_lost_with_its_replica_is_built_elsewhere(runtime: VirtualRuntime) -> None:
    spec = StageSpec(replicas=2, restart=None)
    async with running(Rig(runtime, [spec])) as rig:
        rig.add("a", "x", prompt={"session_key": "anna"})
        await asyncio.sleep(1)
        spec.clients[0].die(DEATH)
        assert rig.leftovers() == {}
        for turn in range(3):
            rig.add(f"b{turn}", "x", resumable=True, final=False, prompt={"session_key": "anna"})
            assert where(rig)[f"b{turn}"] == 1
        await asyncio.sleep(20)
        assert rig.orchestrator.stage_pools[0].live_replica_ids == [1], "no restart was asked for"
        rig.orchestrator.release_session_key("anna")


class Frail(InprocClient):
    """Fails to start as often as it is told to."""

    failures = 0

    async def start(self, sink: StageSink) -> None:
        if Frail.failures:
            Frail.failures -= 1
            raise OSError("no weights")
        await super().start(sink)


@virtual
async def test_failing_starts_are_retried_later_and_later(runtime: VirtualRuntime) -> None:
    spec = StageSpec()
    rig = Rig(runtime, [spec])
    pool = rig.orchestrator.stage_pools[0]

    def make_client(_replica_id: int) -> InprocClient:
        client = Frail(spec.stage(), runtime=runtime)
        spec.clients.append(client)
        return client

    pool.replicas.make_client = make_client
    async with running(rig):
        Frail.failures = 3
        spec.clients[0].die(DEATH)
        await asyncio.sleep(0.5 + 1 + 2 + 3.9)
        assert pool.live_replica_ids == []
        await asyncio.sleep(0.2)
        assert pool.live_replica_ids == [4], "ids of failed starts are not used again"


@virtual
async def test_a_pipeline_that_cannot_start_says_why_and_leaves_nothing_running(runtime: VirtualRuntime) -> None:
    good, bad = StageSpec(), StageSpec()
    rig = Rig(runtime, [good, bad])
    rig.orchestrator.stage_pools[1].replicas.make_client = lambda _replica_id: Frail(bad.stage(), runtime=runtime)
    Frail.failures = 1
    with pytest.raises(OSError, match="no weights"):
        await rig.orchestrator.run()
    assert not good.clients[0].healthy


@virtual
async def test_a_pin_is_kept_or_refused_and_never_bent(runtime: VirtualRuntime) -> None:
    spec = StageSpec(slowly, replicas=2)
    async with running(Rig(runtime, [spec])) as rig:
        pool = rig.orchestrator.stage_pools[0]
        state = OrchestratorRequestState("p", None, [], 0, pinned_replicas={0: 1})
        request = build_engine_core_request_from_tokens("p", StagePrompt(), SamplingParams(), None)
        assert await pool.submit_initial("p", state, request) == 1
        await pool.abort(["p"])
        spec.clients[1].die(DEATH)
        with pytest.raises(StageFault, match="Replica 1 is pinned"):
            await pool.submit_initial("p", state, request)
        assert rig.leftovers() == {}


@virtual
async def test_a_submission_that_fails_leaves_no_binding(runtime: VirtualRuntime) -> None:
    class Full(InprocClient):
        async def submit(self, request: StageRequest) -> None:
            raise OSError("full")

    spec = StageSpec()
    rig = Rig(runtime, [spec])
    rig.orchestrator.stage_pools[0].replicas.make_client = lambda _replica_id: Full(spec.stage(), runtime=runtime)
    async with running(rig):
        rig.add("r", "x")
        assert len(rig.errors("r")) == 1
        assert rig.leftovers() == {}
        pool = rig.orchestrator.stage_pools[0]
        state = OrchestratorRequestState("p", None, [], 0)
        request = build_engine_core_request_from_tokens("p", StagePrompt(), SamplingParams(), None)
        with pytest.raises(OSError, match="full"):
            await pool.submit_initial("p", state, request)
        assert (pool.tables()["bindings"], state.submitted) == (0, set())


@virtual
async def test_a_submission_that_is_dropped_on_its_way_can_be_stopped_by_its_owner(runtime: VirtualRuntime) -> None:
    stopped: list[str] = []

    class Slow(InprocClient):
        async def submit(self, request: StageRequest) -> None:
            await asyncio.sleep(60)

        async def abort(self, request_ids: Sequence[str]) -> None:
            await asyncio.sleep(1)
            stopped.extend(request_ids)

    spec = StageSpec()
    rig = Rig(runtime, [spec])
    rig.orchestrator.stage_pools[0].replicas.make_client = lambda _replica_id: Slow(spec.stage(), runtime=runtime)
    async with running(rig):
        pool = rig.orchestrator.stage_pools[0]
        state = OrchestratorRequestState("p", None, [], 0)
        request = build_engine_core_request_from_tokens("p", StagePrompt(), SamplingParams(), None)
        submission = pool.submit_initial("p", state, request)
        submission.send(None)
        submission.close()
        assert (pool.replica_of("p"), state.submitted) == (0, set())
        await pool.abort(["p"])
        assert (pool.tables()["bindings"], stopped) == (0, ["p"])


def test_a_prompt_longer_than_the_context_is_the_clients_fault() -> None:
    model = ModelConfig(max_model_len=3)
    build_engine_core_request_from_tokens("r", StagePrompt(token_ids=(1, 2, 3)), SamplingParams(), model)
    with pytest.raises(ClientFault, match="4 tokens; the model takes at most 3"):
        build_engine_core_request_from_tokens("r", StagePrompt(token_ids=(1, 2, 3, 4)), SamplingParams(), model)


replica_ids = st.lists(st.integers(0, 50), unique=True, min_size=1).map(sorted)


@given(live=replica_ids, rounds=st.integers(1, 4))
def test_round_robin_gives_everyone_the_same(live: list[int], rounds: int) -> None:
    cursor = -1
    got: Counter[int] = Counter()
    for _ in range(rounds * len(live)):
        cursor = next_replica(live, cursor)
        got[cursor] += 1
    assert got == dict.fromkeys(live, rounds)


@given(live=replica_ids, cursor=st.integers(-1, 60), resident=st.none() | st.integers(0, 60))
def test_a_chosen_replica_lives_and_residents_come_first(live: list[int], cursor: int, resident: int | None) -> None:
    chosen = choose_replica(live, cursor=cursor, resident=resident)
    assert chosen in live
    assert chosen == resident if resident in live else chosen == next_replica(live, cursor)


@given(keys=st.lists(st.text(min_size=1, max_size=2)))
def test_remembered_keys_are_bounded_and_the_latest_survive(keys: list[str]) -> None:
    table = SessionKeys(limit=3)
    for number, key in enumerate(keys):
        table.remember(key, number)
        assert table.find(key) == number
    assert len(table) <= 3
    latest = list(dict.fromkeys(reversed(keys)))[:3]
    assert all(table.find(key) is not None for key in latest)


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_so_many_keys_are_remembered(extra: int) -> None:
    table = SessionKeys()
    for number in range(MAX_SESSION_KEYS + extra):
        table.remember(str(number), 1)
    assert len(table) == min(MAX_SESSION_KEYS, MAX_SESSION_KEYS + extra)
    assert table.find("0") == (None if extra > 0 else 1)


def test_delays_double_up_to_a_bound_and_start_afresh_after_a_stable_life() -> None:
    backoff = Backoff(RestartPolicy(first_s=0.5, longest_s=10.0, stable_s=30.0))
    assert [backoff.next_delay_s(1.0) for _ in range(7)] == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    assert backoff.next_delay_s(31.0) == 0.5
    assert backoff.next_delay_s(0.0) == 1.0
