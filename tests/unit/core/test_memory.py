"""An hour of talk leaves what five minutes leave: every container of the state, counted, for clients that never acknowledge.

Counts, not bytes of the process: whatever grows is found by its name.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable

import pytest

from duologue.config.session import ServerVad, SessionConfig, SessionPatch
from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.commands import (
    BargeIn,
    CancelResponse,
    CommitAudio,
    CreateItem,
    CreateResponse,
    InputItem,
    SignalTurn,
    UpdateSession,
)
from duologue.engine.duplex.core.items import Detached, ResumeRequested
from duologue.engine.duplex.plugin import ModelCapabilities
from duologue.engine.duplex.results import Listened, TurnEnded
from tests.unit.core.harness import CASCADE, MANUAL, NATIVE, PLAIN, SEMANTIC, VAD, World, audio, speech

RUNTIME = DuplexSessionRuntimeConfig(max_items_per_session=12, audio_delta_ms=400)
MINUTES_5, HOUR = 30, 360  # turns of ten seconds


def sizes(value: object, name: str = "s", found: dict[str, int] | None = None) -> dict[str, int]:
    """Length of every container reachable from the state, by its path; entries of one container are added up."""
    found = {} if found is None else found
    if isinstance(value, list | deque | dict | bytearray | bytes | tuple | set | str):
        found[name] = found.get(name, 0) + len(value)
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | deque | tuple):
        for entry in value:
            sizes(entry, f"{name}[]", found)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            sizes(getattr(value, field.name), f"{name}.{field.name}", found)
    return found


def say(world: World, script: str) -> None:
    world.say(script, frames=16)


def polite(world: World, number: int) -> None:
    say(world, "." * 16 + "S" * 32 + "." * 16)
    world.reply(f"Answer number {number % 10}.", 3_000, transcript="a question")
    say(world, "." * 240)


def interrupted(world: World, number: int) -> None:
    say(world, "S" * 32 + "." * 24)
    world.reply(f"Answer number {number % 10}.", 9_000, transcript="a question", end=number % 2 == 0)
    say(world, "." * 32 + "S" * 32 + "." * 24)
    world.reply("Sorry.", 1_000, transcript="stop")
    say(world, "." * 160)


def by_hand(world: World, number: int) -> None:
    for _ in range(3):
        world.append(audio("S" * 16))
        world.send(CommitAudio(create_response=False))
    if number % 3 == 0:
        world.send(CreateItem(item=InputItem(role="user", texts=("hello",)), previous_item_id="root"))
        world.send(CreateResponse())
        world.reply("Hello.", 500, transcript=None)
        world.send(CancelResponse())
    world.advance(10.0)


def never_answered(world: World, number: int) -> None:
    del number
    say(world, "S" * 32 + "." * 280)


def resident(world: World, number: int) -> None:
    say(world, "." * 16 + "S" * 32 + "." * 16)
    for _ in range(5):
        world.speak(speech("And so on. ", 400), request_id=next(iter(world.core.live_request_ids())))
        world.advance(0.16)
    world.speak(TurnEnded(model_turn_id=None), request_id=next(iter(world.core.live_request_ids())))
    world.send(BargeIn() if number % 4 == 0 else SignalTurn(name="hello"))
    say(world, "." * 200)
    world.speak(Listened())


def restless(world: World, number: int) -> None:
    """Settings change, the connection comes and goes, and nobody ever listens to the end."""
    world.send(UpdateSession(patch=SessionPatch(instructions=f"Be number {number % 10}.")))
    polite(world, number)
    world.apply(Detached())
    world.apply(ResumeRequested(control_id=f"c{number % 10}", expected_generation=world.core.generation))


LIVES: dict[str, tuple[SessionConfig, ModelCapabilities, Callable[[World, int], None]]] = {
    "polite": (VAD, CASCADE, polite),
    "semantic": (SEMANTIC, CASCADE, polite),
    "ack_only": (SessionConfig(turn_detection=ServerVad(), playback_commit_policy="ack_only"), CASCADE, polite),
    "interrupted": (VAD, CASCADE, interrupted),
    "by_hand": (MANUAL, PLAIN, by_hand),
    "by_hand_transcribed": (MANUAL, CASCADE, by_hand),
    "never_answered": (SessionConfig(turn_detection=ServerVad(create_response=False)), PLAIN, never_answered),
    "resident": (VAD, NATIVE, resident),
    "resident_by_itself": (MANUAL, NATIVE, resident),
    "restless": (VAD, CASCADE, restless),
}


@pytest.mark.parametrize("name", LIVES)
def test_an_hour_leaves_no_more_than_five_minutes(name: str) -> None:
    config, capabilities, turn = LIVES[name]
    world = World(config, capabilities=capabilities, runtime=RUNTIME, checked=False)
    after: list[dict[str, int]] = []
    for number in range(HOUR):
        turn(world, number)
        assert world.core.phase == "open", world.events[-3:]
        for log in (world.events, world.effects, world.aborted, world.released, world.controls):
            log.clear()
        del world.submits[:-1]
        if number + 1 in (MINUTES_5, HOUR):
            after.append(sizes(world.state))
    grown = {
        path: (after[0].get(path, 0), size)
        for path, size in after[1].items()
        if size > after[0].get(path, 0) * 1.05 + 8
    }
    assert not grown


def test_the_count_notices_what_grows() -> None:
    world = World(VAD)
    before = sizes(world.state)
    world.append(audio("S" * 30))
    world.send(CreateItem(item=InputItem(role="user", texts=("hello",))))
    after = sizes(world.state)
    assert after["s.history.items"] == before["s.history.items"] + 1
    assert after["s.audio.chunks[][]"] > before.get("s.audio.chunks[][]", 0)
