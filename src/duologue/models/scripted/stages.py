"""The three stages of the scripted pipeline: recognise, answer, speak. No weights, no randomness, no clock but sleep."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from duologue.engine.stages.contract import AsyncStage, StageControl
from duologue.errors import ErrorCode
from duologue.models.scripted.script import FaultKind, Script
from duologue.models.scripted.sound import heard, tone
from duologue.outputs import FinishReason, Options, RequestOutput, StageError, StageRequest, ToolCall

RECOGNISE, ANSWER, SPEAK = 0, 1, 2
OUTPUT_RATE_HZ = 24_000


async def _misbehave(kind: FaultKind, request_id: str) -> RequestOutput:
    match kind:
        case "raise":
            raise RuntimeError("the script told this stage to raise")
        case "hang":
            await asyncio.Event().wait()
            raise AssertionError("unreachable")
        case "error":
            error = StageError(ErrorCode.RUNTIME_STREAM_FAILED.value, "The script told this stage to fail.")
            return RequestOutput(request_id=request_id, error=error)
        case "silent":
            return RequestOutput(request_id=request_id, finished=True, finish_reason="stop")


@dataclass(slots=True)
class Hearing:
    """What the recogniser has of one request."""

    audio: bytearray = field(default_factory=bytearray)
    pieces: int = 0


class Recogniser(AsyncStage[Hearing]):
    """Audio to text. Pieces that are not final give partial transcripts, the final one gives the transcript."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.open_states = 0

    def open(self, request: StageRequest) -> Hearing:
        del request
        self.open_states += 1
        return Hearing()

    def close(self, state: Hearing) -> None:
        del state
        self.open_states -= 1

    async def process(
        self, state: Hearing, request: StageRequest, control: StageControl
    ) -> AsyncIterator[RequestOutput]:
        del control
        prompt = request.prompt
        state.audio += prompt.audio
        state.pieces += 1
        await asyncio.sleep(self._script.recognise_s)
        words = self._words(bytes(state.audio), prompt.audio_rate_hz or 16_000)
        if not prompt.final:
            partial = " ".join(words.split()[: state.pieces])
            if partial:
                yield RequestOutput(request_id=request.request_id, text=partial)
            return
        spoken = bool(state.audio)
        text = words if spoken else prompt.text
        kind = self._script.fault(RECOGNISE, text)
        if kind is not None:
            yield await _misbehave(kind, request.request_id)
            return
        yield RequestOutput(
            request_id=request.request_id,
            text=text,
            finished=True,
            segment_finished=True,
            finish_reason="stop",
            metadata={"spoken": spoken},
        )

    def _words(self, audio: bytes, rate_hz: int) -> str:
        found = heard(audio, rate_hz)
        if found is None:
            return ""
        level, audible_ms = found
        transcripts = self._script.transcripts
        if transcripts:
            return transcripts[level % len(transcripts)]
        return f"utterance {level} of {audible_ms} ms"


class Answerer(AsyncStage[None]):
    """Text to sentences, each a segment of its own."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.open_states = 0
        self.sentences = 0

    def open(self, request: StageRequest) -> None:
        del request
        self.open_states += 1

    def close(self, state: None) -> None:
        self.open_states -= 1

    async def process(self, state: None, request: StageRequest, control: StageControl) -> AsyncIterator[RequestOutput]:
        del state, control
        text = request.prompt.text
        kind = self._script.fault(ANSWER, text)
        if kind is not None:
            yield await _misbehave(kind, request.request_id)
            return
        call = self._script.call(text, request.prompt.menu)
        count = self._script.sentences if call is None else call.says
        words = 0
        for index in range(count):
            await asyncio.sleep(self._script.think_s)
            self.sentences += 1
            said = f"Sentence {index + 1} about {text}.".split(" ")
            reason = self._ends(request, words + len(said))
            said = said[: request.params.max_tokens - words]
            words += len(said)
            last = reason is not None or (call is None and index == count - 1)
            yield RequestOutput(
                request_id=request.request_id,
                text=" ".join(said) + ("" if last else " "),
                segment_finished=True,
                finished=last,
                finish_reason=(reason or "stop") if last else None,
                metadata=_counts(request, words) if last else {},
            )
            if last:
                return
        if call is not None:
            await asyncio.sleep(self._script.think_s)
            yield RequestOutput(
                request_id=request.request_id,
                segment_finished=True,
                finished=True,
                finish_reason="stop",
                metadata=_counts(request, words),
                calls=(ToolCall(name=call.name, arguments=call.arguments),) * call.times,
            )

    def _ends(self, request: StageRequest, words: int) -> FinishReason | None:
        """Why the answer may not go beyond this sentence, with which it has ``words`` words; ``None``: it may."""
        if self._script.filtered is not None and self._script.filtered in request.prompt.text:
            return "content_filter"
        return "length" if words > request.params.max_tokens else None


def _counts(request: StageRequest, words: int) -> Options:
    """A word is a token here."""
    read = len(request.prompt.text.split()) + sum(len(said.text.split()) for said in request.prompt.messages)
    return {"prompt_tokens": read, "generated_tokens": words}


class Speaker(AsyncStage[None]):
    """Sentences to audio, chunk by chunk; the text of a piece travels with its first chunk."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.open_states = 0
        self.chunks = 0

    def open(self, request: StageRequest) -> None:
        del request
        self.open_states += 1

    def close(self, state: None) -> None:
        self.open_states -= 1

    async def process(self, state: None, request: StageRequest, control: StageControl) -> AsyncIterator[RequestOutput]:
        del state, control
        script = self._script
        prompt = request.prompt
        kind = script.fault(SPEAK, prompt.text)
        if kind is not None:
            yield await _misbehave(kind, request.request_id)
            return
        if not prompt.text:
            if prompt.final:
                yield RequestOutput(request_id=request.request_id, finished=True, finish_reason="stop")
            return
        remaining = script.sentence_ms
        text = prompt.text
        while remaining > 0:
            await asyncio.sleep(script.speak_s)
            size = min(script.chunk_ms, remaining)
            remaining -= size
            self.chunks += 1
            last = prompt.final and remaining == 0
            yield RequestOutput(
                request_id=request.request_id,
                text=text,
                audio=tone(size, rate_hz=OUTPUT_RATE_HZ),
                audio_rate_hz=OUTPUT_RATE_HZ,
                segment_finished=remaining == 0,
                finished=last,
                finish_reason="stop" if last else None,
            )
            text = ""
