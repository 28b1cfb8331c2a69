"""The worker process of one replica: ``python -m duologue.engine.stages.worker``.

Rules kept here:

* the main thread only reads frames, so that an abort or a heartbeat is never behind stage code;
* stage threads write their outputs to the socket themselves: no hop over a loop;
* the worker ends when its parent does, however that died: the kernel's parent-death signal, and the end of the socket;
* an interrupt from the terminal is the parent's business: it decides when its workers end.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from duologue.engine.stages.arena import Ring
from duologue.engine.stages.contract import AnyStage, AsyncStage
from duologue.engine.stages.factory import make_stage
from duologue.engine.stages.frames import (
    Abort,
    Call,
    Configure,
    FrameReader,
    FrameWriter,
    FromWorker,
    Output,
    Ping,
    Pong,
    Ready,
    Returned,
    StartFailed,
    Stop,
    Submit,
    ToWorker,
    Update,
    to_worker,
)
from duologue.engine.stages.piece import CallResult
from duologue.engine.stages.process_end import mark_own_process
from duologue.engine.stages.works import Done, Key, Push, TaskWorks, ThreadedWorks, Works
from duologue.errors import ErrorCode
from duologue.log import configure_logging, init_logger
from duologue.outputs import RequestOutput, StageError, StageRequest

logger = init_logger(__name__)

_READ_BYTES = 256 * 1024
_PR_SET_PDEATHSIG = 1
SWITCH_INTERVAL_S = 0.0005  # stage code in Python must not keep the reader from an abort for Python's usual 5 ms


class Link:
    """The worker's end of the socket. Writing is allowed from any thread."""

    def __init__(self, connection: socket.socket, incoming: Ring, outgoing: Ring) -> None:
        self._socket = connection
        self._lock = threading.Lock()
        self._reader = FrameReader(to_worker, incoming)
        self._writer = FrameWriter(outgoing)

    def send(self, message: FromWorker) -> None:
        """Send one message; blocks while the parent does not read. A vanished parent is noticed by the reader."""
        with self._lock:
            data = self._writer.frame(message)  # under the lock: blocks lie in the ring as frames do on the socket
            with contextlib.suppress(OSError):
                self._socket.sendall(data)

    def receive(self) -> list[ToWorker] | None:
        """The next messages, or ``None`` when the parent is gone."""
        try:
            data = self._socket.recv(_READ_BYTES)
        except OSError:
            return None
        return self._reader.feed(data) if data else None

    def push(self, key: Key, output: RequestOutput) -> None:
        """Send one output; one that can't be encoded becomes an error of its request."""
        number = int(key)
        try:
            self.send(Output(number, output))
        except (TypeError, ValueError, OverflowError) as error:
            reason = StageError(ErrorCode.PAYLOAD_UNENCODABLE.value, f"An output of the stage can't be sent: {error}")
            self.send(Output(number, RequestOutput(request_id=output.request_id, finish_reason="error", error=reason)))

    def answer(self, number: int, result: CallResult) -> None:
        """Send what came of a call; what can't be encoded becomes an error."""
        try:
            self.send(Returned(number, result.value, result.error))
        except (TypeError, ValueError, OverflowError) as error:
            reason = StageError(ErrorCode.PAYLOAD_UNENCODABLE.value, f"The answer of the stage can't be sent: {error}")
            self.send(Returned(number, None, reason))


class LoopThread:
    """An event loop in a thread of its own, for asynchronous stage code."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        threading.Thread(target=self.loop.run_forever, name="stage-loop", daemon=True).start()

    def call(self, coro: Coroutine[object, object, None]) -> None:
        """Run ``coro`` there and wait for its end; raises what it raised."""
        asyncio.run_coroutine_threadsafe(coro, self.loop).result()

    def spawn(self, coro: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Start a task; from the loop's thread only."""
        task = self.loop.create_task(coro)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class LoopWorks:
    """Requests of asynchronous stage code, handed to its loop in order."""

    def __init__(self, stage: AsyncStage[object], push: Push, thread: LoopThread) -> None:
        self._post = thread.loop.call_soon_threadsafe
        self._works = TaskWorks(stage, push, thread.spawn)

    def submit(self, key: Key, request: StageRequest) -> None:
        self._post(self._works.submit, key, request)

    def update(self, key: Key, request: StageRequest) -> None:
        self._post(self._works.update, key, request)

    def abort(self, keys: Sequence[Key]) -> None:
        self._post(self._works.abort, keys)

    def call(self, method: str, args: tuple[Any, ...], done: Done) -> None:
        self._post(self._works.call, method, args, done)


def start_stage(stage: AnyStage, push: Push) -> tuple[Works, Callable[[], None]]:
    """Load ``stage``; returns how to run requests on it, and how to shut it down. ``push`` is called from any thread."""
    if isinstance(stage, AsyncStage):
        thread = LoopThread()
        thread.call(stage.load())
        return LoopWorks(stage, push, thread), lambda: thread.call(stage.shutdown())
    stage.load()
    return ThreadedWorks(stage, push), stage.shutdown


def serve(link: Link) -> None:
    """The whole life of the worker, from the first message to the last."""
    works: Works | None = None
    shutdown: Callable[[], None] | None = None
    while (messages := link.receive()) is not None:
        for message in messages:
            if isinstance(message, Configure):
                configure_logging(message.log_level)
                try:
                    works, shutdown = start_stage(make_stage(message.factory, message.options), link.push)
                except Exception as error:
                    # The parent says so in one sentence; where it happened is for who looks for a fault.
                    logger.debug("the stage could not be started", exc_info=True)
                    link.send(StartFailed(f"{type(error).__name__}: {error}"))
                    return
                link.send(Ready())
            elif isinstance(message, Stop):
                if shutdown is not None:
                    shutdown()
                return
            elif works is not None:
                handle(message, works, lambda: link.send(Pong()), link.answer)


def handle(
    message: Submit | Update | Abort | Ping | Call,
    works: Works,
    pong: Callable[[], None],
    answer: Callable[[int, CallResult], None] | None = None,
) -> None:
    """Do what one message asks of a running stage. ``answer`` takes what came of a call; ``None``: there are none."""
    match message:
        case Submit(number, request):
            works.submit(number, request)
        case Update(number, request):
            works.update(number, request)
        case Abort(numbers):
            works.abort(numbers)
        case Ping():
            pong()
        case Call(number, method, args):
            if answer is not None:
                works.call(method, args, partial(answer, number))


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel to kill this process when its parent dies. Only Linux can; elsewhere the socket's end must do."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:  # it died before the call
        os._exit(1)


def main(arguments: Sequence[str]) -> None:
    """Run the worker. Arguments: the parent's process id, and the inherited descriptors of the socket and of the shared
    memory towards this process and back."""
    parent_pid, connection, incoming, outgoing = (int(argument) for argument in arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(parent_pid)
    mark_own_process()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    # What stage code prints belongs to the log, and the log is standard error.
    sys.stdout = sys.stderr
    code = 0
    try:
        serve(Link(socket.socket(fileno=connection), Ring(incoming), Ring(outgoing)))
    except Exception:
        logger.exception("the worker failed")
        code = 1
    sys.stderr.flush()
    # Not sys.exit: a stage thread that never returns must not keep the process.
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
