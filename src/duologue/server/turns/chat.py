"""``POST /v1/chat/completions``: a conversation in, the assistant's next message out, written or spoken.

Rules kept here: what would change the answer and is not offered is refused by name; the transcript of a spoken answer is the
text that its audio speaks, piece by piece; an answer has one end, which says whether it was whole.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from duologue.engine.duplex.plugin import ChatTurn
from duologue.errors import ClientFault, ErrorCode, StageFault
from duologue.outputs import Options, RequestOutput
from duologue.server.turns.conversation import check, converse
from duologue.server.turns.exchange import Exchange
from duologue.server.turns.gate import Place
from duologue.server.turns.handler import Services, Work, voice_name
from duologue.server.turns.port import TurnOutputs
from duologue.server.turns.sound import AnswerAudio, AnswerFormat, answer_format, slices
from duologue.server.turns.sse import EventStream
from duologue.wire.http import (
    AnswerMessage,
    ChatAnswer,
    ChatChunk,
    ChatRequest,
    ChatUsage,
    Choice,
    ChunkChoice,
    Delta,
    FinishReason,
    PromptDetails,
    SpokenAnswer,
    SpokenDelta,
    decode_body,
)

MAX_STOPS = 16


class _Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A checked request. ``audio``: the format of a spoken answer, ``None`` for a written one."""

    request: ChatRequest
    model: str
    audio: AnswerFormat | None
    include_usage: bool


class ChatHandler:
    """The endpoint."""

    name = "chat"

    def __init__(self, services: Services) -> None:
        self._services = services

    async def read(self, exchange: Exchange, place: Place) -> Work:
        request = decode_body(await exchange.body(place), ChatRequest)
        model = self._services.model(request.model)
        _check_offers(request)
        _check_numbers(request)
        check(self._services, request.messages)
        options = request.stream_options
        wanted = _Wanted(
            request=request,
            model=model,
            audio=_audio(request),
            include_usage=options is not None and options.include_usage is True,
        )
        return lambda: self._answer(exchange, wanted)

    async def _answer(self, exchange: Exchange, wanted: _Wanted) -> None:
        head = _Head(f"chatcmpl-{self._services.runtime.entropy(12).hex()}", int(self._services.runtime.wall()), wanted)
        if not wanted.request.stream:
            body = msgspec.json.encode(await self._whole(head))
            await exchange.answer(body)
            return
        async with EventStream(exchange) as events, aclosing(self._chunks(head)) as chunks:
            async for chunk in chunks:
                await events.send(chunk)
            await events.done()

    async def _turn(self, wanted: _Wanted) -> ChatTurn:
        request = wanted.request
        conversation = await converse(self._services, request.messages)
        spoken = conversation.spoken
        stop = (request.stop,) if isinstance(request.stop, str) else request.stop or ()
        return ChatTurn(
            messages=conversation.messages,
            instructions=conversation.instructions,
            audio=b"" if spoken is None else spoken.pcm16,
            rate_hz=0 if spoken is None else spoken.rate_hz,
            modality="text" if wanted.audio is None else "audio",
            voice=None if request.audio is None else voice_name(request.audio.voice),
            temperature=request.temperature,
            top_p=request.top_p,
            max_tokens=request.max_completion_tokens or request.max_tokens,
            seed=None if request.seed is None else request.seed & 0x7FFF_FFFF,
            stop=stop,
        )

    async def _whole(self, head: _Head) -> ChatAnswer:
        wanted = head.wanted
        with self._services.request(await self._turn(wanted)) as outputs:
            ending = _Ending(outputs)
            texts: list[str] = []
            sound = AnswerAudio(wanted.audio or "pcm16", streamed=False)
            audio = bytearray()
            async for output in ending.answer():
                texts.append(output.text)
                audio += sound.encode(output)
                if len(audio) > self._services.limits.max_unread_bytes:
                    raise StageFault(
                        ErrorCode.OUTPUT_BACKPRESSURE, "The answer is too long to be sent whole: stream it."
                    )
        text = "".join(texts)
        if wanted.audio is None:
            return head.answer(AnswerMessage(content=text), ending)
        answer_id, expires_at = self._services.spoken.new_id()
        self._services.spoken.keep(answer_id, expires_at, text)
        data = sound.whole(bytes(audio) + sound.finish())
        spoken = SpokenAnswer(id=answer_id, data=data, expires_at=expires_at, transcript=text)
        return head.answer(AnswerMessage(content=None, audio=spoken), ending)

    async def _chunks(self, head: _Head) -> AsyncGenerator[ChatChunk]:
        with self._services.request(await self._turn(head.wanted)) as outputs:
            ending = _Ending(outputs)
            deltas = self._written(ending) if head.wanted.audio is None else self._spoken(ending, head.wanted.audio)
            async with aclosing(deltas):
                async for delta in deltas:
                    yield head.chunk(delta)
            yield head.chunk(Delta(), ending.finish_reason)
        if head.wanted.include_usage:
            yield head.usage(ending.usage)

    async def _written(self, ending: _Ending) -> AsyncGenerator[Delta]:
        begun = False
        async for output in ending.answer():
            if not begun:
                begun = True
                yield Delta(role="assistant", content="")
            if output.text:
                yield Delta(content=output.text)

    async def _spoken(self, ending: _Ending, kind: AnswerFormat) -> AsyncGenerator[Delta]:
        answer_id, expires_at = self._services.spoken.new_id()
        sound = AnswerAudio(kind, streamed=True)
        texts: list[str] = []
        async for output in ending.answer():
            if not texts:
                yield Delta(role="assistant", audio=SpokenDelta(id=answer_id, transcript=""))
            texts.append(output.text)
            if output.text:
                yield Delta(audio=SpokenDelta(transcript=output.text))
            for piece in slices(sound.encode(output)):
                yield Delta(audio=SpokenDelta(data=piece))
        for piece in slices(sound.finish()):
            yield Delta(audio=SpokenDelta(data=piece))
        self._services.spoken.keep(answer_id, expires_at, "".join(texts))
        yield Delta(audio=SpokenDelta(id=answer_id, expires_at=expires_at))


class _Head:
    """What every chunk and the whole answer begin with."""

    def __init__(self, answer_id: str, created: int, wanted: _Wanted) -> None:
        self.wanted = wanted
        self._id = answer_id
        self._created = created

    def answer(self, message: AnswerMessage, ending: _Ending) -> ChatAnswer:
        choice = Choice(message=message, finish_reason=ending.finish_reason)
        return ChatAnswer(
            id=self._id, created=self._created, model=self.wanted.model, choices=(choice,), usage=ending.usage
        )

    def chunk(self, delta: Delta, finish_reason: FinishReason | None = None) -> ChatChunk:
        choice = ChunkChoice(delta=delta, finish_reason=finish_reason)
        return self._chunk((choice,), None)

    def usage(self, usage: ChatUsage) -> ChatChunk:
        return self._chunk((), usage)

    def _chunk(self, choices: tuple[ChunkChoice, ...], usage: ChatUsage | None) -> ChatChunk:
        return ChatChunk(
            id=self._id,
            created=self._created,
            model=self.wanted.model,
            choices=choices,
            usage=usage if self.wanted.include_usage else msgspec.UNSET,
        )


class _Ending:
    """Tells the outputs that are the answer from the one that says how it ended and what it cost."""

    def __init__(self, outputs: TurnOutputs) -> None:
        self._outputs = outputs
        self.finish_reason: FinishReason = "stop"
        self.usage = ChatUsage(prompt_tokens=0, completion_tokens=0, total_tokens=0)

    async def answer(self) -> AsyncGenerator[RequestOutput]:
        """The outputs that are the answer, in order. Raises what ended the request early."""
        plan = self._outputs.plan
        async for message in self._outputs:
            output = message.output
            if message.stage_id == plan.report_stage_id and output.finished:
                self.finish_reason = _reason(output)
                self.usage = _usage(output.metadata)
            if message.stage_id == plan.final_stage_id:
                yield output


def _reason(output: RequestOutput) -> FinishReason:
    """Why the answer ended, in the words of the API."""
    match output.finish_reason:
        case "length":
            return "length"
        case "content_filter":
            return "content_filter"
        case _:
            return "stop"


def _usage(metadata: Options) -> ChatUsage:
    prompt, cached, made = (
        _count(metadata.get(name)) for name in ("prompt_tokens", "cached_tokens", "generated_tokens")
    )
    return ChatUsage(
        prompt_tokens=prompt,
        completion_tokens=made,
        total_tokens=prompt + made,
        prompt_tokens_details=PromptDetails(cached_tokens=cached),
    )


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0


def _audio(request: ChatRequest) -> AnswerFormat | None:
    if "audio" not in (request.modalities or ()):
        return None
    if request.audio is None:
        raise _refused("A spoken answer needs `audio`: its format and voice.", "audio")
    return answer_format(request.audio.format, "audio.format")


def _check_offers(request: ChatRequest) -> None:
    """Refuse what would change the answer and is not offered."""
    if request.n not in (None, 1):
        raise _unsupported("One answer is given at a time: n must be 1.", "n")
    if request.logprobs:
        raise _unsupported("The model does not tell how likely its words are.", "logprobs")
    if request.response_format is not None and request.response_format.type != "text":
        raise _unsupported("The model answers in plain text only.", "response_format")
    if request.tools or request.functions:
        raise _unsupported("The model calls no tools: leave them out.", "tools" if request.tools else "functions")


def _check_numbers(request: ChatRequest) -> None:
    bounds = (
        ("temperature", request.temperature, 0.0, 2.0),
        ("top_p", request.top_p, 0.0, 1.0),
        ("max_tokens", request.max_tokens, 1, 1_000_000),
        ("max_completion_tokens", request.max_completion_tokens, 1, 1_000_000),
    )
    for name, value, low, high in bounds:
        if value is not None and not low <= value <= high:
            raise _refused(f"{name} must be between {low:g} and {high:g}, got {value:g}.", name)
    if isinstance(request.stop, tuple) and len(request.stop) > MAX_STOPS:
        raise _refused(f"stop may hold {MAX_STOPS} texts and holds {len(request.stop)}.", "stop")


def _refused(message: str, param: str) -> ClientFault:
    return ClientFault(ErrorCode.REQUEST_INVALID, message, param=param)


def _unsupported(message: str, param: str) -> ClientFault:
    return ClientFault(ErrorCode.UNSUPPORTED, message, param=param)
