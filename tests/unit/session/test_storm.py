"""Everything at once, in random order: whatever happens, every conversation is whole and nothing is left of it."""

from __future__ import annotations

import asyncio
import random

import msgspec
import pytest

from duologue.audio.format import AudioFormat
from duologue.config.session import SemanticVad, ServerVad, SessionConfig, SessionPatch, TurnDetectionPatch
from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.commands import (
    AckPlayback,
    AppendAudio,
    BargeIn,
    CancelInput,
    CancelResponse,
    ClearAudio,
    ClearOutput,
    CloseSession,
    CommitAudio,
    CreateItem,
    CreateResponse,
    DeleteItem,
    DuplexCommand,
    Heartbeat,
    InputItem,
    SignalTurn,
    TruncateItem,
    UpdateSession,
)
from duologue.engine.duplex.events import ItemAdded, ResponseCreated
from duologue.engine.duplex.messages import DetachSession, ResumeSession
from duologue.models.scripted import Script, ScriptedFault, ephemeral_pipeline, resident_pipeline, silence, tone
from duologue.sim.loop import VirtualRuntime, run
from tests.unit.session.world import FORMAT, RATE_HZ, Client, World, engine

CONFIGS = (
    SessionConfig(input_format=FORMAT, turn_detection=ServerVad()),
    SessionConfig(input_format=FORMAT, turn_detection=SemanticVad()),
    SessionConfig(input_format=FORMAT),
    SessionConfig(input_format=FORMAT, turn_detection=ServerVad(), output_modality="text"),
    SessionConfig(input_format=FORMAT, turn_detection=ServerVad(), playback_commit_policy="ack_only"),
)


def _audio(chance: random.Random) -> AppendAudio:
    duration_ms = chance.choice([0, 20, 100, 400, 1_500])
    loud = chance.random() < 0.6
    pcm = (
        tone(duration_ms, rate_hz=RATE_HZ, level=chance.randrange(3)) if loud else silence(duration_ms, rate_hz=RATE_HZ)
    )
    return AppendAudio(audio=pcm + b"\x01" * chance.randrange(2), force_barge_in=chance.random() < 0.05)


def _patch(chance: random.Random) -> SessionPatch:
    return chance.choice(
        [
            SessionPatch(instructions=str(chance.random())),
            SessionPatch(voice=chance.choice(["a", "refused"])),
            SessionPatch(turn_detection=None),
            SessionPatch(turn_detection=TurnDetectionPatch(type="server_vad", silence_duration_ms=200)),
            SessionPatch(input_format=AudioFormat("pcm16", chance.choice([16_000, 24_000]))),
            SessionPatch(output_modality=chance.choice(["text", "audio"])),
        ]
    )


def _command(chance: random.Random, client: Client) -> DuplexCommand:
    items = [event.item.item_id for event in client.of(ItemAdded)] or ["nothing"]
    responses = [event.response_id for event in client.of(ResponseCreated)] or ["nothing"]
    return chance.choice(
        [
            CancelResponse(),
            CancelResponse(response_id=chance.choice(responses)),
            BargeIn(),
            CancelInput(),
            ClearAudio(),
            ClearOutput(),
            ClearOutput(response_id=chance.choice(responses)),
            CommitAudio(create_response=chance.choice([True, False, None])),
            CreateResponse(),
            CreateItem(item=InputItem(role="user", texts=("words",))),
            DeleteItem(item_id=chance.choice([*items, f"item_{chance.choice(responses)}"])),
            TruncateItem(item_id=f"item_{chance.choice(responses)}", audio_end_ms=chance.randrange(2_000)),
            AckPlayback(played_ms=chance.randrange(2_000), response_id=chance.choice(responses)),
            Heartbeat(),
            SignalTurn(name=chance.choice(["cancel", "barge_in", "close", "anything"])),
            UpdateSession(patch=_patch(chance)),
        ]
    )


async def _life(world: World, chance: random.Random, index: int, rounds: int) -> None:
    """Sessions one after the other, each with a random life and a random end."""
    for number in range(2):
        session_id = f"s{index}-{number}"
        result = world.try_open(chance.choice(CONFIGS), session_id=session_id, resumable=chance.random() < 0.5)
        if result.error_code is not None:
            del world.clients[session_id]
            await asyncio.sleep(1.0)
            continue
        client = world.clients[session_id]
        for _ in range(rounds):
            await asyncio.sleep(chance.choice([0.0, 0.001, 0.02, 0.3, 1.0]))
            client.send(_audio(chance) if chance.random() < 0.6 else _command(chance, client))
            if chance.random() < 0.05:
                _connection(world, chance, session_id)
        match chance.randrange(4):
            case 0:
                world.close(client)
            case 1:
                client.send(CloseSession())
            case 2:
                world.engine.post(DetachSession(session_id=session_id, control_id=world.control_id()))
            case _:
                pass
        await asyncio.sleep(chance.random())


def _connection(world: World, chance: random.Random, session_id: str) -> None:
    if chance.random() < 0.5:
        world.engine.post(DetachSession(session_id=session_id, control_id=world.control_id()))
    world.engine.post(
        ResumeSession(session_id=session_id, control_id=world.control_id(), expected_generation=chance.randrange(3))
    )


async def _weather(world: World, chance: random.Random) -> None:
    """Replicas die, refuse aborts for a while, or take pieces slowly."""
    for _ in range(4):
        await asyncio.sleep(chance.random() * 4.0)
        stage = chance.choice(world.pipeline.clients)
        replica = stage[-1]
        match chance.randrange(4):
            case 0:
                replica.die(RuntimeError("weather"))
            case 1:
                replica.abort = _refuse  # type: ignore[method-assign,assignment]
                await asyncio.sleep(chance.random() * 2.0)
                del replica.abort
            case 2:
                replica.update = _slow(replica.update, chance)  # type: ignore[method-assign]
            case _:
                replica.submit = _slow(replica.submit, chance)  # type: ignore[method-assign]


async def _refuse(request_ids: object) -> None:
    del request_ids
    raise RuntimeError("weather")


def _slow(call: object, chance: random.Random) -> object:
    delay_s = chance.choice([0.0, 0.001, 0.2])

    async def slow(request: object) -> None:
        await asyncio.sleep(delay_s)
        await call(request)  # type: ignore[operator]

    return slow


def _script(chance: random.Random) -> Script:
    faults = [ScriptedFault(stage_id=stage, kind=kind, when="bad") for stage in range(3) for kind in ("raise", "error")]
    return Script(
        transcripts=("good", "bad", "mm-hm"),
        sentences=chance.randrange(1, 4),
        sentence_ms=chance.choice([100, 700]),
        think_s=chance.choice([0.0, 0.3]),
        streams_input=chance.random() < 0.5,
        answer_units=chance.randrange(1, 12),
        faults=(chance.choice(faults),) if chance.random() < 0.5 else (),
    )


async def _storm(runtime: VirtualRuntime, seed: int) -> list[object]:
    chance = random.Random(seed)
    build = resident_pipeline if seed % 3 == 2 else ephemeral_pipeline
    limits = msgspec.structs.replace(
        DuplexSessionRuntimeConfig(),
        max_sessions=3,
        reaper_interval_s=1.0,
        disconnect_grace_s=2.0,
        submit_timeout_s=5.0,
        send_ahead_ms=chance.choice([None, 400]),
    )
    pipeline = build(runtime, _script(chance), replicas=1 + seed % 2)
    async with engine(runtime, pipeline, config=limits) as world:
        lives = [_life(world, random.Random(f"{seed}:{index}"), index, 25) for index in range(4)]
        await asyncio.gather(*lives, _weather(world, chance))
        await asyncio.sleep(20.0)
        return [(client.times, client.events) for client in world.clients.values()]


@pytest.mark.parametrize("seed", range(40))
def test_after_any_storm_nothing_is_left_and_every_conversation_is_whole(seed: int) -> None:
    run(lambda runtime: _storm(runtime, seed), seed=seed, shuffle=seed % 2 == 1, limit_s=600.0)


def test_the_same_storm_gives_the_same_events() -> None:
    first, second = (run(lambda runtime: _storm(runtime, 7), seed=7, shuffle=True) for _ in range(2))
    assert first == second
