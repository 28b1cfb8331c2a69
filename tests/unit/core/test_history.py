"""The conversation: order, bounds, and how much of an answer counts as heard."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.commands import CreateItem, InputItem, RetrieveItem
from duologue.engine.duplex.core.heard import SpokenText
from duologue.engine.duplex.core.history import History, Item
from duologue.engine.duplex.events import ErrorRaised, ItemAdded, ItemRetrieved
from duologue.errors import ErrorCode
from tests.unit.core.harness import MANUAL, World


def entry(name: str, text: str = "x") -> Item:
    return Item(item_id=name, role="user", texts=(text,))


def spoken(text: str, ms: int, **fields: object) -> Item:
    """An assistant's item whose audio was sent whole, at the beginning of the line."""
    heard = SpokenText()
    heard.extend(text, ms * 24, 24_000, ())
    item = Item(item_id="a", role="assistant", has_audio=True, spoken=heard, base_ms=0.0, sent_ms=float(ms))
    for name, value in fields.items():
        setattr(item, name, value)
    return item


def order(history: History) -> str:
    return "".join(item.item_id for item in history.items)


# -- the list ------------------------------------------------------------------------------------------------------------


def test_field_F41_root_is_the_beginning_and_an_omitted_predecessor_the_end() -> None:
    history = History(10, 1_000)
    assert history.append(entry("a")) is None
    assert history.append(entry("b")) == "a"
    assert history.insert(entry("c"), "root") is None
    assert history.insert(entry("d"), "a") == "a"
    assert history.insert(entry("e"), None) == "b"
    assert order(history) == "cadbe"
    history.remove("a")
    assert order(history) == "cdbe" and history.get("a") is None and history.remove("a") is None
    with pytest.raises(KeyError):
        history.insert(entry("f"), "a")


@given(st.lists(st.sampled_from(["root", None, 0, 1, 2, 5]), max_size=30), st.integers(1, 6))
def test_the_newest_item_is_kept_whatever_the_bound(places: list[object], max_items: int) -> None:
    history = History(max_items, 1_000)
    for number, place in enumerate(places):
        name = f"i{number}"
        known = [item.item_id for item in history.items]
        after = known[place % len(known)] if isinstance(place, int) and known else None
        previous = history.insert(entry(name), "root" if place == "root" else after)
        assert history.get(name) is not None and len(history) <= max_items
        names = [item.item_id for item in history.items]
        at = names.index(name)
        assert previous == (names[at - 1] if at else None)
        assert [name for name in names if name != f"i{number}"] == [name for name in known if name in names]
    assert history.evicted == max(0, len(places) - max_items)


@pytest.mark.parametrize(("size", "kept"), [(9, 3), (10, 3), (11, 2)])
def test_the_oldest_are_left_out_of_a_prompt_that_is_too_long(size: int, kept: int) -> None:
    history = History(10, 30)
    for name in "abc":
        history.append(entry(name, name * size))
    assert [e.item_id for e in history.prompt()] == list("abc")[-kept:]


def test_a_prompt_ends_before_the_turn_it_is_for_and_skips_empty_items() -> None:
    history = History(10, 100)
    for name, text in (("a", "one"), ("b", ""), ("c", "three"), ("d", "four")):
        history.append(entry(name, text))
    assert [e.text for e in history.prompt(before="d")] == ["one", "three"]
    assert [e.text for e in history.prompt(before="gone")] == ["one", "three", "four"]


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_an_item_may_be_as_long_as_the_whole_prompt_and_no_longer(extra: int) -> None:
    world = World(MANUAL, runtime=DuplexSessionRuntimeConfig(max_history_chars=100))
    world.send(CreateItem(item=InputItem(item_id="i", role="user", texts=("x" * (100 + extra),)), event_id="e"))
    if extra > 0:
        error = world.last(ErrorRaised)
        assert (error.code, error.event_id, error.param) == (ErrorCode.INVALID_ITEM, "e", "item.content")
    else:
        assert world.last(ItemAdded).item.item_id == "i"


def test_an_item_put_first_into_a_full_conversation_is_there() -> None:
    world = World(MANUAL, runtime=DuplexSessionRuntimeConfig(max_items_per_session=2))
    for name in "abc":
        world.send(CreateItem(item=InputItem(item_id=name, role="user", texts=(name,)), previous_item_id="root"))
    world.send(RetrieveItem(item_id="c"))
    assert world.last(ItemRetrieved).item.item_id == "c" and not world.of(ErrorRaised)


# -- cuts ----------------------------------------------------------------------------------------------------------------


def test_without_an_interruption_all_of_it_was_heard() -> None:
    assert spoken("one two three", 1_000).heard_text() == "one two three"


@pytest.mark.parametrize(
    ("position", "heard"),
    [
        (-5.0, ""),
        (0.0, ""),
        (500.0, "one tw"),
        (999.0, "one two three"[:12]),
        (1_000.0, "one two three"),
        (5_000.0, "one two three"),
    ],
)
def test_an_interruption_cuts_at_the_listeners_position(position: float, heard: str) -> None:
    item = spoken("one two three", 1_000)
    item.cut_to(position)
    assert item.heard_text() == heard


def test_what_was_never_sent_was_never_heard() -> None:
    item = spoken("one two three", 1_000, base_ms=None, sent_ms=0.0)
    item.cut_to(9_999.0)
    assert item.heard_text() == ""
    part = spoken("one two three", 1_000, sent_ms=500.0)
    part.cut_to(9_999.0)
    assert part.heard_text() == "one tw"


def test_an_answer_that_counts_whole_is_cut_only_while_it_is_made() -> None:
    done = spoken("one two three", 1_000, commit_all=True, sent_whole=True)
    done.cut_to(500.0)
    assert done.heard_text() == "one two three"
    making = spoken("one two three", 1_000, commit_all=True, status="in_progress")
    making.cut_to(500.0)
    assert making.heard_text() == "one tw"


def test_with_acknowledgements_only_history_grows_by_them_alone() -> None:
    item = spoken("one two three", 1_000, ack_only=True)
    assert item.heard_text() == ""
    item.acked_ms = 500.0
    assert item.heard_text() == "one tw"
    item.hard_cut_ms = 300.0
    item.acked_ms = 1_000.0
    assert item.heard_text() == "one"


@given(st.floats(0, 2_000), st.floats(0, 2_000), st.lists(st.floats(0, 2_000), max_size=5), st.booleans())
def test_cuts_only_shrink(soft: float, hard: float, acks: list[float], ack_only: bool) -> None:
    """Invariant 18: whatever is acknowledged, a hard cut is the maximum."""
    item = spoken("one two three four five", 1_000, ack_only=ack_only)
    item.cut_to(soft)
    item.hard_cut_ms = hard
    limit = item.spoken.heard(int(min(hard, 1_000.0)))  # type: ignore[union-attr]
    for ack in acks:
        item.acked_ms = max(item.acked_ms, min(ack, item.sent_ms))
        item.soft_cut_ms = max(item.soft_cut_ms or 0.0, item.acked_ms)
        assert limit.startswith(item.heard_text()) or item.heard_text() == limit


def test_views_show_what_was_heard() -> None:
    item = spoken("one two three", 1_000)
    item.cut_to(500.0)
    (part,) = item.view().parts
    assert (part.transcript, part.duration_ms) == ("one tw", 500)  # type: ignore[union-attr]
    user = Item(item_id="u", role="user", has_audio=True, audio_ms=700)
    (part,) = user.view().parts
    assert (part.transcript, part.duration_ms) == (None, 700)  # type: ignore[union-attr]
