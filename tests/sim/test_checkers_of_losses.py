"""Rules about the loss of a replica: what it excuses is none of a violation, and beside it the rule still bites."""

from __future__ import annotations

import msgspec
import pytest

from duologue.engine.duplex import events
from duologue.sim.plan import Death, Plan, Rest, Say, Until
from duologue.sim.world import World
from tests.sim.scenes import CALM, RESIDENT, TALK, find, plan, seen, told
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


LOST = msgspec.structs.replace(
    plan(Say(), Until(moment="audio"), Rest(ms=5_000), deployment=msgspec.structs.replace(CALM, sentences=(3, 3))),
    deaths=(Death(stage=2, at_ms=1_300),),
)
NOTHING: frozenset[str] = frozenset()


def _lost() -> tuple[World, float, float]:
    """An answer is lost while it is said; also when that was, and when there was another replica."""
    world = lived(LOST)
    recovered = told(world)[find(world, events.SessionRecovered)]
    (death,) = seen(world).deaths
    done = told(world)[find(world, events.ResponseDone)]
    assert isinstance(done.event, events.ResponseDone) and done.event.status == "failed"
    assert done.at == death[0] < recovered.at
    return world, death[0], recovered.at


def test_the_loss_of_a_replica_that_held_nothing_is_nobodys_loss() -> None:
    world, lost_at, _ = _lost()
    seen(world).deaths[:] = [(lost_at, NOTHING)]
    assert "D10" in broken(world)
    (last, *_) = (entry for entry in reversed(seen(world).output) if entry.stage == 1)
    seen(world).output.append(msgspec.structs.replace(last, at=lost_at))  # and found nobody to hand it to
    assert "D10" not in broken(world)


def test_who_is_recovered_as_the_next_replica_dies_may_have_lost_the_one_before() -> None:
    world, lost_at, recovered_at = _lost()
    held = seen(world).deaths[0][1]
    seen(world).deaths[:] = [(lost_at, held), (recovered_at, NOTHING)]
    assert "D10" not in broken(world)
    seen(world).deaths[:] = [(lost_at - 0.1, NOTHING), (recovered_at, NOTHING)]
    assert "D10" in broken(world)


@pytest.mark.parametrize("deleted", [True, False])
def test_what_was_begun_and_lost_is_said_again_only_where_the_client_deleted_it(deleted: bool) -> None:
    world, _, _ = _lost()
    created, done = find(world, events.ResponseCreated), find(world, events.ResponseDone)
    first = told(world)[created].event
    assert isinstance(first, events.ResponseCreated)
    again = msgspec.structs.replace(first, response_id="again", item_id="item_again", epoch=1)
    entries = (
        [again, events.ItemDeleted(item_id=first.item_id)]
        if not deleted
        else [events.ItemDeleted(item_id=first.item_id), again]
    )
    at = find(world, events.SessionRecovered) + 1
    assert done < at
    told(world)[at:at] = [msgspec.structs.replace(told(world)[done], event=event) for event in entries]
    assert ("D9" in broken(world)) is not deleted
