"""The two sides of a stage: what stage code implements, and what a replica looks like to the engine.

Stage code (:class:`Stage` or :class:`AsyncStage`) never knows which backend runs it. A replica (:class:`StageClient`)
never knows what runs behind it. Outputs are pushed to a sink, so that no reader task polls.
"""

from __future__ import annotations

import abc
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from duologue.config.stage_config import ModelConfig
from duologue.errors import ClientFault, ErrorCode
from duologue.outputs import RequestOutput, SamplingParams, StageRequest

PREWARM: Final = "prewarm"
"""Option of a piece that only announces a request, before there is any input: make ready, and answer nothing."""

StateT = TypeVar("StateT")


class StageControl(Protocol):
    """What running stage code may ask."""

    @property
    def cancelled(self) -> bool:
        """True once the request was aborted: stop as soon as possible, nothing more is delivered."""
        ...


class Stage(abc.ABC, Generic[StateT]):
    """Blocking stage code. Pieces of one request are processed in order, one at a time; different requests may run
    in up to ``concurrency`` threads at once."""

    concurrency: int = 1

    def load(self) -> None:
        """Load weights. Called once, in the process that will run the stage, before anything else."""

    @abc.abstractmethod
    def open(self, request: StageRequest) -> StateT:
        """State for a new request."""

    @abc.abstractmethod
    def process(self, state: StateT, request: StageRequest, control: StageControl) -> Iterator[RequestOutput]:
        """Handle one piece of input and yield outputs as they arise; each is delivered at once.

        The generator is closed on abort. The output that ends the request at this stage has ``finished`` set. Raising
        fails this request and nothing else.
        """

    def close(self, state: StateT) -> None:
        """The request finished, failed or was aborted: free what it held. Called exactly once per ``open``."""

    def call(self, method: str, args: tuple[Any, ...]) -> object:
        """An operator's call to every replica, between two pieces of work (between outputs, if ``concurrency`` > 1).

        The result may be anything that msgpack holds. Raises :class:`ClientFault` for a method that there isn't.
        """
        del args
        raise no_such_call(self, method)

    def shutdown(self) -> None:
        """The replica is closing."""


class AsyncStage(abc.ABC, Generic[StateT]):
    """Stage code that waits on I/O: same life as :class:`Stage`, on an event loop."""

    async def load(self) -> None:
        """Prepare. Called once before anything else."""

    @abc.abstractmethod
    def open(self, request: StageRequest) -> StateT:
        """State for a new request."""

    @abc.abstractmethod
    def process(self, state: StateT, request: StageRequest, control: StageControl) -> AsyncIterator[RequestOutput]:
        """As :meth:`Stage.process`; cancelled on abort."""

    def close(self, state: StateT) -> None:
        """As :meth:`Stage.close`."""

    async def call(self, method: str, args: tuple[Any, ...]) -> object:
        """As :meth:`Stage.call`, beside whatever else runs."""
        del args
        raise no_such_call(self, method)

    async def shutdown(self) -> None:
        """The replica is closing."""


AnyStage = Stage[Any] | AsyncStage[Any]


def no_such_call(stage: object, method: str) -> ClientFault:
    """What stage code raises for a call that it does not know."""
    return ClientFault(ErrorCode.UNSUPPORTED, f"{type(stage).__name__} has no method {method!r} that could be called.")


class StageSink(Protocol):
    """Where a replica pushes what happens, on the engine's loop, in the order it happened."""

    def on_output(self, output: RequestOutput) -> None:
        """One output. An output with ``error`` set ends its request."""
        ...

    def on_dead(self, error: BaseException) -> None:
        """The replica is gone with everything that it ran. Called at most once."""
        ...


class StageClient(abc.ABC):
    """One replica as the engine sees it. ``submit`` and ``update`` return once the replica has taken the piece."""

    default_sampling_params: SamplingParams
    model_config: ModelConfig

    def fill(self, slot: int) -> None:
        """Which slot of its stage the replica fills, told before it is started: successors fill the same one."""
        del slot

    @abc.abstractmethod
    async def start(self, sink: StageSink) -> None:
        """Start the replica; returns when it is ready for work."""

    @abc.abstractmethod
    async def submit(self, request: StageRequest) -> None:
        """A new request."""

    @abc.abstractmethod
    async def update(self, request: StageRequest) -> None:
        """One more piece of a resumable request."""

    @abc.abstractmethod
    async def abort(self, request_ids: Sequence[str]) -> None:
        """Stop requests: after this returns nothing of them is pushed any more. Unknown ids are ignored."""

    async def call(self, method: str, args: tuple[Any, ...]) -> object:
        """Call stage code and return what it answers. Whoever awaits this bounds it; cancelled, it is given up.

        Raises what stage code raised, by its code, or :class:`ClientFault` (``unsupported``) from a backend without calls.
        """
        del args
        raise ClientFault(ErrorCode.UNSUPPORTED, f"{type(self).__name__} carries no calls such as {method!r}.")

    def held(self) -> Mapping[str, int]:
        """How much waits on the way to the replica and back, as far as that is bounded, by the names of `duologue_held`."""
        return {}

    @property
    @abc.abstractmethod
    def healthy(self) -> bool:
        """Whether the replica can take work now."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Stop the replica within a bound. Idempotent."""
