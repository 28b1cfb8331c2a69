"""One piece of input through stage code, the same for every backend.

Rules kept here:

* state is opened by the first piece and closed exactly once: when the request finished, failed or was aborted;
* whatever stage code raises becomes an error output of that request and nothing else;
* stage code that waited for something which was cancelled has failed, unless its own request was aborted;
* a request always ends: when the last piece was processed without a finished output, one is made;
* after an abort nothing of the request is delivered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from duologue.engine.stages.contract import AsyncStage, Stage
from duologue.errors import DuologueError, ErrorCode, StageFault
from duologue.log import init_logger
from duologue.outputs import RequestOutput, StageError, StageRequest

logger = init_logger(__name__)


SHORTEST_QUEUE_S: Final = 1e-4
_CUT_SHORT: Final = StageError(
    ErrorCode.RUNTIME_STREAM_FAILED.value, "The stage waited for something that was cancelled."
)


@dataclass(slots=True, eq=False)
class Work:
    """One request inside a replica; stage code sees it as its :class:`StageControl`, ``added_at`` by
    ``clock`` when it had to wait for a slot."""

    request_id: str
    clock: Callable[[], float]
    added_at: float | None = None
    queue_s: float = 0.0
    cancelled: bool = False
    ended: bool = False
    opened: bool = False
    state: object = None


def run_piece(stage: Stage[object], work: Work, request: StageRequest) -> Generator[RequestOutput, None, None]:
    """Outputs of one piece. Never raises; close the generator to stop early, then call :func:`close_work`."""
    try:
        if not work.opened:
            _open(stage, work, request)
        outputs = stage.process(work.state, request, work)
        try:
            for output in outputs:
                _check(work, output)
                yield _with_queue_time(work, output) if work.queue_s else output
                if work.ended:
                    break
        finally:
            _close_iterator(outputs)
    except (Exception, asyncio.CancelledError) as error:
        yield _failed(work, error)
    if not work.ended and ends_request(request):
        yield _finished(work)
    if work.ended:
        close_work(stage, work)


async def run_piece_async(
    stage: AsyncStage[object], work: Work, request: StageRequest, deliver: Callable[[RequestOutput], None]
) -> None:
    """As :func:`run_piece` for asynchronous stage code, the outputs being handed to ``deliver`` as they are made, until
    the request is aborted; cancellation passes through, see :func:`cut_short`.
    """
    try:
        if not work.opened:
            _open(stage, work, request)
        outputs = stage.process(work.state, request, work)
        try:
            async for output in outputs:
                if work.cancelled:
                    break
                _check(work, output)
                deliver(_with_queue_time(work, output) if work.queue_s else output)
                if work.ended or work.cancelled:
                    break
        finally:
            close = getattr(outputs, "aclose", None)  # an iterator need not be a generator
            if close is not None:
                await close()
    except Exception as error:
        if not work.cancelled:
            deliver(_failed(work, error))
    if not work.ended and not work.cancelled and ends_request(request):
        deliver(_finished(work))
    if work.ended:
        close_work(stage, work)


def cut_short(work: Work) -> RequestOutput:
    """The end of a request whose task was cancelled although nobody aborted the request."""
    return _failed(work, asyncio.CancelledError())


class CallResult(msgspec.Struct, frozen=True):
    """What came of a call: builtin types that msgpack holds, or an error."""

    value: object = None
    error: StageError | None = None


def run_call(stage: Stage[object], method: str, args: tuple[Any, ...]) -> CallResult:
    """Call stage code. Never raises."""
    try:
        return _answered(stage.call(method, args))
    except (Exception, asyncio.CancelledError) as error:
        return CallResult(error=_reason(error))


async def run_call_async(stage: AsyncStage[object], method: str, args: tuple[Any, ...]) -> CallResult:
    """As :func:`run_call`; cancellation passes through, see :data:`CALL_CUT_SHORT`."""
    try:
        return _answered(await stage.call(method, args))
    except Exception as error:
        return CallResult(error=_reason(error))


CALL_CUT_SHORT: Final = CallResult(error=_CUT_SHORT)
"""The answer to a call whose task was cancelled."""


def value_of(result: CallResult) -> object:
    """The answer. Raises :class:`StageFault` for an error, under its code."""
    if result.error is None:
        return result.value
    try:
        code = ErrorCode(result.error.code)
    except ValueError:
        code = ErrorCode.RUNTIME_STREAM_FAILED
    raise StageFault(code, result.error.message)


def _answered(value: object) -> CallResult:
    # The same plain types, and the same refusal, whether or not the answer has to leave this process.
    return CallResult(value=msgspec.to_builtins(value, builtin_types=(bytes,)))


def close_work(stage: Stage[object] | AsyncStage[object], work: Work) -> None:
    """Let stage code free what a request held. Idempotent, never raises."""
    if not work.opened:
        return
    work.opened = False
    state, work.state = work.state, None
    try:
        stage.close(state)
    except Exception:
        logger.exception("a stage failed to close the state of a request", extra={"request_id": work.request_id})


def ends_request(request: StageRequest) -> bool:
    """Whether no further piece of this request follows."""
    return request.prompt.final


def _open(stage: Stage[object] | AsyncStage[object], work: Work, request: StageRequest) -> None:
    if work.added_at is not None:
        waited_s = work.clock() - work.added_at
        work.queue_s = waited_s if waited_s >= SHORTEST_QUEUE_S else 0.0
    work.state = stage.open(request)
    work.opened = True


def _with_queue_time(work: Work, output: RequestOutput) -> RequestOutput:
    """The first output tells how long the request waited, beside what the stage itself knows of."""
    queue_s, work.queue_s = work.queue_s + output.queue_s, 0.0
    return msgspec.structs.replace(output, queue_s=queue_s)


def _check(work: Work, output: RequestOutput) -> None:
    if output.request_id != work.request_id:
        raise ValueError(f"the stage gave an output for request {output.request_id!r} instead of {work.request_id!r}")
    if output.finished or output.error is not None:
        work.ended = True


def _finished(work: Work) -> RequestOutput:
    work.ended = True
    return RequestOutput(request_id=work.request_id, finished=True, finish_reason="stop")


def _failed(work: Work, error: BaseException) -> RequestOutput:
    work.ended = True
    if not isinstance(error, DuologueError):
        logger.error("stage code failed", exc_info=error, extra={"request_id": work.request_id})
    return RequestOutput(request_id=work.request_id, finish_reason="error", error=_reason(error))


def _reason(error: BaseException) -> StageError:
    if isinstance(error, DuologueError):
        return StageError(error.code.value, error.message)
    if isinstance(error, asyncio.CancelledError):
        return _CUT_SHORT
    return StageError(ErrorCode.RUNTIME_STREAM_FAILED.value, f"{type(error).__name__}: {error}")


def _close_iterator(outputs: Iterator[RequestOutput]) -> None:
    close = getattr(outputs, "close", None)  # an iterator need not be a generator
    if close is not None:
        close()
