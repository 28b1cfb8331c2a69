"""A simulated client: speaks, orders, hears, loses its connection and comes back, as a plan says.

Rules kept here: a client draws from dice of its own, so that it does the same whatever others do; every wait of it is
bounded; what it reads and sends goes into the trace.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import Awaitable
from functools import partial
from typing import Final, Protocol, assert_never

import numpy as np

from duologue.audio.g711 import compress
from duologue.client.socket import SocketClosed
from duologue.sim.conversation import Attempt, Conversation, Heard, Read
from duologue.sim.loop import VirtualRuntime
from duologue.sim.network import Pipe
from duologue.sim.orders import DUPLEX_ONLY, acknowledged, frame_of, opening
from duologue.sim.plan import Deaf, Kill, Lose, Order, Person, Reopen, Rest, Resume, Say, Stall, Step, Until
from duologue.sim.site import Site
from duologue.sim.tape import cut
from duologue.sim.toolbox import Toolbox
from duologue.sim.trace import Trace
from duologue.wire import client_events as wire
from duologue.wire import decode_client_event, decode_server_event, encode
from duologue.wire import server_events as events

MAX_APPENDS: Final = 60
ACK_EVERY_MS: Final = 400.0
OPEN_LIMIT_S: Final = 20.0
LEAVE_LIMIT_S: Final = 30.0


class Surroundings(Protocol):
    """What a client needs of the world."""

    runtime: VirtualRuntime
    trace: Trace

    @property
    def seed(self) -> int: ...

    def site(self, index: int) -> Site: ...


class Talker:
    """One raw client."""

    def __init__(self, world: Surroundings, person: Person) -> None:
        self.world = world
        self.person = person
        self.runtime = world.runtime
        self.trace = world.trace
        self.site = world.site(person.deployment)
        self.dice = random.Random(f"{world.seed}:talker:{person.name}")
        self.conversations: list[Conversation] = []
        self.pipe: Pipe | None = None
        self.attempt: Attempt | None = None
        self.tasks: list[asyncio.Task[None]] = []
        self.pipes: list[Pipe] = []
        self.position = 0  # in samples of the speaker's tape
        self.appends = 0
        self._moments: dict[str, asyncio.Event] = {}
        self._appends: dict[bytes, wire.AudioAppend] = {}  # on their way, so that they need not be decoded to be known
        self._last_order: bytes = b""
        self._play_end_s = 0.0
        self._acked_ms: dict[str, float] = {}
        self.left = False
        self._tools = Toolbox(self.runtime, person.choices.tools, self.dice, self._drop_in, lambda: self.talk.next_id())

    @property
    def talk(self) -> Conversation:
        """The session in hand."""
        return self.conversations[-1]

    # -- the life of a client

    async def run(self) -> None:
        """Arrive, open, follow the plan, leave."""
        await asyncio.sleep(self.person.arrives_ms / 1000)
        await self.open()
        lanes = [self.runtime.spawn(self._follow(steps), name=f"lane {self.person.name}") for steps in self._lanes()]
        if lanes:
            await asyncio.wait(lanes)
        await self.leave()
        self.left = True

    def _lanes(self) -> list[tuple[Step, ...]]:
        return [steps for steps in (self.person.voice, self.person.hands) if steps]

    async def open(self) -> None:
        """Open a session; returns when it is there, refused, or overdue."""
        person = self.person
        talk = Conversation(
            name=f"{person.name}{len(self.conversations) or ''}",
            client=person.name,
            dialect=person.dialect,
            choices=person.choices,
        )
        self.conversations.append(talk)
        quick = self.dice.random() < 0.3
        query = "model=sim" if person.dialect == "ga" else "duplex=1&model=sim" if quick else "duplex=1&autostart=0"
        pipe, attempt = await self.dial(talk, query, "open")
        if pipe is None:
            return
        self.adopt(pipe, attempt)
        await self.say_event(wire.SessionUpdate(event_id=talk.next_id(), session=opening(talk)))
        if not person.eager:
            await self.until("updated", OPEN_LIMIT_S)

    async def dial(
        self, talk: Conversation, query: str, how: str, *, listen: bool = True
    ) -> tuple[Pipe | None, Attempt]:
        """Connect; ``None`` if the server refuses. ``listen``: read it in a task."""
        number = sum(len(other.attempts) for other in self.conversations) + 1
        attempt = Attempt(number, how, asked=talk.last_seq, token=talk.token)
        talk.attempts.append(attempt)
        jitter = random.Random(f"{self.world.seed}:net:{self.person.name}:{number}").random
        pipe = Pipe(self.runtime, self.person.link, jitter, f"{self.person.name}.{number}")
        pipe.server.on_frame = partial(self._server_read, talk, attempt)
        pipe.server.on_send = self.site.handed_over
        self.trace.note(self.person.name, "dial", f"{number} {how}")
        self.site.connect(pipe, self.person.name, query)
        self.pipes.append(pipe)
        answer = await pipe.opened
        if answer:
            self.trace.note(self.person.name, "refused", answer)
            attempt.closed = (0, answer)
            if how == "open":
                talk.refused = answer
            return None, attempt
        if listen:
            self.tasks.append(self.runtime.spawn(self._listen(talk, pipe, attempt), name=f"reader {pipe.name}"))
        return pipe, attempt

    def adopt(self, pipe: Pipe, attempt: Attempt) -> None:
        """From now on this is the client's connection."""
        self.pipe, self.attempt = pipe, attempt

    def _server_read(self, talk: Conversation, attempt: Attempt, frame: bytes) -> None:
        kind, event_id, audio = "broken", None, b""
        try:
            event = self._appends.pop(frame, None) or decode_client_event(frame, talk.dialect)
        except Exception:
            pass  # a frame that the plan broke; the server says what it thinks of it
        else:
            kind, event_id = type(event).__name__, event.event_id
            audio = event.audio if isinstance(event, wire.AudioAppend) else b""
        talk.read.append(Read(self.trace.now(), attempt.number, kind, event_id, audio))

    # -- hearing

    async def _listen(self, talk: Conversation, pipe: Pipe, attempt: Attempt) -> None:
        while True:
            try:
                frame = await pipe.client.receive()
            except SocketClosed as closed:
                self.trace.note(self.person.name, "closed", f"{attempt.number} {closed.code} {closed.reason}")
                attempt.closed = (closed.code, closed.reason)
                if attempt.how == "open":
                    talk.shut()
                break
            self.hear(talk, attempt, frame)
        if self.pipe is pipe:
            self.pipe = None
        self._tell("terminal")

    def hear(self, talk: Conversation, attempt: Attempt, frame: bytes) -> None:
        """One frame arrived."""
        event = decode_server_event(frame)
        talk.heard.append(Heard(self.trace.now(), attempt.number, event))
        if isinstance(event, events.AudioDelta):
            self.trace.note(self.person.name, "in", _audio_note(talk, event))
        else:
            self.trace.note(self.person.name, "in", frame)
        if event is None:
            return
        if isinstance(event, events.Error) and not talk.session_id and attempt.how == "open":
            talk.blame(event.error.code)
        if not talk.take(event, attempt):
            return  # it is told again what it knows
        self._react(talk, event)
        if isinstance(event, events.ArgumentsDone):
            self._tools.asked(event)

    def _react(self, talk: Conversation, event: events.ServerEvent) -> None:
        match event:
            case events.AudioDelta():
                self._tell("audio")
                self._play(talk, event)
            case events.SessionUpdated() | events.SessionCreated():
                self._tell("updated")
            case events.ResponseCreated():
                self._tell("created")
            case events.ResponseDone():
                self._tell("done")
                self._ack_later(talk, event.response.id)
            case events.SessionClosed() | events.SessionExpired() | events.Error():
                self._tell("updated")
                if talk.over:
                    self._tell("terminal")
            case events.SpeechStarted():
                if self.person.truncates:
                    self._truncate(talk)
            case _:
                pass
        seq = event.server_event_seq
        if self.person.event_acks and isinstance(seq, int) and seq % self.person.ack_events == 0:
            talk.acks.append((self.trace.now(), seq))
            self._drop_in(wire.EventAck(server_event_seq=seq))

    def _tell(self, moment: str) -> None:
        event = self._moments.pop(moment, None)
        if event is not None:
            event.set()
        if moment == "terminal":
            for other in list(self._moments):
                self._moments.pop(other).set()

    def _play(self, talk: Conversation, event: events.AudioDelta) -> None:
        played_s = len(event.delta) / talk.output_bytes_per_s
        self._play_end_s = max(self._play_end_s, self.runtime.now()) + played_s
        response_id = event.response_id
        if talk.audio_ms[response_id] - self._acked_ms.get(response_id, 0.0) >= ACK_EVERY_MS:
            self._ack_later(talk, response_id)

    def _ack_later(self, talk: Conversation, response_id: str) -> None:
        style = self.person.acks
        played_ms = talk.audio_ms.get(response_id, 0.0)
        if style == "never" or talk.dialect == "ga" or played_ms <= self._acked_ms.get(response_id, 0.0):
            return
        self._acked_ms[response_id] = played_ms
        when = self._play_end_s + (2.0 if style == "late" else 0.0)
        told_ms = played_ms * 3 if style == "wrong" else played_ms
        ack = wire.PlaybackAck(response_id=response_id, played_ms=round(told_ms))
        self.runtime.call_at(when, self._drop_in, ack)

    def _truncate(self, talk: Conversation) -> None:
        """What stock clients do when they hear that the user speaks."""
        if not talk.responses:
            return
        response_id = talk.responses[-1]
        left_ms = max(0.0, self._play_end_s - self.runtime.now()) * 1000
        heard_ms = max(0.0, talk.audio_ms.get(response_id, 0.0) - left_ms)
        item_id = f"item_{response_id}"
        self._drop_in(wire.ItemTruncate(event_id=talk.next_id(), item_id=item_id, audio_end_ms=round(heard_ms)))
        if response_id in talk.active:
            self._drop_in(wire.ResponseCancel(event_id=talk.next_id()))

    def _drop_in(self, event: wire.ClientEvent) -> None:
        """Send without waiting."""
        if self.pipe is not None and self.pipe.alive and not self.pipe.client.closed:
            frame = encode(event)
            self.trace.note(self.person.name, "out", frame)
            self.pipe.up.put(frame)

    # -- speaking

    async def say_event(self, event: wire.ClientEvent) -> bool:
        """Send one event; false if there is no connection."""
        return await self.say_frame(encode(event))

    async def say_frame(self, frame: bytes, note: str = "") -> bool:
        """Send one frame; false if there is no connection."""
        pipe = self.pipe
        if pipe is None:
            self.trace.note(self.person.name, "unsent", note or frame[:60])
            return False
        self.trace.note(self.person.name, "out", note or frame)
        try:
            await pipe.client.send(frame)
        except SocketClosed:
            return False
        return True

    async def until(self, moment: str, limit_s: float) -> bool:
        """Wait for the next event of a kind; false if it did not come in time, or the session is over."""
        if self.talk.over or self.pipe is None:
            return False
        event = self._moments.setdefault(moment, asyncio.Event())
        try:
            async with asyncio.timeout(limit_s):
                await event.wait()
        except TimeoutError:
            return False
        return True

    async def _follow(self, steps: tuple[Step, ...]) -> None:
        for step in steps:
            await self.do(step)

    async def do(self, step: Step) -> None:
        """Take one step of the plan."""
        match step:
            case Say():
                await self._say(step)
            case Rest():
                await asyncio.sleep(step.ms / 1000)
            case Until():
                await self.until(step.moment, step.limit_ms / 1000)
            case Order():
                await self._order(step)
            case Lose():
                self._lose(step)
            case Resume():
                await self.resume(step)
            case Deaf():
                await self._deafen(step.ms)
            case Stall():
                await self._stall(step.ms)
            case Kill():
                self._kill()
            case Reopen():
                await self._reopen()
            case _:
                assert_never(step)

    async def _say(self, step: Say) -> None:
        choices = self.talk.choices
        rate = choices.input_rate_hz
        name = "plain" if step.voice == "plain" else "ack"
        loud, quiet = rate * step.loud_ms // 1000, rate * step.quiet_ms // 1000
        pcm = cut(name, self.position, loud) + cut("quiet", self.position + loud, quiet)
        self.position += loud + quiet
        audio = encoded(pcm, choices.input_format)
        per_s = len(audio) / max(len(pcm), 1) * rate * 2
        size, start, sent = step.chunk_bytes, 0, 0
        while start < len(audio):
            if sent == MAX_APPENDS:
                size = max(size, len(audio) // MAX_APPENDS, 1)
            piece = audio[start : start + size]
            start += size
            sent += 1
            await self.append(piece)
            if step.pace:
                await self.runtime.loop.pause(len(piece) / per_s * step.pace / 100)

    async def append(self, audio: bytes) -> None:
        """Send audio."""
        self.appends += 1
        event_id = self.talk.next_id() if self.appends % 7 == 0 else None
        frame = encode(event := wire.AudioAppend(audio=audio, event_id=event_id))
        self._appends[frame] = event
        await self.say_frame(frame, f"append {len(audio)}")

    async def _order(self, step: Order) -> None:
        if self.talk.dialect == "ga" and step.name in DUPLEX_ONLY:
            return
        if step.name == "again":
            frame = self._last_order
            if not frame:
                return
        else:
            frame, _ = frame_of(self.talk, step.name, step.pick)
            self.talk.acks += [(self.trace.now(), acknowledged(self.talk, step.pick))] * (step.name == "event_ack")
        self._last_order = frame
        self.trace.count(f"order.{step.name}")
        await self.say_frame(frame)

    # -- losing and regaining

    def _lose(self, step: Lose) -> None:
        pipe = self.pipe
        if pipe is None:
            return
        self.trace.count(f"lose.{step.how}")
        self.trace.note(self.person.name, "lose", step.how)
        if self.attempt is not None:
            self.attempt.lost = True
        match step.how:
            case "reset":
                pipe.reset()
            case "partial":
                pipe.reset(keep_arrived=False)
            case "half_open":
                pipe.darken()
            case "close":
                pipe.client.hang_up()

    async def resume(self, step: Resume) -> None:
        """Take the session up again."""
        talk = self.talk
        if not talk.token or talk.over or talk.dialect == "ga":
            return
        if self.pipe is not None and self.pipe.alive and step.how != "takeover":
            return
        self.trace.count(f"resume.{step.how}")
        count = 2 if step.how == "race" else 1
        tries: list[Awaitable[None]] = [self._resume_once(talk, step.how) for _ in range(count)]
        await asyncio.gather(*tries)

    async def _resume_once(self, talk: Conversation, how: str) -> None:
        token = talk.token
        if how == "old_token" and talk.old_tokens:
            token = talk.old_tokens[-1]
        elif how == "wrong_token":
            token = "not-a-token"
        asked = {"ahead": talk.last_seq + 1_000, "behind": 0, "acked": talk.acked}.get(how, talk.last_seq)
        pipe, attempt = await self.dial(talk, "duplex=1&resume=1", how)
        if pipe is None:
            return
        attempt.asked, attempt.token = asked, token
        resume = wire.SessionResume(
            session_id=talk.session_id, resume_token=token, last_received_server_event_seq=asked
        )
        frame = encode(resume)
        self.trace.note(self.person.name, "out", f"resume after {asked}")
        try:
            await pipe.client.send(frame)
        except SocketClosed:
            return
        for _ in range(100):
            if attempt.resumed or attempt.closed is not None:
                break
            await asyncio.sleep(0.1)
        if attempt.resumed and attempt.closed is None:
            self.adopt(pipe, attempt)

    async def _deafen(self, ms: int) -> None:
        pipe = self.pipe
        if pipe is not None:
            self.trace.count("deaf")
            pipe.client.deaf = True
            await asyncio.sleep(ms / 1000)
            pipe.client.deaf = False

    async def _stall(self, ms: int) -> None:
        pipe = self.pipe
        if pipe is not None:
            self.trace.count("stall")
            pipe.stall(True)
            await asyncio.sleep(ms / 1000)
            pipe.stall(False)

    def _kill(self) -> None:
        pipe = self.pipe
        if pipe is not None and pipe.task is not None:
            self.trace.count("kill")
            if self.attempt is not None:
                self.attempt.lost = True
            pipe.task.cancel()

    async def _reopen(self) -> None:
        if self.talk.terminal is not None or (self.talk.dialect == "ga" and self.pipe is None):
            self.trace.count("reopen")
            await self.open()

    # -- leaving

    async def leave(self) -> None:
        """End the session as the plan says; whatever happens, the sockets are shut afterwards."""
        how = self.person.leave
        self.trace.note(self.person.name, "leave", how)
        if how == "close" and self.pipe is not None and not self.talk.over:
            if self.talk.dialect == "duplex" and await self.say_event(wire.SessionClose()):
                await self.until("terminal", LEAVE_LIMIT_S)
        elif how == "vanish" and self.pipe is not None:
            self.pipe.darken()
            return
        elif how == "stay":
            return
        self.hang_up()

    def hang_up(self) -> None:
        """Shut every socket."""
        for pipe in self.pipes:
            pipe.client.deaf = False
            pipe.client.hang_up()

    async def end(self) -> None:
        """The world ends: shut every socket, and wait for the readers."""
        self.hang_up()
        if self.tasks:
            await asyncio.wait(self.tasks)


def encoded(pcm: bytes, name: str) -> bytes:
    """PCM16 in an input format."""
    match name:
        case "float32":
            return (np.frombuffer(pcm, dtype="<i2").astype("<f4") / np.float32(32768)).astype("<f4").tobytes()
        case "pcmu" | "pcma":
            return compress(name, np.frombuffer(pcm, dtype="<i2")).tobytes()
        case _:
            return pcm


def exact_output(talk: Conversation) -> bool:
    """Whether the model's audio reaches the client as it is."""
    return talk.choices.output_format == "pcm16" and talk.choices.output_rate_hz == 24_000


def _audio_note(talk: Conversation, event: events.AudioDelta) -> str:
    content = f" {zlib.crc32(event.delta):08x}" if exact_output(talk) else ""
    return f"audio {event.response_id} {event.server_event_seq} {len(event.delta)}{content}"
