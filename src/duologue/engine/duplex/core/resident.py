"""Resident models: one resumable request per epoch that is fed unit by unit, and silence when there is nothing else.

Rules kept here: units are cut exactly, whatever the appends were; no silence is fed while real input waits; an answer goes
on to its end or is closed, and never needs more client audio for that; after an interruption the new request hears what the
user is saying from its beginning; what became of a function call reaches the request that asked for it once; what a request
was not given before the model ended it goes to the next.
"""

from __future__ import annotations

import msgspec

from duologue.engine.duplex.commands import ResponseOptions
from duologue.engine.duplex.core import answers, hearing, submission
from duologue.engine.duplex.core.requests import StageRequestRecord
from duologue.engine.duplex.core.responses import Response
from duologue.engine.duplex.core.state import CommittedTurn, SessionState
from duologue.engine.duplex.core.tail import PendingAppend
from duologue.engine.duplex.events import ResponseListen
from duologue.engine.duplex.plugin import HistoryEntry

LISTENING = "listening"
"""Who is fed silence while no answer is in progress: the model itself, if it is frame-locked."""


def _silence_bytes(s: SessionState) -> int:
    return s.unit_bytes or s.audio.samples(s.capabilities.chunk_period_ms) * 2


def _record(s: SessionState) -> StageRequestRecord:
    """The request of this epoch, opened with its first unit."""
    return _running(s) or _open(s)


def _open(s: SessionState) -> StageRequestRecord:
    """A new request. One that takes another's place begins with as full a context as that had."""
    record = hearing.open_request(s, "resident", None)
    if s.resident.rebuild and not s.resident.compact:
        record.context.share = s.resident.share
    return record


def filled(s: SessionState) -> float | None:
    """How full the context of the running request is, what it has yet to tell of included; ``None`` if nobody knows."""
    record = _running(s)
    if record is None:
        return s.resident.share if s.resident.rebuild else None
    context, units = record.context, s.capabilities.context_units
    return context.share if context.share is None or not units else context.share + sum(context.waiting) / units


def owed(s: SessionState) -> tuple[bool, bool]:
    """Whether the next request takes another's place, should the replica be lost now, and whether of one that was filling.

    A model that ended its request begins the next one with an empty context, as ever; so does one that has taken nothing yet.
    """
    record = _running(s)
    if record is not None and record.submitted:
        return True, False
    return s.resident.rebuild, s.resident.compact


def _running(s: SessionState) -> StageRequestRecord | None:
    for record in s.requests.records.values():
        if record.purpose == "resident":
            return record
    return None


def _piece(
    s: SessionState,
    audio: bytes,
    *,
    silence: bool = False,
    final: bool = False,
    listen: bool = False,
    respond: bool = True,
    owner: str | None = None,
) -> PendingAppend:
    begins, record = None, _running(s)
    if record is None:
        record = _open(s)
        begins = tuple(s.history.items)
    return PendingAppend(
        record.request_id,
        s.fences.current,
        audio,
        final,
        respond,
        silence,
        listen,
        items=begins,
        response_id=record.response_id,
        owner=owner,
    )


def feed(s: SessionState) -> None:
    """Hand every whole unit of the input to the model."""
    audio, resident = s.audio, s.resident
    if resident.waiting:
        _flush(s)  # turns of the time when the client ended them
    buffer = resident.buffer
    unit = s.unit_bytes
    fed_to = resident.fed_to if resident.fed_to > audio.floor else audio.floor
    if audio.end > fed_to:
        resident.fed_to = audio.end
        # With a detector it may have to be said again: see :func:`rewind`.
        fresh = audio.take(fed_to) if s.detection.endpointer is None else audio.since(fed_to)
        if not buffer and len(fresh) == (unit or len(fresh)):
            # The ordinary case: the client sends units.
            submission.offer(s, _piece(s, fresh, listen=_wish(s)))
            return
        buffer += fresh
    whole = len(buffer) // unit * unit if unit else len(buffer)
    listen = _wish(s) if whole else False
    for start in range(0, whole, unit or max(1, whole)):
        s.tail.enqueue(_piece(s, bytes(buffer[start : start + (unit or whole)]), listen=listen))
    del buffer[:whole]
    submission.pump(s)


def _wish(s: SessionState) -> bool:
    """Whether the client wants the model to listen to the units that are being cut now."""
    listen, s.resident.force_listen = s.resident.force_listen, False
    return listen


def commit(s: SessionState, committed: CommittedTurn, *, create_response: bool) -> None:
    """A client ends a turn of a resident model: flush it, the last unit padded with silence."""
    item = s.history.get(committed.item_id)
    if item is not None:
        item.answered = s.auto_responds  # the model decides by itself whether to answer
    del s.committed[committed.item_id]
    if not s.auto_responds:  # otherwise it was fed as it came
        _keep(s, committed.item_id, committed.audio)
    _flush(s, final=True, respond=create_response and s.response is None)
    if create_response and not s.auto_responds:
        if s.response is None:
            answers.new_response(s, committed.item_id, ResponseOptions(), _record(s))
        else:
            answers.want(s, committed.item_id, ResponseOptions())
    submission.pump(s)


def _keep(s: SessionState, owner: str | None, audio: bytes) -> None:
    """What the buffer holds and ``audio`` wait from here on, cut into units, the last padded with silence."""
    resident, unit = s.resident, s.unit_bytes
    whole = bytes(resident.buffer) + audio
    resident.buffer.clear()
    if unit:
        whole += bytes(-len(whole) % unit)
    step = unit or max(1, len(whole))
    resident.waiting.extend((owner, whole[start : start + step]) for start in range(0, len(whole), step))


def _flush(s: SessionState, *, final: bool = False, respond: bool = True) -> None:
    """All input that waits goes to the model, unit by unit."""
    _keep(s, None, b"")
    forget_deleted(s)
    waiting = s.resident.waiting
    while waiting:
        owner, audio = waiting.popleft()
        s.tail.enqueue(_piece(s, audio, final=final and not waiting, respond=respond, owner=owner))


def waits(s: SessionState) -> bool:
    """Whether a turn waits that no stage took, so that the model may be asked to answer it all the same."""
    return s.resident_family and not s.auto_responds and bool(s.resident.buffer or s.resident.waiting)


def tell(s: SessionState, result: HistoryEntry) -> None:
    """What became of a call goes to the request that asked, after the audio that is on its way already.

    A request that has not begun gets the whole conversation with its first unit, this included.
    """
    record = _running(s)
    if record is None:
        return
    on_its_way = s.tail.in_flight
    if not record.submitted and (on_its_way is None or on_its_way.request_id != record.request_id):
        return
    s.tail.enqueue(
        PendingAppend(
            request_id=record.request_id, fence=s.fences.current, audio=b"", final=False, respond=True, result=result
        )
    )
    submission.pump(s)


def owe_answer(s: SessionState) -> None:
    """A function has answered: the client may ask what the model makes of it, whenever the model says that by itself."""
    resident, response = s.resident, s.response
    resident.told += 1
    resident.told_at = s.now
    resident.reply = response if response is not None and response.generating else None


def said_unasked(s: SessionState, options: ResponseOptions) -> bool:
    """Whether what the model says of a function's result by itself is the answer that is wished for; sees to that, if so.

    Clients that know turns alone wish for one after every result, and the model may have begun, or be done with it. What is
    under way is that answer; one that is over is followed by a response without content, since none of it is said twice.
    """
    resident, response, reply = s.resident, s.response, s.resident.reply
    own = answers.config_for(s, options, options.modality or s.config.output_modality) != s.config
    if not resident.told or own or options.instructions is not None or options.context is not None:
        return False
    if response is not None and (response.generating or response is reply):
        if not response.metadata:
            response.options = msgspec.structs.replace(response.options, metadata=options.metadata)
    elif not s.sequel.results:
        record = _running(s)
        if response is not None or record is None or reply is None or reply.state != "completed":
            return False
        resident.reply = answers.new_response(s, None, options, record)
        record.response_id = None
        answers.generated(s, resident.reply)
    resident.told -= 1
    return True


def respond(s: SessionState, item_id: str | None, options: ResponseOptions) -> None:
    """The client asks for an answer: input that waits goes to the model with that wish, or else a unit of silence.

    A turn that no stage took waits like that; silence before it would have the model answer what it never heard.
    """
    response = answers.new_response(s, item_id, options, _record(s))
    resident = s.resident
    if resident.told:
        resident.told -= 1
        resident.reply = response
    if s.resident.buffer or s.resident.waiting:
        _flush(s, final=True)
    else:
        s.tail.enqueue(_piece(s, bytes(_silence_bytes(s)), silence=True, final=True))
    submission.pump(s)


def rewind(s: SessionState) -> None:
    """The epoch is about to end: what the user is saying, and what no stage has taken, is for the next one."""
    if not s.auto_responds:
        # A turn that is in the conversation is heard; the wish for an answer to it is not taken along.
        give_back(s, [append for append in s.tail.unsettled() if append.owner is not None])
        return
    if s.turn is not None:
        s.resident.buffer.clear()
        s.resident.fed_to = min(s.resident.fed_to, s.turn.start)
    else:
        give_back(s, s.tail.unsettled())


def forget_input(s: SessionState) -> None:
    """The input is cleared: what no stage has taken of it is not for the model, unless an answer was asked for behind it.

    What is on its way is not called back, but if it is refused it is not fed again.
    """
    if not s.auto_responds:
        return  # what is on its way is of committed turns
    queue, flying = s.tail.queue, s.tail.in_flight
    asked = max((place for place, append in enumerate(queue) if append.final), default=-1)
    s.tail.forget({place for place, append in enumerate(queue) if place > asked and _is_input(append)})
    if flying is not None and asked < 0 and not flying.final and _is_input(flying):
        flying.forgotten = True
    record = _running(s)
    if record is None or record.submitted or record.response_id is not None:
        return
    if all(append.request_id != record.request_id for append in s.tail.unsettled()):
        s.requests.remove(record.request_id)  # nothing is left that would begin it


def feed_again(s: SessionState) -> None:
    """The new epoch's request hears what :func:`rewind` kept, without waiting for the next append."""
    if s.auto_responds and s.phase == "open":
        feed(s)


def begin_response(s: SessionState, record: StageRequestRecord) -> Response:
    """The model began to speak by itself."""
    response = answers.new_response(s, None, ResponseOptions(), record)
    resident = s.resident
    if resident.told and resident.reply is not None and resident.reply.created_at > resident.told_at:
        resident.told = 0  # it said something since, and nobody asked
    resident.reply = response if resident.told else None
    return response


def continue_response(s: SessionState, record: StageRequestRecord) -> None:
    """The model is not done with its turn: keep its clock running."""
    del record
    if s.response is not None:
        s.silence.want(s.now, s.response.response_id)


def keep_clock(s: SessionState, *, silence: bool) -> None:
    """A unit of a frame-locked model was accepted: should no other follow, it hears silence, so that it notices the pause."""
    clock = s.silence
    clock.patience_s = s.longest_append_ms / 1000.0
    if s.response is not None and s.response.generating:
        return  # its answer keeps the clock
    if not silence and clock.owner == LISTENING:
        clock.units = 0
    clock.want(s.now, LISTENING)


def start_clock(s: SessionState) -> None:
    """The clock of a frame-locked model stood while there was no placement: what the model was given before that it hears
    again with the next unit, and nobody else may send one."""
    s.resident.clock_stood = False
    s.silence.want(s.now, LISTENING)


def _owner(s: SessionState) -> str | None:
    """For whom silence may be fed now."""
    if s.phase != "open":
        return None
    if s.response is not None and s.response.generating:
        return s.response.response_id
    return LISTENING if s.capabilities.frame_locked else None


def continuation_due(s: SessionState) -> None:
    """A unit of silence is due, unless something better is there to feed."""
    response = s.response
    silence = s.silence
    owner = _owner(s)
    if owner is None or silence.owner != owner:
        silence.stop()
        return
    if not s.tail.idle or s.tail.orphans:
        # Real input is on its way; its acceptance re-anchors the schedule. Look again after one period.
        silence.due_at = s.now + silence.period_s
        return
    limit = s.capabilities.max_silence_units
    if silence.units >= limit and (owner == LISTENING or response is None):
        silence.stop()
        return
    if silence.units >= limit and response is not None:
        s.acted["silence_units"] += 1
        s.emit(ResponseListen(reason="continuation_limit", response_id=response.response_id))
        answers.generated(s, response)
        s.fences.complete_turn(s.fences.turn_id)
        return
    unit = _silence_bytes(s)
    silence.take()
    buffer = s.resident.buffer
    if buffer or s.resident.waiting:
        # Input that fills no unit must not wait for ever, nor be overtaken by silence: pad it to one.
        buffer += bytes(max(0, unit - len(buffer))) if buffer else b""
        _flush(s)
    else:
        s.tail.enqueue(_piece(s, bytes(unit), silence=True, listen=silence.units >= limit and owner != LISTENING))
    submission.pump(s)


def hand_over(s: SessionState, old: StageRequestRecord, *, answer: bool = True) -> None:
    """All that the old request was given is heard; what was not submitted goes to the next as it is.

    ``answer``: what is to be answered goes with it.
    """
    if not s.tail.queue:
        return
    record = _open(s)
    s.tail.readdress(old.request_id, record.request_id, tuple(s.history.items))
    response = s.response
    if answer and response is not None and response.generating and response.request_id == old.request_id:
        record.response_id, response.request_id = old.response_id, record.request_id


def ended(s: SessionState, record: StageRequestRecord) -> bool:
    """The model ended its request by itself: input that it was not given goes to the next, asking for an answer or not.

    What is in flight may still be refused (see :func:`too_late`); returns whether the answer depends on that.
    The first piece of a request was taken: what else did the model end? One that always does would be given it for ever.
    """
    request_id, response = record.request_id, s.response
    created = response is not None and response.state == "created" and response.request_id == request_id
    rest = [append for append in s.tail.queue if append.request_id == request_id]
    if record.purpose == "resident" and any(_is_input(append) for append in rest):
        hand_over(s, record, answer=created and any(append.final and append.respond for append in rest))
    in_flight = s.tail.in_flight
    current = in_flight if in_flight is not None and in_flight.request_id == request_id else None
    kept = current is not None and _is_input(current) and record.purpose == "resident" and record.submitted
    s.tail.void(request_id, in_flight=not kept)
    return kept and created and current is not None and current.final and current.respond


def _is_input(append: PendingAppend) -> bool:
    """Whether it is said to the model by the user, be it with a unit of silence the wish for an answer."""
    return not append.keeps_clock and append.result is None


def too_late(s: SessionState, append: PendingAppend, *, accepted: bool) -> None:
    """``append`` was in flight when its request ended by itself; if it was refused, the next request hears it first."""
    response = s.response
    if response is not None and not (response.generating and response.request_id == append.request_id):
        response = None
    if accepted:
        if response is not None:
            answers.generated(s, response)
        return
    if append.forgotten:
        return
    record, items = _running(s), s.tail.queue[0].items if s.tail.queue else None
    if record is None:
        record, items = _open(s), tuple(s.history.items)
    if response is not None:
        record.response_id, response.request_id = response.response_id, record.request_id
    again = msgspec.structs.replace(append, request_id=record.request_id, items=items, number=0, state="queued")
    s.tail.put_back(again)


def give_back(s: SessionState, failed: list[PendingAppend]) -> None:
    """Units that no stage took return to the front of the input, in order and as they were cut.

    The silence that fills the last unit of a turn stays: without it a unit would hold the end of one turn and the beginning
    of the next, which were not said together, and a unit that was refused would not be fed again as it was.
    """
    resident = s.resident
    again = [append for append in failed if append.audio and not append.silence and not append.forgotten]
    if s.auto_responds:
        resident.buffer[:0] = b"".join(append.audio for append in again)
        return
    pieces = [(append.owner, append.audio) for append in again]
    resident.waiting.extendleft(reversed([piece for piece in pieces if _wanted(s, piece[0])]))


def _wanted(s: SessionState, owner: str | None) -> bool:
    """Whether the turn that a piece belongs to is part of the conversation."""
    return owner is None or owner in s.history.by_id


def forget_deleted(s: SessionState) -> None:
    """What waits of turns that are not part of the conversation any more is not for the model either."""
    waiting = s.resident.waiting
    if waiting:
        kept = [piece for piece in waiting if _wanted(s, piece[0])]
        waiting.clear()
        waiting.extend(kept)
