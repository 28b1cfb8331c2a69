"""An answer as a stream of server-sent events.

Rules kept here:

* the head goes out with the first event, so that what fails before it is an error with a status of its own; if nothing
  happens for ``keep_alive_s`` it goes out with a comment, which keeps proxies and clients from giving up;
* a stream that failed ends with an error event, one that did not with ``[DONE]``: never with both, never with neither.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Final

import msgspec

from duologue.errors import DuologueError
from duologue.server.turns.exchange import ClientGone, Exchange
from duologue.wire.http import StreamEvent, error_answer

MEDIA_TYPE: Final = "text/event-stream; charset=utf-8"

_HEADERS: Final = {"cache-control": "no-cache", "x-accel-buffering": "no"}
_COMMENT: Final = b": keep-alive\n\n"
_DONE: Final = b"data: [DONE]\n\n"
_ENCODER: Final = msgspec.json.Encoder()


class EventStream:
    """Use as a context manager around whatever may take long, and call :meth:`done` within it.

    What fails in it is told by the exchange: as an answer of its own, or through :meth:`fail` once the stream has begun.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._lock = asyncio.Lock()
        self._sent = 0
        self._beat: asyncio.Task[None] | None = None

    async def __aenter__(self) -> EventStream:
        self._exchange.on_fault = self.fail
        self._beat = self._exchange.runtime.spawn(self._keep_alive(), name="keep-alive")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._beat is not None:
            self._beat.cancel()
            # It may be in the middle of a write, and it must not outlive the request.
            await asyncio.wait([self._beat])

    async def send(self, event: StreamEvent) -> None:
        """One event; returns when the connection can take more."""
        await self._write(b"data: " + _ENCODER.encode(event) + b"\n\n")

    async def done(self) -> None:
        """Everything was sent."""
        await self._write(_DONE, last=True)

    async def fail(self, fault: DuologueError) -> None:
        """The last event of a stream that has begun."""
        await self._write(b"data: " + _ENCODER.encode(error_answer(fault)) + b"\n\n", last=True)

    async def _write(self, data: bytes, *, last: bool = False) -> None:
        async with self._lock:
            self._sent += 1
            if not self._exchange.started:
                await self._exchange.start(MEDIA_TYPE, headers=_HEADERS)
            await self._exchange.write(data, last=last)

    async def _keep_alive(self) -> None:
        while True:
            before = self._sent
            await asyncio.sleep(self._exchange.limits.keep_alive_s)
            if self._sent == before and not self._exchange.ended:
                with suppress(ClientGone):  # whoever does the work hears of it too
                    await self._write(_COMMENT)
