"""A session as an application uses it: commands out, events and responses in.

Rules kept here:

* events come out in the order they arrived; an application that does not take them loses the oldest audio first, then
  the oldest events, and can see how many (`dropped_events`); responses it does not take lose the oldest;
* commands that have an answer of their own return it, or raise what the server said against them;
* leaving the `async with` block closes the session in bounded time, whatever the server does.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from typing import Final

import msgspec

from duologue.client.buffer import Buffer
from duologue.client.fault import ClientError, ConnectError, RequestError, SessionEndedError
from duologue.client.functions import FunctionCalls, Functions
from duologue.client.link import Link
from duologue.client.response import ResponseStream
from duologue.wire.client_events import (
    AudioAppend,
    AudioClear,
    AudioCommit,
    BargeInSignal,
    ClientEvent,
    InputCancel,
    ItemCreate,
    ItemDelete,
    ItemRetrieve,
    ItemTruncate,
    OutputClear,
    PlaybackAck,
    ResponseCancel,
    ResponseCreate,
    SessionClose,
    SessionUpdate,
    TurnSignal,
)
from duologue.wire.objects import ContentPart, Item, Response, ResponseParams, Session
from duologue.wire.server_events import (
    ArgumentsDone,
    AudioDelta,
    AudioDone,
    Error,
    ItemRetrieved,
    ResponseCreated,
    ResponseDone,
    ServerEvent,
    SessionCreated,
    SessionUpdated,
    TextDelta,
    TranscriptDelta,
)

MAX_EVENTS: Final = 1024
MAX_EVENT_AUDIO_BYTES: Final = 4 * 1024 * 1024
MAX_WAITING_RESPONSES: Final = 8
_APPEND_BYTES: Final = 1 << 20
_REQUEST_TIMEOUT_S: Final = 10.0
_OPEN_TIMEOUT_S: Final = 30.0
CLOSE_TIMEOUT_S: Final = 5.0


def _audio_weight(event: ServerEvent) -> int:
    return len(event.delta) if isinstance(event, AudioDelta) else 0


def _is_audio(event: ServerEvent) -> bool:
    return isinstance(event, AudioDelta)


class ClientSession:
    """An open session. Made by `duologue.client.connect`; all calls from the loop that opened it."""

    def __init__(
        self, link: Link, *, close_timeout_s: float = CLOSE_TIMEOUT_S, functions: Functions | None = None
    ) -> None:
        self._link = link
        self._functions = None if functions is None else FunctionCalls(functions, self)
        self._close_timeout_s = close_timeout_s
        self._events: Buffer[ServerEvent] = Buffer(
            max_entries=MAX_EVENTS, max_weight=MAX_EVENT_AUDIO_BYTES, weight=_audio_weight, droppable=_is_audio
        )
        self._responses: Buffer[ResponseStream] = Buffer(max_entries=MAX_WAITING_RESPONSES)
        self._open_responses: dict[str, ResponseStream] = {}
        self._created: asyncio.Future[Session] = asyncio.get_running_loop().create_future()
        self._requests: dict[str, asyncio.Future[ServerEvent]] = {}
        self._retrievals: dict[str, str] = {}  # item id -> event id of the request
        self._updates: list[str] = []  # event ids, in the order sent
        self._numbers = itertools.count(1)
        self._settings = Session()
        link.on_event = self._take
        link.on_end = self._finish

    # -- what is known

    @property
    def session_id(self) -> str:
        return self._link.session_id

    @property
    def settings(self) -> Session:
        """The settings in force, as the server last told them."""
        return self._settings

    @property
    def ended(self) -> SessionEndedError | None:
        """Why the session is over; ``None`` while it is not."""
        return self._link.ended

    @property
    def connected(self) -> bool:
        """False while a lost connection is being taken up again, and after the end."""
        return self._link.attached

    @property
    def reconnects(self) -> int:
        """How often the connection was lost and taken up again."""
        return self._link.reconnects

    @property
    def last_event_seq(self) -> int:
        """Number of the newest event (duplex dialect)."""
        return self._link.last_seq

    @property
    def dropped_events(self) -> int:
        """Events that were lost because nobody took them from `events`."""
        return self._events.dropped

    @property
    def dropped_audio_bytes(self) -> int:
        """Bytes of audio frames that were lost because the connection was away for too long."""
        return self._link.dropped_audio_bytes

    # -- coming in

    async def events(self) -> AsyncIterator[ServerEvent]:
        """Every event, for one consumer. Ends when the session is closed in order; else raises SessionEndedError."""
        while (event := await self._events.take()) is not None:
            yield event
        self._raise_if_faulty()

    async def responses(self) -> AsyncIterator[ResponseStream]:
        """Every response as it is created, for one consumer. Ends and raises as `events` does."""
        while (response := await self._responses.take()) is not None:
            yield response
        self._raise_if_faulty()

    # -- going out

    async def append(self, audio: bytes, *, is_speech: bool | None = None) -> None:
        """Send audio in the session's input format: any length, also while the assistant speaks.

        While a lost connection is taken up again the last seconds are kept and sent afterwards.
        """
        for start in range(0, len(audio), _APPEND_BYTES):
            part = audio[start : start + _APPEND_BYTES]
            await self._link.send_audio(AudioAppend(audio=part, is_speech=is_speech))

    async def commit(self, *, create_response: bool | None = None) -> None:
        """End the user's turn here. Only the duplex dialect knows `create_response`."""
        await self._link.send(AudioCommit(event_id=self._next_id(), response_create=create_response))

    async def clear(self) -> None:
        """Forget the audio that is not committed yet."""
        await self._link.send(AudioClear(event_id=self._next_id()))

    async def clear_output(self, response_id: str | None = None) -> None:
        """Stop what is playing, finished or not."""
        await self._link.send(OutputClear(event_id=self._next_id(), response_id=response_id))

    async def create_response(self, options: ResponseParams | None = None) -> None:
        """Ask for an answer now."""
        await self._link.send(ResponseCreate(event_id=self._next_id(), response=options))

    async def cancel(self, response_id: str | None = None) -> None:
        """Stop generating; ``None``: whatever is in progress."""
        await self._link.send(ResponseCancel(event_id=self._next_id(), response_id=response_id))

    async def barge_in(self) -> None:
        """The user interrupts: stop everything and clear the input (duplex dialect)."""
        await self._link.send(BargeInSignal(event_id=self._next_id()))

    async def cancel_input(self) -> None:
        """Forget all input and cancel what it started (duplex dialect)."""
        await self._link.send(InputCancel(event_id=self._next_id()))

    async def signal(self, name: str) -> None:
        """Send a turn signal (duplex dialect)."""
        await self._link.send(TurnSignal(event_id=self._next_id(), name=name))

    async def say(self, text: str, *, role: str = "user", item_id: str | None = None) -> None:
        """Put a text message into the conversation. It is not answered by itself: see `create_response`."""
        kind = "output_text" if role == "assistant" else "input_text"
        content = [ContentPart(type=kind, text=text)]
        await self.create_item(
            Item(id=item_id, role=role, content=content) if item_id else Item(role=role, content=content)
        )

    async def create_item(self, item: Item, *, previous_item_id: str | None = None) -> None:
        """Put an item into the conversation, at its end unless `previous_item_id` says otherwise ("root": first)."""
        await self._link.send(ItemCreate(event_id=self._next_id(), item=item, previous_item_id=previous_item_id))

    async def answer_call(self, call_id: str, output: str) -> None:
        """The result of a function that the model asked for: once, in time. The model reads it when it is asked to go
        on (`create_response`). Functions given to `connect` are answered by themselves."""
        await self.create_item(Item(type="function_call_output", call_id=call_id, output=output))

    async def delete_item(self, item_id: str) -> None:
        """Take an item out of the conversation."""
        await self._link.send(ItemDelete(event_id=self._next_id(), item_id=item_id))

    async def truncate(self, item_id: str, audio_end_ms: int, *, content_index: int = 0) -> None:
        """Only the first `audio_end_ms` of the assistant's item were heard; the rest leaves the conversation."""
        event = ItemTruncate(
            event_id=self._next_id(), item_id=item_id, content_index=content_index, audio_end_ms=audio_end_ms
        )
        await self._link.send(event)

    async def ack_playback(
        self, played_ms: int, *, response_id: str | None = None, item_id: str | None = None, truncate: bool = False
    ) -> None:
        """So much of the response was heard, from its beginning (duplex dialect). See `PlaybackTracker`."""
        event = PlaybackAck(
            event_id=self._next_id(), played_ms=played_ms, response_id=response_id, item_id=item_id, truncate=truncate
        )
        await self._link.send(event)

    async def update(self, settings: Session) -> Session:
        """Change settings, all or none; returns those in force. Raises RequestError if the server refuses."""
        event_id = self._next_id()
        self._updates.append(event_id)
        answer = await self._request(SessionUpdate(event_id=event_id, session=_typed(settings)), event_id)
        assert isinstance(answer, SessionUpdated)
        return answer.session

    async def retrieve(self, item_id: str) -> Item:
        """An item as it stands in the conversation. Raises RequestError if there is none."""
        event_id = self._next_id()
        self._retrievals[item_id] = event_id
        try:
            answer = await self._request(ItemRetrieve(event_id=event_id, item_id=item_id), event_id)
        finally:
            self._retrievals.pop(item_id, None)
        assert isinstance(answer, ItemRetrieved)
        return answer.item

    async def close(self, reason: str = "client_close") -> None:
        """End the session; returns in bounded time, whatever the server does. May be repeated."""
        self._link.leave()
        if self._functions is not None:
            await self._functions.close()
        if self._link.dialect == "duplex" and self._link.attached and self._link.ended is None:
            with contextlib.suppress(ClientError, TimeoutError):
                await asyncio.wait_for(self._link.send(SessionClose(reason=reason)), self._close_timeout_s)
            await self._link.close(self._close_timeout_s)
        else:
            await self._link.close(0.0)

    async def send(self, event: ClientEvent) -> None:
        """Send any event of the dialect, for what has no method here."""
        await self._link.send(event)

    # -- opening

    async def wait_open(self, settings: Session | None) -> None:
        """Until the session exists and `settings` are in force. Raises ConnectError."""
        first = SessionUpdate(event_id=self._next_id(), session=_typed(settings or Session()))
        try:
            async with asyncio.timeout(_OPEN_TIMEOUT_S):
                if self._link.dialect == "duplex":
                    await self._link.open(first)
                    await self._created
                    return
                await self._link.open(None)
                await self._created
                if settings is not None:
                    await self.update(settings)
        except TimeoutError:
            raise ConnectError(f"the server opened no session within {_OPEN_TIMEOUT_S:.0f} s") from None
        except (RequestError, SessionEndedError) as fault:
            raise ConnectError(f"the session could not be opened: {fault.message}", code=fault.code) from fault

    async def _request(self, event: ClientEvent, event_id: str) -> ServerEvent:
        answer: asyncio.Future[ServerEvent] = asyncio.get_running_loop().create_future()
        self._requests[event_id] = answer
        try:
            await self._link.send(event)
            return await asyncio.wait_for(answer, _REQUEST_TIMEOUT_S)
        except TimeoutError:
            raise RequestError(f"the server did not answer within {_REQUEST_TIMEOUT_S:.0f} s") from None
        finally:
            if answer.done() and not answer.cancelled():
                answer.exception()  # seen: the sending may have failed for the same reason
            self._requests.pop(event_id, None)
            if event_id in self._updates:
                self._updates.remove(event_id)

    def _next_id(self) -> str:
        return f"client_{next(self._numbers)}"

    # -- events, from the reader: nothing below may wait

    def _take(self, event: ServerEvent) -> None:
        match event:
            case SessionCreated():
                self._settings = event.session
                if not self._created.done():
                    self._created.set_result(event.session)
            case SessionUpdated():
                self._settings = event.session
                self._answer(self._updates[0] if self._updates else None, event)
            case ItemRetrieved():
                item_id = event.item.id
                self._answer(self._retrievals.get(item_id) if isinstance(item_id, str) else None, event)
            case Error():
                self._take_error(event)
            case _:
                self._take_output(event)
        self._events.put(event)

    def _take_error(self, event: Error) -> None:
        body = event.error
        fault = RequestError(body.message, code=body.code)
        if not self._created.done():
            self._created.set_exception(fault)
            self._created.exception()  # seen: opening may have given up already
        request = self._requests.get(body.event_id or "")
        if request is not None and not request.done():
            request.set_exception(fault)

    def _answer(self, event_id: str | None, event: ServerEvent) -> None:
        request = self._requests.get(event_id or "")
        if request is not None and not request.done():
            request.set_result(event)

    def _take_output(self, event: ServerEvent) -> None:
        match event:
            case ResponseCreated():
                self._stream(event.response.id, event.response)
            case AudioDelta():
                rate_hz = event.sample_rate_hz if isinstance(event.sample_rate_hz, int) else None
                self._stream(event.response_id).feed_audio(event.item_id, event.delta, rate_hz)
            case AudioDone():
                self._stream(event.response_id).end_audio()
            case TranscriptDelta() | TextDelta():
                if event.delta:
                    self._stream(event.response_id).feed_text(event.item_id, event.delta)
            case ArgumentsDone():
                if self._functions is not None:
                    self._functions.asked(event)
            case ResponseDone():
                self._stream(event.response.id, event.response).finish(event)
                del self._open_responses[event.response.id]
                if self._functions is not None:
                    self._functions.done(event)
            case _:
                pass

    def _stream(self, response_id: str, response: Response | None = None) -> ResponseStream:
        """The handle of a response; a new one if its beginning was lost with a connection."""
        stream = self._open_responses.get(response_id)
        if stream is None:
            stream = ResponseStream(response or Response(id=response_id, status="in_progress"))
            self._open_responses[response_id] = stream
            self._responses.put(stream)
        return stream

    def _finish(self, end: SessionEndedError) -> None:
        if not self._created.done():
            self._created.set_exception(end)
            self._created.exception()  # seen: opening may have given up already
        for request in self._requests.values():
            if not request.done():
                request.set_exception(end)
        for stream in self._open_responses.values():
            stream.abandon(end)
        self._open_responses.clear()
        self._responses.close()
        self._events.close()

    def _raise_if_faulty(self) -> None:
        end = self._link.ended
        if end is not None and end.reason != "client_close":
            raise SessionEndedError(end.message, reason=end.reason, code=end.code)


def _typed(settings: Session) -> Session:
    """Settings always name their type: GA requires it in every session object."""
    return settings if isinstance(settings.type, str) else msgspec.structs.replace(settings, type="realtime")
