"""``POST /v1/audio/transcriptions``: a recording in, its words out.

Rules kept here: a long recording is recognised utterance by utterance, one after the other, each an ordinary request to the
recognising stage alone; what is streamed is exactly what the whole transcript says.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

import msgspec

from duologue.engine.duplex.plugin import TranscriptionTurn
from duologue.errors import ClientFault, ErrorCode
from duologue.server.turns.exchange import Exchange
from duologue.server.turns.form import Form, FormFile, read_form
from duologue.server.turns.gate import Place
from duologue.server.turns.handler import Services, Work
from duologue.server.turns.sound import Recording, read_recording, utterances
from duologue.server.turns.sse import EventStream
from duologue.wire.http import (
    TranscriptDelta,
    TranscriptDone,
    TranscriptionAnswer,
    TranscriptionSegment,
    VerboseTranscription,
)
from duologue.wire.objects import DurationUsage

RAW_RATE_HZ: Final = 24_000
FORMATS: Final = ("json", "text", "srt", "verbose_json", "vtt")

_RAW_NAMES: Final = (".pcm", ".raw")
_RAW_TYPES: Final = ("audio/pcm", "audio/l16", "audio/x-pcm")
_RATE: Final = re.compile(r"rate\s*=\s*\"?(\d{1,6})")
_LANGUAGES: Final = {
    "en": "english",
    "de": "german",
    "fr": "french",
    "es": "spanish",
    "it": "italian",
    "ja": "japanese",
}


class Segment(msgspec.Struct, frozen=True):
    """Words of a stretch of a recording, in seconds from its beginning."""

    start_s: float
    end_s: float
    text: str
    language: str


class _Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A checked request."""

    file: FormFile
    format: str
    stream: bool
    language: str | None
    prompt: str
    raw_rate_hz: int | None


class TranscriptionHandler:
    """The endpoint."""

    name = "transcriptions"

    def __init__(self, services: Services) -> None:
        self._services = services

    async def read(self, exchange: Exchange, place: Place) -> Work:
        form = await read_form(exchange.headers.get("content-type", ""), exchange.pieces(place))
        self._services.model(form.fields.get("model"))
        wanted = _check(form)
        return lambda: self._answer(exchange, wanted)

    async def _answer(self, exchange: Exchange, wanted: _Wanted) -> None:
        services = self._services
        recording = await services.runtime.offload(
            lambda: read_recording(
                wanted.file.content,
                services.turns.input_rate_hz,
                longest_s=services.limits.max_audio_s,
                param="file",
                raw_rate_hz=wanted.raw_rate_hz,
            )
        )
        recognised = recognise(services, recording, language=wanted.language, prompt=wanted.prompt)
        async with aclosing(recognised) as segments:
            if wanted.stream:
                await _stream(exchange, segments)
                return
            found = [segment async for segment in segments]
        body, media_type = _render(wanted.format, found, recording.duration_s)
        await exchange.answer(body, media_type=media_type)


async def recognise(
    services: Services, recording: Recording, *, language: str | None = None, prompt: str = ""
) -> AsyncGenerator[Segment]:
    """The words of a recording, utterance by utterance; stretches without words are left out.

    Raises what ends a request early.
    """
    rate_hz = recording.rate_hz
    cuts = await services.runtime.offload(utterances, recording, services.turns.longest_utterance_ms)
    for start, end in cuts:
        turn = TranscriptionTurn(
            audio=recording.pcm16[start * 2 : end * 2], rate_hz=rate_hz, language=language, prompt=prompt
        )
        text = ""
        with services.request(turn) as outputs:
            async for message in outputs:
                text = message.output.text.strip()  # what came before the last output was a guess
        if text:
            yield Segment(start / rate_hz, end / rate_hz, text, outputs.plan.language or language or "")


async def _stream(exchange: Exchange, segments: AsyncGenerator[Segment]) -> None:
    async with EventStream(exchange) as events:
        text = ""
        async for segment in segments:
            delta = f" {segment.text}" if text else segment.text
            text += delta
            await events.send(TranscriptDelta(delta=delta))
        await events.send(TranscriptDone(text=text))
        await events.done()


def _check(form: Form) -> _Wanted:
    fields = form.fields
    file = form.files.get("file")
    if file is None:
        raise _invalid("The form needs a file: the recording, as `file`.", "file")
    kind = fields.get("response_format", "json")
    if kind not in FORMATS:
        raise _invalid(f"response_format must be one of {', '.join(FORMATS)}, got {kind[:40]!r}.", "response_format")
    if "word" in form.repeated.get("timestamp_granularities", ()):
        raise _unsupported(
            "The model does not tell when single words were said: ask for segments.", "timestamp_granularities"
        )
    if "logprobs" in form.repeated.get("include", ()):
        raise _unsupported("The model does not tell how likely words are: leave include out.", "include")
    stream = fields.get("stream", "").lower() in ("true", "1")
    if stream and kind not in ("json", "text"):
        raise _invalid(f"Only json and text can be streamed, not {kind}.", "response_format")
    return _Wanted(
        file=file,
        format=kind,
        stream=stream,
        language=fields.get("language") or None,
        prompt=fields.get("prompt", ""),
        raw_rate_hz=_raw_rate(file),
    )


def _raw_rate(file: FormFile) -> int | None:
    """The rate of bare samples, ``None`` for a file that says itself what it holds."""
    if file.content[:4] == b"RIFF":
        return None
    media_type = file.media_type.lower()
    if not media_type.startswith(_RAW_TYPES) and not file.name.lower().endswith(_RAW_NAMES):
        return None
    rate = _RATE.search(media_type)
    return RAW_RATE_HZ if rate is None else int(rate.group(1))


def _render(kind: str, segments: list[Segment], duration_s: float) -> tuple[bytes, str]:
    """The body and its media type."""
    text = " ".join(segment.text for segment in segments)
    usage = DurationUsage(seconds=round(duration_s, 3))
    match kind:
        case "text":
            return f"{text}\n".encode(), "text/plain; charset=utf-8"
        case "srt":
            return _captions(segments, ",", numbered=True).encode(), "text/plain; charset=utf-8"
        case "vtt":
            return ("WEBVTT\n\n" + _captions(segments, ".", numbered=False)).encode(), "text/vtt; charset=utf-8"
        case "verbose_json":
            return msgspec.json.encode(_verbose(segments, text, duration_s, usage)), "application/json"
        case _:
            return msgspec.json.encode(TranscriptionAnswer(text=text, usage=usage)), "application/json"


def _verbose(segments: list[Segment], text: str, duration_s: float, usage: DurationUsage) -> VerboseTranscription:
    code = segments[0].language if segments else ""
    return VerboseTranscription(
        language=_LANGUAGES.get(code, code or "unknown"),
        duration=round(duration_s, 3),
        text=text,
        segments=tuple(
            TranscriptionSegment(
                id=index, start=round(segment.start_s, 3), end=round(segment.end_s, 3), text=segment.text
            )
            for index, segment in enumerate(segments)
        ),
        usage=usage,
    )


def _captions(segments: list[Segment], point: str, *, numbered: bool) -> str:
    lines = []
    for index, segment in enumerate(segments, 1):
        lines += [str(index)] if numbered else []
        lines += [f"{_clock(segment.start_s, point)} --> {_clock(segment.end_s, point)}", segment.text, ""]
    return "\n".join(lines)


def _clock(seconds: float, point: str) -> str:
    whole_ms = round(seconds * 1000)
    minutes, ms = divmod(whole_ms, 60_000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{ms // 1000:02d}{point}{ms % 1000:03d}"


def _invalid(message: str, param: str) -> ClientFault:
    return ClientFault(ErrorCode.REQUEST_INVALID, message, param=param)


def _unsupported(message: str, param: str) -> ClientFault:
    return ClientFault(ErrorCode.UNSUPPORTED, message, param=param)
