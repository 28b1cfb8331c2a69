"""The checker that judges every test of a connection sees what is wrong."""

from __future__ import annotations

import pytest

from tests.unit.server.driver import World, resumable
from tests.unit.server.fake_engine import answer
from tests.unit.server.reading import found
from tests.unit.server.test_resume import opened, resume


def talked() -> World:
    """A session that was resumed after its third event."""
    world = World()
    first = opened(world)
    session_id, token = resumable(first)
    first.say(*answer("r", "i"))
    first.drop()
    resume(world, session_id, token, last=3)
    return world


def test_what_is_in_order_is_not_complained_about() -> None:
    world = talked()
    assert world.clients[1].types[0] == "session.resumed" and len(world.clients[1].frames) > 3
    assert found(world.clients) == []


def test_a_frame_that_is_missing_after_a_resume_is_seen() -> None:
    world = talked()
    missing = world.clients[1].frames.pop(2)
    assert any(found(world.clients))
    world.clients[1].frames.insert(2, missing)


def test_a_number_that_means_another_event_than_before_is_seen() -> None:
    world = talked()
    frame = world.clients[1].frames[1]
    before, frame["event_id"] = frame["event_id"], "another"
    assert any("another than the first time" in text for text in found(world.clients))
    frame["event_id"] = before


@pytest.mark.parametrize("url", ["/v1/realtime?model=fake", "/v1/duplex?model=fake"])
def test_a_frame_that_follows_the_end_of_its_response_is_seen(url: str) -> None:
    """In every dialect."""
    world = World()
    client = world.connect(url)
    client.say(*answer("r", "i"))
    assert found(world.clients) == []
    ends = client.types.index("response.done")
    early = client.frames.pop(ends)
    client.frames.insert(client.types.index("response.output_item.done"), early)
    assert any("done before its item was" in text for text in found(world.clients))
    client.frames.remove(early)
    client.frames.insert(ends, early)
