"""Ids that a client may not give to an item of its own: those that something under way goes by."""

from __future__ import annotations

from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.commands import (
    CommitAudio,
    CreateItem,
    CreateResponse,
    DeleteItem,
    InputItem,
    ResponseOptions,
)
from duologue.engine.duplex.events import (
    ErrorRaised,
    InputCommitted,
    InputTranscribed,
    ItemAdded,
    ResponseCreated,
    ResponseDone,
    SpeechStarted,
)
from duologue.engine.duplex.results import TurnEnded, UserTranscript
from duologue.errors import ErrorCode
from tests.unit.core.harness import MANUAL, VAD, World, audio, speech


def claim(world: World, item_id: str) -> None:
    world.send(CreateItem(item=InputItem(item_id=item_id, role="user", texts=("mine",)), event_id="E"))


def refused(world: World) -> bool:
    errors = [(error.code, error.event_id, error.param) for error in world.of(ErrorRaised)]
    assert errors in ([], [(ErrorCode.ITEM_EXISTS, "E", "item.id")])
    return bool(errors)


def test_the_id_of_the_turn_that_is_being_spoken() -> None:
    world = World(VAD)
    world.say("S" * 15)
    claim(world, world.last(SpeechStarted).item_id)
    assert refused(world)
    world.say("." * 16)
    world.reply("Hello.", 500)
    world.advance(2.0)
    (committed,) = world.of(InputCommitted)
    assert committed.previous_item_id is None and [done.status for done in world.of(ResponseDone)] == ["completed"]
    assert len(world.state.history) == 2


def test_the_id_of_a_turn_whose_words_are_still_awaited() -> None:
    world = World(MANUAL)
    world.append(audio("S" * 20))
    world.send(CommitAudio(create_response=True))
    item_id = world.last(InputCommitted).item.item_id
    world.send(DeleteItem(item_id=item_id))
    claim(world, item_id)
    assert refused(world)
    world.speak(UserTranscript(text="hi", final=True), speech("Hello.", 200), TurnEnded(), finished=True)
    world.advance(1.0)
    assert not world.of(InputTranscribed) and not world.of(ItemAdded)
    claim(world, item_id)
    assert world.last(ItemAdded).item.item_id == item_id


def test_the_id_of_an_answer_outside_the_conversation() -> None:
    world = World(MANUAL)
    world.send(CreateResponse(options=ResponseOptions(out_of_band=True, modality="text")))
    claim(world, world.last(ResponseCreated).item_id)
    assert refused(world)


def test_the_id_of_an_answer_that_history_forgot() -> None:
    world = World(MANUAL, runtime=DuplexSessionRuntimeConfig(max_items_per_session=2))
    world.append(audio("S" * 20))
    world.send_turn("Hello.", 5_000, end=False)
    for name in "abc":
        world.send(CreateItem(item=InputItem(item_id=name, role="user", texts=(name,))))
    claim(world, world.last(ResponseCreated).item_id)
    assert refused(world)
