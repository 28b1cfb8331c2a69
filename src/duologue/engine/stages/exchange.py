"""What is under way between a replica elsewhere and its client: numbers, live requests, answers that are waited for.

Rules kept here, whatever carries the messages:

* requests and calls travel under numbers that are never used twice, so nothing late is taken for another's;
* an abort takes effect at once: outputs of its requests are dropped from then on, whatever the replica still sends;
* a message that can't be encoded leaves no trace;
* when the replica is gone every call is answered, and no request is known any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from duologue.engine.stages.frames import Abort, Call, Submit, ToWorker, Update
from duologue.engine.stages.piece import CallResult, value_of
from duologue.errors import ClientFault, ErrorCode, StageFault
from duologue.outputs import RequestOutput, StageError, StageRequest


class Exchange:
    """The client's books. ``write`` encodes and sends one message, ``up`` tells whether the replica takes any.

    ``stage`` is the stage's name, ``kind`` what people call its replicas (``Worker``, ``Actor``).
    """

    __slots__ = ("_calls", "_kind", "_last_number", "_live", "_numbers", "_stage", "_up", "_write")

    def __init__(self, kind: str, stage: str, *, write: Callable[[ToWorker], None], up: Callable[[], bool]) -> None:
        self._kind = kind
        self._stage = stage
        self._write = write
        self._up = up
        self._numbers: dict[str, int] = {}
        self._live: dict[int, str] = {}
        self._calls: dict[int, asyncio.Future[CallResult]] = {}
        self._last_number = 0

    def __len__(self) -> int:
        """Requests and calls under way."""
        return len(self._live) + len(self._calls)

    def check_up(self) -> None:
        """Raises :class:`StageFault` (``replica_unavailable``) when the replica takes nothing."""
        if not self._up():
            raise self._not_running()

    def send(self, message: ToWorker) -> None:
        """Send one message. Raises :class:`ClientFault` (``payload_unencodable``) when it can't be encoded."""
        try:
            self._write(message)
        except (TypeError, ValueError, OverflowError) as error:
            raise ClientFault(
                ErrorCode.PAYLOAD_UNENCODABLE, f"The input for stage {self._stage} can't be sent: {error}"
            ) from error

    def submit(self, request: StageRequest) -> None:
        """Send a new request. Raises ``ValueError`` for an id that is there, and as :meth:`send` and :meth:`check_up`."""
        self.check_up()
        request_id = request.request_id
        if request_id in self._numbers:
            raise ValueError(f"request {request_id!r} is already at this replica")
        number = self._last_number + 1
        self.send(Submit(number, request))
        self._last_number = number
        self._numbers[request_id] = number
        self._live[number] = request_id

    def update(self, request: StageRequest) -> None:
        """Send one more piece; ignored when the request is over. Errors as for :meth:`send` and :meth:`check_up`."""
        self.check_up()
        number = self._numbers.get(request.request_id)
        if number is not None:
            self.send(Update(number, request))

    def abort(self, request_ids: Sequence[str]) -> None:
        """Forget requests, and tell the replica if it still listens. Unknown ids are ignored."""
        numbers = [number for number in (self._numbers.pop(name, None) for name in request_ids) if number is not None]
        for number in numbers:
            del self._live[number]
        if numbers and self._up():
            self.send(Abort(tuple(numbers)))

    async def call(self, method: str, args: tuple[Any, ...]) -> object:
        """As :meth:`duologue.engine.stages.contract.StageClient.call`."""
        self.check_up()
        number = self._last_number + 1
        self.send(Call(number, method, args))
        self._last_number = number
        answer = self._calls[number] = asyncio.get_running_loop().create_future()
        try:
            return value_of(await answer)
        finally:
            del self._calls[number]

    def accepts(self, number: int, output: RequestOutput) -> bool:
        """Whether an output that came is still wanted; the last one of a request ends it here."""
        request_id = self._live.get(number)
        if request_id is None:
            return False  # aborted while the output was under way
        if output.finished or output.error is not None:
            del self._live[number]
            del self._numbers[request_id]
        return True

    def answer(self, number: int, result: CallResult) -> None:
        """A call was answered; ignored when whoever asked has given it up."""
        answer = self._calls.get(number)
        if answer is not None and not answer.done():
            answer.set_result(result)

    def end(self) -> None:
        """The replica is gone, or soon will be: nothing is under way any more. Idempotent."""
        self._numbers.clear()
        self._live.clear()
        gone = self._not_running()
        result = CallResult(error=StageError(gone.code.value, gone.message))
        for number in self._calls:
            self.answer(number, result)

    def _not_running(self) -> StageFault:
        return StageFault(ErrorCode.REPLICA_UNAVAILABLE, f"{self._kind} {self._stage} is not running.")
