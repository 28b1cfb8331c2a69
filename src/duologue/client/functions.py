"""Functions that the model may call: what is offered, and who answers.

Rules kept here: each call is run once, whatever becomes of the connection; its result goes out as soon as it is there; when
every call of a response has its result and the response is over, the model is asked to go on, once; calls of a response that
was stopped are stopped too, and nothing is sent for them; a function that raises tells the model so, and nothing of why;
arguments that are none tell it what is wrong with them.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from duologue.log import init_logger
from duologue.wire.objects import Item, Tool
from duologue.wire.server_events import ArgumentsDone, ResponseDone

logger = init_logger(__name__)

Answer = str | msgspec.Struct | None
"""What a function gives: text as it is, a struct as JSON, ``None`` as an empty result."""
ArgumentsT = TypeVar("ArgumentsT", bound=msgspec.Struct)

_FAILED = "The function failed."


@dataclass(frozen=True, slots=True)
class _Offer(Generic[ArgumentsT]):
    tool: Tool
    implementation: Callable[[ArgumentsT], Answer | Awaitable[Answer]]
    decoder: msgspec.json.Decoder[ArgumentsT]


def _schema(arguments: type[msgspec.Struct]) -> msgspec.Raw:
    """The schema of an object itself: not every model follows a reference to it."""
    (top,), parts = msgspec.json.schema_components([arguments], ref_template="#/$defs/{name}")
    schema = parts[str(top["$ref"]).rpartition("/")[2]]
    named = b"#/$defs/" in msgspec.json.encode(schema)  # other structs, or itself
    return msgspec.Raw(msgspec.json.encode({**schema, "$defs": parts} if named else schema))


class Functions:
    """A set of functions. ``add`` registers one; pass the set to :func:`duologue.client.connect`."""

    def __init__(self) -> None:
        self._known: dict[str, _Offer[Any]] = {}

    def add(
        self,
        implementation: Callable[[ArgumentsT], Answer | Awaitable[Answer]],
        arguments: type[ArgumentsT],
        *,
        name: str | None = None,
        description: str = "",
    ) -> None:
        """Offer ``implementation``, which gets ``arguments`` and may be async; sync ones must not block.

        ``arguments``: a ``msgspec.Struct`` class, of which the model is told the JSON schema, docstrings and limits
        (``msgspec.Meta``) included. ``name``: the function's own, if it is not given. Raises ``ValueError`` for a name that
        is taken.
        """
        called = name or getattr(implementation, "__name__", "")
        if not called or called in self._known:
            raise ValueError(f"a function needs a name of its own, got {called!r}")
        tool = Tool(name=called, description=description, parameters=_schema(arguments))
        self._known[called] = _Offer(tool, implementation, msgspec.json.Decoder(arguments))

    def tools(self) -> list[Tool]:
        """What a session offers to its model."""
        return [offer.tool for offer in self._known.values()]

    def __contains__(self, name: str) -> bool:
        return name in self._known

    async def call(self, name: str, arguments: str) -> str:
        """The result of one call, as text; never raises but for cancellation and ``KeyError``."""
        offer = self._known[name]
        try:
            given = offer.decoder.decode(arguments or "{}")
        except msgspec.DecodeError as fault:
            return f"The arguments do not fit: {fault}."
        try:
            answer = offer.implementation(given)
            found = await answer if inspect.isawaitable(answer) else answer
            if found is None or isinstance(found, str):
                return found or ""
            return msgspec.json.encode(found).decode()
        except Exception as fault:
            logger.warning("function failed", extra={"function": name, "error": type(fault).__name__})
            return _FAILED


class Sender(Protocol):
    """The part of a session that results go through."""

    async def create_item(self, item: Item, *, previous_item_id: str | None = None) -> None: ...

    async def create_response(self) -> None: ...


@dataclass(slots=True)
class _Round:
    """The calls of one response."""

    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    over: bool = False


class FunctionCalls:
    """Runs the calls of one session."""

    def __init__(self, functions: Functions, sender: Sender) -> None:
        self._functions = functions
        self._sender = sender
        self._rounds: dict[str, _Round] = {}
        self._asking: set[asyncio.Task[None]] = set()

    @property
    def running(self) -> int:
        """Calls that have no result yet."""
        return sum(not task.done() for one in self._rounds.values() for task in one.tasks.values())

    def asked(self, event: ArgumentsDone) -> None:
        """The model asks for a function. One that is not in the set is the application's own business."""
        one = self._rounds.setdefault(event.response_id, _Round())
        if event.name not in self._functions or event.call_id in one.tasks:
            return
        task = asyncio.get_running_loop().create_task(self._answer(event), name=f"function {event.call_id}")
        one.tasks[event.call_id] = task
        task.add_done_callback(lambda _: self._go_on(event.response_id))

    def done(self, event: ResponseDone) -> None:
        """A response is over: the model goes on when its calls have their results, unless it was stopped."""
        one = self._rounds.get(event.response.id)
        if one is None:
            return
        one.over = True
        if event.response.status not in ("completed", "incomplete"):
            del self._rounds[event.response.id]
            for task in one.tasks.values():
                task.cancel()
        else:
            self._go_on(event.response.id)

    async def _answer(self, event: ArgumentsDone) -> None:
        output = await self._functions.call(event.name, event.arguments)
        await self._sender.create_item(Item(type="function_call_output", call_id=event.call_id, output=output))

    def _go_on(self, response_id: str) -> None:
        one = self._rounds.get(response_id)
        if one is None or not one.over or any(not task.done() for task in one.tasks.values()):
            return
        del self._rounds[response_id]
        answered = [task for task in one.tasks.values() if not task.cancelled() and task.exception() is None]
        if answered:
            task = asyncio.get_running_loop().create_task(self._sender.create_response(), name="go on")
            self._asking.add(task)
            task.add_done_callback(self._asked)

    def _asked(self, task: asyncio.Task[None]) -> None:
        self._asking.discard(task)
        if not task.cancelled():
            task.exception()  # the session has ended: whoever reads its events is told

    async def close(self) -> None:
        """Stop what runs, and wait for it."""
        rounds, self._rounds = self._rounds, {}
        tasks = [task for one in rounds.values() for task in one.tasks.values()] + list(self._asking)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
