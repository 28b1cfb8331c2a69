"""Function calls: the model asks, the client answers, or nobody does in time.

Rules kept here: a result is applied once, in the epoch in which it was asked for and strictly before its deadline, and any
other is refused with an error that names the call; a call without a result stays in the prompt with a sentence that says
why, so that no model waits for one; ids of calls are made here and never twice; a call that finds the ledger full of open
ones is not made; a resident model hears what became of its call while its request runs, once.
"""

from __future__ import annotations

from duologue.engine.duplex.commands import CallOutput, CreateItem
from duologue.engine.duplex.core import hearing, resident
from duologue.engine.duplex.core.calls import CallRecord
from duologue.engine.duplex.core.history import NO_RESULT, Item
from duologue.engine.duplex.core.responses import Response
from duologue.engine.duplex.core.state import SessionState
from duologue.engine.duplex.events import FunctionCalled
from duologue.engine.duplex.plugin import HistoryEntry
from duologue.engine.duplex.results import FunctionCall
from duologue.errors import ErrorCode
from duologue.outputs import ToolCall

MAX_ARGUMENT_CHARS = 65_536


_REFUSED: dict[str, tuple[ErrorCode, str]] = {
    "pending": (ErrorCode.TOOL_CALL_CANCELLED, "is not part of the conversation any more"),
    "cancelled": (ErrorCode.TOOL_CALL_CANCELLED, "was cancelled: the answer that asked for it was stopped or deleted"),
    "answered": (ErrorCode.TOOL_RESULT_DUPLICATE, "has its result already"),
    "timed_out": (ErrorCode.TOOL_RESULT_TIMEOUT, "has timed out"),
}


# -- the model asks ------------------------------------------------------------------------------------------------------


def called(s: SessionState, response: Response, result: FunctionCall) -> None:
    """The model asks for a function: into the ledger first, then out at once, whatever audio waits."""
    if not may_call(s, response, result):
        return
    if not s.tools.make_room():
        message = (
            f"{s.tools.limit} function calls wait for their results, which is the limit; {result.name!r} was not made."
        )
        _refuse(s, response, ErrorCode.RESOURCE_EXHAUSTED, message)
        return
    call = ToolCall(name=result.name, arguments=result.arguments, call_id=f"call_{s.ids.next_hex()}")
    item = Item(item_id=f"item_{call.call_id}", role="assistant", call=call, response_id=response.response_id)
    leads = not response.has_content
    previous = _insert(s, response, item, leads=leads)
    s.tools.records[call.call_id] = CallRecord(
        call_id=call.call_id, item=item, epoch=response.epoch, deadline=s.now + s.runtime.tool_result_timeout_s
    )
    response.calls.append(item)
    hearing.forget_settled(s)  # those whose items made room
    s.emit(
        FunctionCalled(
            response_id=response.response_id,
            epoch=response.epoch,
            item=item.view(),
            previous_item_id=previous,
            leads=leads,
        )
    )


def may_call(s: SessionState, response: Response, result: FunctionCall) -> bool:
    """Whether the model may ask for this; if it should not have, the client is told of it."""
    menu = response.config.menu
    if menu is not None and response.calls and not menu.parallel:
        return False  # it was told to ask for one
    if menu is None or all(tool.name != result.name for tool in menu.tools):
        _refuse(
            s, response, ErrorCode.INVALID_FUNCTION_CALL, f"The model called {result.name[:64]!r}, which no tool is."
        )
        return False
    if len(result.arguments) > MAX_ARGUMENT_CHARS:
        message = f"The model called {result.name!r} with more than {MAX_ARGUMENT_CHARS} characters of arguments."
        _refuse(s, response, ErrorCode.INVALID_FUNCTION_CALL, message)
        return False
    return True


def _insert(s: SessionState, response: Response, item: Item, *, leads: bool) -> str | None:
    """After what the response says and has asked for; returns the id of what the client knows to stand before it.

    A voice is slower than words, so a call often comes before the sound of what was said first: its message is announced
    later, with its own place before the calls.
    """
    history, message = s.history, response.item.item_id
    known = [call.item_id for call in response.calls if history.get(call.item_id) is not None]
    if history.get(message) is None:
        return history.append(item)
    places = [message, *known]
    previous = history.insert(item, max(places, key=lambda item_id: history.items.index(history.by_id[item_id])))
    return history.before(message) if leads and previous == message else previous


def _refuse(s: SessionState, response: Response, code: ErrorCode, message: str) -> None:
    s.error(code, message, response_id=response.response_id)


# -- the client answers --------------------------------------------------------------------------------------------------


def may_answer(s: SessionState, command: CreateItem, output: CallOutput) -> bool:
    """Whether this result may be applied; if not, the client is told why and nothing changes."""
    record = s.tools.get(output.call_id)
    if record is None:
        return _may_seed(s, command, output)
    if record.state == "pending" and s.now >= record.deadline:
        expire(s)
    if record.state == "pending" and s.history.get(record.item.item_id) is record.item:
        return True
    code, why = _REFUSED[record.state]
    s.error(code, f"Function call {output.call_id!r} {why}.", event_id=command.event_id, param="item.call_id")
    return False


def _may_seed(s: SessionState, command: CreateItem, output: CallOutput) -> bool:
    """A result that belongs to a call of a conversation that the client brought along: history, nothing else."""
    call = s.history.call(output.call_id)
    if call is not None and call.response_id is None:
        if call.call_state == "pending":
            return True
        code, why = ErrorCode.TOOL_RESULT_DUPLICATE, "has its result already"
    else:
        code, why = ErrorCode.TOOL_CALL_UNKNOWN, "is not known in this conversation"
    s.error(code, f"Function call {output.call_id!r} {why}.", event_id=command.event_id, param="item.call_id")
    return False


def answered(s: SessionState, output: CallOutput) -> None:
    """The result is part of the conversation now: once."""
    record = s.tools.get(output.call_id)
    if record is not None:
        record.advance("answered")
        _tell(s, record, output.output)
        if s.resident_family:
            resident.owe_answer(s)
        return
    call = s.history.call(output.call_id)
    if call is not None:
        call.call_state = "answered"


def _tell(s: SessionState, record: CallRecord, text: str) -> None:
    """A resident model does not read the conversation again: its request is told."""
    if s.resident_family:
        call_id = record.call_id
        resident.tell(s, HistoryEntry(item_id=record.item.item_id, role="tool", text=text, call_id=call_id))


# -- the other ends ------------------------------------------------------------------------------------------------------


def expire(s: SessionState) -> None:
    """Calls whose time is over: each is reported once."""
    for record in s.tools.pending():
        if s.now >= record.deadline:
            record.advance("timed_out")
            s.error(
                ErrorCode.TOOL_RESULT_TIMEOUT,
                f"No result of function call {record.call_id!r} came within {s.runtime.tool_result_timeout_s:g} s.",
                param="item.call_id",
            )
            _tell(s, record, NO_RESULT[record.state])


def cancel_pending(s: SessionState) -> None:
    """The epoch ends: what was asked for in it has no consequence any more."""
    for record in s.tools.pending():
        record.advance("cancelled")


def forgotten(s: SessionState, item: Item) -> None:
    """The item of a call was deleted."""
    record = s.tools.get(item.call.call_id) if item.call is not None else None
    if record is not None and record.state == "pending":
        record.advance("cancelled")
        _tell(s, record, NO_RESULT[record.state])
