"""``POST /v1/audio/speech``: a text in, its sound out while it is being made.

Rules kept here: the answer's head waits for the first sound, so that what fails before it has a status of its own; an answer
that fails later is cut off, never ended as if it were whole.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from duologue.engine.duplex.plugin import SpeechTurn
from duologue.errors import ClientFault, ErrorCode
from duologue.server.turns.exchange import Exchange
from duologue.server.turns.gate import Place
from duologue.server.turns.handler import Services, Work, voice_name
from duologue.server.turns.port import TurnOutputs
from duologue.server.turns.sound import AnswerAudio, AnswerFormat, answer_format, slices
from duologue.server.turns.sse import EventStream
from duologue.wire.http import SpeechDelta, SpeechDone, SpeechRequest, decode_body

_MEDIA_TYPES: Final[dict[AnswerFormat, str]] = {"wav": "audio/wav", "pcm16": "audio/pcm"}
_SLOWEST, _FASTEST = 0.25, 4.0


class SpeechHandler:
    """The endpoint."""

    name = "speech"

    def __init__(self, services: Services) -> None:
        self._services = services

    async def read(self, exchange: Exchange, place: Place) -> Work:
        request = decode_body(await exchange.body(place), SpeechRequest)
        self._services.model(request.model)
        turn = self._check(request)
        # Whoever names no format gets what every player knows; OpenAI's own default (mp3) is not made here.
        kind = answer_format(request.response_format or "wav", "response_format")
        if request.stream_format == "sse":
            return lambda: self._stream(exchange, turn, kind)
        return lambda: self._answer(exchange, turn, kind)

    def _check(self, request: SpeechRequest) -> SpeechTurn:
        longest = self._services.limits.max_speech_chars
        speed = 1.0 if request.speed is None else request.speed
        if not request.input.strip():
            raise _invalid("input must hold something to say.", "input")
        if len(request.input) > longest:
            raise _invalid(f"input may have {longest} characters and has {len(request.input)}.", "input")
        if not _SLOWEST <= speed <= _FASTEST:
            raise _invalid(f"speed must be between {_SLOWEST:g} and {_FASTEST:g}, got {speed:g}.", "speed")
        return SpeechTurn(
            text=request.input,
            voice=voice_name(request.voice),
            speed=speed,
            instructions=request.instructions or "",
        )

    async def _answer(self, exchange: Exchange, turn: SpeechTurn, kind: AnswerFormat) -> None:
        with self._services.request(turn) as outputs:
            async with aclosing(_sound(outputs, kind)) as sound:
                async for piece in sound:
                    if not exchange.started:
                        await exchange.start(_MEDIA_TYPES[kind])
                    await exchange.write(piece)
            if not exchange.started:
                await exchange.start(_MEDIA_TYPES[kind])
            await exchange.write(b"", last=True)

    async def _stream(self, exchange: Exchange, turn: SpeechTurn, kind: AnswerFormat) -> None:
        with self._services.request(turn) as outputs:
            async with aclosing(_sound(outputs, kind)) as sound, EventStream(exchange) as events:
                async for piece in sound:
                    await events.send(SpeechDelta(audio=piece))
                await events.send(SpeechDone())
                await events.done()


async def _sound(outputs: TurnOutputs, kind: AnswerFormat) -> AsyncGenerator[bytes]:
    audio = AnswerAudio(kind, streamed=True)
    async for message in outputs:
        for piece in slices(audio.encode(message.output)):
            yield piece
    for piece in slices(audio.finish()):
        yield piece


def _invalid(message: str, param: str) -> ClientFault:
    return ClientFault(ErrorCode.REQUEST_INVALID, message, param=param)
