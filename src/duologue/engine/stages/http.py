"""Stages behind OpenAI-compatible HTTP endpoints: chat, speech, transcription. Run them on the ``http`` backend.

Rules kept here: answers are handed on as they arrive; an abort closes the connection; no weights, no threads: everything
waits on the engine's loop; a key is read from the environment variable that the configuration names.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from duologue.audio.wav import wav_header
from duologue.engine.stages.contract import PREWARM, AsyncStage, StageControl
from duologue.engine.stages.endpoint import CallDelta, ChatChunk, Endpoint, Usage, api_key_from, chat_chunks, fault
from duologue.engine.stages.spoken import SpokenShare
from duologue.outputs import (
    ChatMessage,
    FinishReason,
    NamedTool,
    Options,
    RequestOutput,
    StageRequest,
    ToolCall,
    ToolMenu,
)

_FIRST_MS = 60  # of the first piece of audio: somebody waits for it
_NEXT_MS = 200
_FILES = (b"RIFF", b"OggS", b"fLaC", b"ID3\x03", b"ID3\x04")
_LONGEST_AUDIO_S = 600.0
_MOST_CALLS = 64  # of one answer
_LONGEST_ARGUMENTS = 65_536


class Cutter(Protocol):
    """Cuts streamed text into segments."""

    def push(self, delta: str) -> list[str]:
        """Segments that ``delta`` completed."""
        ...

    def finish(self) -> str:
        """What is left."""
        ...


@dataclass(slots=True)
class Conversation:
    """What has been said in one request of several pieces."""

    messages: list[ChatMessage] = field(default_factory=list)


class ChatStage(AsyncStage[Conversation]):
    """Messages (or one more thing that the user says) in, deltas out; each piece ends a segment.

    ``one_answer``: an answer ends the request, whether or not a further piece was announced.
    """

    one_answer = False

    def __init__(
        self,
        *,
        base_url: str,
        model: str = "default",
        api_key_variable: str = "OPENAI_API_KEY",
        connections: int = 64,
        ask_usage: bool = True,
    ) -> None:
        """``base_url`` usually ends in ``/v1``. ``ask_usage=False`` is for servers that refuse ``stream_options``.
        Raises ``ValueError`` if it is not an http(s) URL."""
        self._endpoint = Endpoint(base_url, api_key=api_key_from(api_key_variable), connections=connections)
        self._model = model
        self._ask_usage = ask_usage

    def open(self, request: StageRequest) -> Conversation:
        del request
        return Conversation()

    def conversation(self, state: Conversation, request: StageRequest) -> Sequence[ChatMessage] | None:
        """What is asked, ``None``: nothing. A stage with more policy overrides this."""
        prompt = request.prompt
        if prompt.options.get(PREWARM) is True:
            return None
        if prompt.messages:
            state.messages = list(prompt.messages)
        if prompt.text:
            state.messages.append(ChatMessage("user", prompt.text))
        return state.messages if prompt.messages or prompt.text else None

    def cutter(self, request: StageRequest) -> Cutter | None:
        """How the answer is cut into segments, ``None``: not at all."""
        del request
        return None

    async def process(
        self, state: Conversation, request: StageRequest, control: StageControl
    ) -> AsyncIterator[RequestOutput]:
        del control  # an abort cancels this
        messages = self.conversation(state, request)
        if messages is None:
            if request.prompt.final:
                yield RequestOutput(request_id=request.request_id, finished=True, finish_reason="stop")
            return
        cutter = self.cutter(request)
        said: list[str] = []
        answer = _Answer()
        async with self._endpoint.post("/chat/completions", json=self._body(messages, request)) as response:
            async for chunk in chat_chunks(response):
                text = answer.take(chunk)
                said.append(text)
                if cutter is None and text:
                    yield RequestOutput(request_id=request.request_id, text=text)
                elif cutter is not None:
                    for segment in cutter.push(text):
                        yield RequestOutput(request_id=request.request_id, text=segment, segment_finished=True)
        state.messages.append(ChatMessage("assistant", "".join(said)))
        yield RequestOutput(
            request_id=request.request_id,
            text=cutter.finish() if cutter is not None else "",
            finished=request.prompt.final or self.one_answer,
            segment_finished=True,
            finish_reason=answer.reason(),
            metadata=answer.counts(),
            calls=answer.calls(),
        )

    def _body(self, messages: Sequence[ChatMessage], request: StageRequest) -> bytes:
        params = request.params
        body: dict[str, object] = {
            "model": self._model,
            "messages": [_message(message) for message in messages],
            "max_tokens": params.max_tokens,
            "temperature": params.temperature,
            "stream": True,
        }
        if params.top_p < 1.0:
            body["top_p"] = params.top_p
        if params.seed is not None:
            body["seed"] = params.seed
        if params.stop:
            body["stop"] = list(params.stop)
        if request.prompt.menu is not None:
            body |= _tools(request.prompt.menu)
        if self._ask_usage:
            body["stream_options"] = {"include_usage": True}
        return msgspec.json.encode(body)

    async def shutdown(self) -> None:
        await self._endpoint.close()


def _message(message: ChatMessage) -> dict[str, object]:
    """A message in the endpoint's terms."""
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.call_id, "content": message.text}
    if message.calls:
        calls = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.calls
        ]
        return {"role": message.role, "content": message.text or None, "tool_calls": calls}
    if message.images:
        text = [{"type": "text", "text": message.text}] if message.text else []
        shown = [
            {"type": "image_url", "image_url": {"url": image.url, "detail": image.detail}} for image in message.images
        ]
        return {"role": message.role, "content": [*text, *shown]}
    return {"role": message.role, "content": message.text}


def _tools(menu: ToolMenu) -> dict[str, object]:
    """The functions that the answer may call, in the endpoint's terms."""
    tools = [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": msgspec.json.decode(tool.parameters),
            },
        }
        for tool in menu.tools
    ]
    choice: object = menu.choice
    if isinstance(menu.choice, NamedTool):
        choice = {"type": "function", "function": {"name": menu.choice.name}}
    fields: dict[str, object] = {"tools": tools, "tool_choice": choice}
    if not menu.parallel:
        fields["parallel_tool_calls"] = False
    return fields


@dataclass(slots=True)
class _Call:
    """A call that arrives in pieces."""

    name: str = ""
    arguments: list[str] = field(default_factory=list)
    chars: int = 0


@dataclass(slots=True)
class _Answer:
    """What the endpoint said beside the text."""

    finish: str | None = None
    usage: Usage = field(default_factory=Usage)
    pieces: dict[int, _Call] = field(default_factory=dict)

    def take(self, chunk: ChatChunk) -> str:
        """The text of one event."""
        if chunk.usage is not None:
            self.usage = chunk.usage
        if not chunk.choices:
            return ""
        choice = chunk.choices[0]
        self.finish = choice.finish_reason or self.finish
        for delta in choice.delta.tool_calls or ():
            self._take_call(delta)
        return choice.delta.content or ""

    def _take_call(self, delta: CallDelta) -> None:
        call = self.pieces.setdefault(delta.index, _Call())
        call.name += delta.function.name or ""
        arguments = delta.function.arguments or ""
        call.arguments.append(arguments)
        call.chars += len(arguments)
        if len(self.pieces) > _MOST_CALLS or call.chars > _LONGEST_ARGUMENTS:
            raise fault("the endpoint's model asks for more function calls, or longer ones, than a session takes")

    def calls(self) -> tuple[ToolCall, ...]:
        """The functions that the model asks for, in order."""
        whole = [self.pieces[index] for index in sorted(self.pieces)]
        return tuple(ToolCall(name=call.name, arguments="".join(call.arguments) or "{}") for call in whole if call.name)

    def reason(self) -> FinishReason:
        """Why the answer ended. Raises :class:`EndpointFault` if the stream ended before it did."""
        if self.finish is None:
            raise fault("the endpoint's stream ended before the answer did")
        match self.finish:
            case "length":
                return "length"
            case "content_filter":
                return "content_filter"
            case _:
                return "stop"

    def counts(self) -> Options:
        details = self.usage.prompt_tokens_details
        return {
            "prompt_tokens": self.usage.prompt_tokens,
            "cached_tokens": details.cached_tokens if details else None,
            "generated_tokens": self.usage.completion_tokens,
        }


class _SpeechBody(msgspec.Struct):
    """What is to be spoken, in the endpoint's terms."""

    model: str
    voice: str
    input: str
    speed: float
    response_format: str = "pcm"


class SpeechStage(AsyncStage[None]):
    """Text in, audio out while it is made. Each piece of audio comes with the text that it is likely to speak."""

    def __init__(
        self,
        *,
        base_url: str,
        model: str = "tts-1",
        voice: str = "alloy",
        rate_hz: int = 24_000,
        api_key_variable: str = "OPENAI_API_KEY",
        connections: int = 64,
    ) -> None:
        """``rate_hz``: of the endpoint's ``pcm`` (OpenAI's is 24 kHz). A request's own voice, if it has one, goes first."""
        if not 8_000 <= rate_hz <= 48_000:
            raise ValueError(f"rate_hz must be between 8000 and 48000, got {rate_hz}")
        self._endpoint = Endpoint(base_url, api_key=api_key_from(api_key_variable), connections=connections)
        self._model = model
        self._voice = voice
        self._rate_hz = rate_hz

    def open(self, request: StageRequest) -> None:
        del request

    async def process(self, state: None, request: StageRequest, control: StageControl) -> AsyncIterator[RequestOutput]:
        del state, control
        prompt, params = request.prompt, request.params
        if prompt.text.strip():
            body = _SpeechBody(
                model=self._model, voice=params.voice or self._voice, input=prompt.text, speed=params.speed
            )
            share = SpokenShare(prompt.text, self._rate_hz, params.speed)
            async with self._endpoint.post("/audio/speech", json=msgspec.json.encode(body)) as response:
                async for audio in _whole_pieces(response.aiter_bytes(), self._rate_hz):
                    yield self._spoken(request, share.next(audio), audio)
            rest = share.rest()
        elif prompt.text or prompt.final:
            rest = prompt.text
        else:
            return
        yield msgspec.structs.replace(
            self._spoken(request, rest, b""),
            segment_finished=True,
            finished=prompt.final,
            finish_reason="stop" if prompt.final else None,
        )

    def _spoken(self, request: StageRequest, text: str, audio: bytes) -> RequestOutput:
        return RequestOutput(
            request_id=request.request_id, text=text, audio=audio, audio_rate_hz=self._rate_hz if audio else 0
        )

    async def shutdown(self) -> None:
        await self._endpoint.close()


async def _whole_pieces(chunks: AsyncIterator[bytes], rate_hz: int) -> AsyncIterator[bytes]:
    """PCM16 in pieces of whole samples: a short one first, then longer ones. Raises for a file instead of samples."""
    held = bytearray()
    wanted = 2 * rate_hz * _FIRST_MS // 1000
    first = True
    async for chunk in chunks:
        held += chunk
        if first and bytes(held[:4]) in _FILES:
            raise fault("the speech endpoint sent a file where raw PCM was asked for (response_format pcm)")
        if len(held) >= wanted:
            first = False
            size = len(held) // 2 * 2
            yield bytes(held[:size])
            del held[:size]
            wanted = 2 * rate_hz * _NEXT_MS // 1000
    if len(held) > 1:
        yield bytes(held[: len(held) // 2 * 2])


@dataclass(slots=True)
class Recording:
    """Audio of one request so far: PCM16."""

    audio: bytearray = field(default_factory=bytearray)
    rate_hz: int = 0


class _Transcript(msgspec.Struct):
    text: str


class TranscriptionStage(AsyncStage[Recording]):
    """Audio in; words out when the last piece has come."""

    def __init__(
        self,
        *,
        base_url: str,
        model: str = "whisper-1",
        language: str | None = None,
        api_key_variable: str = "OPENAI_API_KEY",
        connections: int = 64,
    ) -> None:
        self._endpoint = Endpoint(base_url, api_key=api_key_from(api_key_variable), connections=connections)
        self._model = model
        self._language = language

    def open(self, request: StageRequest) -> Recording:
        del request
        return Recording()

    async def process(
        self, state: Recording, request: StageRequest, control: StageControl
    ) -> AsyncIterator[RequestOutput]:
        del control
        prompt = request.prompt
        state.audio += prompt.audio
        state.rate_hz = prompt.audio_rate_hz or state.rate_hz
        if not prompt.final:
            return
        spoken = bool(state.audio)
        words = await self._transcribe(state) if spoken else ""
        yield RequestOutput(
            request_id=request.request_id,
            text=words,
            finished=True,
            finish_reason="stop",
            metadata={"spoken": spoken},
        )

    async def _transcribe(self, state: Recording) -> str:
        longest = int(_LONGEST_AUDIO_S * state.rate_hz) * 2
        recording = bytes(state.audio[-longest:])
        recording = wav_header(state.rate_hz, len(recording)) + recording
        form = {"model": self._model, "response_format": "json"}
        if self._language is not None:
            form["language"] = self._language
        async with self._endpoint.post(
            "/audio/transcriptions", form=form, file=("speech.wav", recording, "audio/wav")
        ) as response:
            body = await response.aread()
        try:
            return msgspec.json.decode(body, type=_Transcript).text.strip()
        except msgspec.DecodeError as error:
            raise fault("the transcription endpoint sent something that is not a transcript") from error

    async def shutdown(self) -> None:
        await self._endpoint.close()
