"""A simulated client that uses the real client library, and nothing else, to talk.

Rules kept here: resuming, acknowledging and keeping audio is the library's business; this class only speaks, breaks the
network under it, and watches its frames.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Final

from duologue.client.connect import connect
from duologue.client.fault import ClientError, ConnectError
from duologue.client.session import ClientSession
from duologue.client.socket import Opener, Socket, SocketClosed
from duologue.sim.conversation import Attempt, Conversation
from duologue.sim.network import Pipe
from duologue.sim.orders import DUPLEX_ONLY, MAKERS, opening
from duologue.sim.plan import Order, Person, Resume
from duologue.sim.talker import Surroundings, Talker
from duologue.wire import client_events as wire

LONG_FRAME: Final = 600
SEND_LIMIT_S: Final = 30.0
UNSUITABLE: Final = frozenset({"close", "event_ack", "late_resume"})  # the library does these itself


class LibraryTalker(Talker):
    """One client over ``duologue.client``."""

    def __init__(self, world: Surroundings, person: Person) -> None:
        super().__init__(world, person)
        self.session: ClientSession | None = None
        self._over = asyncio.Event()
        self._holder: asyncio.Task[None] | None = None

    async def open(self) -> None:
        person = self.person
        talk = Conversation(
            name=f"{person.name}{len(self.conversations) or ''}",
            client=person.name,
            dialect=person.dialect,
            choices=person.choices,
        )
        self.conversations.append(talk)
        opened = asyncio.Event()
        await self._finish()
        self._over = asyncio.Event()
        self._holder = self.runtime.spawn(self._hold(talk, opened), name=f"library {person.name}")
        await opened.wait()

    async def _hold(self, talk: Conversation, opened: asyncio.Event) -> None:
        """Keep the session open until it is over or the plan has run out."""
        try:
            async with connect(
                "ws://sim",
                dialect=talk.dialect,
                session=opening(talk),
                opener=self._opener(talk),
                jitter=self.dice.random,
            ) as session:
                self.session = session
                opened.set()
                watcher = self.runtime.spawn(self._watch(session), name="library events")
                await self._over.wait()
                watcher.cancel()
                await asyncio.wait([watcher])
        except ConnectError as fault:
            talk.refused = talk.refused or fault.code or "unreachable"
            self.trace.note(self.person.name, "refused", str(fault))
        finally:
            self.session = None
            opened.set()
            self._tell("terminal")

    async def _watch(self, session: ClientSession) -> None:
        """Take events, so that none is lost to the library's bounds."""
        try:
            async for _ in session.events():
                pass
        except ClientError as fault:
            self.trace.note(self.person.name, "ended", str(fault))

    def _opener(self, talk: Conversation) -> Opener:
        async def opener(url: str, headers: Mapping[str, str]) -> Socket:
            del headers
            how = "plain" if "resume=1" in url else "open"
            try:
                pipe, attempt = await self.dial(talk, url.partition("?")[2], how, listen=False)
            except asyncio.CancelledError:
                self.pipes[-1].client.hang_up()  # as a real socket, of which nobody has heard yet
                raise
            if pipe is None:
                raise ConnectError("the simulated server refused the connection", status=403)
            self.adopt(pipe, attempt)
            return _Ear(self, talk, attempt, pipe)

        return opener

    # What a raw client does by itself, the library does here

    async def append(self, audio: bytes) -> None:
        session = self.session
        if session is not None:
            with contextlib.suppress(ClientError):
                await session.append(audio)

    async def say_event(self, event: wire.ClientEvent) -> bool:
        session = self.session
        if session is None:
            return False
        try:
            async with asyncio.timeout(SEND_LIMIT_S):
                await session.send(event)
        except (ClientError, TimeoutError):
            return False
        return True

    async def _order(self, step: Order) -> None:
        talk = self.talk
        maker = MAKERS.get(step.name)
        if maker is None or step.name in UNSUITABLE or (talk.dialect == "ga" and step.name in DUPLEX_ONLY):
            return
        self.trace.count(f"order.{step.name}")
        await self.say_event(maker(talk, step.pick, talk.next_id()))

    async def resume(self, step: Resume) -> None:
        del step  # the library resumes by itself

    async def leave(self) -> None:
        how = self.person.leave
        self.trace.note(self.person.name, "leave", how)
        if how == "vanish" and self.pipe is not None:
            self.pipe.darken()
        await self._finish()

    async def end(self) -> None:
        await self._finish()
        await super().end()

    async def _finish(self) -> None:
        self._over.set()
        if self._holder is not None:
            await asyncio.wait([self._holder])


class _Ear:
    """The library's socket, overheard."""

    def __init__(self, talker: LibraryTalker, talk: Conversation, attempt: Attempt, pipe: Pipe) -> None:
        self._talker = talker
        self._talk = talk
        self._attempt = attempt
        self._pipe = pipe

    async def send(self, frame: bytes) -> None:
        long = len(frame) > LONG_FRAME
        self._talker.trace.note(self._talker.person.name, "out", f"{len(frame)} bytes" if long else frame)
        await self._pipe.client.send(frame)

    async def receive(self) -> bytes:
        try:
            frame = await self._pipe.client.receive()
        except SocketClosed as closed:
            self._attempt.closed = (closed.code, closed.reason)
            self._talker.trace.note(self._talker.person.name, "closed", f"{self._attempt.number} {closed.code}")
            raise
        self._talker.hear(self._talk, self._attempt, frame)
        return frame

    async def close(self, code: int = 1000) -> None:
        if self._pipe.link.slow_ms:
            await asyncio.sleep(self._pipe.link.slow_ms / 1000)
        await self._pipe.client.close(code)
