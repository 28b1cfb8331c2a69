"""The process backend: one worker process per replica, spoken to over a Unix socket pair.

Rules kept here:

* submitting is writing a frame: order is the socket's, and only a full socket makes a caller wait;
* a worker that dies is noticed by the end of its socket, one that hangs by a missed heartbeat; both are reported once;
* nothing here blocks the loop: processes are waited for by looking, never by joining, and each wait has a bound.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from duologue.config.stage_config import ModelConfig
from duologue.engine.stages.arena import Ring, create_memory
from duologue.engine.stages.contract import StageClient, StageSink
from duologue.engine.stages.exchange import Exchange
from duologue.engine.stages.frames import (
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
    ToWorker,
    from_worker,
)
from duologue.engine.stages.piece import CallResult
from duologue.engine.stages.stderr import LineForwarder, forward_lines
from duologue.errors import ErrorCode, StageFault
from duologue.log import init_logger
from duologue.outputs import Options, SamplingParams, StageRequest

if TYPE_CHECKING:
    from duologue.clock import Runtime, TimerHandle

logger = init_logger(__name__)

_LOOK_EVERY_S = 0.01
KEPT_HERE = "DUOLOGUE__SERVER__"  # keys of clients are none of a stage's business
_STDERR_S = 1.0
_EXIT_CODE_S = 1.0  # from the end of the socket to that of the process: a moment, unless the machine is very busy
_REAP_S = 10.0  # for the kernel to end what was killed: at once, unless the machine is very busy
_TERM_AFTER = 0.5  # of the close time-out: then SIGTERM, at its end SIGKILL


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker runs and how patient its parent is. Times in seconds.

    ``factory`` is ``package.module:name``, called in the worker with ``options`` as keywords. ``environment`` is added
    to the parent's; inference libraries get one thread unless it says otherwise. Of ``devices`` (GPUs, as
    ``CUDA_VISIBLE_DEVICES`` names them) the worker sees the one of its slot, in turn; none given: what the parent sees.
    """

    factory: str
    options: Options = {}
    name: str = "stage"
    sampling: SamplingParams = SamplingParams()
    model: ModelConfig = ModelConfig()
    environment: dict[str, str] = {}
    devices: tuple[str, ...] = ()
    start_timeout_s: float = 120.0
    heartbeat_s: float = 2.0
    heartbeat_timeout_s: float = 10.0
    close_timeout_s: float = 5.0
    log_level: str = "info"


class ProcessClient(StageClient, asyncio.Protocol):
    """One replica in a process of its own."""

    def __init__(self, spec: WorkerSpec, *, runtime: Runtime) -> None:
        self.default_sampling_params = spec.sampling
        self.model_config = spec.model
        self._spec = spec
        self._runtime = runtime
        self._sink: StageSink | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._transport: asyncio.Transport | None = None
        self._stderr: LineForwarder | None = None
        self._disconnected = asyncio.Event()
        self._reader: FrameReader[FromWorker] = FrameReader(from_worker)
        self._writer = FrameWriter()
        self._rings: list[Ring] = []
        self._ready: asyncio.Future[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._exchange = Exchange("Worker", spec.name, write=self._write, up=lambda: self.healthy)
        self._heard_at = 0.0
        self._timer: TimerHandle | None = None
        self._up = False
        self._closing = False
        self._slot = 0

    # ---------------------------------------------------------------- life

    @property
    def healthy(self) -> bool:
        return self._up and not self._closing and not self._disconnected.is_set()

    @property
    def pid(self) -> int | None:
        """The worker's process id, once it was started."""
        return None if self._process is None else self._process.pid

    def fill(self, slot: int) -> None:
        self._slot = slot

    async def start(self, sink: StageSink) -> None:
        """Start the worker and wait until its stage is loaded.

        Raises :class:`StageFault` when it can't be started or is not ready in ``start_timeout_s``.
        """
        loop = asyncio.get_running_loop()
        self._sink = sink
        self._ready = loop.create_future()
        try:
            ours, self._process = self._spawn()
        except OSError as error:
            raise StageFault(
                ErrorCode.REPLICA_UNAVAILABLE, f"Worker {self._spec.name} can't be started: {error}"
            ) from error
        self._stderr = await forward_lines(self._process, self._spec.name)
        await loop.create_unix_connection(lambda: self, sock=ours)
        spec = self._spec
        self._exchange.send(Configure(spec.factory, spec.options, spec.log_level))
        try:
            async with asyncio.timeout(spec.start_timeout_s):
                await self._ready
        except TimeoutError:
            raise StageFault(
                ErrorCode.REPLICA_UNAVAILABLE,
                f"Worker {spec.name} was not ready after {spec.start_timeout_s:g} s; "
                "raise its start_timeout_s if it loads large weights.",
            ) from None
        self._up = True
        self._heard_at = self._runtime.now()
        self._next_beat(self._heard_at)

    def _spawn(self) -> tuple[socket.socket, subprocess.Popen[bytes]]:
        ours, theirs = socket.socketpair()
        memories: list[int] = []
        try:
            memories += [create_memory(), create_memory()]
            process = self._start_process([theirs.fileno(), *memories])
            self._rings = [Ring(memory) for memory in memories]
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
            for memory in memories:
                os.close(memory)
        ours.setblocking(False)
        self._writer, self._reader = FrameWriter(self._rings[0]), FrameReader(from_worker, self._rings[1])
        return ours, process

    def _start_process(self, descriptors: list[int]) -> subprocess.Popen[bytes]:
        environment = {
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            **{name: value for name, value in os.environ.items() if not name.startswith(KEPT_HERE)},
            # What can be imported here can be imported there.
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            **self._visible_devices(),
            **self._spec.environment,
        }
        arguments = [str(number) for number in (os.getpid(), *descriptors)]
        return subprocess.Popen(
            [sys.executable, "-m", "duologue.engine.stages.worker", *arguments],
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C in a terminal is for the parent alone
        )

    def _visible_devices(self) -> dict[str, str]:
        devices = self._spec.devices
        return {"CUDA_VISIBLE_DEVICES": devices[self._slot % len(devices)]} if devices else {}

    async def close(self) -> None:
        """Stop the worker: asked first, then SIGTERM, then SIGKILL, all within ``close_timeout_s``. Idempotent."""
        self._closing = True
        self._exchange.end()
        if self._timer is not None:
            self._timer.cancel()
        process = self._process
        if process is not None and process.returncode is None:
            self._write(Stop())
            bound = self._spec.close_timeout_s
            if not await self._ended(process, bound * _TERM_AFTER):
                process.send_signal(signal.SIGTERM)
                if not await self._ended(process, bound * (1 - _TERM_AFTER)):
                    logger.warning("worker did not end when asked; killed", extra={"worker": self._spec.name})
                    process.kill()
                    await self._ended(process, _REAP_S)
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
            await self._disconnected.wait()
        if self._stderr is not None:
            await self._stderr.close(_STDERR_S)
        for ring in self._rings:
            ring.close()
        self._rings = []

    async def _ended(self, process: subprocess.Popen[bytes], within_s: float) -> bool:
        deadline = self._runtime.now() + within_s
        while process.poll() is None:
            if self._runtime.now() >= deadline:
                return False
            await asyncio.sleep(_LOOK_EVERY_S)
        return True

    def _next_beat(self, now: float) -> None:
        due = now + self._spec.heartbeat_s
        self._timer = self._runtime.call_at(due, self._beat, due)

    def _beat(self, due: float) -> None:
        now = self._runtime.now()
        if now - due > self._spec.heartbeat_s:
            self._heard_at = now  # this loop was held up, and an answer may be waiting to be read
        if now - self._heard_at > self._spec.heartbeat_timeout_s:
            self._lost(f"has not answered for {now - self._heard_at:.1f} s and was killed")
            return
        self._write(Ping())
        self._next_beat(now)

    def _lost(self, why: str) -> None:
        """The worker is gone or useless: make sure that it is gone, and say so once."""
        error = StageFault(ErrorCode.REPLICA_UNAVAILABLE, f"Worker {self._spec.name} (process {self.pid}) {why}.")
        was_up, self._up = self._up, False
        if self._timer is not None:
            self._timer.cancel()
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
        self._exchange.end()
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()  # seen: whoever started this worker may have been cancelled
        if was_up and not self._closing and self._sink is not None:
            self._sink.on_dead(error)

    # ---------------------------------------------------------------- requests

    async def submit(self, request: StageRequest) -> None:
        """Send a new request. Raises :class:`ClientFault` (``payload_unencodable``) when it can't be encoded."""
        self._exchange.submit(request)
        await self._drained()

    async def update(self, request: StageRequest) -> None:
        """Send one more piece; ignored when the request is over. Errors as for :meth:`submit`."""
        self._exchange.update(request)
        await self._drained()

    async def abort(self, request_ids: Sequence[str]) -> None:
        self._exchange.abort(request_ids)

    async def call(self, method: str, args: tuple[Any, ...]) -> object:
        return await self._exchange.call(method, args)

    def _write(self, message: ToWorker) -> None:
        data = self._writer.frame(message)
        # A worker that died takes its end of the pipe along; its death is announced elsewhere.
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    async def _drained(self) -> None:
        if not self._writable.is_set():
            await self._writable.wait()
            self._exchange.check_up()

    # ---------------------------------------------------------------- the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # other loops have transports of their own kind

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._runtime.now()
        try:
            messages = self._reader.feed(data)
        except ValueError as error:
            self._lost(f"sent what can't be read and was killed: {error}")
            return
        for message in messages:
            self._take(message)

    def _take(self, message: FromWorker) -> None:
        match message:
            case Output(number, output):
                if self._exchange.accepts(number, output) and self._sink is not None:
                    self._sink.on_output(output)
            case Ready():
                if self._ready is not None and not self._ready.done():
                    self._ready.set_result(None)
            case StartFailed(text):
                self._lost(f"could not start its stage: {text}")
            case Returned(number, value, error):
                self._exchange.answer(number, CallResult(value, error))
            case Pong():
                pass

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disconnected.set()
        self._writable.set()
        if not self._closing:
            self._name_the_end(self._runtime.now() + _EXIT_CODE_S)

    def _name_the_end(self, deadline: float) -> None:
        """The socket ends a moment before the process can be asked how it ended; people want to know."""
        code = None if self._process is None else self._process.poll()
        now = self._runtime.now()
        if code is None and self._process is not None and now < deadline:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._runtime.call_at(now + _LOOK_EVERY_S, self._name_the_end, deadline)
            return
        self._lost(
            "closed its connection and was killed" if code is None else f"ended with {_named(code)}{_hint(code)}"
        )


def _named(returncode: int) -> str:
    if returncode < 0:
        try:
            return signal.Signals(-returncode).name
        except ValueError:
            return f"signal {-returncode}"
    return f"exit code {returncode}"


def _hint(returncode: int) -> str:
    # Nobody else sends this signal uninvited: the kernel does when memory runs out.
    return ", perhaps for want of memory" if returncode == -signal.SIGKILL else ""
