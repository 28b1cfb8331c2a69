"""Await points: all that the code of engine, server and client has, and at which of them a coroutine is suspended now.

Rules kept here: what there is comes from the syntax tree, where something is suspended comes from its frames; a point is
named by what it waits for and never by its line, so that names outlive edits elsewhere in a file; a coroutine that is
suspended is suspended at every await on the way to the innermost one.
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from types import AsyncGeneratorType, CodeType, CoroutineType, FrameType
from typing import Any, Final

import duologue

PACKAGES: Final = ("engine", "server", "client")
_ROOT: Final = Path(duologue.__file__).parent
_LONGEST_NAME: Final = 72
_LINKS: Final = (AsyncGeneratorType, CoroutineType)

Place = tuple[int, int]

ELSEWHERE: Final[dict[str, str]] = {
    # real sockets, processes, HTTP
    "engine/stages/process.py *": "worker processes; tests/integration/faults",
    "engine/stages/stderr.py *": "worker processes; tests/integration/faults",
    "engine/stages/exchange.py *": "calls into worker processes and actors",
    "engine/stages/ray_client.py *": "actors on a cluster",
    "engine/stages/endpoint.py *": "an HTTP endpoint; tests/integration",
    "engine/stages/http.py *": "an HTTP endpoint; tests/integration",
    "server/serve.py *": "the process of the server, its listener and signals",
    "server/assembly.py *": "the process of the server: the simulator builds its own engine",
    "server/transport.py *": "real sockets: the simulated one is another transport",
    "client/socket.py *": "real sockets",
    # what never gives up the loop
    "*: async with asyncio.timeout*": "entering and leaving a time limit does not wait",
    "*: async with aclosing(recognise*": "the reader of outputs is closed on the spot",
    "*: async with aclosing(deltas)": "the reader of outputs is closed on the spot",
    "*: async with aclosing(_sound(outputs, kind))": "the reader of outputs is closed on the spot",
    "*: async with aclosing(pieces)": "the reader of a body is closed on the spot",
    "engine/stages/piece.py * close()": "waits only if stage code waits while it is closed",
    "engine/orchestration.py OrchestratorBase._route: self._accept()": "no owner of requests waits in it",
    "engine/orchestration.py OrchestratorBase._end_empty: self._accept()": "no owner of requests waits in it",
    "engine/orchestration.py OrchestratorBase._forward: self._end_empty()": "no owner of requests waits in it",
    "engine/orchestrator.py Orchestrator._dispatch_message: super()*": "a stop is handled on the spot",
    "server/turns/routes.py TurnRoutes._attempt: async with self.gate.place()": "a place is had at once or refused",
    # what nobody in the engine calls
    "engine/duplex/session/runner.py DuplexSessionRunner.close: *": "for embedding: the engine itself only begins an end",
    "engine/duplex/session/runner.py DuplexSessionRunner.expire: *": "as close",
    "engine/duplex/session/runner.py DuplexSessionRunner.offload: *": "for embedding",
    "engine/duplex/session/runner.py _as_coroutine: *": "for embedding",
    "engine/duplex/session/ending.py SessionEnding.wait: *": "for embedding: close and expire",
    "engine/duplex_orchestrator.py DuplexOrchestrator.abort_requests: *": "for embedding: a stage port's method",
    # what takes another fault than the plans have
    "engine/life.py EngineLife.start: self._close_pools()": "a start that fails: the engine never serves",
    "engine/replicas.py ReplicaSet.start: self.close()": "a start that fails: the engine never serves",
    "client/link.py Link._beat: socket.send()": "a conversation that is longer than the period of heartbeats",
    "server/shell.py SocketShell.run: asyncio.wait()": "a fault in the server's own code",
    # the client's thin methods: each waits for its link to send, and for nothing else
    "client/session.py *: self._link.send()": "an application's task, in the link's send",
    "client/session.py *: self._link.send_audio()": "an application's task, in the link's send",
    "client/session.py *: self.create_item()": "an application's task, in the link's send",
    "client/session.py ClientSession.responses: *": "an application's task, as events",
    "client/session.py ClientSession.update: *": "an application's task, in a request's answer",
    "client/session.py ClientSession.retrieve: *": "an application's task, in a request's answer",
    "client/session.py ClientSession._request: *": "an application's task, in a request's answer",
    "client/session.py ClientSession.close: self._functions.close()": "an application's functions",
    "client/functions.py *": "an application's functions",
    "client/response.py *": "an application's task, as events",
}
"""Patterns of points at which no simulated run is suspended, and why."""

SELDOM: Final[frozenset[str]] = frozenset(
    {
        "client/link.py Link._attempt: self._flush_kept()",
        "client/link.py Link._attempt: socket.close()",
        "client/link.py Link._flush_kept: socket.send()",
        "client/session.py ClientSession.close: self._link.close() (2)",
        "client/session.py ClientSession.wait_open: self._created (2)",
        "client/session.py ClientSession.wait_open: self._link.open() (2)",
        "client/session.py ClientSession.wait_open: self.update()",
        "engine/companions.py CompanionTracker.bundle: family.ready",
        "engine/duplex/session/detection.py BatchedDetection._judge_all: self._runtime.offload()",
        "engine/duplex/session/manager.py DuplexSessionManager.shutdown: asyncio.gather()",
        "engine/duplex/session/manager.py DuplexSessionManager.shutdown: self._terminal_sent.wait()",
        "engine/duplex/session/runner.py DuplexSessionRunner.shutdown: asyncio.wait()",
        "engine/duplex_orchestrator.py DuplexOrchestrator._handle_forward_failure: self._cleanup_request_ids()",
        "engine/duplex_orchestrator.py DuplexOrchestrator._shutdown_extensions: self.session_manager.shutdown()",
        "engine/lanes.py Lanes.close: asyncio.gather()",
        "engine/lanes.py Lanes.close: asyncio.sleep()",
        "engine/life.py EngineLife._close_pools: asyncio.gather()",
        "engine/life.py EngineLife._step.guarded: work",
        "engine/life.py EngineLife._step: asyncio.wait()",
        "engine/life.py EngineLife._stop: asyncio.gather()",
        "engine/life.py EngineLife._stop: self._lanes.close()",
        "engine/life.py EngineLife._stop: self._step() (2)",
        "engine/life.py EngineLife._stop: self._step() (3)",
        "engine/life.py EngineLife._stop: self._step()",
        "engine/life.py EngineLife.run: self._stop()",
        "engine/orchestration.py OrchestratorBase._cleanup_request_ids: self._fail()",
        "engine/orchestration.py OrchestratorBase._fail: self._fail()",
        "engine/orchestration.py OrchestratorBase._fail: self._handle_forward_failure()",
        "engine/orchestration.py OrchestratorBase._fail: self._on_empty_handoff()",
        "engine/orchestration.py OrchestratorBase._fail_all: self._fail()",
        "engine/orchestration.py OrchestratorBase._forward: self._cfg_tracker.bundle()",
        "engine/orchestration.py OrchestratorBase._forward: self._fail()",
        "engine/orchestration.py OrchestratorBase._on_empty_handoff: self._handle_forward_failure()",
        "engine/orchestration.py OrchestratorBase._prewarm_async_chunk_stages: self._fail()",
        "engine/orchestration.py OrchestratorBase._release_held: self._fail()",
        "engine/orchestration.py OrchestratorBase._route: self._cleanup_request_ids()",
        "engine/orchestration.py OrchestratorBase._route: self._fail()",
        "engine/orchestration.py OrchestratorBase._stop_again: asyncio.sleep()",
        "engine/orchestration.py OrchestratorBase._stop_again: self._abort_request_ids()",
        "engine/orchestrator.py Orchestrator._enter: self._fail()",
        "engine/replicas.py ReplicaSet._start_replica: asyncio.shield()",
        "engine/replicas.py ReplicaSet.close: asyncio.gather() (2)",
        "engine/replicas.py ReplicaSet.close: asyncio.gather()",
        "engine/replicas.py ReplicaSet.remove: replica.drained",
        "engine/stage_pool.py StagePool._stop_late: replica.client.abort()",
        "engine/stage_pool.py StagePool.close: self.replicas.close()",
        "server/app.py RealtimeServer._realtime: websocket.send_denial_response()",
        "server/app.py RealtimeServer.drain: self._changed.wait()",
        "server/engine.py EngineFront.abort: self._ask()",
        "server/shell.py SocketShell._read: self._readable.wait()",
        "server/shell.py SocketShell._send_all: asyncio.sleep()",
        "server/turns/chat.py ChatHandler._chunks: self._turn()",
        "server/turns/chat.py ChatHandler._spoken: async for ending.answer()",
        "server/turns/chat.py ChatHandler._turn: converse()",
        "server/turns/chat.py ChatHandler._whole: self._turn()",
        "server/turns/conversation.py _read: services.runtime.offload()",
        "server/turns/conversation.py _words: [segment.text async for segment in segments]",
        "server/turns/conversation.py converse: _read()",
        "server/turns/conversation.py converse: _words()",
        "server/turns/desk.py TurnDesk._abort: asyncio.sleep()",
        "server/turns/desk.py TurnDesk._abort: self._engine.abort()",
        "server/turns/exchange.py Exchange._drop: self._until_gone()",
        "server/turns/exchange.py Exchange._put: self._drop()",
        "server/turns/exchange.py Exchange._until_gone: self._receive()",
        "server/turns/exchange.py Exchange.cut: self._until_gone()",
        "server/turns/exchange.py Exchange.fail: self.cut() if self.on_fault is None else self.on_fault(fault)",
        "server/turns/routes.py TurnRoutes._answered: self._refuse() (2)",
        "server/turns/speech.py SpeechHandler._answer: async for sound",
        "server/turns/speech.py SpeechHandler._answer: exchange.start() (2)",
        "server/turns/speech.py SpeechHandler._answer: exchange.start()",
        "server/turns/speech.py SpeechHandler._answer: exchange.write() (2)",
        "server/turns/speech.py SpeechHandler._answer: exchange.write()",
        "server/turns/speech.py SpeechHandler._stream: async for sound",
        "server/turns/speech.py SpeechHandler._stream: async with aclosing(_sound(outputs, kind)), EventStream(exchange)",
        "server/turns/speech.py SpeechHandler._stream: events.done()",
        "server/turns/speech.py SpeechHandler._stream: events.send() (2)",
        "server/turns/speech.py SpeechHandler._stream: events.send()",
        "server/turns/sse.py EventStream.fail: self._write()",
        "server/turns/transcription.py TranscriptionHandler._answer: [segment async for segment in segments]",
        "server/turns/transcription.py TranscriptionHandler._answer: exchange.answer()",
        "server/turns/transcription.py _stream: events.done()",
        "server/turns/transcription.py _stream: events.send() (2)",
        "server/turns/transcription.py _stream: events.send()",
    }
)
"""Points that take luck: long runs are suspended there, short ones need not be."""


@dataclass(frozen=True, slots=True)
class Point:
    """One ``await``, ``async for`` or ``async with``. ``begin`` and ``end`` are lines and columns of what it waits for."""

    file: str
    function: str
    what: str
    begin: Place
    end: Place

    @property
    def name(self) -> str:
        """For people and tables."""
        return f"{self.file} {self.function}: {self.what}"


def _header(node: ast.AST) -> tuple[str, Place] | None:
    """What a node waits for and where its head ends; ``None`` if it does not wait."""
    match node:
        case ast.Await(value=ast.Call(func=function)):
            return f"{ast.unparse(function)}()", _end(node)
        case ast.Await(value=value):
            return ast.unparse(value), _end(node)
        case ast.AsyncFor(iter=source):
            return f"async for {ast.unparse(source)}", _end(source)
        case ast.AsyncWith(items=items):
            what = ", ".join(ast.unparse(item.context_expr) for item in items)
            return f"async with {what}", _end(items[-1].optional_vars or items[-1].context_expr)
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp() if any(
            generator.is_async for generator in node.generators
        ):
            return ast.unparse(node), _end(node)
        case _:
            return None


def _end(node: ast.expr) -> Place:
    assert node.end_lineno is not None and node.end_col_offset is not None
    return node.end_lineno, node.end_col_offset


def _points(tree: ast.Module, file: str) -> Iterator[Point]:
    taken: dict[tuple[str, str], int] = {}

    def visit(node: ast.AST, inside: str) -> Iterator[Point]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from visit(child, f"{inside}.{child.name}" if inside else child.name)
                continue
            if (found := _header(child)) is not None:
                what, end = found
                what = what if len(what) <= _LONGEST_NAME else f"{what[: _LONGEST_NAME - 3]}..."
                number = taken[inside, what] = taken.get((inside, what), 0) + 1
                what = what if number == 1 else f"{what} ({number})"
                yield Point(file, inside, what, (child.lineno, child.col_offset), end)  # type: ignore[attr-defined]
            yield from visit(child, inside)

    yield from visit(tree, "")


@cache
def _of_file(file: str) -> tuple[Point, ...]:
    return tuple(_points(ast.parse((_ROOT / file).read_text(encoding="utf-8")), file))


@cache
def catalogue() -> tuple[Point, ...]:
    """Every await point of :data:`PACKAGES`, in the order of files and lines."""
    files = [path for package in PACKAGES for path in sorted((_ROOT / package).rglob("*.py"))]
    return tuple(point for path in files for point in _of_file(path.relative_to(_ROOT).as_posix()))


@cache
def elsewhere(name: str) -> str | None:
    """Why no simulated run is suspended at a point; ``None`` if some are."""
    return next((why for pattern, why in ELSEWHERE.items() if fnmatchcase(name, pattern)), None)


@cache
def _watched(filename: str) -> str | None:
    """The file of a code object below the package, if its await points are listed."""
    try:
        file = Path(filename).relative_to(_ROOT)
    except ValueError:
        return None
    return file.as_posix() if file.parts[0] in PACKAGES else None


@cache
def _at(code: CodeType, instruction: int) -> str | None:
    """The name of the point of one instruction; ``None`` outside of the listed packages."""
    file = _watched(code.co_filename)
    if file is None:
        return None
    for index, (line, _, column, _) in enumerate(code.co_positions()):
        if index * 2 == instruction and line is not None and column is not None:
            around = [point for point in _of_file(file) if point.begin <= (line, column) < point.end]
            return max(around, key=lambda point: point.begin).name if around else None
    return None


def _frame(step: Any) -> FrameType | None:
    for name in ("cr_frame", "ag_frame", "gi_frame"):
        frame: FrameType | None = getattr(step, name, None)
        if frame is not None:
            return frame
    return None


def _next(step: Any, frame: FrameType | None) -> Any:
    """What ``step`` waits for, if that is code again."""
    if frame is not None and frame.f_code.co_name == "_continue":
        return frame.f_locals.get("coro")  # begun inline, finished in a task (see `engine.lanes`)
    for name in ("cr_await", "ag_await", "gi_yieldfrom"):
        following = getattr(step, name, None)
        if following is not None:
            return following
    if frame is None:  # a step of an asynchronous generator, or what `__await__` made of a coroutine
        return next((link for link in gc.get_referents(step) if isinstance(link, _LINKS)), None)
    return None


def suspended_at(coro: object) -> list[str]:
    """Names of the points at which ``coro`` is suspended, outermost first."""
    found: list[str] = []
    step: Any = coro
    while step is not None:
        frame = _frame(step)
        if frame is not None:
            name = _at(frame.f_code, frame.f_lasti)
            if name is not None and (not found or found[-1] != name):
                found.append(name)
        step = _next(step, frame)
    return found
