"""The replicas of one stage over time: start, death, restart, and being added or taken out while the engine runs.

Rules kept here:

* replica ids are stable and never reused; a dead or removed replica leaves a hole, a successor gets the next id;
* a slot is the place of one replica and its successors; slots are numbered in order and never reused either;
* eviction never waits: a replica that is gone is out of the tables at once and taken down in the background;
* what is being taken down is taken down whole, whatever becomes of who asked for it: a worker that hangs is killed last;
* every wait has a bound: a start by the client, draining by ``drain_s``, a restart by its backoff.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, Protocol

import msgspec

from duologue.config.stage_config import ModelConfig
from duologue.engine.requests import LONGEST_WAIT_S
from duologue.engine.stages.contract import StageClient
from duologue.engine.stages.supervisor import Backoff, RestartPolicy
from duologue.errors import ClientFault, ErrorCode, StageFault
from duologue.log import init_logger
from duologue.outputs import RequestOutput

if TYPE_CHECKING:
    from duologue.clock import Runtime

logger = init_logger(__name__)

ReplicaFactory = Callable[[int], StageClient]
"""Makes the client of a new replica, given its id; the set starts it."""

MAX_REPLICAS: Final = 64

ReplicaPhase = Literal["starting", "ready", "draining", "dead"]


class ReplicaHealth(msgspec.Struct, frozen=True, kw_only=True):
    """One replica as ``/health`` shows it. ``requests``: how many it holds."""

    replica_id: int
    phase: ReplicaPhase
    requests: int


class ReplicaOwner(Protocol):
    """Who hears of replicas: the pool that they serve."""

    def on_output(self, replica: Replica, output: RequestOutput) -> None:
        """A replica that serves pushed an output."""
        ...

    def on_gone(self, replica: Replica, error: BaseException) -> None:
        """A replica that served is gone, with what it held; it is out of the set already."""
        ...


@dataclass(slots=True, eq=False)
class Replica:
    """One replica and, as the sink of its client, the way its outputs take. ``request_ids``: what it holds, in order."""

    replicas: ReplicaSet
    owner: ReplicaOwner
    replica_id: int
    slot: int
    client: StageClient
    phase: ReplicaPhase = "starting"
    ready_at: float = 0.0
    request_ids: dict[str, None] = field(default_factory=dict)
    drained: asyncio.Future[None] | None = None

    @property
    def serving(self) -> bool:
        """Whether it works on what it has; one that drains takes no new requests."""
        return self.phase in ("ready", "draining")

    def drop(self, request_id: str) -> None:
        """It does not hold this request any more."""
        self.request_ids.pop(request_id, None)
        if self.drained is not None and not self.request_ids:
            _wake(self.drained)

    def on_output(self, output: RequestOutput) -> None:
        if self.phase == "ready" or self.phase == "draining":  # `serving`, without a call on the hot path
            self.owner.on_output(self, output)

    def on_dead(self, error: BaseException) -> None:
        self.replicas.evict(self, error)


@dataclass(slots=True, eq=False)
class _Slot:
    backoff: Backoff
    removed: bool = False


class ReplicaSet:
    """All replicas of the stage called ``name``. ``restart`` ``None``: a dead one stays dead.

    ``by_id`` holds them in the order of their ids, those that start or drain included; others only read it.
    """

    def __init__(
        self,
        *,
        name: str,
        make_client: ReplicaFactory,
        runtime: Runtime,
        count: int,
        restart: RestartPolicy | None,
        owner: ReplicaOwner,
    ) -> None:
        self.owner = owner
        self.make_client = make_client
        self.restarts = 0
        self.model_config = ModelConfig()
        self._name = name
        self._runtime = runtime
        self._restart = restart
        self._slots = [self._new_slot() for _ in range(count)]
        self.by_id: dict[int, Replica] = {}
        self._next_id = 0
        self._started = False
        self._restarting = True
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing: set[asyncio.Task[None]] = set()

    def _new_slot(self) -> _Slot:
        return _Slot(Backoff(self._restart or RestartPolicy()))

    # ---------------------------------------------------------------- life

    async def start(self) -> None:
        """Start every replica; returns when all are ready. Raises what the first failing one raised."""
        self._started = True
        results = await asyncio.gather(
            *(self._start_replica(slot) for slot in range(len(self._slots))), return_exceptions=True
        )
        errors = [result for result in results if isinstance(result, BaseException)]
        if errors:
            await self.close()
            raise errors[0]

    def stop_restarting(self) -> None:
        """From now on deaths are expected: no replica is started again."""
        self._restarting = False

    async def close(self) -> None:
        """Stop every replica, each within its own bound. Idempotent."""
        self._restarting = False
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        replicas, self.by_id = list(self.by_id.values()), {}
        for replica in replicas:
            replica.phase = "dead"
            _wake(replica.drained)
            self._take_down(replica)
        await asyncio.gather(*self._closing)

    async def _start_replica(self, slot: int) -> int:
        replica_id = self._next_id
        self._next_id += 1
        client = self.make_client(replica_id)
        replica = Replica(replicas=self, owner=self.owner, replica_id=replica_id, slot=slot, client=client)
        self.by_id[replica_id] = replica
        replica.client.fill(slot)
        try:
            await replica.client.start(replica)
            if replica.phase == "dead":
                raise StageFault(ErrorCode.REPLICA_UNAVAILABLE, f"Stage {self._name} died while it started.")
        except BaseException:
            replica.phase = "dead"
            self.by_id.pop(replica_id, None)
            await asyncio.shield(self._take_down(replica))
            raise
        replica.phase = "ready"
        replica.ready_at = self._runtime.now()
        self.model_config = replica.client.model_config
        return replica_id

    def _take_down(self, replica: Replica) -> asyncio.Task[None]:
        """Close a replica's client, in a task that only the end of all of them cuts short."""
        task = self._runtime.spawn(self._close_client(replica), name="replica-close")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        return task

    async def _close_client(self, replica: Replica) -> None:
        try:
            await replica.client.close()
        except Exception:
            logger.exception("replica %d of stage %s did not close cleanly", replica.replica_id, self._name)

    def evict(self, replica: Replica, error: BaseException) -> None:
        """A replica has died: out of the tables with it, and a successor into its slot."""
        if replica.serving:
            closing = self._take_down(replica)
            if self._restarting:
                count = len(replica.request_ids)
                logger.error(
                    "replica %d of stage %s is gone with %d requests: %s", replica.replica_id, self._name, count, error
                )
                self._spawn(self._revive(replica, closing), name=f"revive-{self._name}-{replica.slot}")
        self._drop(replica, error)

    def _drop(self, replica: Replica, error: BaseException) -> None:
        """Take a replica out of the tables. Who awaits the start of one that does not serve yet hears of it there."""
        serving = replica.serving
        replica.phase = "dead"
        _wake(replica.drained)
        if serving:
            self.by_id.pop(replica.replica_id, None)
            self.owner.on_gone(replica, error)

    async def _revive(self, dead: Replica, closing: asyncio.Task[None]) -> None:
        await asyncio.shield(closing)
        slot = self._slots[dead.slot]
        lived_s = self._runtime.now() - dead.ready_at
        while self._restart is not None and self._restarting and not slot.removed:
            await asyncio.sleep(slot.backoff.next_delay_s(lived_s))
            lived_s = 0.0
            try:
                await self._start_replica(dead.slot)
            except Exception as error:
                logger.error("stage %s did not start again: %s", self._name, error)
            else:
                self.restarts += 1
                logger.warning("stage %s is back", self._name)
                return

    def _spawn(self, coro: Coroutine[object, object, None], *, name: str) -> None:
        task = self._runtime.spawn(coro, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---------------------------------------------------------------- while the engine runs

    async def add(self) -> int:
        """Start one more replica, in a slot of its own; returns its id once it takes work.

        Raises :class:`ClientFault` when there are too many, else what its start raised; nothing is left of it then.
        """
        if not self._started or not self._restarting:
            raise StageFault(ErrorCode.REPLICA_UNAVAILABLE, f"Stage {self._name} is not running.")
        if sum(not slot.removed for slot in self._slots) >= MAX_REPLICAS:
            raise _refusal("stage_id", f"Stage {self._name} has {MAX_REPLICAS} replicas, the most there may be.")
        number = len(self._slots)
        slot = self._new_slot()
        self._slots.append(slot)
        try:
            return await self._start_replica(number)
        except BaseException:
            slot.removed = True
            raise

    async def remove(self, replica_id: int, *, drain_s: float) -> None:
        """Take a replica out for good. What it has may end within ``drain_s`` seconds; what is left then is gone too.

        Raises :class:`ClientFault` for a replica that is not there, or the last one that takes work.
        """
        replica = self.by_id.get(replica_id)
        live = self.live_ids()
        if replica is None or replica_id not in live:
            raise _refusal(
                "replica_id", f"Stage {self._name} has no replica {replica_id} that takes work, only {live}."
            )
        if not 0 <= drain_s <= LONGEST_WAIT_S:
            raise _refusal("drain_s", f"drain_s must be between 0 and {LONGEST_WAIT_S:g}, got {drain_s!r}.")
        if live == [replica_id]:
            raise _refusal(
                "replica_id", f"Replica {replica_id} is the last of stage {self._name}; register another one first."
            )
        replica.phase = "draining"
        self._slots[replica.slot].removed = True
        if replica.request_ids and drain_s:
            replica.drained = asyncio.get_running_loop().create_future()
            timer = self._runtime.call_at(self._runtime.now() + drain_s, _wake, replica.drained)
            try:
                await replica.drained
            finally:
                timer.cancel()
        self._drop(replica, StageFault(ErrorCode.REPLICA_UNAVAILABLE, "it was taken out of service"))
        await asyncio.shield(self._take_down(replica))

    # ---------------------------------------------------------------- what others ask

    @property
    def slot_count(self) -> int:
        """How many slots there have been, removed ones included."""
        return len(self._slots)

    def live_ids(self) -> list[int]:
        """Replicas that take work now, ascending."""
        return [
            replica_id
            for replica_id, replica in self.by_id.items()
            if replica.phase == "ready" and replica.client.healthy
        ]

    def ready_ids(self) -> list[int]:
        """The same, and those that have ended without anybody having noticed it yet."""
        return [number for number, replica in self.by_id.items() if replica.phase == "ready"]

    def serving_ids(self) -> list[int]:
        """Replicas that work on what they have, as far as is known, those that drain included, ascending. A pin may still
        lead there."""
        return [number for number, replica in self.by_id.items() if replica.serving]

    def live_slots(self) -> dict[int, int]:
        """Slots whose replica takes work now, and the replica's id."""
        return {self.by_id[replica_id].slot: replica_id for replica_id in self.live_ids()}

    def first_client(self) -> StageClient | None:
        """The client of the ready replica with the lowest id, or ``None``."""
        for replica in self.by_id.values():
            if replica.phase == "ready":
                return replica.client
        return None

    def health(self) -> tuple[ReplicaHealth, ...]:
        """A snapshot of each replica, by id."""
        return tuple(
            ReplicaHealth(replica_id=replica.replica_id, phase=replica.phase, requests=len(replica.request_ids))
            for replica in self.by_id.values()
        )


def _refusal(name: str, message: str) -> ClientFault:
    return ClientFault(ErrorCode.REQUEST_INVALID, message, param=name)


def _wake(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)
