"""Commands on responses and items.

Rules kept here: an invalid command is one error with the client's event id and changes nothing; truncation is clamped, never
refused for being late or long.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import msgspec

from duologue.config.session import SessionConfig, check_numbers, check_tools
from duologue.engine.duplex.commands import (
    CancelResponse,
    ClearOutput,
    CreateItem,
    CreateResponse,
    DeleteItem,
    InputItem,
    ItemReference,
    ResponseOptions,
    RetrieveItem,
    TruncateItem,
)
from duologue.engine.duplex.core import answers, aside, cancel, hearing, pacing, resident, tools
from duologue.engine.duplex.core.history import History, Item
from duologue.engine.duplex.core.responses import Response
from duologue.engine.duplex.core.state import SessionState
from duologue.engine.duplex.events import (
    ItemAdded,
    ItemDeleted,
    ItemRetrieved,
    ItemTruncated,
    OutputCleared,
)
from duologue.engine.duplex.plugin import HistoryEntry
from duologue.errors import ClientFault, ErrorCode

MAX_IMAGES = 8  # of one item


def create_response(s: SessionState, command: CreateResponse) -> None:
    """``response.create``."""
    if not _options_fit(s, command):
        return
    options = command.options
    if options.input is not None:
        context = _context(s, command, options.input)
        if context is None:
            return
        options = msgspec.structs.replace(options, input=None, context=context)
        command = msgspec.structs.replace(command, options=options)
    if options.out_of_band:
        aside.create(s, command)
        return
    if resident.said_unasked(s, options) or _too_early(s, command):
        return
    waiting = {wanted.item_id for wanted in s.wanted}
    unanswered = [item for item in s.history.unanswered() if item.item_id not in waiting]
    spoken = next((item for item in reversed(unanswered) if _was_heard(s, item)), None)
    if spoken is not None and options.context is None:
        answers.want(s, spoken.item_id, options, command.event_id)
    elif s.capabilities.supports_text_turns or _result_waits(s) or resident.waits(s):
        answers.want(s, None, options, command.event_id)
    elif unanswered:
        s.error(
            ErrorCode.TEXT_ONLY_TURN_UNSUPPORTED,
            "This model answers speech only; append and commit audio first.",
            event_id=command.event_id,
        )
    else:
        s.error(
            ErrorCode.RESPONSE_CREATE_WITHOUT_INPUT,
            "There is nothing to answer; append and commit audio first.",
            event_id=command.event_id,
        )


def _too_early(s: SessionState, command: CreateResponse) -> bool:
    """Whether it has to be refused for the answers that there are already."""
    response = s.response
    if response is not None and response.generating:
        s.error(
            ErrorCode.RESPONSE_ALREADY_ACTIVE,
            f"Response {response.response_id} is in progress; wait for its response.done or cancel it.",
            event_id=command.event_id,
        )
        return True
    if answers.full(s):
        s.error(
            ErrorCode.INPUT_BACKPRESSURE,
            f"{answers.waiting(s)} answers wait already, which is the limit.",
            event_id=command.event_id,
        )
        return True
    return False


def _result_waits(s: SessionState) -> bool:
    """Whether a resident model has been told of a function's result, and the client may ask what it makes of it."""
    items = s.history.items
    return s.resident_family and (s.resident.told > 0 or (bool(items) and items[-1].output is not None))


def settings(s: SessionState, options: ResponseOptions) -> SessionConfig:
    """What the session's settings are for this one response; :class:`ClientFault` if the model cannot do that."""
    config = answers.config_for(s, options, options.modality or s.config.output_modality)
    check_numbers(config, "response")
    check_tools(config, "response")
    if options.tools is not None:
        s.capabilities.check(config, "response")
    voice = options.voice
    if voice is not None and voice != s.config.voice and s.spoke and s.capabilities.fixed_voice_after_audio:
        raise ClientFault(
            ErrorCode.VOICE_UPDATE_UNSUPPORTED,
            f"The assistant has spoken with voice {s.config.voice or 'default'!r}; the voice cannot change any more.",
            param="response.audio.output.voice",
        )
    return config


def _options_fit(s: SessionState, command: CreateResponse) -> bool:
    """Whether the model can do what this one response is to do; if not, the client is told."""
    try:
        settings(s, command.options)
    except ClientFault as fault:
        s.error(fault.code, fault.message, event_id=command.event_id, param=fault.param)
        return False
    return True


def _context(
    s: SessionState, command: CreateResponse, given: tuple[InputItem | ItemReference, ...]
) -> tuple[HistoryEntry, ...] | None:
    """What a response reads instead of the conversation; ``None`` if it names what is not there, which is told."""
    most = s.runtime.max_items_per_session
    if len(given) > most:
        message = f"The input has {len(given)} items and may have {most}, as a conversation; name fewer of them."
        s.error(ErrorCode.INVALID_ITEM, message, event_id=command.event_id, param="response.input")
        return None
    context = History(max(1, len(given)), s.runtime.max_history_chars)
    for index, entry in enumerate(given):
        if isinstance(entry, InputItem):
            where = f"response.input[{index}]"
            if not _text_fits(s, entry, command.event_id, where):
                return None
            if not _images_fit(s, entry, 0, command.event_id, f"{where}.content"):
                return None
            context.append(_item(entry, f"input_{index}"))
            continue
        item = s.history.get(entry.item_id)
        if item is None:
            s.error(
                ErrorCode.ITEM_NOT_FOUND,
                f"There is no item {entry.item_id!r} in this conversation.",
                event_id=command.event_id,
                param=f"response.input[{index}].id",
            )
            return None
        context.append(replace(item, item_id=f"input_{index}"))  # an item may be named twice
    limit = s.runtime.max_image_bytes_per_session
    if context.image_bytes > limit:
        message = f"The input holds {context.image_bytes} bytes of images and may hold {limit}; name fewer of them."
        s.error(ErrorCode.INVALID_ITEM, message, event_id=command.event_id, param="response.input")
        return None
    return context.prompt()


def _was_heard(s: SessionState, item: Item) -> bool:
    """Whether the turn's audio is at hand, or a resident model has it already."""
    return item.item_id in s.committed or (s.resident_family and item.has_audio)


def cancel_response(s: SessionState, command: CancelResponse) -> None:
    """``response.cancel``: acts on the response in progress only; naming another one is an error without effect."""
    beside = aside.named(s, command.response_id)
    if beside is not None:
        aside.cancel(s, beside)
        return
    response = s.response
    if response is None or (command.response_id is not None and command.response_id != response.response_id):
        named = f"response {command.response_id}" if command.response_id is not None else "no response"
        s.error(
            ErrorCode.RESPONSE_NOT_ACTIVE,
            f"Cancellation failed: {named} is not in progress."
            if command.response_id is not None
            else "Cancellation failed: no response is in progress.",
            event_id=command.event_id,
        )
        return
    cancel.cancel(s, cancel.RESPONSE)


def clear_output(s: SessionState, command: ClearOutput) -> None:
    """``output_audio_buffer.clear``: of an older response it is acknowledged and nothing else happens."""
    beside = aside.named(s, command.response_id)
    if beside is not None:
        aside.cancel(s, beside)
        s.emit(OutputCleared(response_id=beside.response.response_id))
        return
    target = s.response or s.last_response
    named = command.response_id
    if named is not None and (target is None or named != target.response_id):
        s.emit(OutputCleared(response_id=named))
        return
    stopped = cancel.cancel(s, cancel.OUTPUT)
    if target is None:
        return
    target.item.sealed = True
    if not stopped:
        _settle_clear(target.item)
        s.emit(OutputCleared(response_id=target.response_id))
    pacing.playback_moved(s)


def _settle_clear(item: Item) -> None:
    """The client cleared audio that by our estimate had ended: what it acknowledged is what was heard."""
    if item.acked_ms and item.acked_ms < item.sent_ms:
        item.hard_cut_ms = min(item.acked_ms, item.hard_cut_ms if item.hard_cut_ms is not None else item.acked_ms)


# -- items ---------------------------------------------------------------------------------------------------------------


def create_item(s: SessionState, command: CreateItem) -> None:
    """``conversation.item.create``."""
    given = command.item
    if given.output is not None and not tools.may_answer(s, command, given.output):
        return
    item_id = given.item_id or f"item_{s.ids.next_hex()}"
    if s.history.get(item_id) is not None or _spoken_for(s, item_id):
        s.error(
            ErrorCode.ITEM_EXISTS,
            f"An item with id {item_id!r} exists or is on its way; choose another id.",
            event_id=command.event_id,
            param="item.id",
        )
        return
    after = command.previous_item_id
    if after is not None and after != "root" and s.history.get(after) is None:
        s.error(
            ErrorCode.ITEM_NOT_FOUND,
            f"There is no item {after!r} to insert after; use 'root', a known id, or omit previous_item_id.",
            event_id=command.event_id,
            param="previous_item_id",
        )
        return
    if not _text_fits(s, given, command.event_id, "item"):
        return
    if not _images_fit(s, given, s.history.image_bytes, command.event_id, "item.content"):
        return
    if given.call is not None and s.history.call(given.call.call_id) is not None:
        s.error(
            ErrorCode.ITEM_EXISTS,
            f"A function call {given.call.call_id!r} exists; choose another call_id.",
            event_id=command.event_id,
            param="item.call_id",
        )
        return
    item = _item(given, item_id)
    previous = s.history.insert(item, after)
    hearing.forget_settled(s)  # those whose items made room
    s.emit(ItemAdded(item=item.view(), previous_item_id=previous))
    if given.output is not None:
        tools.answered(s, given.output)


def _spoken_for(s: SessionState, item_id: str) -> bool:
    """Whether what is under way goes by this id: a client may know it before its item is there, or have deleted it."""
    if s.turn is not None and s.turn.item_id == item_id:
        return True
    if item_id in s.committed or any(record.item_id == item_id for record in s.requests.records.values()):
        return True
    responses = [] if s.response is None else [s.response]
    responses += [aside.response for aside in s.asides.values()]
    return any(item.item_id == item_id for response in responses for item in (response.item, *response.calls))


def _item(given: InputItem, item_id: str) -> Item:
    return Item(
        item_id=item_id,
        role=given.role,
        texts=given.texts,
        answered=given.role != "user",
        call=given.call,
        output=given.output,
        images=given.images,
    )


def _images_fit(s: SessionState, given: InputItem, held_bytes: int, event_id: str | None, param: str) -> bool:
    """Whether the model takes the item's pictures and there is room for them beside those that are held; if not, the
    client is told."""
    images = given.images
    if not images:
        return True
    size = sum(len(image.url) for image in images)
    if not s.capabilities.takes_images:
        code, message = ErrorCode.IMAGES_UNSUPPORTED, "This model takes no images; leave input_image out of items."
    elif len(images) > MAX_IMAGES or size > s.runtime.max_image_bytes_per_item:
        code = ErrorCode.INVALID_ITEM
        limit = s.runtime.max_image_bytes_per_item
        message = f"An item may have {MAX_IMAGES} images of {limit} bytes altogether, got {len(images)} of {size}."
    elif held_bytes + size > s.runtime.max_image_bytes_per_session:
        code = ErrorCode.INPUT_BACKPRESSURE
        limit = s.runtime.max_image_bytes_per_session
        message = f"The images of the conversation would take more than {limit} bytes; delete some first."
    else:
        return True
    s.error(code, message, event_id=event_id, param=param)
    return False


def _text_fits(s: SessionState, given: InputItem, event_id: str | None, param: str) -> bool:
    """Whether a prompt could hold the item's text at all; if not, the client is told."""
    size, limit = _chars(given), s.runtime.max_history_chars
    if size <= limit:
        return True
    s.error(
        ErrorCode.INVALID_ITEM,
        f"The item's text has {size} characters and may have {limit}; send less.",
        event_id=event_id,
        param=f"{param}.arguments" if given.call else f"{param}.output" if given.output else f"{param}.content",
    )
    return False


def _chars(given: InputItem) -> int:
    size = sum(len(text) for text in given.texts)
    if given.call is not None:
        size += len(given.call.arguments)
    if given.output is not None:
        size += len(given.output.output)
    return size


def _missing(s: SessionState, item_id: str, event_id: str | None, code: ErrorCode = ErrorCode.ITEM_NOT_FOUND) -> None:
    s.error(code, f"There is no item {item_id!r} in this conversation.", event_id=event_id, param="item_id")


def delete_item(s: SessionState, command: DeleteItem) -> None:
    """``conversation.item.delete``; deleting what is being spoken stops it."""
    item = s.history.get(command.item_id)
    if item is None:
        _missing(s, command.item_id, command.event_id)
        return
    if s.response is not None and s.response.item is item:
        cancel.cancel(s, cancel.OUTPUT)
    s.history.remove(command.item_id)
    tools.forgotten(s, item)
    s.wanted = deque(wanted for wanted in s.wanted if wanted.item_id != command.item_id)
    committed = s.committed.get(command.item_id)
    if committed is not None and committed.transcribing is not None:
        hearing.abandon(s, committed.transcribing)
    hearing.forget_settled(s)
    resident.forget_deleted(s)
    s.emit(ItemDeleted(item_id=command.item_id))


def retrieve_item(s: SessionState, command: RetrieveItem) -> None:
    """``conversation.item.retrieve``."""
    item = s.history.get(command.item_id)
    if item is None:
        _missing(s, command.item_id, command.event_id, ErrorCode.ITEM_RETRIEVE_NOT_FOUND)
        return
    s.emit(ItemRetrieved(item=item.view()))


def truncate_item(s: SessionState, command: TruncateItem) -> None:
    """``conversation.item.truncate``: a hard cut of what counts as heard, clamped to what there is."""
    item = s.history.get(command.item_id)
    if item is None:
        _missing(s, command.item_id, command.event_id)
        return
    spoken = item.spoken
    if item.role != "assistant" or spoken is None or not item.has_audio or command.content_index != 0:
        s.error(
            ErrorCode.ITEM_NOT_TRUNCATABLE,
            f"Item {command.item_id!r} has no audio of the assistant at content index {command.content_index}.",
            event_id=command.event_id,
            param="item_id",
        )
        return
    response = _response_of(s, item)
    audio_ms = min(max(0.0, float(command.audio_end_ms)), item.sent_ms)  # never more than left
    item.hard_cut_ms = audio_ms if item.hard_cut_ms is None else min(item.hard_cut_ms, audio_ms)
    if response is None or not response.open:
        if response is not None and s.response is None and s.playback.playing(s.now):
            # The client stopped playing where it says: nothing more of this is played.
            pacing.withdraw_finished(s)
            s.playback.flush(s.now)
        item.soft_cut_ms = None  # the client knows better than the estimate
    s.emit(ItemTruncated(item_id=item.item_id, content_index=command.content_index, audio_end_ms=int(item.hard_cut_ms)))
    pacing.playback_moved(s)


def _response_of(s: SessionState, item: Item) -> Response | None:
    for response in (s.response, s.last_response):
        if response is not None and response.item is item:
            return response
    return None
