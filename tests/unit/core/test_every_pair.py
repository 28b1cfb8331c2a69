"""Every item in every situation: no exception, every invariant, documented errors, exactly one terminal of everything.

The table is the product of ``situations.py``; Hypothesis then tries what two and three items do to one another.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duologue.engine.duplex import commands as c
from duologue.engine.duplex.core.items import AudioAppended, CommandReceived, Item
from duologue.engine.duplex.events import ErrorRaised
from duologue.errors import ERRORS, Fault
from tests.unit.core.harness import World
from tests.unit.core.replies import REPLIES, check_reply, finish
from tests.unit.core.situations import SITUATIONS, every_item


def apply(world: World, item: Item) -> None:
    """One item with everything that must hold of it."""
    before, phase, errors = len(world.events), world.core.phase, len(world.of(ErrorRaised))
    held = world.state.audio.received_bytes
    world.apply(item)
    if isinstance(item, CommandReceived):
        check_reply(world, item.command, before, phase)
    if isinstance(item, AudioAppended) and phase != "open":
        assert world.state.audio.received_bytes == held
    for error in world.of(ErrorRaised)[errors:]:
        assert error.message.endswith(".") or error.message in ("no", "bad", "lost", "gone")
        if ERRORS[error.code].fault is Fault.CLIENT:
            assert isinstance(item, CommandReceived | AudioAppended) or error.event_id or phase == "open"


@pytest.mark.parametrize("name", SITUATIONS)
def test_every_item_in_every_situation(name: str) -> None:
    count = len(every_item(SITUATIONS[name]()))
    assert count > 90
    for index in range(count):
        world = SITUATIONS[name]()
        item = every_item(world)[index]
        try:
            apply(world, item)
            finish(world)
        except Exception as error:
            raise AssertionError(f"{name}: {type(item).__name__} ({index}): {item!r:.300}") from error


@settings(max_examples=400)
@given(st.sampled_from(list(SITUATIONS)), st.lists(st.integers(0, 10_000), min_size=2, max_size=4), st.floats(0.0, 1.0))
def test_items_one_after_the_other(name: str, choices: list[int], pause: float) -> None:
    world = SITUATIONS[name]()
    for choice in choices:
        items = every_item(world)
        apply(world, items[choice % len(items)])
        world.advance(pause)
    finish(world)


def test_every_kind_of_item_and_command_is_in_the_table() -> None:
    """A kind that is added later fails here until it is multiplied too."""
    from typing import get_args

    items = [item for make in SITUATIONS.values() for item in every_item(make())]
    assert {type(item) for item in items} == set(get_args(Item))
    assert {type(i.command) for i in items if isinstance(i, CommandReceived)} == set(get_args(c.DuplexCommand))
    assert set(REPLIES) == set(get_args(c.DuplexCommand))
