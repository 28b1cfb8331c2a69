"""What both ways of `duologue talk` share: what was typed, the session that is asked for, what is shown of it.

Rules kept here: what is understood and what is answered is one line each; nothing else is shown.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from duologue.wire.objects import AudioFormatParams, AudioParams, InputAudioParams, OutputAudioParams, Session
from duologue.wire.server_events import Error, ServerEvent, TranscriptDone, TranscriptionCompleted

RATE_HZ = 24_000


class TalkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What was typed."""

    url: str
    api_key: str | None = None
    wav: Path | None = None
    mic: bool = False
    out: Path | None = None
    realtime: bool = True
    instructions: str | None = None
    timeout_s: float = 30.0


def settings(options: TalkOptions, input_rate_hz: int) -> Session:
    """PCM16 at the file's own rate in, 24 kHz out. At full speed the file's end is the turn's end, not a detector's."""
    source = InputAudioParams(format=AudioFormatParams(type="audio/pcm", rate=input_rate_hz))
    if not options.realtime:
        source = msgspec.structs.replace(source, turn_detection=None)
    sink = OutputAudioParams(format=AudioFormatParams(type="audio/pcm", rate=RATE_HZ))
    session = Session(type="realtime", audio=AudioParams(input=source, output=sink))
    return (
        session if options.instructions is None else msgspec.structs.replace(session, instructions=options.instructions)
    )


def show(event: ServerEvent, say: Callable[[str], None]) -> None:
    """One line for what a person wants to read."""
    match event:
        case TranscriptionCompleted() if event.transcript.strip():
            say(f"you: {event.transcript.strip()}")
        case TranscriptDone() if event.transcript.strip():
            say(f"assistant: {' '.join(event.transcript.split())}")
        case Error():
            say(f"error: {event.error.message} ({event.error.code or event.error.type})")
        case _:
            pass
