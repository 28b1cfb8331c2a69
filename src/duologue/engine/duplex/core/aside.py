"""Responses outside the conversation: text or speech beside whatever is said in it.

Rules kept here: such a response reads the conversation (or the input it is given) as it stands when it is asked for, and
changes nothing of it; it lives beside epochs: what stops the conversation's answer does not stop it; it is submitted in its
turn, since one submission is in flight at a time; each has exactly one terminal; so many may be open as answers may wait.
Its sound has a line of its own: it leaves at the pace at which it can be played, whatever else is played, and says nothing of
what was heard of the conversation.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from duologue.engine.duplex.commands import CreateResponse
from duologue.engine.duplex.core import answers, pacing, submission, tools
from duologue.engine.duplex.core.effects import AbortRequests, InvalidateOutput, ReleaseRequests
from duologue.engine.duplex.core.history import Item
from duologue.engine.duplex.core.items import ModelSpoke
from duologue.engine.duplex.core.outbox import AudioEntry, Entry
from duologue.engine.duplex.core.responses import Aside, Response
from duologue.engine.duplex.core.state import SessionState
from duologue.engine.duplex.events import (
    CancelReason,
    FunctionCalled,
    ResponseDone,
    ResponseStatus,
    ResponseText,
)
from duologue.engine.duplex.results import (
    ContextUsed,
    CutShort,
    FunctionCall,
    Listened,
    ModelFailed,
    ModelResult,
    Speech,
    TokensUsed,
    TurnEnded,
    UserTranscript,
)
from duologue.errors import ErrorCode
from duologue.ids import stage_request_id
from duologue.outputs import ToolCall


def create(s: SessionState, command: CreateResponse) -> None:
    """``response.create`` with ``conversation`` ``none``."""
    options = command.options
    refusal = _refusal(s, command)
    if refusal is not None:
        code, message, param = refusal
        s.error(code, message, event_id=command.event_id, param=param)
        return
    fence = s.fences.current
    response = answers.opened(s, fence, options)
    name = response.response_id.rpartition("-")[2]
    request_id = stage_request_id(s.session_id, fence.epoch, f"stage0-aside-{name}")
    history = options.context if options.context is not None else s.history.prompt()
    s.asides[request_id] = Aside(request_id, fence, response, history)
    answers.announce(s, response, out_of_band=True)
    submission.pump(s)


def _refusal(s: SessionState, command: CreateResponse) -> tuple[ErrorCode, str, str | None] | None:
    if s.resident_family or not s.capabilities.supports_text_turns:
        message = "This model answers within the conversation only; omit conversation, or use 'auto'."
        return ErrorCode.UNSUPPORTED_RESPONSE_OPTIONS, message, "response.conversation"
    if len(s.asides) >= s.runtime.max_pending_turns_per_session:
        message = f"{len(s.asides)} responses outside the conversation are open, which is the limit."
        return ErrorCode.INPUT_BACKPRESSURE, message, None
    return None


def settled(s: SessionState, request_id: str, failure: tuple[ErrorCode, str] | None) -> None:
    """The stage took the submission, or did not (``failure``); it may not be wanted any more."""
    aside = working(s, request_id)
    if aside is None:
        s.do(AbortRequests(request_ids=(request_id,)))
    elif failure is not None:
        fail(s, aside, *failure)


# -- results -------------------------------------------------------------------------------------------------------------


def model_spoke(s: SessionState, aside: Aside, item: ModelSpoke) -> None:
    """Results of one stage output."""
    s.lease.worked(s.now)
    for result in item.results:
        _apply(s, aside, result)
        if s.asides.get(aside.request_id) is not aside:
            return
    if item.finished:
        s.do(ReleaseRequests(request_ids=(aside.request_id,)))
        aside.ended = True
        if aside.response.generating:
            aside.response.advance("generated")
    release(s)


def _apply(s: SessionState, aside: Aside, result: ModelResult) -> None:
    response = aside.response
    match result:
        case Speech():
            if response.generating and (result.text or result.audio):
                _say(s, aside, result)
        case CutShort():
            response.cut_short = result.reason
        case FunctionCall():
            _call(s, response, result)
        case TokensUsed():
            response.usage = response.usage.plus(result.input_tokens, result.output_tokens, result.cached_tokens)
        case TurnEnded():
            if response.generating:
                response.advance("generated")
        case ModelFailed():
            fail(s, aside, ErrorCode.RUNTIME_STREAM_FAILED, result.message)
        case UserTranscript() | Listened() | ContextUsed():
            pass
        case _:
            assert_never(result)


def _say(s: SessionState, aside: Aside, result: Speech) -> None:
    response = aside.response
    rate_hz = result.rate_hz or s.capabilities.output_rate_hz
    if response.modality == "audio":
        response.advance("content")
        marks = tuple((mark.chars, mark.end_ms) for mark in result.marks)
        if response.spoken.extend(result.text, len(result.audio) // 2, rate_hz, marks):
            s.acted["marks"] += 1
        aside.line.push(AudioEntry(response.response_id, result.audio, rate_hz, result.text))
    elif result.text:
        response.advance("content")
        response.spoken.extend(result.text, 0, rate_hz, ())
        event = ResponseText(
            response_id=response.response_id, item_id=response.item.item_id, epoch=response.epoch, text=result.text
        )
        s.emit(event, response_id=response.response_id)


def _call(s: SessionState, response: Response, result: FunctionCall) -> None:
    """A call that the conversation does not know: the client makes of it what it likes, and sends no result."""
    if not response.generating or not tools.may_call(s, response, result):
        return
    if len(response.calls) >= s.tools.limit:
        message = (
            f"A response outside the conversation may make {s.tools.limit} function calls; {result.name!r} is one more."
        )
        s.error(ErrorCode.RESOURCE_EXHAUSTED, message, response_id=response.response_id)
        return
    call = ToolCall(name=result.name, arguments=result.arguments, call_id=f"call_{s.ids.next_hex()}")
    item = Item(item_id=f"item_{call.call_id}", role="assistant", call=call, response_id=response.response_id)
    leads = not response.has_content
    response.calls.append(item)
    s.emit(
        FunctionCalled(response_id=response.response_id, epoch=response.epoch, item=item.view(), leads=leads),
        response_id=response.response_id,
    )


# -- pace ----------------------------------------------------------------------------------------------------------------


def speaking(s: SessionState) -> bool:
    """Whether sound waits for its time."""
    return any(aside.line.queue for aside in s.asides.values())


def release(s: SessionState) -> None:
    """Let everything leave whose time has come, on each line for itself, and end what has nothing more to say."""
    s.beside_at = None
    for aside in list(s.asides.values()):
        while aside.line.queue and s.lease.attached and _release_audio(s, aside, aside.line.queue[0]):
            pass
        if not aside.ended:
            pacing.mind(s, aside, aside.line.backlog_ms)
        elif not aside.line.queue:
            aside.response.advance("drained")
            _finish(s, aside, *aside.response.drained)


def _release_audio(s: SessionState, aside: Aside, entry: Entry) -> bool:
    """Let one slice leave; false if it is not due yet, or the socket has no room."""
    assert isinstance(entry, AudioEntry)  # an aside's line holds nothing else
    line, clock, response, size_ms = aside.line, aside.clock, aside.response, s.runtime.audio_delta_ms
    now, at = pacing.due(s, clock, min(entry.rest_ms, float(size_ms)))
    if not now:
        if at is not None:
            s.beside_at = at if s.beside_at is None else min(s.beside_at, at)
        return False
    if not s.has_room(line.slice_bytes(entry, size_ms) * 4 // 3 + len(entry.words)):
        return False  # taking what is out comes back here
    audio, duration_ms, text = line.slice(entry, size_ms)
    event = pacing.sound(response, clock, entry.rate_hz, audio, duration_ms, text)
    s.emit(event, response_id=response.response_id, beside_ms=duration_ms)
    return True


def taken(s: SessionState, number: int) -> None:
    """The socket has everything up to ``number``; to be said before the outbox forgets what that was."""
    for entry in s.outbox.released:
        if entry.number > number:
            break
        aside = named(s, entry.response_id) if entry.beside_ms > 0.0 else None
        if aside is not None:
            aside.clock.taken(entry.beside_ms, s.now)


def _withdraw(s: SessionState, aside: Aside) -> None:
    """Stop the request; nothing more of the response may be sent, and it is what was sent."""
    if not aside.ended:
        s.do(AbortRequests(request_ids=(aside.request_id,)))
    aside.line.remove(aside.response.response_id)
    item = aside.response.item
    untaken_ms = s.outbox.withdraw(aside.response.response_id)
    if untaken_ms is not None:
        item.sent_ms -= untaken_ms
        s.do(InvalidateOutput(response_id=aside.response.response_id))
    if item.has_audio:
        item.soft_cut_ms = item.sent_ms


# -- the end -------------------------------------------------------------------------------------------------------------


def working(s: SessionState, request_id: str) -> Aside | None:
    """Whom the request of this id works for, if it is for a response outside the conversation and not over."""
    aside = s.asides.get(request_id)
    return aside if aside is not None and not aside.ended else None


def named(s: SessionState, response_id: str | None) -> Aside | None:
    """The open response of this id, if it is outside the conversation."""
    return next((aside for aside in s.asides.values() if aside.response.response_id == response_id), None)


def cancel(s: SessionState, aside: Aside) -> None:
    """The client does not want it any more."""
    _withdraw(s, aside)
    aside.response.advance("cancelled")
    _finish(s, aside, "cancelled", reason="client_cancelled")


def fail(s: SessionState, aside: Aside, code: ErrorCode, message: str) -> None:
    """A stage, or the model, gave up on it."""
    _withdraw(s, aside)
    s.error(code, message, response_id=aside.response.response_id)
    aside.response.advance("failed")
    _finish(s, aside, "failed", error=code, message=message)


def lost(s: SessionState, message: str) -> None:
    """A replica is gone: what was submitted may have been there, and what it was asked is not asked again."""
    for aside in [aside for aside in s.asides.values() if aside.submitted and not aside.ended]:
        fail(s, aside, ErrorCode.REPLICA_UNAVAILABLE, message)


def end_all(s: SessionState) -> None:
    """The session closes."""
    for aside in list(s.asides.values()):
        cancel(s, aside)


def _finish(
    s: SessionState,
    aside: Aside,
    status: ResponseStatus,
    reason: CancelReason | None = None,
    *,
    error: ErrorCode | None = None,
    message: str = "",
) -> None:
    del s.asides[aside.request_id]
    response = aside.response
    response.item.status = "completed" if status == "completed" else "incomplete"
    if not response.announced:
        return
    s.emit(
        ResponseDone(
            response_id=response.response_id,
            epoch=response.epoch,
            status=status,
            reason=reason,
            error=error,
            error_message=message,
            modality=response.modality,
            item=response.item.view() if response.has_content else None,
            calls=tuple(call.view() for call in response.calls),
            full_text=response.spoken.text,
            audio_ms=response.spoken.audio_ms,
            metadata=response.metadata,
            usage=msgspec.structs.replace(response.usage, output_audio_ms=response.spoken.audio_ms),
        )
    )
