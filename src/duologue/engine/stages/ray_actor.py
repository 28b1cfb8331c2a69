"""What runs in a Ray actor: the same stage core as in a worker process, behind three methods.

This file does not need Ray: the client turns the class into an actor.

Rules kept here:

* messages carry numbers and are worked in that order, however Ray delivers them;
* outputs wait here until the client fetches them, in the order in which they arose; stage code waits while too many do;
* a fetch always returns within the time that it is given, so that it doubles as the heartbeat.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from duologue.engine.stages.factory import make_stage
from duologue.engine.stages.frames import Configure, Output, Returned, Stop, ToWorker, to_worker
from duologue.engine.stages.piece import CallResult
from duologue.engine.stages.worker import SWITCH_INTERVAL_S, handle, start_stage
from duologue.engine.stages.works import Key, Works
from duologue.errors import ErrorCode
from duologue.log import configure_logging, init_logger
from duologue.outputs import RequestOutput, StageError

logger = init_logger(__name__)

OUTBOX_BYTES: Final = 32 * 1024 * 1024
FETCH_BYTES: Final = 4 * 1024 * 1024
WINDOW: Final = 256
"""How many messages a client sends ahead of what it knows to have been taken."""

_OUTPUT_BYTES: Final = 256  # what an output costs beside its encoding
_ENCODER = msgspec.msgpack.Encoder()


class Outbox:
    """Encoded outputs on their way to the client. Filled from stage threads, emptied by the fetching thread."""

    def __init__(self, most_bytes: int = OUTBOX_BYTES) -> None:
        self._changed = threading.Condition()
        self._items: deque[bytes] = deque()
        self._bytes = 0
        self._most_bytes = most_bytes
        self._taken = 0
        self._reported = 0
        self._closed = False

    def push(self, key: Key, output: RequestOutput) -> None:
        """Add one output; waits while the box is full. One that can't be encoded becomes an error of its request."""
        number = int(key)
        try:
            data = _ENCODER.encode(Output(number, output))
        except (TypeError, ValueError, OverflowError) as error:
            reason = StageError(ErrorCode.PAYLOAD_UNENCODABLE.value, f"An output of the stage can't be sent: {error}")
            failed = RequestOutput(request_id=output.request_id, finish_reason="error", error=reason)
            data = _ENCODER.encode(Output(number, failed))
        self._add(data)

    def answer(self, number: int, result: CallResult) -> None:
        """Add what came of a call, as :meth:`push` does."""
        try:
            data = _ENCODER.encode(Returned(number, result.value, result.error))
        except (TypeError, ValueError, OverflowError) as error:
            reason = StageError(ErrorCode.PAYLOAD_UNENCODABLE.value, f"The answer of the stage can't be sent: {error}")
            data = _ENCODER.encode(Returned(number, None, reason))
        self._add(data)

    def _add(self, data: bytes) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._bytes < self._most_bytes or self._closed)
            self._items.append(data)
            self._bytes += len(data) + _OUTPUT_BYTES
            self._changed.notify_all()

    def note_taken(self, sequence: int) -> None:
        """The message ``sequence`` and all before it have been handed to the stage."""
        with self._changed:
            self._taken = sequence
            self._changed.notify_all()

    def fetch(self, within_s: float) -> tuple[int, list[bytes], int]:
        """The number of the last message taken, the next outputs, and how many bytes there were in all.

        As soon as there are outputs, else after ``within_s``.
        """
        with self._changed:
            self._changed.wait_for(self._worth_telling, timeout=within_s)
            held = self._bytes
            batch: list[bytes] = []
            size = 0
            while self._items and size < FETCH_BYTES:
                data = self._items.popleft()
                self._bytes -= len(data) + _OUTPUT_BYTES
                size += len(data)
                batch.append(data)
            self._reported = self._taken
            self._changed.notify_all()
            return self._taken, batch, held

    def close(self) -> None:
        """Nobody waits here any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _worth_telling(self) -> bool:
        return bool(self._items) or self._closed or self._taken - self._reported >= WINDOW // 2


class StageActor:
    """One replica of a stage. ``configure`` first; then ``deliver`` in one thread and ``fetch`` in another."""

    def __init__(self) -> None:
        self._outbox = Outbox()
        self._works: Works | None = None
        self._shutdown: Callable[[], None] | None = None
        self._early: dict[int, ToWorker] = {}
        self._taken = 0

    def configure(self, data: bytes) -> tuple[int, str | None]:
        """Make and load the stage. Returns this process's id, and why it can't be done if it can't."""
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        message = to_worker.decode(data)
        if not isinstance(message, Configure):
            raise TypeError(f"an actor must be configured first, got {type(message).__name__}")
        configure_logging(message.log_level)
        sys.stdout = sys.stderr  # what stage code prints belongs to the log
        try:
            stage = make_stage(message.factory, message.options)
            self._works, self._shutdown = start_stage(stage, self._outbox.push)
        except Exception as error:
            logger.debug("the stage could not be started", exc_info=True)  # the parent tells it in one sentence
            return os.getpid(), f"{type(error).__name__}: {error}"
        return os.getpid(), None

    def deliver(self, sequence: int, data: bytes) -> None:
        """Message ``sequence`` (from 1). One that came too early waits for those before it."""
        self._early[sequence] = to_worker.decode(data)
        while (message := self._early.pop(self._taken + 1, None)) is not None:
            self._taken += 1
            self._take(message)
            self._outbox.note_taken(self._taken)

    def fetch(self, within_s: float) -> tuple[int, list[bytes], int]:
        """As :meth:`Outbox.fetch`."""
        return self._outbox.fetch(within_s)

    def _take(self, message: ToWorker) -> None:
        if isinstance(message, Stop):
            shutdown, self._shutdown, self._works = self._shutdown, None, None
            self._outbox.close()
            if shutdown is not None:
                shutdown()
        elif self._works is not None and not isinstance(message, Configure):
            handle(message, self._works, _no_pong, self._outbox.answer)


def _no_pong() -> None:
    """A ping needs no pong: fetching is the heartbeat."""
