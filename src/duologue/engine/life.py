"""The engine's inbox, its start and its orderly stop.

Rules kept here:

* messages are taken in order of arrival, each on the spot; one that has to wait does not hold up the next;
* on a stop, extensions end first while the stages still work, then what is left of the requests, then the stages; each of
  these has :data:`STEP_S` seconds, and what takes longer is left behind;
* a background task that raises ends the engine, and whoever runs it gets that error.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from duologue.engine.lanes import Lanes
from duologue.engine.messages import EngineQueueMessage
from duologue.engine.stage_pool import PoolListener, StagePool
from duologue.errors import ErrorCode, StageFault
from duologue.log import init_logger

if TYPE_CHECKING:
    from duologue.clock import Runtime

logger = init_logger(__name__)

STEP_S: Final = 30.0


class LifeHooks(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine does at each point of its life. ``take``: handle a message on the spot, true if it was handled;
    ``dispatch``: handle one that may have to wait for something.
    """

    take: Callable[[EngineQueueMessage], bool]
    dispatch: Callable[[EngineQueueMessage], Coroutine[object, object, bool]]
    background_tasks: Callable[[], list[Coroutine[object, object, None]]]
    shutdown_extensions: Callable[[], Awaitable[None]]
    fail_all: Callable[[StageFault], Awaitable[None]]


class EngineLife:
    """One engine's life, from start to stop. ``shutdown`` is the event that ends it."""

    def __init__(
        self, *, runtime: Runtime, pools: Sequence[StagePool], lanes: Lanes, shutdown: asyncio.Event, hooks: LifeHooks
    ) -> None:
        self._runtime = runtime
        self._pools = pools
        self._lanes = lanes
        self._shutdown = shutdown
        self._hooks = hooks
        self._inbox: deque[EngineQueueMessage] = deque()
        self._serving = False
        self._draining = False
        self._started = False
        self._fatal: BaseException | None = None
        self.stopping = False

    @property
    def waiting(self) -> int:
        """How many messages have not been looked at."""
        return len(self._inbox)

    @property
    def fatal(self) -> BaseException | None:
        """What ended the engine, if a fault did."""
        return self._fatal

    def post(self, message: EngineQueueMessage) -> None:
        """Take one message; handled at once as soon as the engine serves. After the stop it is still answered."""
        self._inbox.append(message)
        if self._serving and not self._draining:
            self._drain()

    async def start(self, listener: PoolListener) -> None:
        """Start every replica. Raises what the first failing one raised, after closing the others. Idempotent."""
        if self._started:
            return
        self._started = True
        results = await asyncio.gather(*(pool.start(listener) for pool in self._pools), return_exceptions=True)
        errors = [result for result in results if isinstance(result, BaseException)]
        if errors:
            await self._close_pools()
            raise errors[0]

    async def run(self) -> None:
        """Serve until the shutdown event, then stop in order."""
        background = [self._spawn_background(coro) for coro in self._hooks.background_tasks()]
        self._serving = True
        self._drain()
        try:
            await self._shutdown.wait()
        finally:
            await self._stop(background)
        if self._fatal is not None:
            raise self._fatal

    def _drain(self) -> None:
        self._draining = True
        try:
            while self._inbox:
                message = self._inbox.popleft()
                if not self._taken(message):
                    self._lanes.launch(self._dispatch(message), name="dispatch")
        finally:
            self._draining = False

    def _taken(self, message: EngineQueueMessage) -> bool:
        try:
            return self._hooks.take(message)
        except Exception:
            logger.exception("handling a %s message failed", type(message).__name__)
            return True

    async def _dispatch(self, message: EngineQueueMessage) -> None:
        try:
            if not await self._hooks.dispatch(message):
                logger.warning("message of unknown type %s ignored", type(message).__name__)
        except Exception:
            logger.exception("handling a %s message failed", type(message).__name__)

    def _spawn_background(self, coro: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = self._runtime.spawn(self._guard_background(coro), name="engine-background")
        task.add_done_callback(lambda _: coro.close())  # a stop may come before it has begun
        return task

    async def _guard_background(self, coro: Coroutine[object, object, None]) -> None:
        try:
            await coro
        except Exception as error:
            logger.exception("a background task of the engine failed; the engine stops")
            self._fatal = error
            self._shutdown.set()

    async def _stop(self, background: Sequence[asyncio.Task[None]]) -> None:
        self.stopping = True
        for pool in self._pools:
            pool.stop_restarting()
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        await self._step("the extensions", self._hooks.shutdown_extensions())
        if self._fatal is None:
            fault = StageFault(ErrorCode.SHUTTING_DOWN, "The server is shutting down.")
        else:
            fault = StageFault(ErrorCode.ENGINE_DEAD, "The engine has stopped after a fault.")
        await self._step("the requests", self._hooks.fail_all(fault))
        await self._step("the stages", self._close_pools())
        await self._lanes.close()

    async def _step(self, what: str, work: Awaitable[None]) -> None:
        async def guarded() -> None:
            try:
                await work
            except Exception:
                logger.exception("%s failed to end in order", what)

        task = self._runtime.spawn(guarded(), name="engine-stop")
        try:
            _, late = await asyncio.wait([task], timeout=STEP_S)
        finally:
            task.cancel()
        if late:
            logger.error("%s did not end within %g s and are left behind", what, STEP_S)

    async def _close_pools(self) -> None:
        await asyncio.gather(*(pool.close() for pool in self._pools), return_exceptions=True)
