"""One HTTP request and its answer, over ASGI.

Rules kept here:

* a client that goes away ends the work for it, whatever it is waiting for;
* nothing is waited for without a bound: the body, the whole request, each piece that is written;
* an error before the first byte of the answer is an answer with its status; later it breaks the connection, or is the
  last event of a stream: a cut answer never looks like a whole one;
* a body that is too large is refused by its announced length, before a byte of it is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from duologue.clock import Runtime
from duologue.config.turns import TurnLimits
from duologue.errors import ClientFault, DuologueError, ErrorCode, StageFault
from duologue.server.transport import CONNECTION
from duologue.server.turns.gate import Place
from duologue.wire.http import error_answer

JSON: Final = "application/json"

_DISCARD_S: Final = 2.0  # how long the rest of a refused body is read, so that its sender gets to read the refusal
_CLOSE_S: Final = 1.0
_RETRY_AFTER_S: Final = "1"


class ClientGone(Exception):
    """Nobody is there to be answered."""


class Exchange:
    """One request. ``started``: the head of the answer is out."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, *, runtime: Runtime, limits: TurnLimits, request_id: str
    ) -> None:
        self.headers = Headers(scope=scope)
        self.limits = limits
        self.runtime = runtime
        self.request_id = request_id
        self.started = False
        self.ended = False
        self.status = 0
        self.on_fault: Callable[[DuologueError], Awaitable[None]] | None = None  # how an answer that has begun says so
        self._receive = receive
        self._send = send
        self._connection: asyncio.Transport | None = scope.get("state", {}).get(CONNECTION)
        self._body_read = False
        self._gone = asyncio.Event()
        self._bound: asyncio.Timeout | None = None
        self._why: DuologueError | None = None
        self._complete = False

    # -- the request

    async def body(self, place: Place) -> bytes:
        """The whole body. Raises :class:`ClientFault` (413, 408), :class:`ClientGone`."""
        return b"".join([piece async for piece in self.pieces(place)])

    async def pieces(self, place: Place) -> AsyncGenerator[bytes]:
        """The body as it arrives. Raises as :meth:`body` does."""
        limit = self.limits.max_body_bytes
        announced = self.headers.get("content-length", "")
        expected = int(announced) if announced.isdigit() else 0
        if expected > limit:
            raise self._too_large(expected)
        place.hold(expected)
        size = 0
        deadline = self.runtime.now() + self.limits.body_timeout_s
        while not self._body_read:
            message = await self._next(deadline)
            piece = message.get("body", b"")
            size += len(piece)
            if size > limit:
                raise self._too_large(size)
            if size > place.held_bytes:
                place.hold(size - place.held_bytes)
            if piece:
                yield piece

    async def _next(self, deadline: float) -> Message:
        try:
            async with asyncio.timeout_at(deadline):
                message = await self._receive()
        except TimeoutError:
            raise ClientFault(
                ErrorCode.CONFIG_TIMEOUT, f"The body did not arrive within {self.limits.body_timeout_s:g} s."
            ) from None
        if message["type"] == "http.disconnect":
            self._gone.set()
            raise ClientGone
        self._body_read = not message.get("more_body", False)
        return message

    def _too_large(self, size: int) -> ClientFault:
        return ClientFault(
            ErrorCode.EVENT_TOO_LARGE,
            f"The body has {size} bytes or more and the limit is {self.limits.max_body_bytes}: send less at a time.",
        )

    # -- the work

    async def attend(self, work: Coroutine[Any, Any, None]) -> None:
        """Do ``work`` while the client is there. The body must have been read.

        Raises :class:`ClientGone`, :class:`StageFault` when it takes too long, and what :meth:`interrupt` was given.
        """
        watch = self.runtime.spawn(self._watch(), name="http-client")
        try:
            async with asyncio.timeout(self.limits.request_timeout_s) as self._bound:
                await work
        except TimeoutError:
            if self._gone.is_set():
                raise ClientGone from None
            raise self._why or self._too_slow() from None
        finally:
            work.close()
            self._bound = None
            watch.cancel()

    def interrupt(self, fault: DuologueError) -> None:
        """End the work early, because of ``fault``."""
        self._why = self._why or fault
        self._expire()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self._complete:  # what ASGI says once an answer is complete, too, wherever its client is
            self._gone.set()
            self._expire()

    def _expire(self) -> None:
        if self._bound is not None and not self._bound.expired():
            with suppress(RuntimeError):  # it is being left just now
                self._bound.reschedule(asyncio.get_running_loop().time())

    def _too_slow(self) -> StageFault:
        return StageFault(ErrorCode.TIMEOUT, f"The answer took longer than {self.limits.request_timeout_s:g} s.")

    # -- the answer

    async def answer(
        self, body: bytes, *, status: int = 200, media_type: str = JSON, headers: Mapping[str, str] | None = None
    ) -> None:
        """The whole answer at once."""
        await self.start(media_type, status=status, headers={"content-length": str(len(body)), **(headers or {})})
        await self.write(body, last=True)

    async def start(self, media_type: str, *, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """The head of the answer."""
        fields = {"content-type": media_type, "x-request-id": self.request_id, **(headers or {})}
        self.started, self.status = True, status
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields.items()]
        await self._put({"type": "http.response.start", "status": status, "headers": raw})

    async def write(self, piece: bytes, *, last: bool = False) -> None:
        """A piece of the answer; returns when the connection can take more. Raises :class:`ClientGone`."""
        self.ended = last
        await self._put({"type": "http.response.body", "body": piece, "more_body": not last})
        self._complete = last

    async def _put(self, message: Message) -> None:
        limit_s = self.limits.write_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await self._send(message)
        except TimeoutError:
            await self._drop()
            raise ClientGone from None
        except OSError:
            self._gone.set()
            raise ClientGone from None
        if self._gone.is_set():
            raise ClientGone

    async def fail(self, fault: DuologueError) -> None:
        """Answer with an error, or break the connection if the answer has begun."""
        if self.started:
            if self.ended:
                return
            await (self.cut() if self.on_fault is None else self.on_fault(fault))
            return
        await self._discard()
        spec = fault.spec
        headers = {"x-should-retry": "true" if spec.retryable else "false"}
        if spec.http_status in (429, 503):
            headers["retry-after"] = _RETRY_AFTER_S
        await self.answer(msgspec.json.encode(error_answer(fault)), status=spec.http_status, headers=headers)

    async def cut(self) -> None:
        """Close the connection within an answer, so that nobody takes it for a whole one."""
        self.ended = True
        if self._connection is None:
            raise RuntimeError("an answer was broken off")  # what every ASGI server takes for it
        self._connection.close()
        await self._until_gone()

    async def _drop(self) -> None:
        """The client takes nothing: closing in order would wait for it."""
        if self._connection is not None:
            self._connection.abort()
            await self._until_gone()
        self._gone.set()

    async def _until_gone(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                while not self._gone.is_set():
                    if (await self._receive())["type"] == "http.disconnect":
                        self._gone.set()

    async def _discard(self) -> None:
        """Read what is left of a refused body, within bounds: a sender that is cut off never reads the refusal."""
        if "expect" in self.headers:
            return  # it waits to be asked for the body
        left = self.limits.max_body_bytes
        deadline = self.runtime.now() + _DISCARD_S
        with suppress(DuologueError, ClientGone):
            while not self._body_read and left > 0:
                left -= len((await self._next(deadline)).get("body", b""))
