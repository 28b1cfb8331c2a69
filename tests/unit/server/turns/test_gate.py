"""Places: order, bounds, and that each is given back exactly once, whenever its owner goes."""

from __future__ import annotations

import asyncio
import random

import pytest

from duologue.clock import Runtime
from duologue.config.turns import TurnLimits
from duologue.errors import AdmissionFault, ErrorCode
from duologue.server.turns.gate import Gate, Place
from duologue.sim.loop import virtual


async def run(place: Place, name: str, log: list[str], seconds: float = 1.0) -> None:
    async with place.running():
        log.append(name)
        await asyncio.sleep(seconds)


@virtual(limit_s=60)
async def test_a_turn_that_comes_while_its_owner_goes_is_passed_on() -> None:
    gate = Gate(TurnLimits(max_running=1))
    log: list[str] = []
    async with gate.place() as place:
        first, second, third = (asyncio.ensure_future(run(place, name, log)) for name in "abc")
        await asyncio.sleep(0.5)
        await asyncio.sleep(0.5)  # the first is leaving in this very turn of the loop
        second.cancel()
        await asyncio.gather(first, third)
        assert log == ["a", "c"]
    assert (gate.places, gate.running) == (0, 0)


@virtual(limit_s=60)
async def test_a_turn_that_was_given_to_somebody_cancelled_is_not_lost() -> None:
    gate = Gate(TurnLimits(max_running=1))
    await gate.enter()
    waiting = asyncio.ensure_future(gate.enter())
    await asyncio.sleep(0)
    gate.leave()  # the turn is given ...
    waiting.cancel()  # ... before its owner could take it
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert gate.running == 0
    await gate.enter()
    assert gate.running == 1


@virtual(limit_s=600)
async def test_whatever_happens_nothing_is_left(runtime: Runtime) -> None:
    for seed in range(30):
        chance = random.Random(seed)
        gate = Gate(TurnLimits(max_running=3, max_waiting=4))
        running = most = refused = 0

        async def one(gate: Gate = gate, chance: random.Random = chance) -> None:
            nonlocal running, most, refused
            await asyncio.sleep(chance.random())
            try:
                async with gate.place() as place:
                    place.hold(chance.randrange(1000))
                    async with place.running():
                        running += 1
                        most = max(most, running)
                        try:
                            await asyncio.sleep(chance.random())
                        finally:
                            running -= 1
            except AdmissionFault:
                refused += 1

        tasks = [asyncio.ensure_future(one()) for _ in range(30)]
        for task in tasks:
            if chance.random() < 0.4:
                runtime.call_at(runtime.now() + 2 * chance.random(), task.cancel)
        await asyncio.wait(tasks)
        assert (gate.places, gate.running, gate.held_bytes) == (0, 0, 0)
        assert most <= 3
        assert not [task for task in tasks if not task.cancelled() and task.exception() is not None]


@virtual(limit_s=600)
async def test_so_many_requests_in_a_span_and_no_more(runtime: Runtime) -> None:
    gate = Gate(TurnLimits(requests_per_minute=60, request_burst=3), runtime.now)

    async def knock() -> bool:
        try:
            async with gate.place():
                return True
        except AdmissionFault as fault:
            assert fault.code is ErrorCode.RATE_LIMITED
            assert "the next one is in 1.0 s" in fault.message
            return False

    assert [await knock() for _ in range(4)] == [True, True, True, False]
    await asyncio.sleep(1.0)
    assert [await knock() for _ in range(2)] == [True, False]
    await asyncio.sleep(300.0)
    assert [await knock() for _ in range(4)] == [True, True, True, False]
    assert gate.places == 0


def test_a_rate_may_be_without_a_limit_but_not_nothing() -> None:
    gate = Gate(TurnLimits(requests_per_minute=None, request_burst=1), lambda: 0.0)
    assert gate._allowance.take(0.0) and gate._allowance.take(0.0)
    for values in ({"requests_per_minute": 0}, {"request_burst": 0}):
        with pytest.raises(ValueError, match=f"{next(iter(values))} must be greater than 0"):
            TurnLimits(**values)
