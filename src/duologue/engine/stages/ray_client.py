"""The ``ray`` backend: one Ray actor per replica, on any node of a Ray cluster. The only file that knows Ray.

Rules kept here:

* messages go out numbered, and no more than a window ahead of what the actor has taken;
* outputs are fetched in batches by one call that is always under way; its answers are the heartbeat;
* an actor that died or does not answer is reported once; nothing here blocks the loop, and each wait has a bound.

Every node needs Duologue and the stage's code installed as they are here.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import re
import threading
from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from duologue.config.pipeline import RayPlacement
from duologue.engine.stages.contract import StageClient, StageSink
from duologue.engine.stages.exchange import Exchange
from duologue.engine.stages.frames import (
    Configure,
    FromWorker,
    Output,
    Pong,
    Ready,
    Returned,
    StartFailed,
    Stop,
    ToWorker,
    from_worker,
)
from duologue.engine.stages.piece import CallResult
from duologue.engine.stages.process import KEPT_HERE, WorkerSpec
from duologue.engine.stages.process_end import OWN_PROCESS
from duologue.engine.stages.ray_actor import WINDOW, StageActor
from duologue.errors import ErrorCode, StageFault
from duologue.log import init_logger
from duologue.outputs import StageRequest

if TYPE_CHECKING:
    from duologue.clock import Runtime

logger = init_logger(__name__)


_NODE_ID = re.compile(r"^[0-9a-f]{56}$")
_NODE_SHARE = 0.001  # of the resource that Ray gives each node by its address
_ENCODER = msgspec.msgpack.Encoder()
_connecting = threading.Lock()


def load_ray(module: str = "ray") -> Any:
    """The ray package, or one of its modules. Raises :class:`StageFault` that says what to install when it is missing."""
    try:
        # By name, because it must not be loaded by whoever merely imports us, and may not be there.
        return importlib.import_module(module)
    except ImportError as error:
        raise StageFault(
            ErrorCode.REPLICA_UNAVAILABLE,
            f"The stage backend 'ray' needs Ray ({error}): pip install 'duologue[ray]', or choose backend: process.",
        ) from error


def _connect(placement: RayPlacement) -> Any:
    """Ray, connected to the cluster. Blocks; one connection serves the whole process."""
    ray = load_ray()
    with _connecting:
        if not ray.is_initialized():
            ray.init(address=placement.address, configure_logging=False, include_dashboard=False)
    return ray


class RayClient(StageClient):
    """One replica in a Ray actor."""

    def __init__(self, spec: WorkerSpec, placement: RayPlacement, *, runtime: Runtime) -> None:
        self.default_sampling_params = spec.sampling
        self.model_config = spec.model
        self._spec = spec
        self._placement = placement
        self._runtime = runtime
        self._sink: StageSink | None = None
        self._ray: Any = None
        self._actor: Any = None
        self._deliver: Any = None
        self._fetch: Any = None
        self._listener: asyncio.Task[None] | None = None
        self._exchange = Exchange("Actor", spec.name, write=self._write, up=lambda: self.healthy)
        self._sent = 0
        self._taken = 0
        self._outbox_bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self._pid: int | None = None
        self._up = False
        self._closing = False

    # ---------------------------------------------------------------- life

    @property
    def healthy(self) -> bool:
        return self._up and not self._closing

    @property
    def pid(self) -> int | None:
        """The actor's process id on its node, once it is ready."""
        return self._pid

    def held(self) -> Mapping[str, int]:
        return {"outbox_bytes": self._outbox_bytes, "sent_ahead": self._sent - self._taken}

    async def start(self, sink: StageSink) -> None:
        """Start the actor and wait until its stage is loaded.

        Raises :class:`StageFault` without Ray, without a cluster, when no node has what the placement asks for within
        ``start_timeout_s``, or when the stage can't be loaded.
        """
        self._sink = sink
        spec = self._spec
        load_ray()
        try:
            self._ray = await self._runtime.offload(_connect, self._placement)
        except Exception as error:
            where = self._placement.address or "a local cluster"
            raise StageFault(ErrorCode.REPLICA_UNAVAILABLE, f"Ray can't connect to {where}: {error}") from error
        try:
            self._make_actor()
            data = _ENCODER.encode(Configure(spec.factory, spec.options, spec.log_level))
            async with asyncio.timeout(spec.start_timeout_s):
                self._pid, problem = await self._configure(data)
        except TimeoutError:
            raise StageFault(ErrorCode.REPLICA_UNAVAILABLE, self._too_late()) from None
        except StageFault:
            raise
        except Exception as error:
            raise StageFault(ErrorCode.REPLICA_UNAVAILABLE, f"Actor {spec.name} can't be started: {error}") from error
        if problem is not None:
            raise StageFault(ErrorCode.REPLICA_UNAVAILABLE, f"Actor {spec.name} could not start its stage: {problem}")
        self._up = True
        self._listener = self._runtime.spawn(self._listen(), name=f"ray-{spec.name}")

    def _make_actor(self) -> None:
        placement = self._placement
        resources = dict(placement.resources)
        options: dict[str, Any] = {}
        if placement.node is not None and _NODE_ID.match(placement.node):
            strategies = importlib.import_module("ray.util.scheduling_strategies")
            options["scheduling_strategy"] = strategies.NodeAffinitySchedulingStrategy(placement.node, soft=False)
        elif placement.node is not None:
            resources[f"node:{placement.node}"] = _NODE_SHARE
        environment = {
            # A node that was started from here has inherited everything.
            **{name: "" for name in os.environ if name.startswith(KEPT_HERE)},
            OWN_PROCESS: "1",
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            **self._spec.environment,
        }
        remote = self._ray.remote(concurrency_groups={"input": 1, "output": 1})(StageActor)
        self._actor = remote.options(
            num_cpus=placement.cpus,
            num_gpus=placement.gpus,
            resources=resources,
            max_restarts=0,  # the pool makes a new replica, under a new id
            runtime_env={"env_vars": environment},
            **options,
        ).remote()
        self._deliver = self._actor.deliver.options(concurrency_group="input").remote
        self._fetch = self._actor.fetch.options(concurrency_group="output").remote

    def _configure(self, data: bytes) -> Awaitable[tuple[int, str | None]]:
        answer: Awaitable[tuple[int, str | None]] = self._actor.configure.options(concurrency_group="input").remote(
            data
        )
        return answer

    def _too_late(self) -> str:
        wanted = ", ".join(
            f"{name} {amount:g}"
            for name, amount in {
                "cpus": self._placement.cpus,
                "gpus": self._placement.gpus,
                **self._placement.resources,
            }.items()
            if amount
        )
        node = f" on node {self._placement.node}" if self._placement.node else ""
        return (
            f"Actor {self._spec.name} was not ready after {self._spec.start_timeout_s:g} s: "
            f"is {wanted or 'a worker'}{node} free in the cluster (`ray status` tells)? "
            "Raise its start_timeout_s if it loads large weights."
        )

    async def close(self) -> None:
        """Stop the actor: asked first, then killed, within ``close_timeout_s``. Idempotent."""
        self._closing = True
        self._exchange.end()
        self._room.set()
        listener, self._listener = self._listener, None
        if listener is not None and listener is not asyncio.current_task():
            listener.cancel()
        actor, self._actor = self._actor, None
        if actor is None:
            return
        if self._up:
            self._up = False
            self._sent += 1
            try:
                async with asyncio.timeout(self._spec.close_timeout_s):
                    await self._deliver(self._sent, _ENCODER.encode(Stop()))
            except TimeoutError:
                logger.warning("actor did not end when asked; killed", extra={"worker": self._spec.name})
            except Exception as error:
                logger.info("actor was gone before it was asked to end: %s", error, extra={"worker": self._spec.name})
        self._ray.kill(actor)

    async def _listen(self) -> None:
        """Fetch outputs until the actor is gone."""
        spec = self._spec
        within_s = min(spec.heartbeat_s, spec.heartbeat_timeout_s / 2)
        while self._up:
            try:
                async with asyncio.timeout(spec.heartbeat_timeout_s):
                    taken, batch, self._outbox_bytes = await self._fetch(within_s)
            except TimeoutError:
                self._lost(f"has not answered for {spec.heartbeat_timeout_s:g} s and was killed")
                return
            except Exception as error:
                self._lost(f"is gone ({type(error).__name__}: {_first_line(error)})")
                return
            self._taken = taken
            if self._sent - taken < WINDOW:
                self._room.set()
            for data in batch:
                self._take(from_worker.decode(data))

    def _take(self, message: FromWorker) -> None:
        match message:
            case Output(number, output):
                if self._exchange.accepts(number, output) and self._sink is not None:
                    self._sink.on_output(output)
            case Returned(number, value, error):
                self._exchange.answer(number, CallResult(value, error))
            case Ready() | StartFailed() | Pong():
                pass  # what these say, an actor says by returning

    def _lost(self, why: str) -> None:
        """The actor is gone or useless: make sure that it is gone, and say so once."""
        error = StageFault(ErrorCode.REPLICA_UNAVAILABLE, f"Actor {self._spec.name} (process {self._pid}) {why}.")
        was_up, self._up = self._up, False
        self._exchange.end()
        self._room.set()
        actor, self._actor = self._actor, None
        if actor is not None:
            self._ray.kill(actor)
        if was_up and not self._closing and self._sink is not None:
            self._sink.on_dead(error)

    # ---------------------------------------------------------------- requests

    async def submit(self, request: StageRequest) -> None:
        """Send a new request. Raises :class:`ClientFault` (``payload_unencodable``) when it can't be encoded."""
        self._exchange.submit(request)
        await self._taken_up()

    async def update(self, request: StageRequest) -> None:
        """Send one more piece; ignored when the request is over. Errors as for :meth:`submit`."""
        self._exchange.update(request)
        await self._taken_up()

    async def abort(self, request_ids: Sequence[str]) -> None:
        self._exchange.abort(request_ids)

    async def call(self, method: str, args: tuple[Any, ...]) -> object:
        return await self._exchange.call(method, args)

    def _write(self, message: ToWorker) -> None:
        data = _ENCODER.encode(message)
        self._sent += 1
        # What becomes of the call is not waited for: the fetch that is under way tells of messages taken, and of death.
        self._deliver(self._sent, data)
        if self._sent - self._taken >= WINDOW:
            self._room.clear()

    async def _taken_up(self) -> None:
        if not self._room.is_set():
            await self._room.wait()
            self._exchange.check_up()


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
