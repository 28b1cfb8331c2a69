"""A replica with a network in front of it: the in-process backend, delayed, and made to misbehave as a plan says.

Rules kept here: outputs of one replica keep their order; after an abort nothing of that request is pushed, unless the plan
says that this replica breaks that promise; a death loses everything that the replica held, and from then on everything is
refused, even where the death itself is told later.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from duologue.clock import Runtime
from duologue.engine.stages.contract import StageClient, StageSink
from duologue.engine.stages.inproc import InprocClient
from duologue.errors import ErrorCode, StageFault
from duologue.outputs import RequestOutput, StageRequest
from duologue.sim.observation import Observations
from duologue.sim.plan import ReplicaFault
from duologue.sim.stages import STAGES, StageDesk

LATE_S = 2.0


@dataclass(slots=True)
class ReplicaFaults:
    """The faults planned for the replicas of one stage, by operation and how often that happened."""

    faults: tuple[ReplicaFault, ...]
    counts: dict[str, int] = field(default_factory=dict)
    healed: bool = False

    def next(self, operation: str) -> ReplicaFault | None:
        """One more operation happens: what goes wrong with it?"""
        number = self.counts[operation] = self.counts.get(operation, 0) + 1
        if self.healed or not self.faults:
            return None
        matching = (
            fault
            for fault in self.faults
            if fault.operation == operation and fault.nth <= number < fault.nth + fault.times
        )
        return next(matching, None)


class SimReplica(StageClient):
    """One replica of a simulated stage."""

    def __init__(
        self, stage_id: int, desk: StageDesk, faults: ReplicaFaults, runtime: Runtime, seen: Observations
    ) -> None:
        self._stage_id = stage_id
        self._desk = desk
        self._faults = faults
        self._runtime = runtime
        self._seen = seen
        self._inner = InprocClient(STAGES[desk.plan.family][stage_id](desk), runtime=runtime)
        self.default_sampling_params = self._inner.default_sampling_params
        self.model_config = self._inner.model_config
        self._sink: StageSink | None = None
        self._unsaid: StageSink | None = None  # who has not been told yet that it died
        self._missed = False  # somebody has noticed that it died
        self._gone: set[str] = set()
        self._held: dict[str, None] = {}  # what it was given and has neither ended nor been told to stop
        self._stuck: list[asyncio.Future[None]] = []
        self._travelling: deque[RequestOutput] = deque()

    @property
    def healthy(self) -> bool:
        return self._inner.healthy

    async def start(self, sink: StageSink) -> None:
        fault = self._faults.next("start")
        if fault is not None and self._faults.counts["start"] > self._desk.plan.replicas:
            self._note(fault)
            raise RuntimeError("the plan told this replica not to start")
        self._sink = sink
        await self._inner.start(self)

    async def submit(self, request: StageRequest) -> None:
        self._gone.discard(request.request_id)
        self._held[request.request_id] = None
        if await self._travel("submit", request):
            return
        self._refuse_when_dead(request)
        await self._inner.submit(request)

    async def update(self, request: StageRequest) -> None:
        if await self._travel("update", request):
            return
        self._refuse_when_dead(request)
        await self._inner.update(request)

    async def abort(self, request_ids: Sequence[str]) -> None:
        fault = self._faults.next("abort")
        if fault is not None and fault.how == "late":
            self._note(fault)
            late = [RequestOutput(request_id=name, text="too late. ") for name in request_ids]
            self._runtime.call_at(self._runtime.now() + LATE_S, self._push_late, late)
        elif await self._suffer(fault):
            return
        self._gone.update(request_ids)
        for request_id in request_ids:
            self._held.pop(request_id, None)
        await self._inner.abort(request_ids)

    async def call(self, method: str, args: tuple[Any, ...]) -> object:
        return await self._inner.call(method, args)

    async def close(self) -> None:
        try:
            await self._suffer(self._faults.next("close"))
        finally:
            # However badly it ends, it ends: a process is killed then, and nobody is left to ask again.
            self._release()
            await self._inner.close()

    def die(self, reason: str, *, unsaid_s: float = 0.0) -> None:
        """End as a crashed worker process would: told at once, or ``unsaid_s`` later."""
        sink, self._sink = self._sink, None
        self._travelling.clear()
        if sink is not None and self._inner.healthy:
            self._unsaid = sink
            self._seen.lost.append((len(self._seen.planned), frozenset(self._held)))
            self._inner.die(RuntimeError(reason))
        self._release()
        if unsaid_s:
            self._runtime.call_at(self._runtime.now() + unsaid_s, self._tell, reason)
        else:
            self._tell(reason)

    def _tell(self, reason: str) -> None:
        sink, self._unsaid = self._unsaid, None
        if sink is not None:
            self._miss()
            sink.on_dead(RuntimeError(reason))

    def _miss(self) -> None:
        if not self._missed:
            self._missed = True
            self._seen.deaths.append((self._seen.trace.now(), frozenset(self._held)))

    def _betray(self) -> None:
        """A piece is refused for want of a replica: a death that nobody has told is known by that."""
        if self._unsaid is not None:
            self._seen.trace.count("replica.refused_unsaid")
            self._miss()

    def _refuse_when_dead(self, request: StageRequest) -> None:
        if self._inner.healthy:
            return
        self._betray()
        if self._stage_id == 0:
            self._seen.refused.append((len(self._seen.planned), request.request_id))
        raise StageFault(ErrorCode.REPLICA_UNAVAILABLE, "This replica is not running.")

    def heal(self) -> None:
        """Whatever hangs is given up; a replica on which something hung is taken for dead, as a supervisor would."""
        if self._stuck:
            self.die("an operation hung")

    # What comes out (this is the inner client's sink)

    def on_output(self, output: RequestOutput) -> None:
        fault = self._faults.next("output")
        if fault is not None:
            self._note(fault)
            if fault.how == "raise":
                self.die("the plan broke the replica's connection in mid-output")
                return
            if fault.how == "foreign":
                self._push(RequestOutput(request_id="nobody", text="not yours"))
        self._send(output)
        if fault is not None and fault.how == "double" and (output.finished or output.error is not None):
            self._send(output)

    def _send(self, output: RequestOutput) -> None:
        transit_s = self._desk.plan.transit_ms / 1000
        if transit_s:
            self._travelling.append(output)
            self._runtime.call_at(self._runtime.now() + transit_s, self._arrive)
        else:
            self._push(output)

    def on_dead(self, error: BaseException) -> None:
        del error  # said by whoever killed it

    def _push(self, output: RequestOutput) -> None:
        if self._sink is not None and output.request_id not in self._gone:
            self._seen.made(self._stage_id, output)
            if output.finished or output.error is not None:
                self._held.pop(output.request_id, None)
            self._sink.on_output(output)

    def _arrive(self) -> None:
        # One output per timer, the oldest: timers of one instant may run in any order.
        if self._travelling:
            self._push(self._travelling.popleft())

    def _push_late(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            if self._sink is not None:
                self._sink.on_output(output)

    # What goes wrong

    async def _travel(self, operation: str, request: StageRequest) -> bool:
        """The way to the replica. True if the operation never gets there."""
        if self._desk.plan.lag_ms:
            await asyncio.sleep(self._desk.plan.lag_ms / 1000)
        fault = self._faults.next(operation)
        if fault is None:
            return False
        try:
            return await self._suffer(fault)
        except Exception as error:
            if isinstance(error, StageFault) and error.code is ErrorCode.REPLICA_UNAVAILABLE:
                self._betray()
            if self._stage_id == 0:
                self._seen.refused.append((len(self._seen.planned), request.request_id))
            raise

    async def _suffer(self, fault: ReplicaFault | None) -> bool:
        """True if the operation must not reach the replica."""
        if fault is None:
            return False
        self._note(fault)
        if fault.ms:
            await asyncio.sleep(fault.ms / 1000)
        match fault.how:
            case "raise":
                raise RuntimeError("the plan broke this operation")
            case "refuse":
                raise StageFault(ErrorCode.RUNTIME_APPEND_FAILED, "The plan refused this operation.")
            case "misfit":
                raise OverflowError("the plan made this payload unencodable")
            case "lose":
                return True
            case "hang" if self._faults.healed:
                return False  # nothing hangs any more, and what would have must not be lost
            case "hang":
                await self._hang()
                return True
            case _:
                return False

    async def _hang(self) -> None:
        forever: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stuck.append(forever)
        try:
            await forever
        finally:
            if forever in self._stuck:
                self._stuck.remove(forever)

    def _release(self) -> None:
        for forever in list(self._stuck):
            if not forever.done():
                forever.set_exception(StageFault(ErrorCode.REPLICA_UNAVAILABLE, "The replica is gone."))
        self._stuck.clear()

    def _note(self, fault: ReplicaFault) -> None:
        self._seen.trace.count(f"replica.{fault.operation}.{fault.how}")
        self._seen.trace.note(f"{self._seen.prefix}{self._stage_id}", "fault", f"{fault.operation} {fault.how}")
