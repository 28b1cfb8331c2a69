"""Pictures in a user's items: only for a model that takes them, within bounds."""

from __future__ import annotations

import msgspec
import pytest

from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.commands import (
    CreateItem,
    CreateResponse,
    DeleteItem,
    InputItem,
    ItemReference,
    ResponseOptions,
)
from duologue.engine.duplex.events import ErrorRaised, ImagePart, ItemAdded, ResponseCreated, TextPart
from duologue.engine.duplex.plugin import ModelCapabilities
from duologue.errors import ErrorCode
from duologue.outputs import Image
from tests.unit.core.harness import CASCADE, MANUAL, World

SEES = msgspec.structs.replace(CASCADE, takes_images=True)


def image(size: int = 100) -> Image:
    head = "data:image/png;base64,"
    return Image(head + "A" * (size - len(head)), "low")


def show(world: World, *images: Image, text: str = "What is this?") -> None:
    world.send(CreateItem(item=InputItem(role="user", texts=(text,), images=images), event_id="e"))


def test_a_picture_reaches_the_model_and_is_not_shown_again() -> None:
    world = World(MANUAL, capabilities=SEES)
    show(world, image())
    assert world.last(ItemAdded).item.parts == (TextPart(text="What is this?"), ImagePart(detail="low"))
    world.send(CreateResponse())
    (entry,) = world.submits[-1].history
    assert (entry.text, entry.images, entry.message.images) == ("What is this?", (image(),), (image(),))


def test_a_model_that_takes_none_is_given_none() -> None:
    world = World(MANUAL)
    show(world, image())
    error = world.last(ErrorRaised)
    assert (error.code, error.event_id, error.param) == (ErrorCode.IMAGES_UNSUPPORTED, "e", "item.content")
    assert not world.of(ItemAdded)


@pytest.mark.parametrize(("size", "fits"), [(999, True), (1_000, True), (1_001, False)])
def test_so_large_may_the_pictures_of_an_item_be(size: int, fits: bool) -> None:
    world = World(MANUAL, capabilities=SEES, runtime=DuplexSessionRuntimeConfig(max_image_bytes_per_item=1_000))
    show(world, image(400), image(size - 400))
    assert bool(world.of(ItemAdded)) is fits
    assert [error.code for error in world.of(ErrorRaised)] == ([] if fits else [ErrorCode.INVALID_ITEM])


@pytest.mark.parametrize(("count", "fits"), [(7, True), (8, True), (9, False)])
def test_so_many_pictures_may_an_item_have(count: int, fits: bool) -> None:
    world = World(MANUAL, capabilities=SEES)
    show(world, *[image()] * count)
    assert bool(world.of(ItemAdded)) is fits


@pytest.mark.parametrize(("size", "fits"), [(499, True), (500, True), (501, False)])
def test_so_large_may_the_pictures_of_a_conversation_be(size: int, fits: bool) -> None:
    limits = DuplexSessionRuntimeConfig(max_image_bytes_per_item=1_000, max_image_bytes_per_session=1_000)
    world = World(MANUAL, capabilities=SEES, runtime=limits)
    show(world, image(500))
    first = world.last(ItemAdded).item.item_id
    show(world, image(size))
    assert len(world.of(ItemAdded)) == (2 if fits else 1)
    if not fits:
        assert world.last(ErrorRaised).code is ErrorCode.INPUT_BACKPRESSURE
        world.send(DeleteItem(item_id=first))
        show(world, image(size))
        assert len(world.of(ItemAdded)) == 2


@pytest.mark.parametrize(
    ("capabilities", "size", "code"),
    [(CASCADE, 100, ErrorCode.IMAGES_UNSUPPORTED), (SEES, 1_001, ErrorCode.INVALID_ITEM), (SEES, 1_000, None)],
)
def test_pictures_of_the_input_of_one_response_are_judged_alike(
    capabilities: ModelCapabilities, size: int, code: ErrorCode | None
) -> None:
    limits = DuplexSessionRuntimeConfig(max_image_bytes_per_item=1_000)
    world = World(MANUAL, capabilities=capabilities, runtime=limits)
    given = (
        InputItem(role="user", texts=("Look.",)),
        InputItem(role="user", texts=("What is this?",), images=(image(size),)),
    )
    world.send(CreateResponse(options=ResponseOptions(input=given), event_id="e"))
    errors = [(error.code, error.event_id, error.param) for error in world.of(ErrorRaised)]
    assert errors == ([] if code is None else [(code, "e", "response.input[1].content")])
    assert bool(world.of(ResponseCreated)) is (code is None)


@pytest.mark.parametrize(("times", "fits"), [(1, True), (2, True), (3, False)])
def test_so_large_may_the_pictures_of_one_prompt_be(times: int, fits: bool) -> None:
    limits = DuplexSessionRuntimeConfig(max_image_bytes_per_session=1_000)
    world = World(MANUAL, capabilities=SEES, runtime=limits)
    show(world, image(500))
    named = ItemReference(world.last(ItemAdded).item.item_id)
    world.send(CreateResponse(options=ResponseOptions(input=(named,) * times), event_id="e"))
    errors = [(error.code, error.event_id, error.param) for error in world.of(ErrorRaised)]
    assert errors == ([] if fits else [(ErrorCode.INVALID_ITEM, "e", "response.input")])
    assert bool(world.of(ResponseCreated)) is fits


@pytest.mark.parametrize(("size", "fits"), [(999, True), (1_000, True), (1_001, False)])
def test_the_pictures_of_the_conversation_leave_room_for_those_of_an_input_that_takes_its_place(
    size: int, fits: bool
) -> None:
    limits = DuplexSessionRuntimeConfig(max_image_bytes_per_item=600, max_image_bytes_per_session=1_000)
    world = World(MANUAL, capabilities=SEES, runtime=limits)
    show(world, image(600))
    given = [InputItem(role="user", texts=("Look.",), images=(image(part),)) for part in (500, size - 500)]
    world.send(CreateResponse(options=ResponseOptions(input=tuple(given)), event_id="e"))
    errors = [(error.code, error.param) for error in world.of(ErrorRaised)]
    assert errors == ([] if fits else [(ErrorCode.INVALID_ITEM, "response.input")])
    assert bool(world.of(ResponseCreated)) is fits
