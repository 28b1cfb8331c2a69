"""Rules about the loss of a replica: what it excuses is none of a violation, and beside it the rule still bites."""

from __future__ import annotations

import msgspec
import pytest

from duologue.engine.duplex import events
from duologue.sim.plan import Plan, Rest, Say
from duologue.sim.world import World
from tests.sim.scenes import RESIDENT, TALK, find, plan, told
from tests.sim.test_checkers import broken, lived


def _told_in_the_next_epoch(world: World) -> int:
    created = find(world, events.ResponseCreated, 0)
    entry = told(world)[created]
    assert isinstance(entry.event, events.ResponseCreated)
    later = msgspec.structs.replace(entry.event, epoch=entry.event.epoch + 1)
    told(world)[created] = msgspec.structs.replace(entry, event=later)
    return created


@pytest.mark.parametrize("scene", [TALK, plan(Say(), Rest(ms=2_000), deployment=RESIDENT)])
def test_what_was_made_before_a_loss_may_be_said_behind_it_and_nothing_else_of_an_earlier_epoch(scene: Plan) -> None:
    world = lived(scene)
    created = _told_in_the_next_epoch(world)
    assert "D2" in broken(world)
    recovered = events.SessionRecovered(epoch=1, placement=1)
    told(world).insert(created, msgspec.structs.replace(told(world)[created], event=recovered))
    assert "D2" not in broken(world)
    told(world)[created] = msgspec.structs.replace(
        told(world)[created], event=msgspec.structs.replace(recovered, epoch=2)
    )
    assert "D2" in broken(world)
