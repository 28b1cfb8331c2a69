"""The requests inside one replica: three ways to run stage code, with one face.

* :class:`SteppedWorks`: blocking stage code on the loop, one output per turn of the loop (light stages, tests);
* :class:`TaskWorks`: asynchronous stage code on a loop, one task per request;
* :class:`ThreadedWorks`: blocking stage code in ``concurrency`` threads (worker processes).

Rules kept here: pieces of one request run in order, one at a time; a slot is held for a piece, not for a request;
whoever waits for a slot gets it in order of arrival; an aborted request delivers nothing more and is closed once.
"""

from __future__ import annotations

import abc
import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from duologue.clock import monotonic
from duologue.engine.stages.contract import AsyncStage, Stage
from duologue.engine.stages.piece import (
    CALL_CUT_SHORT,
    CallResult,
    Work,
    close_work,
    cut_short,
    run_call,
    run_call_async,
    run_piece,
    run_piece_async,
)
from duologue.outputs import RequestOutput, StageRequest

Key = int | str
Push = Callable[[Key, RequestOutput], None]
Done = Callable[[CallResult], None]


class Works(Protocol):
    """Requests of one replica, each under a key that the caller chose."""

    def submit(self, key: Key, request: StageRequest) -> None:
        """A new request."""
        ...

    def update(self, key: Key, request: StageRequest) -> None:
        """One more piece; ignored when the request is over."""
        ...

    def abort(self, keys: Sequence[Key]) -> None:
        """Stop requests; unknown keys are ignored."""
        ...

    def call(self, method: str, args: tuple[Any, ...], done: Done) -> None:
        """Call stage code where its requests run; ``done`` gets the answer there, once."""
        ...


@dataclass(slots=True, eq=False)
class _Job:
    """One request: what it still has to do, and the piece that runs."""

    key: Key
    work: Work
    pieces: deque[StageRequest] = field(default_factory=deque)
    busy: bool = False
    running: Generator[RequestOutput, None, None] | None = None
    task: asyncio.Task[None] | None = None
    more: asyncio.Future[None] | None = None  # the task waits for it: a piece, or the end


StageT = TypeVar("StageT", Stage[object], AsyncStage[object])


class _Jobs(abc.ABC, Generic[StageT]):
    """The jobs of one replica by key, however they are run: what a request is told, and what an abort leaves of it."""

    def __init__(self, stage: StageT, push: Push, clock: Callable[[], float]) -> None:
        self._stage: StageT = stage
        self._push = push
        self._clock = clock
        self._jobs: dict[Key, _Job] = {}

    def submit(self, key: Key, request: StageRequest) -> None:
        job = self._jobs[key] = _Job(key, Work(request.request_id, self._clock))
        self._add(job, request)

    def update(self, key: Key, request: StageRequest) -> None:
        job = self._jobs.get(key)
        if job is not None:
            self._add(job, request)

    def abort(self, keys: Sequence[Key]) -> None:
        for key in keys:
            job = self._jobs.pop(key, None)
            if job is not None:
                job.work.cancelled = True
                job.pieces.clear()
                self._stop(job)

    @abc.abstractmethod
    def _add(self, job: _Job, request: StageRequest) -> None:
        """One more piece of a job: run it when its turn comes."""

    @abc.abstractmethod
    def _stop(self, job: _Job) -> None:
        """A job was cancelled and has no pieces left: see to it that its state is closed, once."""

    def _forget(self, job: _Job) -> None:
        """The job ends with the output that is due: another request may have its key from now on."""
        if self._jobs.get(job.key) is job:
            del self._jobs[job.key]


class SteppedWorks(_Jobs[Stage[object]]):
    """Blocking stage code on the loop. One output per turn, so that others and aborts get in between."""

    def __init__(self, stage: Stage[object], push: Push, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(stage, push, loop.time)
        self._call_soon = loop.call_soon
        self._free = max(1, stage.concurrency)
        self._waiting: deque[_Job | Callable[[], None]] = deque()

    def call(self, method: str, args: tuple[Any, ...], done: Done) -> None:
        self._waiting.append(lambda: done(run_call(self._stage, method, args)))
        self._fill()

    def _add(self, job: _Job, request: StageRequest) -> None:
        job.pieces.append(request)
        if not job.busy:
            job.busy = True
            self._waiting.append(job)
            self._fill()
            if job.running is None and not job.work.opened:
                job.work.added_at = self._clock()

    def _stop(self, job: _Job) -> None:
        if job.running is None:
            close_work(self._stage, job.work)
        # else the step that is due finds it cancelled, frees the slot and closes it

    def _fill(self) -> None:
        while self._free and self._waiting:
            job = self._waiting.popleft()
            if not isinstance(job, _Job):
                job()
            elif job.pieces:  # else aborted while it waited
                self._free -= 1
                job.running = run_piece(self._stage, job.work, job.pieces.popleft())
                self._call_soon(self._step, job)

    def _step(self, job: _Job) -> None:
        running = job.running
        if running is None:
            return
        output = None if job.work.cancelled else next(running, None)
        if output is not None:
            if job.work.ended:
                self._forget(job)
            self._push(job.key, output)
            if not (job.work.ended or job.work.cancelled):
                self._call_soon(self._step, job)
                return
        self._end_piece(job, running)

    def _end_piece(self, job: _Job, running: Generator[RequestOutput, None, None]) -> None:
        job.running = None
        if job.work.cancelled:
            running.close()
            close_work(self._stage, job.work)
        elif job.work.ended:
            next(running, None)  # runs its end, which closes the request
        self._free += 1
        job.busy = False
        if job.pieces and not job.work.ended:
            job.busy = True
            self._waiting.append(job)
        self._fill()


class TaskWorks(_Jobs[AsyncStage[object]]):
    """Asynchronous stage code: one task per request, which waits between its pieces. Used from the loop only."""

    def __init__(
        self,
        stage: AsyncStage[object],
        push: Push,
        spawn: Callable[[Coroutine[object, object, None]], asyncio.Task[None]],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        super().__init__(stage, push, clock)
        self._spawn = spawn

    def call(self, method: str, args: tuple[Any, ...], done: Done) -> None:
        async def run() -> None:
            done(await run_call_async(self._stage, method, args))

        self._spawn(run()).add_done_callback(lambda task: done(CALL_CUT_SHORT) if task.cancelled() else None)

    def _add(self, job: _Job, request: StageRequest) -> None:
        job.pieces.append(request)
        if job.task is None:
            job.task = self._spawn(self._run(job))
            # Not a `finally` in the coroutine: a task that is cancelled before its first step never enters it.
            job.task.add_done_callback(lambda task: self._ended(job, cancelled=task.cancelled()))
        elif job.more is not None:
            _wake(job.more)

    def _stop(self, job: _Job) -> None:
        if job.more is not None:  # between two pieces: nothing of it runs
            _wake(job.more)
            close_work(self._stage, job.work)
        elif job.task is not None and job.task is not asyncio.current_task():
            job.task.cancel()

    def _ended(self, job: _Job, *, cancelled: bool) -> None:
        work = job.work
        if cancelled and not (work.ended or work.cancelled):
            self._jobs.pop(job.key, None)
            self._push(job.key, cut_short(work))
        close_work(self._stage, work)

    async def _run(self, job: _Job) -> None:
        work, pieces = job.work, job.pieces
        deliver = partial(self._deliver, job)
        while not (work.ended or work.cancelled):
            if pieces:
                await run_piece_async(self._stage, work, pieces.popleft(), deliver)
            else:
                job.more = asyncio.get_running_loop().create_future()
                await job.more
                job.more = None

    def _deliver(self, job: _Job, output: RequestOutput) -> None:
        if job.work.ended:
            self._forget(job)
        self._push(job.key, output)


class ThreadedWorks(_Jobs[Stage[object]]):
    """Blocking stage code in threads. ``push`` is called from those threads; after an abort it may be called once more.

    The threads are daemons: a stage that never returns does not keep its process alive.
    """

    def __init__(self, stage: Stage[object], push: Push) -> None:
        super().__init__(stage, push, monotonic)
        self._lock = threading.Lock()
        self._ready: queue.SimpleQueue[_Job | Callable[[], None]] = queue.SimpleQueue()
        for number in range(max(1, stage.concurrency)):
            threading.Thread(target=self._serve, name=f"stage-{number}", daemon=True).start()

    def submit(self, key: Key, request: StageRequest) -> None:
        with self._lock:
            super().submit(key, request)

    def update(self, key: Key, request: StageRequest) -> None:
        with self._lock:
            super().update(key, request)

    def abort(self, keys: Sequence[Key]) -> None:
        with self._lock:
            super().abort(keys)

    def call(self, method: str, args: tuple[Any, ...], done: Done) -> None:
        self._ready.put(lambda: done(run_call(self._stage, method, args)))

    def _add(self, job: _Job, request: StageRequest) -> None:
        if job.work.added_at is None:
            job.work.added_at = self._clock()
        job.pieces.append(request)
        if not job.busy:
            job.busy = True
            self._ready.put(job)

    def _stop(self, job: _Job) -> None:
        if not job.busy:
            job.busy = True
            self._ready.put(job)  # stage code is closed where it runs: in a stage thread

    def _serve(self) -> None:
        while True:
            job = self._ready.get()
            if isinstance(job, _Job):
                self._run(job)
            else:
                job()

    def _run(self, job: _Job) -> None:
        with self._lock:
            request = job.pieces.popleft() if job.pieces else None
        if request is not None:
            self._run_piece(job, request)
        if job.work.cancelled or job.work.ended:
            close_work(self._stage, job.work)
            return
        with self._lock:
            if job.pieces or job.work.cancelled:
                self._ready.put(job)
            else:
                job.busy = False

    def _run_piece(self, job: _Job, request: StageRequest) -> None:
        work = job.work
        outputs = run_piece(self._stage, work, request)
        for output in outputs:
            if work.cancelled:
                outputs.close()
                return
            if work.ended:
                with self._lock:
                    self._forget(job)
            self._push(job.key, output)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
