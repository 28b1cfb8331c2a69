"""How failures of one request are named: every exception becomes an error with a code, once."""

from __future__ import annotations

from duologue.engine.messages import ErrorMessage, OutputMessage, ResultMessage
from duologue.engine.requests import OrchestratorRequestState, Shown
from duologue.errors import ERRORS, DuologueError, ErrorCode, StageFault
from duologue.outputs import RequestOutput, StageError


def fault_of(error: StageError) -> StageFault:
    """The fault that a stage reported in an output; an unknown code becomes ``runtime_data_plane_stream_failed``."""
    try:
        code = ErrorCode(error.code)
    except ValueError:
        code = ErrorCode.RUNTIME_STREAM_FAILED
    return StageFault(code, error.message)


def as_fault(error: BaseException, doing: str) -> DuologueError:
    """``error`` itself if it has a code, else a stage fault that says what was being done."""
    if isinstance(error, DuologueError):
        return error
    fault = StageFault(ErrorCode.RUNTIME_STREAM_FAILED, f"{doing} failed: {type(error).__name__}: {error}")
    fault.__cause__ = error
    return fault


def of_companion(fault: DuologueError, role: str) -> StageFault:
    """What the failure of its companion ``role`` is for a parent: the same cause, told of the companion."""
    return StageFault(fault.code, f"Its companion {role!r} failed: {fault.message}")


def error_message(request_id: str, fault: DuologueError, stage_id: int | None) -> ErrorMessage:
    """What the client of a failed request is told."""
    return ErrorMessage(
        request_id=request_id,
        code=fault.code.value,
        message=fault.message,
        http_status=ERRORS[fault.code].http_status,
        stage_id=stage_id,
    )


def aborted_message(request_id: str, stage_id: int) -> OutputMessage:
    """The last message of a request that was aborted."""
    output = RequestOutput(request_id=request_id, finished=True, finish_reason="abort")
    return OutputMessage(request_id=request_id, stage_id=stage_id, output=output, finished=True)


def partial_messages(state: OrchestratorRequestState) -> list[OutputMessage]:
    """What the client of a turn-based request had got when it was aborted, one per final stage in order."""
    return [
        OutputMessage(
            request_id=state.request_id,
            stage_id=stage_id,
            output=state.shown.get(stage_id, Shown()).partial(state.request_id),
            finished=True,
        )
        for stage_id in sorted(state.final_outputs)
    ]


def result_message(control_id: str, value: object, failure: Exception | None) -> ResultMessage:
    """The answer to a correlated operation: ``value``, or why it failed."""
    if failure is None:
        return ResultMessage(control_id=control_id, value=value)
    fault = as_fault(failure, "The operation")
    return ResultMessage(control_id=control_id, value=value, error_code=fault.code.value, error_message=fault.message)
