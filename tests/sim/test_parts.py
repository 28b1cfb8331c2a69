"""The simulator's own parts: tapes, lanes, plans, shrinking, comparing and long runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from duologue.client.socket import SocketClosed
from duologue.sim import outcome, soak
from duologue.sim.checkers import Violation
from duologue.sim.command import sim_app
from duologue.sim.coverage import EXPECTED, missing, table
from duologue.sim.fresh import fresh_seeds
from duologue.sim.loop import VirtualRuntime, virtual
from duologue.sim.network import CLIENT_NOTICES_S, Pipe
from duologue.sim.outcome import Outcome, live, simulate
from duologue.sim.plan import Link, Order, Person, Plan, Rest, Say, from_json, to_json
from duologue.sim.regression import Regression, load, save
from duologue.sim.shrink import shrink
from duologue.sim.swarm import FEATURES, Swarm, draw
from duologue.sim.tape import cut, loud_share, spoken
from duologue.sim.trace import Entry, anonymous, difference
from duologue.sim.world import World


def test_a_piece_of_a_tape_stands_in_it_once() -> None:
    tape = cut("plain", 0, 200_000)
    piece = cut("plain", 70_001, 40)
    assert tape.count(piece) == 1
    assert tape.find(piece) == 70_001 * 2
    assert cut("answer", 0, 64) != cut("plain", 0, 64)


def test_speech_silence_and_acknowledgements_can_be_told_apart() -> None:
    assert loud_share(cut("plain", 9, 1024) + cut("quiet", 9, 1024)) == [True, True, False, False]
    assert spoken(cut("plain", 0, 800) + cut("quiet", 0, 800)) == (800, False)
    assert spoken(cut("ack", 0, 800)) == (800, True)
    assert spoken(cut("quiet", 0, 800)) == (0, False)


@virtual
async def test_frames_arrive_in_order_after_their_delay(runtime: VirtualRuntime) -> None:
    jitter = iter((1.0, 0.0, 0.5))
    pipe = Pipe(runtime, Link(delay_ms=100, jitter_ms=100), lambda: next(jitter), "p")
    begin = runtime.now()
    for frame in (b"1", b"2", b"3"):
        await pipe.client.send(frame)
    got = [await pipe.up.get() for _ in range(3)]
    assert got == [b"1", b"2", b"3"]
    assert runtime.now() - begin == pytest.approx(0.2)


@virtual
async def test_what_is_not_read_fills_the_window_and_reading_makes_room(runtime: VirtualRuntime) -> None:
    pipe = Pipe(runtime, Link(window_bytes=10), lambda: 0.0, "p")
    await pipe.server.send(b"x" * 10)
    assert not pipe.server.writable
    woken: list[bool] = []
    pipe.server.on_writable = lambda: woken.append(pipe.server.writable)
    assert await pipe.client.receive() == b"x" * 10
    assert woken == [True]


@virtual
async def test_a_reset_loses_what_is_in_flight_and_tells_both_sides(runtime: VirtualRuntime) -> None:
    pipe = Pipe(runtime, Link(delay_ms=50), lambda: 0.0, "p")
    await pipe.server.send(b"lost")
    pipe.reset()
    with pytest.raises(SocketClosed):
        await pipe.client.receive()
    assert await pipe.up.get() is None


@virtual
async def test_a_dark_connection_swallows_everything_until_somebody_gives_up(runtime: VirtualRuntime) -> None:
    pipe = Pipe(runtime, Link(), lambda: 0.0, "p")
    pipe.darken()
    await pipe.server.send(b"swallowed")
    begin = runtime.now()
    with pytest.raises(SocketClosed):
        await pipe.client.receive()
    assert runtime.now() - begin == CLIENT_NOTICES_S


@virtual
async def test_a_stall_delays_and_loses_nothing(runtime: VirtualRuntime) -> None:
    pipe = Pipe(runtime, Link(), lambda: 0.0, "p")
    pipe.stall(True)
    await pipe.server.send(b"late")
    runtime.call_at(runtime.now() + 3.0, pipe.stall, False)
    begin = runtime.now()
    assert await pipe.client.receive() == b"late"
    assert runtime.now() - begin == 3.0
    await asyncio.sleep(0)


def test_a_plan_survives_json() -> None:
    plans = [draw(seed) for seed in range(30)]
    assert [from_json(to_json(plan)) for plan in plans] == plans


def test_every_feature_is_drawn_and_left_out() -> None:
    drawn = [Swarm(seed).on for seed in range(300)]
    for name in FEATURES:
        assert 0 < sum(name in on for on in drawn) < 300, name


def _blames_the_second_cancel(plan: Plan) -> Outcome:
    cancels = sum(isinstance(step, Order) and step.name == "cancel" for person in plan.people for step in person.hands)
    bad = cancels >= 2 and any(person.choices.modality == "text" for person in plan.people)
    found = (Violation("X", "two cancels"),) if bad else ()
    return Outcome(seed=plan.seed, digest="", violations=found, counts={}, session_s=0.0, cpu_s=0.0)


def test_shrinking_leaves_what_the_failure_needs_and_nothing_else() -> None:
    noise = (
        Rest(ms=5),
        Order(name="cancel"),
        Order(name="item"),
        Order(name="cancel"),
        Rest(ms=9),
        Order(name="cancel"),
    )
    people = tuple(
        Person(name=name, hands=noise, voice=(Say(), Say()), arrives_ms=7, truncates=True) for name in ("a", "b")
    )
    plan = draw(1)
    choices = msgspec.structs.replace(people[1].choices, modality="text", silence_ms=64)
    plan = msgspec.structs.replace(plan, people=(people[0], msgspec.structs.replace(people[1], choices=choices)))
    small, outcome, runs = shrink(plan, judge=_blames_the_second_cancel)
    assert outcome.violations == (Violation("X", "two cancels"),)
    assert runs < 600
    (person,) = small.people
    assert person.hands == (Order(name="cancel"), Order(name="cancel"))
    assert (person.voice, person.truncates, person.arrives_ms) == ((), False, 0)
    assert person.choices == msgspec.structs.replace(type(choices)(), modality="text")
    with pytest.raises(ValueError, match="does not fail"):
        shrink(Plan(seed=3), judge=_blames_the_second_cancel)


def test_two_traces_are_the_same_but_for_the_names_of_things() -> None:
    one = [
        Entry(0.1, "ann", "in", b'{"id":"item_0123abcd"}'),
        Entry(0.2, "ann", "in", b'"item_0123abcd" "item_99999999"'),
    ]
    other = [
        Entry(0.1, "ann", "in", b'{"id":"item_ffffffff"}'),
        Entry(0.2, "ann", "in", b'"item_ffffffff" "item_11111111"'),
    ]
    assert difference(anonymous(one), anonymous(other)) is None
    swapped = [other[0], Entry(0.2, "ann", "in", b'"item_11111111" "item_ffffffff"')]
    assert "entry 1" in (difference(anonymous(one), anonymous(swapped)) or "")
    assert "one has 2 entries" in (difference(one, one[:1]) or "")


def test_fresh_seeds_belong_to_the_commit() -> None:
    assert fresh_seeds("abc", 5) == fresh_seeds("abc", 5)
    assert not set(fresh_seeds("abc", 5)) & set(fresh_seeds("abd", 5))


def test_a_long_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    state = tmp_path / "soak.json"
    whole = soak.soak(soak.load(state, 50), seeds=6)
    first = soak.soak(soak.load(state, 50), seeds=4)
    soak.save(first, state)
    rest = soak.soak(soak.load(state, 50), seeds=6)
    assert (rest.seeds, rest.next_seed, rest.counts, rest.failures) == (6, 56, whole.counts, whole.failures)
    with pytest.raises(ValueError, match="from seed 50"):
        soak.load(state, 51)


def test_coverage_names_what_never_happened() -> None:
    assert missing({name: 1 for name in EXPECTED[1:]}) == [EXPECTED[0]]
    assert table({"b": 2, "a": 1}).splitlines()[0] == f"never: {EXPECTED[0]}"


def test_the_commands(tmp_path: Path) -> None:
    runner = CliRunner()
    result = runner.invoke(sim_app, ["run", "--seeds", "2"])
    assert result.exit_code == 0, result.output
    assert "2 seeds from 0: 0 failed" in result.output
    result = runner.invoke(sim_app, ["soak", "--seeds", "2", "--from", "5", "--state", str(tmp_path / "s.json")])
    assert result.exit_code == 0, result.output
    kept = tmp_path / "kept.json"
    save(Regression(rule="B1", why="Seed 1.", plan=draw(1)), kept)
    assert load(kept).plan.keeps == ()
    result = runner.invoke(sim_app, ["replay", "1", "--plan", str(kept)])
    assert result.exit_code == 0, result.output
    assert "session.created" in result.output and f"digest {simulate(draw(1)).digest}" in result.output
    result = runner.invoke(sim_app, ["shrink", "1"])
    assert result.exit_code == 2
    assert "does not fail" in result.output


def test_a_replay_runs_its_plan_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[Plan] = []

    def counted(plan: Plan) -> tuple[World | None, list[Violation]]:
        runs.append(plan)
        return live(plan)

    monkeypatch.setattr(outcome, "live", counted)
    result = CliRunner().invoke(sim_app, ["replay", "1"])
    assert result.exit_code == 0, result.output
    assert runs == [draw(1)]
