"""The commands that a simulated client sends, legal and not, as frames.

Rules kept here: which frame an order gives depends on its name, its pick and what the client knows, on nothing else.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import UNSET

from duologue.sim.conversation import Conversation
from duologue.sim.plugin import mark
from duologue.sim.toolbox import NAME as CLOCK
from duologue.wire import client_events as wire
from duologue.wire import encode
from duologue.wire.objects import (
    AudioFormatParams,
    AudioParams,
    ContentPart,
    InputAudioParams,
    Item,
    OutputAudioParams,
    ResponseParams,
    Session,
    Tool,
    TranscriptionParams,
    TurnDetectionParams,
)

Maker = Callable[[Conversation, int, str], wire.ClientEvent]


def opening(talk: Conversation) -> Session:
    """The settings of the client's choice."""
    choices = talk.choices
    detection = None
    if choices.detection is not None:
        server = choices.detection == "server_vad"
        detection = TurnDetectionParams(
            type=choices.detection,
            create_response=choices.create_response,
            interrupt_response=choices.interrupt,
            silence_duration_ms=choices.silence_ms if server else None,
            idle_timeout_ms=choices.idle_ms if server else None,
        )
    audio = AudioParams(
        input=InputAudioParams(
            format=_format(choices.input_format, choices.input_rate_hz),
            turn_detection=detection,
            transcription=TranscriptionParams() if choices.transcription else None,
        ),
        output=OutputAudioParams(format=_format(choices.output_format, choices.output_rate_hz)),
    )
    tools = [Tool(name=CLOCK)] if choices.tools != "off" else UNSET
    session = Session(instructions=mark(talk.client), output_modalities=[choices.modality], audio=audio, tools=tools)
    if talk.dialect == "ga":
        return msgspec.structs.replace(session, type="realtime")
    return msgspec.structs.replace(
        session, playback_commit_policy=choices.playback, auto_response=choices.auto_response
    )


def _format(name: str, rate_hz: int) -> AudioFormatParams:
    kind = {"pcm16": "audio/pcm", "pcmu": "audio/pcmu", "pcma": "audio/pcma"}.get(name, name)
    return AudioFormatParams(type=kind, rate=rate_hz)


def _pick(known: list[str], pick: int, unknown: str) -> str:
    return known[-1 - pick % len(known)] if known else unknown


def _last_item(talk: Conversation, pick: int) -> str:
    spoken = [f"item_{name}" for name in talk.responses]
    return _pick(spoken, pick, "item_none")


def _item(talk: Conversation, pick: int, event_id: str) -> wire.ClientEvent:
    role = ("user", "user", "system", "assistant")[pick % 4]
    part = ContentPart(type="output_text" if role == "assistant" else "input_text", text=f"Written {event_id}.")
    previous = (None, None, "root", _pick(talk.items, pick, "root"))[pick // 4 % 4]
    item_id = (f"mine_{event_id}", f"mine_{event_id}", "mine_twice")[pick // 16 % 3]
    return wire.ItemCreate(
        event_id=event_id, item=Item(id=item_id, role=role, content=[part]), previous_item_id=previous
    )


_PNG: Final = b"\x89PNG\r\n\x1a\n"  # what a picture of this kind begins with, and is refused without


def _picture(talk: Conversation, pick: int, event_id: str) -> wire.ClientEvent:
    """A picture, or one of the ways to get it wrong: too many, none of a user, no picture at all."""
    del talk
    data = _PNG + event_id.encode() * (1 + pick % 3)
    url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    parts = [ContentPart(type="input_text", text=f"Written {event_id}.")]
    parts += [ContentPart(type="input_image", image_url=url)] * (1, 1, 1, 2, 9)[pick % 5]
    if pick % 11 == 10:
        parts[-1] = ContentPart(type="input_image", image_url="https://example.org/picture.png")
    role = "system" if pick % 13 == 12 else "user"
    return wire.ItemCreate(event_id=event_id, item=Item(id=f"picture_{event_id}", role=role, content=parts))


def _truncate(talk: Conversation, pick: int, event_id: str) -> wire.ClientEvent:
    item_id = _last_item(talk, pick % 3)
    sent_ms = talk.audio_ms.get(item_id.removeprefix("item_"), 0.0)
    end_ms = (sent_ms / 2, 0.0, sent_ms, sent_ms + 85, sent_ms * 4 + 9_100)[pick % 5]
    return wire.ItemTruncate(event_id=event_id, item_id=item_id, audio_end_ms=round(end_ms))


def _ack(talk: Conversation, pick: int, event_id: str) -> wire.ClientEvent:
    response_id = _pick(talk.responses, pick % 2, "resp-none")
    sent_ms = talk.audio_ms.get(response_id, 0.0)
    return wire.PlaybackAck(
        event_id=event_id,
        response_id=response_id,
        played_ms=round(sent_ms * (pick % 5) / 4),
        truncate=pick % 7 == 6,
    )


def _wrong_ack(talk: Conversation, pick: int, event_id: str) -> wire.ClientEvent:
    response_id = _pick(talk.responses, pick, "resp-none")
    match pick % 4:
        case 0:
            return wire.PlaybackAck(event_id=event_id, response_id=response_id, played_ms=1_000_000)
        case 1:
            return wire.PlaybackAck(event_id=event_id, response_id="resp-none", item_id="item_none", played_ms=10)
        case 2:
            return wire.PlaybackAck(event_id=event_id, played_ms=0)
        case _:
            return wire.AudioPlaybackAck(event_id=event_id, response_id=response_id, item_id="item_none", played_ms=50)


def _update(talk: Conversation, pick: int, event_id: str) -> wire.ClientEvent:
    marked = mark(talk.client)
    vad = TurnDetectionParams(type="server_vad", silence_duration_ms=300 + 100 * (pick % 4))
    semantic = TurnDetectionParams(type="semantic_vad", eagerness=("low", "high", "auto")[pick % 3])
    sessions = (
        Session(instructions=f"{marked} number {pick}"),
        Session(),
        Session(audio=AudioParams(input=InputAudioParams(turn_detection=vad))),
        Session(audio=AudioParams(input=InputAudioParams(turn_detection=semantic))),
        Session(audio=AudioParams(input=InputAudioParams(turn_detection=None))),
        Session(instructions=f"{marked} other", audio=AudioParams(output=OutputAudioParams(voice=f"v{pick % 3}"))),
        Session(instructions=f"{marked} text", output_modalities=[("audio", "text")[pick % 2]]),
    )
    return wire.SessionUpdate(event_id=event_id, session=_typed(talk, sessions[pick % len(sessions)]))


def _bad_update(talk: Conversation, pick: int, event_id: str) -> wire.ClientEvent:
    text = f"{mark(talk.client)} must not be adopted"
    sessions = (
        Session(instructions=text, audio=AudioParams(output=OutputAudioParams(voice="refused"))),
        Session(instructions=text, model="no-such-model"),
        Session(instructions=text, temperature=9.0),
        Session(
            instructions=text,
            audio=AudioParams(input=InputAudioParams(turn_detection=TurnDetectionParams(threshold=7.0))),
        ),
        Session(instructions=text, tool_choice="everything"),
    )
    return wire.SessionUpdate(event_id=event_id, session=_typed(talk, sessions[pick % len(sessions)]))


def _typed(talk: Conversation, session: Session) -> Session:
    return msgspec.structs.replace(session, type="realtime") if talk.dialect == "ga" else session


def _create(talk: Conversation, pick: int, event_id: str) -> wire.ClientEvent:
    del talk
    params = (
        None,
        None,
        ResponseParams(instructions="Be brief."),
        ResponseParams(metadata={"number": str(pick)}),
        ResponseParams(output_modalities=["text"]),
        ResponseParams(conversation="none"),
        ResponseParams(max_output_tokens=5),
    )
    return wire.ResponseCreate(event_id=event_id, response=params[pick % len(params)])


def _signal(talk: Conversation, pick: int, event_id: str) -> wire.ClientEvent:
    del talk
    names = ("barge_in", "cancel", "close", "timeout", "hello", "input.cancel", None)
    return wire.TurnSignal(event_id=event_id, event=names[pick % len(names)])


def acknowledged(talk: Conversation, pick: int) -> int:
    """The events that an acknowledgement is of: up to this one, which may not be there."""
    return (talk.last_seq, talk.last_seq + 999, -1, 0)[pick % 4]


MAKERS: Final[dict[str, Maker]] = {
    "commit": lambda talk, pick, eid: wire.AudioCommit(event_id=eid, response_create=(None, True, False)[pick % 3]),
    "input_commit": lambda talk, pick, eid: wire.InputCommit(event_id=eid),
    "clear": lambda talk, pick, eid: wire.AudioClear(event_id=eid),
    "output_clear": lambda talk, pick, eid: wire.OutputClear(event_id=eid),
    "output_clear_old": lambda talk, pick, eid: wire.OutputClear(
        event_id=eid, response_id=_pick(talk.responses, pick, "resp-none")
    ),
    "create": _create,
    "cancel": lambda talk, pick, eid: wire.ResponseCancel(event_id=eid),
    "cancel_named": lambda talk, pick, eid: wire.ResponseCancel(
        event_id=eid, response_id=_pick(talk.responses, pick, "resp-none")
    ),
    "item": _item,
    "picture": _picture,
    "delete": lambda talk, pick, eid: wire.ItemDelete(event_id=eid, item_id=_pick(talk.items, pick, "item_none")),
    "retrieve": lambda talk, pick, eid: wire.ItemRetrieve(event_id=eid, item_id=_pick(talk.items, pick, "item_none")),
    "truncate": _truncate,
    "ack": _ack,
    "wrong_ack": _wrong_ack,
    "update": _update,
    "bad_update": _bad_update,
    "heartbeat": lambda talk, pick, eid: wire.Heartbeat(event_id=eid),
    "barge_in": lambda talk, pick, eid: wire.BargeInSignal(event_id=eid),
    "input_cancel": lambda talk, pick, eid: wire.InputCancel(event_id=eid),
    "signal": _signal,
    "text": lambda talk, pick, eid: wire.TextAppend(event_id=eid, text="typed"),
    "event_ack": lambda talk, pick, eid: wire.EventAck(event_id=eid, server_event_seq=acknowledged(talk, pick)),
    "late_resume": lambda talk, pick, eid: wire.SessionResume(
        event_id=eid, session_id=talk.session_id, resume_token=talk.token
    ),
    "close": lambda talk, pick, eid: wire.SessionClose(event_id=eid),
}
DUPLEX_ONLY: Final = frozenset(
    {
        *("input_commit", "ack", "wrong_ack", "heartbeat", "barge_in", "input_cancel", "signal", "text"),
        *("event_ack", "late_resume", "close"),
    }
)

_BROKEN: Final[tuple[bytes, ...]] = (
    b"",
    b"{",
    b"[]",
    b'"text"',
    b'{"type": 7}',
    b'{"type": "no.such.event", "event_id": "broken"}',
    b'{"type": "input_audio_buffer.append", "event_id": "broken"}',
    b'{"type": "input_audio_buffer.append", "audio": "!!!", "event_id": "broken"}',
    b'{"type": "conversation.item.truncate", "item_id": 3}',
    b'{"type": "conversation.item.create", "item": {"type": "message", "role": "nobody", "content": []}}',
    b'{"type": "conversation.item.create", "item": {"type": "image"}}',
    b'{"type": "session.update", "session": {"type": "transcription"}}',
    b"\xff\xfe{}",
    b"\0binary",
    b"[" * 3000,
)


def frame_of(talk: Conversation, name: str, pick: int) -> tuple[bytes, str]:
    """The frame of an order, and its event id (empty if it has none)."""
    if name == "broken":
        return _BROKEN[pick % len(_BROKEN)], ""
    event_id = talk.next_id()
    return encode(MAKERS[name](talk, pick, event_id)), event_id
