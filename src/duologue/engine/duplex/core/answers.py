"""Answers: asking for one, the results of the model, and the one end of a response.

Rules kept here: one response at a time, others wait in order; results of a request that is not alive under the current
epoch change nothing; a provisional turn's results are held until it is confirmed; every response created gets exactly
one terminal.
"""

from __future__ import annotations

from typing import assert_never

import msgspec
from msgspec import UNSET

from duologue.config.session import Modality, SessionConfig
from duologue.engine.duplex.commands import ResponseOptions
from duologue.engine.duplex.contracts import DuplexFence
from duologue.engine.duplex.core import aside, compaction, hearing, interruption, pacing, resident, submission, tools
from duologue.engine.duplex.core.effects import ReleaseRequests
from duologue.engine.duplex.core.history import Item
from duologue.engine.duplex.core.items import ModelSpoke
from duologue.engine.duplex.core.outbox import AudioEntry, DoneEntry
from duologue.engine.duplex.core.requests import StageRequestRecord
from duologue.engine.duplex.core.responses import Response
from duologue.engine.duplex.core.state import CommittedTurn, SessionState, WantedAnswer
from duologue.engine.duplex.events import (
    CancelReason,
    InputTranscribed,
    ResponseCreated,
    ResponseDone,
    ResponseSpeak,
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

# -- asking for an answer ------------------------------------------------------------------------------------------------


def waiting(s: SessionState) -> int:
    """Answers that wait for the response in progress; a commit under way holds the place of its answer."""
    return len(s.wanted) + (s.commit_wait is not None and s.commit_wait.create_response)


def full(s: SessionState) -> bool:
    """Whether one more answer may not be asked for; to be asked when one is."""
    must_wait = s.response is not None or bool(s.wanted)
    if not must_wait or waiting(s) < s.runtime.max_pending_turns_per_session:
        return False
    s.acted["turns"] += 1
    return True


def want(s: SessionState, item_id: str | None, options: ResponseOptions, event_id: str | None = None) -> None:
    """Answer ``item_id`` (``None``: the conversation as it stands), now or once the response in progress is over."""
    if s.response is not None or s.wanted:
        s.wanted.append(WantedAnswer(item_id, options, event_id))
        committed = s.committed.get(item_id) if item_id is not None else None
        if committed is not None and committed.request_id is not None:
            # Its stream belongs to a prompt that will be out of date by then.
            hearing.abandon(s, committed.request_id)
            committed.unbind()
        return
    create(s, item_id, options)


def promote(s: SessionState) -> None:
    """The response in progress is over: the next answer, that the model has begun or that was asked for, begins."""
    while s.sequel.ready(s.response):
        _apply(s, *s.sequel.take())  # which may come back here
    if s.phase == "open" and s.response is None and s.wanted:
        wanted = s.wanted.popleft()
        create(s, wanted.item_id, wanted.options)


def create(s: SessionState, item_id: str | None, options: ResponseOptions) -> None:
    """Create the response at once, before any inference, and let the model work on it."""
    if s.resident_family:
        resident.respond(s, item_id, options)
        return
    committed = s.committed.get(item_id) if item_id is not None else None
    record = s.requests.get(committed.request_id) if committed and committed.request_id else None
    if record is None:
        record = _request_for(s, committed)
    elif committed is not None and record.held is None:
        rest = committed.audio[committed.sent_bytes :]
        hearing.queue(s, record, rest, final=True, respond=True, item_id=item_id, quiet=committed.quiet)
    response = new_response(s, item_id, options, record)
    response.clock = committed.clock if committed is not None else None
    submission.pump(s)
    _deliver_held(s, record, response)


def _request_for(s: SessionState, committed: CommittedTurn | None) -> StageRequestRecord:
    """A fresh request: with the turn's audio if its words are not known yet, else with the conversation alone."""
    item = s.history.get(committed.item_id) if committed is not None else None
    words_suffice = s.capabilities.supports_text_turns and item is not None and item.transcript is not None
    if committed is not None and not words_suffice:
        if committed.transcribing is not None:
            hearing.abandon(s, committed.transcribing)
            committed.transcribing = None
        record = hearing.open_request(s, "turn", committed.item_id)
        committed.request_id, committed.sent_bytes = record.request_id, len(committed.audio)
        audio = hearing.unheard_audio(s, committed)
        hearing.queue(s, record, audio, final=True, respond=True, item_id=committed.item_id)
        return record
    record = hearing.open_request(s, "turn", None)
    hearing.queue(s, record, b"", final=True, respond=True, item_id=None)
    return record


def config_for(s: SessionState, options: ResponseOptions, modality: Modality) -> SessionConfig:
    """The session's settings with what this one response overrides; a later update does not touch them."""
    given = {
        name: value
        for name in ("voice", "output_format", "temperature")
        if (value := getattr(options, name)) is not None
    }
    if options.max_output_tokens is not UNSET:
        given["max_output_tokens"] = options.max_output_tokens
    return with_tools(msgspec.structs.replace(s.config, output_modality=modality, **given), options)


def with_tools(config: SessionConfig, options: ResponseOptions) -> SessionConfig:
    """``config`` with the tools that one response may use, if it has its own."""
    given = {
        name: value
        for name in ("tools", "tool_choice", "parallel_tool_calls")
        if (value := getattr(options, name)) is not None
    }
    return msgspec.structs.replace(config, **given) if given else config


def opened(s: SessionState, fence: DuplexFence, options: ResponseOptions) -> Response:
    """A response under ``fence``, with an item for what it says; nobody has been told of it yet."""
    modality = options.modality or s.config.output_modality
    response_id = f"resp-{s.session_id}-{fence.epoch}-{s.ids.next_hex()}"
    item = Item(
        item_id=f"item_{response_id}",
        role="assistant",
        status="in_progress",
        has_audio=modality == "audio",
        response_id=response_id,
    )
    response = Response(
        response_id=response_id,
        item=item,
        epoch=fence.epoch,
        turn_id=fence.turn_id,
        config=config_for(s, options, modality),
        modality=modality,
        options=options,
        created_at=s.now,
    )
    item.spoken = response.spoken
    return response


def announce(s: SessionState, response: Response, *, previous: str | None = None, out_of_band: bool = False) -> None:
    """Tell the client that ``response`` has begun."""
    config = response.config
    response.announced = s.emit(
        ResponseCreated(
            response_id=response.response_id,
            item_id=response.item.item_id,
            epoch=response.epoch,
            turn_id=response.turn_id,
            modality=response.modality,
            metadata=response.options.metadata,
            previous_item_id=previous,
            voice=config.voice,
            output_format=config.output_format,
            out_of_band=out_of_band,
            max_output_tokens=config.max_output_tokens,
        )
    )


def new_response(
    s: SessionState, item_id: str | None, options: ResponseOptions, record: StageRequestRecord
) -> Response:
    """Open a response that ``record`` works for, and say so."""
    response = opened(s, record.fence if record.purpose != "resident" else s.fences.current, options)
    item, policy = response.item, response.config.playback_commit_policy
    item.ack_only, item.commit_all = policy == "ack_only", policy == "commit_all_on_done"
    response.request_id, record.response_id = record.request_id, response.response_id
    known = item_id is not None and s.history.get(item_id) is not None
    previous = s.history.insert(item, item_id if known else None)
    for user_item in s.history.unanswered() if options.context is None else ():
        user_item.answered = True
        response.input_audio_ms += user_item.audio_ms
        if user_item.item_id == item_id:
            break
    hearing.forget_settled(s)
    s.response = response
    s.idle_at = None
    announce(s, response, previous=previous)
    return response


def _deliver_held(s: SessionState, record: StageRequestRecord, response: Response) -> None:
    held, record.held, record.held_ms = record.held, None, 0.0
    for result in held or ():
        if s.response is not response:
            return
        _apply(s, record, result)
    if record.held_finished:
        _request_finished(s, record)


# -- results -------------------------------------------------------------------------------------------------------------


def model_spoke(s: SessionState, item: ModelSpoke) -> None:
    """Results of one stage output. The one place where staleness of outputs is judged."""
    beside = aside.working(s, item.request_id)
    if beside is not None:
        aside.model_spoke(s, beside, item)
        return
    record = s.requests.get(item.request_id)
    if record is None or record.fence.epoch != s.fences.epoch or s.phase != "open":
        return
    s.lease.worked(s.now)
    for result in item.results:
        _note_time(s, record, result)
        if s.sequel.keeps(s.response, record, result):
            pacing.mind_backlog(s)
        elif record.held is not None and not (isinstance(result, UserTranscript) and not result.final):
            record.held.append(result)
            if isinstance(result, Speech) and result.audio:
                record.held_ms += len(result.audio) * 500.0 / (result.rate_hz or s.capabilities.output_rate_hz)
                pacing.mind_backlog(s)
        else:
            _apply(s, record, result)
        if s.requests.get(item.request_id) is not record or s.phase != "open":
            return
    if item.finished:
        s.sequel.end()
        if record.held is not None:
            record.held_finished = True
        else:
            _request_finished(s, record)


def _note_time(s: SessionState, record: StageRequestRecord, result: ModelResult) -> None:
    """When the words and the first of the answer were there, held or not."""
    if isinstance(result, Speech) and record.answered_at is None:
        record.answered_at = s.now
    elif isinstance(result, UserTranscript) and result.final:
        record.understood_at = s.now


def _apply(s: SessionState, record: StageRequestRecord, result: ModelResult) -> None:
    match result:
        case UserTranscript():
            _transcript(s, record, result)
        case Speech():
            _speech(s, record, result)
        case Listened():
            _listened(s, record, result)
        case TurnEnded():
            _turn_ended(s, record, result)
        case CutShort():
            _cut_short(s, record, result)
        case FunctionCall():
            _called(s, record, result)
        case TokensUsed():
            _used(s, record, result)
        case ContextUsed():
            compaction.used(s, record, result)
        case ModelFailed():
            hearing.abandon(s, record.request_id)
            request_lost(s, record, ErrorCode.RUNTIME_STREAM_FAILED, result.message)
        case _:
            assert_never(result)


def _transcript(s: SessionState, record: StageRequestRecord, result: UserTranscript) -> None:
    turn = s.turn
    if not result.final:
        if turn is not None and record.item_id == turn.item_id:
            turn.partial = result.text
            if s.overlap is not None:
                interruption.evaluate(s)
            elif turn.announced and s.config.transcription:
                s.emit(InputTranscribed(item_id=turn.item_id, text=result.text, final=False))
        return
    item = s.history.get(record.item_id) if record.item_id is not None else None
    if item is not None and item.has_audio and item.transcript is None:
        item.transcript = result.text
        if s.config.transcription:
            s.emit(InputTranscribed(item_id=item.item_id, text=result.text, final=True, audio_ms=item.audio_ms))
    if record.item_id is not None:
        _forget_audio(s, record.item_id)
    submission.pump(s)


def _forget_audio(s: SessionState, item_id: str) -> None:
    """The words are known, so the audio is not needed for another try."""
    committed = s.committed.get(item_id)
    if committed is not None and s.capabilities.supports_text_turns:
        committed.audio = b""
        committed.transcribing = None
        hearing.forget_settled(s)


def _speech(s: SessionState, record: StageRequestRecord, result: Speech) -> None:
    response = s.response
    if response is None and record.purpose == "resident":
        response = resident.begin_response(s, record)
    if response is None or record.response_id != response.response_id or not response.generating:
        return
    if response.state == "created":
        s.emit(ResponseSpeak(response_id=response.response_id))
    response.advance("content")
    if response.clock is not None:
        response.clock.understood_at, response.clock.answered_at = record.understood_at, record.answered_at
    if record.purpose == "resident":
        s.silence.want(s.now, response.response_id)
    samples = len(result.audio) // 2
    rate_hz = result.rate_hz or s.capabilities.output_rate_hz
    if response.modality == "text":
        response.spoken.extend(result.text, 0, rate_hz, ())
        if result.text:
            if response.clock is not None and response.clock.sent_at is None:
                response.clock.sent_at = s.now
            s.emit(
                ResponseText(
                    response_id=response.response_id,
                    item_id=response.item.item_id,
                    epoch=response.epoch,
                    text=result.text,
                ),
                response_id=response.response_id,
            )
        return
    marks = tuple((mark.chars, mark.end_ms) for mark in result.marks)
    if response.spoken.extend(result.text, samples, rate_hz, marks):
        s.acted["marks"] += 1
    s.spoke = True
    s.outbox.push(AudioEntry(response.response_id, result.audio, rate_hz, result.text))
    pacing.release(s)


def _called(s: SessionState, record: StageRequestRecord, result: FunctionCall) -> None:
    response = s.response
    if response is None and record.purpose == "resident":
        response = resident.begin_response(s, record)
    if response is not None and record.response_id == response.response_id and response.generating:
        tools.called(s, response, result)


def _cut_short(s: SessionState, record: StageRequestRecord, result: CutShort) -> None:
    response = s.response
    if response is not None and record.response_id == response.response_id:
        response.cut_short = result.reason


def _used(s: SessionState, record: StageRequestRecord, result: TokensUsed) -> None:
    response = s.response
    if response is not None and record.response_id == response.response_id:
        response.usage = response.usage.plus(result.input_tokens, result.output_tokens, result.cached_tokens)


def _listened(s: SessionState, record: StageRequestRecord, result: Listened) -> None:
    response = s.response
    mine = response is not None and record.response_id == response.response_id and response.generating
    if record.purpose == "resident" and mine and not result.end_response:
        resident.continue_response(s, record)
        return
    s.say_that_the_model_listens(result.reason, record.response_id if mine else None)
    if mine and response is not None and result.end_response:
        generated(s, response)


def _turn_ended(s: SessionState, record: StageRequestRecord, result: TurnEnded) -> None:
    response = s.response
    if response is not None and record.response_id == response.response_id and response.generating:
        generated(s, response)
    if record.purpose == "resident":
        done = result.model_turn_id if result.model_turn_id is not None else s.fences.turn_id
        record.response_id = None
        s.fences.complete_turn(done)


def generated(s: SessionState, response: Response) -> None:
    """The model has said all of it; its terminal follows its audio."""
    response.advance("generated")
    s.silence.stop()
    s.outbox.push(DoneEntry(response.response_id))
    pacing.release(s)


def _request_finished(s: SessionState, record: StageRequestRecord) -> None:
    """A request ended by itself."""
    if s.requests.remove(record.request_id) is None:
        return
    asked = resident.ended(s, record)
    s.do(ReleaseRequests(request_ids=(record.request_id,)))
    if record.item_id is not None:
        hearing.forget_settled(s)
    response = s.response
    mine = response is not None and response.request_id == record.request_id and response.generating
    if mine and response is not None and not asked:
        generated(s, response)
    if record.fence.epoch == s.fences.epoch and record.purpose != "resident":
        s.fences.complete_turn(record.fence.turn_id)
    submission.pump(s)


# -- failure and the terminal --------------------------------------------------------------------------------------------


def request_lost(s: SessionState, record: StageRequestRecord, code: ErrorCode, message: str) -> None:
    """A request is gone (its record is removed already): the response it worked for fails, a turn in progress does not."""
    turn = s.turn
    if turn is not None and turn.request_id == record.request_id:
        turn.unbind()
        return
    _unanswer(s, record)
    response = s.response
    mine = response is not None and response.request_id == record.request_id and response.open
    s.error(code, message, response_id=response.response_id if mine and response is not None else None)
    if mine and response is not None:
        fail(s, response, code, message)
    submission.pump(s)


def _unanswer(s: SessionState, record: StageRequestRecord) -> None:
    """``response.create`` may try again with the turn that the lost request was to answer."""
    item = s.history.get(record.item_id) if record.item_id is not None else None
    if item is not None and record.response_id is not None:
        item.answered = False
    hearing.forget_settled(s)


def fail(s: SessionState, response: Response, code: ErrorCode, message: str) -> None:
    """End the response as failed; what of it was sent stays in history as far as it was heard."""
    pacing.withdraw(s, response)
    response.advance("failed")
    finish(s, response, "failed", error=code, message=message)
    promote(s)


def finish(
    s: SessionState,
    response: Response,
    status: ResponseStatus,
    reason: CancelReason | None = None,
    *,
    error: ErrorCode | None = None,
    message: str = "",
) -> None:
    """Emit the one terminal of ``response`` and let the next answer begin."""
    item = response.item
    item.status = "completed" if status == "completed" else "incomplete"
    item.sent_whole = status in ("completed", "incomplete")
    if item.sent_whole:
        s.remade = 0
    empty = not response.has_content
    if empty:
        s.history.remove(item.item_id)
    s.response = None
    s.last_response = response
    s.silence.stop()
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
            item=None if empty else item.view(),
            calls=tuple(call.view() for call in response.calls),
            full_text=response.spoken.text,
            audio_ms=response.spoken.audio_ms,
            metadata=response.metadata,
            delays=response.clock.delays() if response.clock is not None else None,
            usage=msgspec.structs.replace(
                response.usage, input_audio_ms=response.input_audio_ms, output_audio_ms=response.spoken.audio_ms
            ),
        )
    )
