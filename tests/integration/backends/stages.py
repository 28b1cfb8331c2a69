"""Stage code for the backend tests: it does what the text of a prompt says.

``echo TEXT``, ``count N``, ``flood`` (outputs until cancelled), ``raise TEXT``, ``cancelled``, ``mute``, ``ledger`` (how
many states were opened and closed), ``unencodable``, ``print TEXT``, ``die``, ``freeze`` (holds the interpreter's lock),
``options``.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

from duologue.engine.stages.contract import AsyncStage, Stage, StageControl, no_such_call
from duologue.engine.stages.http import ChatStage, Conversation
from duologue.errors import ErrorCode, StageFault
from duologue.outputs import RequestOutput, StageRequest


@dataclass
class Counts:
    opened: int = 0
    closed: int = 0


@dataclass
class State:
    pieces: int = 0


def _out(request: StageRequest, text: str = "", **fields: object) -> RequestOutput:
    return RequestOutput(request_id=request.request_id, text=text, **fields)  # type: ignore[arg-type]


class Puppet:
    """What both kinds of stage do."""

    def __init__(self, greeting: str = "", load: str = "") -> None:
        self.greeting = greeting
        self.on_load = load
        self.counts = Counts()

    def begin(self) -> None:
        match self.on_load:
            case "fail":
                raise StageFault(ErrorCode.INTERNAL_ERROR, "the weights are missing")
            case "exit":
                os._exit(3)
            case "hang":
                signal.pause()

    def end(self) -> None:
        if self.on_load == "never end":
            signal.pause()

    def play(self, state: State, request: StageRequest, control: StageControl) -> Iterator[RequestOutput]:
        state.pieces += 1
        verb, _, rest = request.prompt.text.partition(" ")
        prompt = request.prompt
        match verb:
            case "echo":
                yield _out(
                    *(request, rest),
                    audio=prompt.audio,
                    audio_rate_hz=prompt.audio_rate_hz,
                    finished=prompt.final,
                    segment_finished=not prompt.final,
                )
            case "count":
                for number in range(int(rest)):
                    yield _out(request, f"{state.pieces}.{number}")
            case "flood":
                while not control.cancelled:
                    yield _out(request, "drop")
            case "raise":
                yield _out(request, "before")
                raise RuntimeError(rest)
            case "ledger":
                yield _out(request, f"{self.counts.opened} {self.counts.closed}", finished=True)
            case "options":
                yield _out(request, f"{self.greeting} {request.params.max_tokens}", finished=True)
            case _:
                yield from self.misbehave(verb, rest, request)

    def misbehave(self, verb: str, rest: str, request: StageRequest) -> Iterator[RequestOutput]:
        match verb:
            case "unencodable":
                yield _out(request, metadata={"bad": object()})
            case "print":
                print(rest)
                print(rest, file=sys.stderr)
                sys.stderr.flush()
                yield _out(request, finished=True)
            case "cancelled":  # it waited for something that somebody cancelled
                yield _out(request, "before")
                raise asyncio.CancelledError
            case "die":
                os._exit(7)
            case "memory":
                raise MemoryError("no room for 8 GiB")
            case "exhaust":  # what the kernel does to a process when there is no memory left
                yield _out(request, "before")
                os.kill(os.getpid(), signal.SIGKILL)
            case "freeze":
                ctypes.PyDLL(None).pause()  # PyDLL keeps the lock: nothing else in this process runs again
            case "environment":
                yield _out(request, f"{os.environ.get(rest)}", finished=True)
            case _:
                pass

    def answer(self, method: str, args: tuple[Any, ...]) -> object:
        """What both kinds of stage answer to calls."""
        match method:
            case "join":
                return {"text": "-".join(args), "bytes": b"\0\xff", "process": os.getpid()}
            case "fail":
                raise StageFault(ErrorCode.RATE_LIMITED, "not now")
            case "cancelled":
                raise asyncio.CancelledError
            case "die":
                os._exit(7)
            case "sleep":
                time.sleep(args[0])
                return None
            case "unencodable":
                return object()
            case _:
                raise no_such_call(self, method)


class Blocking(Puppet, Stage[State]):
    def load(self) -> None:
        self.begin()

    def open(self, request: StageRequest) -> State:
        self.counts.opened += 1
        return State()

    def process(self, state: State, request: StageRequest, control: StageControl) -> Iterator[RequestOutput]:
        yield from self.play(state, request, control)

    def close(self, state: State) -> None:
        self.counts.closed += 1

    def call(self, method: str, args: tuple[Any, ...]) -> object:
        return self.answer(method, args)

    def shutdown(self) -> None:
        self.end()


class Parallel(Blocking):
    concurrency = 4


class Asynchronous(Puppet, AsyncStage[State]):
    async def load(self) -> None:
        self.begin()

    def open(self, request: StageRequest) -> State:
        self.counts.opened += 1
        return State()

    async def process(self, state: State, request: StageRequest, control: StageControl) -> AsyncIterator[RequestOutput]:
        for output in self.play(state, request, control):
            yield output
            await asyncio.sleep(0)

    def close(self, state: State) -> None:
        self.counts.closed += 1

    async def call(self, method: str, args: tuple[Any, ...]) -> object:
        return self.answer(method, args)


class PuppetChat(ChatStage):
    """The endpoint on the other side is the puppet; what was opened and closed is counted here."""

    def __init__(self, *, base_url: str) -> None:
        super().__init__(base_url=base_url, connections=256)
        self.counts = Counts()

    def open(self, request: StageRequest) -> Conversation:
        self.counts.opened += 1
        return super().open(request)

    def close(self, state: Conversation) -> None:
        self.counts.closed += 1

    async def process(
        self, state: Conversation, request: StageRequest, control: StageControl
    ) -> AsyncIterator[RequestOutput]:
        if request.prompt.text == "ledger":
            yield _out(request, f"{self.counts.opened} {self.counts.closed}", finished=True)
            return
        async for output in super().process(state, request, control):
            yield output


def not_a_stage() -> object:
    return object()
