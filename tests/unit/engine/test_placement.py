"""Groups of replicas for sessions: which one a session gets, for how long, and what happens when a member is lost."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.config.stage_config import DuplexSessionRuntimeConfig, replica_groups
from duologue.engine.placement import choose_group, frontend_groups, frontend_limit
from duologue.engine.replicas import MAX_REPLICAS
from duologue.engine.requests import OrchestratorRequestState, build_engine_core_request_from_tokens
from duologue.engine.reservations import Reservations
from duologue.errors import ClientFault, ErrorCode, StageFault
from duologue.outputs import SamplingParams, StagePrompt
from duologue.sim.loop import VirtualRuntime, run, virtual
from tests.unit.engine.rig import Rig, StageSpec, running

# -- pure rules

groups_of = st.integers(1, 3).flatmap(
    lambda stages: st.dictionaries(st.integers(0, 8), st.tuples(*[st.integers(0, 4)] * stages), min_size=1, max_size=6)
)


@given(
    groups=groups_of,
    occupancy=st.dictionaries(st.tuples(st.integers(0, 2), st.integers(0, 4)), st.integers(0, 4)),
    cap=st.integers(1, 4),
    cursor=st.integers(-1, 9),
)
def test_the_least_occupied_group_with_room_is_chosen(
    groups: dict[int, tuple[int, ...]], occupancy: dict[tuple[int, int], int], cap: int, cursor: int
) -> None:
    def taken(number: int) -> list[int]:
        return [occupancy.get(member, 0) for member in enumerate(groups[number])]

    chosen = choose_group(groups, occupancy, cap=cap, cursor=cursor)
    roomy = [number for number in groups if max(taken(number)) < cap]
    if chosen is None:
        assert roomy == []
        return
    assert chosen in roomy, "no member comes to more than the cap"
    best = min((max(taken(number)), sum(taken(number))) for number in roomy)
    equals = [number for number in roomy if (max(taken(number)), sum(taken(number))) == best]
    assert chosen in equals
    later = [number for number in equals if number > cursor]
    assert chosen == min(later or equals), "among equals they take turns"


@given(count=st.integers(1, 6), stages=st.integers(1, 4), rounds=st.integers(1, 3))
def test_empty_groups_are_filled_in_turn(count: int, stages: int, rounds: int) -> None:
    groups = {number: (number,) * stages for number in range(count)}
    occupancy: Counter[tuple[int, int]] = Counter()
    cursor = -1
    order = []
    for _ in range(rounds * count):
        number = choose_group(groups, occupancy, cap=rounds, cursor=cursor)
        assert number is not None
        cursor = number
        order.append(number)
        occupancy.update(enumerate(groups[number]))
    assert order == list(range(count)) * rounds
    assert choose_group(groups, occupancy, cap=rounds, cursor=cursor) is None


@given(replicas=st.lists(st.integers(1, 3), min_size=1, max_size=3), data=st.data())
def test_groups_are_accepted_only_if_they_cover_everything_once(replicas: list[int], data: st.DataObject) -> None:
    group = st.tuples(*(st.integers(0, count) for count in replicas))  # one slot too many, on purpose
    groups = data.draw(st.lists(group, min_size=1, max_size=6))
    fits = all(slot < count for one in groups for slot, count in zip(one, replicas, strict=True))
    covers = all({one[n] for one in groups} == set(range(count)) for n, count in enumerate(replicas))
    unique = len(set(groups)) == len(groups)
    if fits and covers and unique:
        assert replica_groups(groups, replicas) == tuple(groups)
    else:
        with pytest.raises(ValueError, match=r"sessions.replica_groups"):
            replica_groups(groups, replicas)


@given(
    replicas=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    data=st.data(),
    frontends=st.integers(1, 6),
    max_sessions=st.integers(1, 40),
    cap=st.integers(1, 5),
)
def test_frontends_divide_groups_and_sessions_and_share_no_replica(
    replicas: list[int], data: st.DataObject, frontends: int, max_sessions: int, cap: int
) -> None:
    members = st.tuples(*[st.integers(0, count - 1) for count in replicas])
    groups = data.draw(st.lists(members, min_size=1, max_size=6, unique=True))
    try:
        owned = frontend_groups(groups, frontends)
    except ValueError:
        shared = any(
            one[stage] == other[stage]
            for a, one in enumerate(groups)
            for b, other in enumerate(groups)
            for stage in range(len(replicas))
            if a % frontends != b % frontends
        )
        assert frontends > len(groups) or shared
        return
    assert sorted(number for mine in owned for number in mine) == list(range(len(groups)))
    for stage in range(len(replicas)):
        theirs = [{groups[number][stage] for number in mine} for mine in owned]
        assert sum(map(len, theirs)) == len(set().union(*theirs)), "a replica has one frontend"
    limits = [
        frontend_limit(groups, frontend=f, frontends=frontends, max_sessions=max_sessions, cap=cap)
        for f in range(frontends)
    ]
    assert sum(limits) <= max_sessions
    for mine, limit in zip(owned, limits, strict=True):
        room = min(cap * len({groups[number][stage] for number in mine}) for stage in range(len(replicas)))
        assert limit <= room
        assert limit in (room, max_sessions // frontends, max_sessions // frontends + 1)
    if all(limit < cap for limit in limits):
        assert sum(limits) == max_sessions and limits == sorted(limits, reverse=True), "low numbers take the remainder"


def test_a_replica_of_two_frontends_is_named() -> None:
    with pytest.raises(ValueError, match="replica 1 of stage 1 is in groups of frontends 0 and 1"):
        frontend_groups([(0, 1), (1, 1)], 2)
    with pytest.raises(ValueError, match="1 to 2 frontends"):
        frontend_groups([(0, 0), (1, 1)], 3)


def test_groups_that_do_not_fit_are_named() -> None:
    assert replica_groups(None, [2, 2]) == ((0, 0), (1, 1))
    for groups, replicas, complaint in (
        (None, [1, 2], "must be given, since the stages have 1, 2 replicas"),
        ([(0,)], [1, 1], "one replica for each of the 2 stages, got \\[0\\]"),
        ([(0, 2)], [1, 2], "stage 1 has replicas 0 to 1, got 2"),
        ([(0, 0), (0, 0)], [1, 1], "there twice"),
        ([(0, 0)], [1, 2], "replica 1 of stage 1 is in no group"),
    ):
        with pytest.raises(ValueError, match=complaint):
            replica_groups(groups, replicas)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"replica_policy": "least_sessions"}, "max_sessions_per_replica must be given"),
        ({"max_sessions_per_replica": 0}, "must be greater than 0 or null, got 0"),
        ({"replica_groups": ((0,),)}, "needs replica_policy least_sessions"),
        (
            {"replica_policy": "least_sessions", "max_sessions_per_replica": 1, "replica_groups": ()},
            "at least one group",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(changes: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        DuplexSessionRuntimeConfig(**changes)  # type: ignore[arg-type]


# -- reservations over real pools


@virtual
async def test_a_reservation_covers_every_stage_is_kept_and_given_back(runtime: VirtualRuntime) -> None:
    async with running(Rig(runtime, [StageSpec(replicas=2), StageSpec(replicas=2)])) as rig:
        ledger = Reservations(rig.orchestrator.stage_pools, cap=1)
        anna = ledger.reserve("anna")
        assert anna is not None
        assert (anna.replicas, anna.generation) == ((0, 0), 0)
        assert ledger.reserve("anna") is anna
        ben = ledger.reserve("ben")
        assert ben is not None
        assert ben.replicas == (1, 1)
        assert ledger.reserve("carl") is None
        assert ledger.route("anna") == {0: 0, 1: 0}
        assert ledger.route("carl") == {}
        ledger.release("anna")
        ledger.release("anna")
        carl = ledger.reserve("carl")
        assert carl is not None
        assert carl.replicas == (0, 0)
        for name in ("ben", "carl"):
            ledger.release(name)
        assert (len(ledger), ledger.occupancy()) == (0, {})


@virtual
async def test_a_shared_replica_is_counted_once_per_session(runtime: VirtualRuntime) -> None:
    async with running(Rig(runtime, [StageSpec(replicas=1), StageSpec(replicas=2)])) as rig:
        ledger = Reservations(rig.orchestrator.stage_pools, cap=2, groups=[(0, 0), (0, 1)])
        assert [ledger.reserve(name) is not None for name in "abc"] == [True, True, False]
        assert ledger.occupancy() == {(0, 0): 2, (1, 0): 1, (1, 1): 1}
        assert ledger.owners(0, 0) == ["a", "b"]
        assert ledger.owners(1, 1) == ["b"]


@virtual
async def test_a_lost_member_is_told_and_nothing_moves_by_itself(runtime: VirtualRuntime) -> None:
    spec = StageSpec(replicas=2)
    async with running(Rig(runtime, [StageSpec(replicas=2), spec])) as rig:
        ledger = Reservations(rig.orchestrator.stage_pools, cap=2)
        ledger.reserve("anna")
        spec.clients[0].die(ConnectionError("killed"))
        with pytest.raises(StageFault, match="Replica 0 of stage stage1, which this session had, is gone"):
            ledger.route("anna")
        await asyncio.sleep(2)
        assert rig.orchestrator.stage_pools[1].live_replica_ids == [1, 2]
        with pytest.raises(StageFault, match="is gone"):
            ledger.route("anna")  # its successor is another replica
        again = ledger.replace("anna")
        assert again is not None
        assert (again.generation, again.replicas) == (1, (1, 1))
        assert ledger.route("anna") == {0: 1, 1: 1}
        fresh = ledger.reserve("ben")
        assert fresh is not None
        assert fresh.replicas == (0, 2), "the group has the successor"
        assert ledger.occupancy() == {(0, 1): 1, (1, 1): 1, (0, 0): 1, (1, 2): 1}


@virtual
async def test_a_rebuild_without_room_changes_nothing(runtime: VirtualRuntime) -> None:
    spec = StageSpec(replicas=2)
    async with running(Rig(runtime, [spec])) as rig:
        ledger = Reservations(rig.orchestrator.stage_pools, cap=1)
        ledger.reserve("anna")
        ledger.reserve("ben")
        spec.clients[0].die(ConnectionError("killed"))
        assert ledger.replace("anna") is None
        assert ledger.owners(0, 0) == ["anna"]
        ledger.release("ben")
        moved = ledger.replace("anna")
        assert moved is not None
        assert (moved.replicas, moved.generation) == ((1,), 1)


@virtual
async def test_groups_follow_replicas_that_come_and_go(runtime: VirtualRuntime) -> None:
    async with running(Rig(runtime, [StageSpec(), StageSpec()])) as rig:
        pools = rig.orchestrator.stage_pools
        ledger = Reservations(pools, cap=1)
        ledger.reserve("anna")
        await pools[0].replicas.add()
        assert ledger.reserve("ben") is None, "a group needs a replica of every stage"
        await pools[1].replicas.add()
        ben = ledger.reserve("ben")
        assert ben is not None
        assert ben.replicas == (1, 1)
        ledger.release("anna")
        await pools[0].replicas.remove(0, drain_s=0)
        assert ledger.reserve("carl") is None


@virtual
async def test_a_stage_has_a_bounded_number_of_replicas(runtime: VirtualRuntime) -> None:
    async with running(Rig(runtime, [StageSpec(replicas=MAX_REPLICAS - 1)])) as rig:
        replicas = rig.orchestrator.stage_pools[0].replicas
        await replicas.add()
        for _ in range(2):
            with pytest.raises(ClientFault, match=f"has {MAX_REPLICAS} replicas, the most") as refused:
                await replicas.add()
            assert (refused.value.code, len(replicas.live_ids())) == (ErrorCode.REQUEST_INVALID, MAX_REPLICAS)
        await replicas.remove(0, drain_s=0)
        await replicas.add()
        assert len(replicas.live_ids()) == MAX_REPLICAS, "one that was taken out leaves its place"


@virtual
async def test_a_pin_leads_to_a_replica_that_drains_and_to_no_other(runtime: VirtualRuntime) -> None:
    async with running(Rig(runtime, [StageSpec(lambda request: [5.0], replicas=2)])) as rig:
        pool = rig.orchestrator.stage_pools[0]
        request = build_engine_core_request_from_tokens("p", StagePrompt(), SamplingParams(), None)
        first = OrchestratorRequestState("p", None, [], 0, pinned_replicas={0: 0})
        assert await pool.submit_initial("p", first, request) == 0
        elsewhere = OrchestratorRequestState("p", None, [], 0, pinned_replicas={0: 1})
        with pytest.raises(StageFault, match="not at its pin 1"):
            await pool.submit_initial("p", elsewhere, request)
        removal = asyncio.ensure_future(pool.replicas.remove(0, drain_s=10))
        await asyncio.sleep(0)
        second = OrchestratorRequestState("q", None, [], 0, pinned_replicas={0: 0})
        again = build_engine_core_request_from_tokens("q", StagePrompt(), SamplingParams(), None)
        assert await pool.submit_initial("q", second, again) == 0
        await pool.abort(["p", "q"])
        await removal


@given(
    replicas=st.integers(1, 3),
    cap=st.integers(1, 3),
    steps=st.lists(
        st.tuples(st.sampled_from(["reserve", "release", "replace", "kill"]), st.integers(0, 9)), max_size=40
    ),
)
def test_whatever_happens_the_cap_holds_and_the_books_agree(
    replicas: int, cap: int, steps: list[tuple[str, int]]
) -> None:
    async def scenario(runtime: VirtualRuntime) -> None:
        stages = [StageSpec(replicas=replicas), StageSpec(replicas=replicas)]
        async with running(Rig(runtime, stages)) as rig:
            pools = rig.orchestrator.stage_pools
            ledger = Reservations(pools, cap=cap)
            for step, number in steps:
                name = f"s{number}"
                match step:
                    case "reserve":
                        before = ledger.get(name)
                        assert ledger.reserve(name) is (before or ledger.get(name))
                    case "release":
                        ledger.release(name)
                    case "replace" if ledger.get(name) is not None:
                        old = ledger.get(name)
                        new = ledger.replace(name)
                        assert old is not None
                        assert new is None or new.generation == old.generation + 1
                    case "kill":
                        living = [client for client in stages[number % 2].clients if client.healthy]
                        if living:
                            living[0].die(ConnectionError("step"))
                        await asyncio.sleep(0.3)
                    case _:
                        pass
                placements = [ledger.get(f"s{n}") for n in range(10)]
                counted = Counter(member for one in placements if one for member in enumerate(one.replicas))
                assert counted == ledger.occupancy()
                assert all(count <= cap for count in counted.values())

    run(scenario)
