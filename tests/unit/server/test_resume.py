"""Taking a session over: credentials, replay, gaps, and two connections that want the same session."""

from __future__ import annotations

import asyncio
import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex import events, messages
from duologue.engine.messages import EngineQueueMessage
from duologue.errors import ClientFault, ErrorCode
from duologue.models.scripted import ephemeral_pipeline
from duologue.server.engine import SessionSink
from duologue.server.registry import ConnectionLimits
from duologue.sim.loop import VirtualRuntime, run
from tests.unit.server.driver import Client, World, asked, resumable
from tests.unit.server.fake_engine import FakeEngine, answer, audio, created, done
from tests.unit.session import world as session

URL = "/v1/duplex?resume=1"


def opened(world: World) -> Client:
    client = world.connect("/v1/duplex")
    client.send("session.update", session={})
    return client


def resume(world: World, session_id: str, token: str, last: int = 0, key_id: str = "") -> Client:
    client = world.connect(URL, key_id)
    client.send(
        "session.resume", session_id=session_id, resume_token=token, last_received_server_event_seq=last, event_id="R"
    )
    return client


def numbers(client: Client) -> list[int]:
    return [frame["server_event_seq"] for frame in client.frames if "server_event_seq" in frame]


def test_frames_are_numbered_without_gaps_from_one() -> None:
    client = opened(World())
    client.say(*answer("r", "i"))
    assert "server_event_seq" not in client.frames[0]
    assert numbers(client) == list(range(1, len(client.frames)))
    assert {frame["session_id"] for frame in client.frames} == {client.session_id}


def test_behaviour_20_resume_continues_where_it_stopped() -> None:
    world = World()
    first = opened(world)
    first.say(*answer("r", "i"))
    session_id, token = resumable(first)
    first.drop()
    assert world.engine.only.detached
    second = resume(world, session_id, token, last=4)
    welcome = second.frames[0]
    assert (welcome["type"], welcome["generation"]) == ("session.resumed", 1)
    assert welcome["session"]["session_id"] == session_id
    assert welcome["resume_token"] != token
    assert not world.engine.only.detached
    assert numbers(second) == list(range(5, len(first.frames)))
    assert [f for f in second.frames if "server_event_seq" in f] == first.frames[5:]


def test_behaviour_20_resume_what_happened_meanwhile_follows_the_replay() -> None:
    world = World()
    first = opened(world)
    first.say(created("r", "i"))
    session_id, token = resumable(first)
    seen = numbers(first)[-1]
    first.drop()
    world.engine.say(session_id, done("r", "i", "", status="cancelled", reason="turn_detected"))
    second = resume(world, session_id, token, last=seen - 1)
    assert second.types == ["session.resumed", "response.created", "response.done", "rate_limits.updated"]
    assert numbers(second) == [seen, seen + 1, seen + 2]


def test_a_cancel_while_detached_removes_what_was_not_sent() -> None:
    world = World()
    first = opened(world)
    first.say(created("r", "i"))
    session_id, token = resumable(first)
    seen = numbers(first)[-1]
    first.drop()
    world.engine.say(session_id, audio("r", "i", text="Gone"))
    world.engine.invalidate(session_id, "r")
    world.engine.say(session_id, done("r", "i", "", status="cancelled", reason="turn_detected"))
    second = resume(world, session_id, token, last=seen)
    assert second.types == ["session.resumed", "response.done", "rate_limits.updated"]


def test_behaviour_20_resume_the_old_token_is_worthless_afterwards() -> None:
    world = World()
    first = opened(world)
    session_id, token = resumable(first)
    first.drop()
    second = resume(world, session_id, token)
    second.drop()
    third = resume(world, session_id, token)
    assert third.frames[0]["error"]["code"] == "invalid_resume_token"
    assert third.frames[0]["error"]["event_id"] == "R"
    assert third.closed is not None
    fourth = resume(world, session_id, second.frames[0]["resume_token"])
    assert fourth.frames[0]["generation"] == 2


def test_a_resume_of_nothing_or_with_another_key_is_refused() -> None:
    world = World()
    session_id, token = resumable(opened(world))
    assert resume(world, "duplex-0", token).frames[0]["error"]["code"] == "session_resume_expired"
    assert resume(world, session_id, token, key_id="x").frames[0]["error"]["code"] == "unsupported_session_resume"
    ga = world.connect("/v1/realtime")
    assert resume(world, ga.session_id, token).frames[0]["error"]["code"] == "unsupported_session_resume"


def test_a_resume_that_is_not_the_first_message_is_refused() -> None:
    world = World()
    client = opened(world)
    session_id, token = resumable(client)
    (error,) = client.send("session.resume", session_id=session_id, resume_token=token)
    assert error["error"]["code"] == "unsupported_session_resume"
    assert client.closed is None


def test_behaviour_20_resume_tells_the_old_socket_once_and_closes_it() -> None:
    world = World()
    old = opened(world)
    session_id, token = resumable(old)
    new = resume(world, session_id, token, last=numbers(old)[-1])
    old.pump()
    assert old.types.count("session.replaced") == 1
    assert old.frames[-1]["generation"] == 0
    assert old.closed is not None and old.closed.code == 1000
    old.drop()
    assert "DetachSession" not in asked(world)
    assert [frame["type"] for frame in new.say(*answer("r", "i"))][-2:] == ["response.done", "rate_limits.updated"]


def test_two_resumes_race_and_one_wins() -> None:
    world = World()
    first = opened(world)
    session_id, token = resumable(first)
    first.drop()
    world.answers = False
    second, third = resume(world, session_id, token), resume(world, session_id, token)
    world.answer()
    world.answer()
    assert second.types[0] == "session.resumed"
    assert third.frames[0]["error"]["code"] == "session_resume_conflict"
    third.drop()
    assert not world.engine.only.detached
    assert second.closed is None


def test_field_F02_an_abandoned_takeover_leaves_the_old_socket_the_owner() -> None:
    world = World()
    old = opened(world)
    session_id, token = resumable(old)
    world.answers = False
    new = resume(world, session_id, token)
    new.drop()
    world.answer()
    assert not world.waiting
    assert old.closed is None
    assert old.say(*answer("r", "i"))
    assert not world.engine.only.detached
    # The owner's own loss is then noticed under the new generation, and its token still serves.
    world.answers = True
    old.drop()
    last = world.engine.asked[-1]
    assert isinstance(last, messages.DetachSession) and last.expected_generation == 1
    assert resume(world, session_id, token).types[0] == "session.resumed"


class RealEngine(FakeEngine):
    """The same port before a real engine, which expires the sessions that count as detached."""

    def __init__(self, world: session.World, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.world = world
        self.sinks: dict[str, SessionSink] = {}
        take = session.World.take

        def told(world: session.World, message: EngineQueueMessage) -> None:
            take(world, message)
            if isinstance(message, messages.SessionEventMessage) and message.session_id in self.sinks:
                self.sinks[message.session_id](message)

        monkeypatch.setattr(session.World, "take", told)

    def post(self, message: EngineQueueMessage) -> None:
        self.world.engine.post(message)

    async def control(self, message: messages.ControlMessage) -> object:
        self.asked.append(message)
        self.world.engine.post(message)
        result = self.world.results[message.control_id]
        if result.error_code is not None:
            raise ClientFault(ErrorCode(result.error_code), result.error_message)
        return result.value

    def subscribe(self, session_id: str, sink: SessionSink) -> None:
        self.sinks[session_id] = sink

    def unsubscribe(self, session_id: str) -> None:
        self.sinks.pop(session_id, None)


@pytest.mark.parametrize("abandoned", ["before the reply", "after the reply"])
def test_field_F02_who_stays_the_owner_outlives_the_grace_period(
    abandoned: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A goes on sending sound and heartbeats for several times as long, over a real engine: it is served to the end.

    If B had its reply when it was lost, A was told that it was superseded and nobody is served: then the session expires.
    """

    async def main(runtime: VirtualRuntime) -> None:
        limits = DuplexSessionRuntimeConfig(disconnect_grace_s=3.0, reaper_interval_s=1.0)
        async with session.engine(runtime, ephemeral_pipeline(runtime), config=limits) as behind:
            world = World(RealEngine(behind, monkeypatch))
            old = opened(world)
            session_id, token = resumable(old)
            world.answers = False
            new = resume(world, session_id, token)
            if abandoned == "before the reply":
                new.drop()
            while world.waiting:
                world.answer()  # and what follows from the answer
            world.answers = True
            old.pump()
            if abandoned == "after the reply":
                assert old.types[-1] == "session.replaced" and old.closed is not None
                new.drop()
            for beat in range(150):
                await asyncio.sleep(0.1)
                world.now += 0.1
                if old.closed is None:
                    old.send("input_audio_buffer.append", audio=base64.b64encode(bytes(3_200)).decode())
                    (beaten,) = old.send("session.heartbeat", event_id=f"beat-{beat}")
                    assert beaten["type"] == "session.heartbeat_ack"
            (told,) = [client for client in behind.clients.values() if client.session_id == session_id]
            if abandoned == "after the reply":
                assert [type(event) for event in told.terminals] == [events.SessionExpired]
                return
            assert told.terminals == [] and "DetachSession" not in asked(world)
            old.drop()
            await asyncio.sleep(20.0)
            assert [type(event) for event in told.terminals] == [events.SessionExpired]

    run(main)


def test_behaviour_20_resume_that_is_abandoned_leaves_the_session_detached() -> None:
    world = World()
    first = opened(world)
    session_id, token = resumable(first)
    first.drop()
    world.answers = False
    resume(world, session_id, token).drop()
    world.answer()
    world.answer()
    assert world.engine.only.detached


def test_acknowledged_frames_are_forgotten_and_impossible_ones_refused() -> None:
    world = World()
    client = opened(world)
    client.say(*answer("r", "i"))
    journal = world.hub.sessions[0].journal
    assert journal is not None
    held = journal.held_bytes
    assert client.send("session.event_ack", server_event_seq=numbers(client)[-1]) == []
    assert 0 == journal.held_bytes < held
    (error,) = client.send("session.event_ack", server_event_seq=1_000, event_id="A")
    assert (error["error"]["code"], error["error"]["event_id"]) == ("invalid_event_ack", "A")


def test_field_F26_an_overflowing_journal_is_said_and_nothing_is_replayed_around_the_gap() -> None:
    world = World(limits=ConnectionLimits(journal_bytes=3_000))
    first = opened(world)
    first.say(*answer("r", "i"))
    session_id, token = resumable(first)
    head = numbers(first)[-1]
    first.drop()
    second = resume(world, session_id, token, last=1)
    assert second.types == ["session.resumed", "session.resync_required"]
    gap = second.frames[1]
    assert (gap["reason"], gap["next_server_event_seq"]) == ("journal_overflow", head + 1)
    second.say(*answer("q", "j"))
    assert numbers(second)[0] == head + 1


@pytest.mark.parametrize(("journal_bytes", "wait_s"), [(1_000_000, 61.0), (700, 0.0)])
def test_field_F26_numbers_go_on_after_the_journal_was_evicted(journal_bytes: int, wait_s: float) -> None:
    """By age or by size: what is emitted then has higher numbers, attached or not, and old watermarks are answered by it."""
    world = World(limits=ConnectionLimits(journal_bytes=journal_bytes))
    first = opened(world)
    first.say(*answer("r", "i"))
    session_id, token = resumable(first)
    old = numbers(first)[-1]
    world.now += wait_s
    first.say(*answer("q", "j"))
    assert numbers(first) == list(range(1, len(first.frames)))
    head = numbers(first)[-1]
    world.now += wait_s
    first.drop()
    world.engine.say(session_id, *answer("s", "k"))
    second = resume(world, session_id, token, last=old)
    gap = second.frames[1]
    assert (gap["type"], gap["next_server_event_seq"]) == ("session.resync_required", head + 1)
    said = numbers(second)
    assert said and said == list(range(head + 1, head + 1 + len(said)))
    assert second.types[2] == "response.created" and second.frames[2]["response"]["id"] == "s"


def test_field_F26_a_session_that_was_evicted_is_refused_and_its_successor_is_another() -> None:
    world = World()
    first = opened(world)
    first.say(*answer("r", "i"))
    session_id, token = resumable(first)
    old = numbers(first)[-1]
    first.drop()
    world.engine.say(session_id, events.SessionExpired(reason="disconnect_grace_expired"))
    successor = opened(world)
    successor.say(created("q", "j"))
    assert successor.session_id != session_id and 0 < numbers(successor)[-1] < old
    for wanted in (session_id, successor.session_id):
        refused = resume(world, wanted, token, last=old)
        assert refused.types == ["error"] and refused.closed is not None
    assert [f["type"] for f in successor.say(done("q", "j"))][-2:] == ["response.done", "rate_limits.updated"]


def test_a_journal_that_is_too_old_is_a_gap() -> None:
    world = World()
    first = opened(world)
    first.say(*answer("r", "i"))
    session_id, token = resumable(first)
    first.drop()
    world.now += 61
    second = resume(world, session_id, token, last=1)
    assert second.frames[1]["reason"] == "journal_gap"


def test_a_session_that_ends_while_detached_is_gone() -> None:
    world = World()
    first = opened(world)
    session_id, token = resumable(first)
    first.drop()
    world.engine.say(session_id, events.SessionExpired(reason="disconnect_grace_expired"))
    assert (world.hub.sessions, world.engine.subscriptions) == ((), 0)
    assert resume(world, session_id, token).frames[0]["error"]["code"] == "session_resume_expired"


def test_a_session_whose_created_was_never_delivered_is_closed_not_detached() -> None:
    world = World()
    world.answers = False
    client = world.connect("/v1/duplex?model=fake")
    client.reading = False
    world.answer()
    world.answers = True
    client.drop()
    assert asked(world)[-1] == "CloseSessionMessage"


@given(st.data())
def test_every_frame_reaches_a_client_that_reconnects_exactly_once(data: st.DataObject) -> None:
    """Random losses, of the socket and of what was in flight: the client sees one gapless sequence."""
    world = World()
    client = opened(world)
    session_id, token = resumable(client)
    received: list[int] = []
    texts: list[str] = []

    def collect(kept: int) -> None:
        for frame in client.frames[:kept]:
            number = frame.get("server_event_seq")
            if number is not None and (not received or number > received[-1]):
                received.append(number)
                texts.append(json.dumps(frame, sort_keys=True))

    for count in range(data.draw(st.integers(1, 6))):
        client.say(*answer(f"r{count}", f"i{count}"))
        if data.draw(st.booleans()):
            lost = data.draw(st.integers(0, 5))
            collect(max(len(client.frames) - lost, 1))
            client.drop()
            client = resume(world, session_id, token, last=received[-1] if received else 0)
            token = client.frames[0]["resume_token"]
    collect(len(client.frames))
    attachment = world.hub.get(session_id)
    assert attachment is not None and attachment.journal is not None
    assert received == list(range(1, attachment.journal.head + 1))
    assert len(set(texts)) == len(texts)


def test_who_acknowledges_every_event_does_not_keep_the_terminal_back() -> None:
    client = opened(World())
    client.reading = False
    for _ in range(2):
        client.raw("{")
    client.say(events.SessionClosed(reason="shutdown", slot_released=True))
    client.reading = True
    while client.pump(1) and client.types[-1] != "session.closed":
        client.reading = False
        client.send("session.event_ack", server_event_seq=client.frames[-1]["server_event_seq"])
        client.reading = True
        assert len(client.frames) < 20
    assert client.types[-3:] == ["error", "error", "session.closed"] and client.types.count("error") == 2
