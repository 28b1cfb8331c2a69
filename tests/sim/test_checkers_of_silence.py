"""The rule about the silence that keeps a resident model's clock: what is none of it, and what is too much."""

from __future__ import annotations

import msgspec
import pytest

from duologue.sim.plan import Rest, Say
from duologue.sim.world import World
from tests.sim.scenes import RESIDENT, plan, seen
from tests.sim.test_checkers import broken, lived


def _keep_silent(world: World, units: int, *, asking: bool) -> None:
    """One unit of silence that may ask for an answer, behind input, and so many more at a unit's pace."""
    planned = seen(world).planned
    last = [entry for entry in planned if entry.accepted][-1]
    planned.append(msgspec.structs.replace(last, silence=False))
    planned += [
        msgspec.structs.replace(last, at=last.at + 1.0 + number, silence=True, final=asking and number == 0)
        for number in range(1 + units)
    ]


@pytest.mark.parametrize("asking", [True, False])
@pytest.mark.parametrize("units", [7, 8, 9])
def test_a_unit_that_asks_for_an_answer_is_none_of_the_silence_that_is_counted(units: int, asking: bool) -> None:
    world = lived(plan(Say(), Rest(ms=2_000), deployment=RESIDENT))
    _keep_silent(world, units, asking=asking)
    assert ("B17" in broken(world)) == (units + (not asking) > RESIDENT.silence_units)
