"""Drives connections against the fake engine without sockets or a loop: what the shell does, in a few lines."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from typing import Any

from duologue.config.session import SemanticVad, SessionConfig
from duologue.engine.duplex import events, messages
from duologue.errors import DuologueError, ErrorCode
from duologue.server.actions import AbortSocket, Action, Ask, CloseSocket, Post
from duologue.server.connection import Connection
from duologue.server.hello import Hello, read_hello
from duologue.server.models import ModelNames
from duologue.server.registry import ConnectionLimits, SessionHub
from tests.unit.server.fake_engine import FakeEngine

Frame = dict[str, Any]


class Recorder:
    """What the observer was told."""

    def __init__(self) -> None:
        self.refusals: list[ErrorCode] = []
        self.events: list[events.SessionEvent] = []

    def observed(self, event: events.SessionEvent) -> None:
        self.events.append(event)

    def refused(self, code: ErrorCode) -> None:
        self.refusals.append(code)


def entropy_source() -> Callable[[int], bytes]:
    """Distinct bytes for each call."""
    calls = 0

    def entropy(count: int) -> bytes:
        nonlocal calls
        calls += 1
        return calls.to_bytes(2, "big") * (count // 2)

    return entropy


WORLDS: list[World] = []
"""Every world of the test that runs, for the checkers that are shared with the simulator (see ``conftest.py``)."""


class World:
    """An engine, a hub and a clock. Operations at the engine wait until :meth:`answer` unless ``answers`` is true."""

    def __init__(self, engine: FakeEngine | None = None, *, limits: ConnectionLimits | None = None) -> None:
        self.engine = engine or FakeEngine()
        self.now = 100.0
        self.answers = True
        self.waiting: deque[tuple[Client, Ask]] = deque()
        self.recorder = Recorder()
        self.clients: list[Client] = []
        WORLDS.append(self)
        self.hub = SessionHub(
            defaults=SessionConfig(turn_detection=SemanticVad()),
            names=ModelNames(self.engine.models()),
            entropy=entropy_source(),
            subscribe=self.engine.subscribe,
            unsubscribe=self.engine.unsubscribe,
            limits=limits,
            observer=self.recorder,
        )

    def connect(self, url: str = "/v1/realtime", key_id: str = "") -> Client:
        path, _, query = url.partition("?")
        return Client(self, read_hello(path, query, key_id))

    def answer(self) -> None:
        """Carry out the oldest operation that waits."""
        client, action = self.waiting.popleft()
        client.answer(action)


class Client:
    """One connection and what came out of it."""

    def __init__(self, world: World, hello: Hello) -> None:
        self.world = world
        self.dialect = hello.dialect
        self.resumes: dict[str, Any] = {}  # what it asked to resume, if it did
        world.clients.append(self)
        self.connection = Connection(hello, world.hub)
        self.frames: list[Frame] = []
        self.closed: CloseSocket | None = None
        self.aborted = False
        self.reading = True
        self.apply(self.connection.start(world.now))
        self.pump()

    @property
    def session_id(self) -> str:
        attachment = self.connection.attachment
        assert attachment is not None
        return attachment.session_id

    @property
    def types(self) -> list[str]:
        return [frame["type"] for frame in self.frames]

    def send(self, type: str, **fields: object) -> list[Frame]:
        """Send one event and return the frames that came of it."""
        if type == "session.resume" and not self.frames:
            self.resumes = fields
        return self.raw(json.dumps({"type": type, **fields}))

    def raw(self, frame: bytes | str) -> list[Frame]:
        before = len(self.frames)
        self.apply(self.connection.receive(frame, self.world.now))
        self.pump()
        return self.frames[before:]

    def say(self, *said: events.SessionEvent) -> list[Frame]:
        """Let the engine say something and return the frames that came of it."""
        before = len(self.frames)
        self.world.engine.say(self.session_id, *said)
        self.pump()
        return self.frames[before:]

    def pump(self, most: int | None = None) -> int:
        """Take frames (at most so many) as a socket that can write would."""
        taken = 0
        while self.reading and (most is None or taken < most):
            frame = self.connection.data_to_send(self.world.now)
            if frame is None:
                break
            assert self.closed is None, "a frame after the close"
            self.frames.append(json.loads(frame))
            self.apply(self.connection.actions(self.world.now))
            taken += 1
        self.apply(self.connection.actions(self.world.now))
        return taken

    def pass_time(self, seconds: float) -> None:
        self.world.now += seconds
        self.apply(self.connection.tick(self.world.now))
        self.pump()

    def drop(self) -> None:
        """The socket is lost."""
        self.reading = False
        self.apply(self.connection.disconnected(self.world.now))

    def apply(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Post():
                    self.world.engine.post(action.message)
                case Ask():
                    if self.world.answers:
                        self.answer(action)
                    else:
                        self.world.waiting.append((self, action))
                case CloseSocket():
                    assert self.closed is None
                    self.closed = action
                case AbortSocket():
                    self.aborted = True

    def answer(self, action: Ask) -> None:
        try:
            result = _run(self.world.engine, action)
        except DuologueError as fault:
            result = fault
        self.apply(self.connection.answered(action.message.control_id, result, self.world.now))
        self.pump()


def _run(engine: FakeEngine, action: Ask) -> object:
    """The fake engine's answer; it never waits unless told to."""
    try:
        engine.control(action.message).send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("the fake engine waited")


def resumable(client: Client) -> tuple[str, str]:
    """Session id and token of a duplex client."""
    created = next(frame for frame in client.frames if frame["type"] == "session.created")
    return created["session"]["session_id"], created["resume_token"]


def asked(world: World) -> list[str]:
    return [type(message).__name__ for message in world.engine.asked]


def commands_of(world: World) -> list[Any]:
    return [message.command for message in world.engine.posted if isinstance(message, messages.SessionCommand)]
