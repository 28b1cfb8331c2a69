"""The cascade's three stages: recognition, language model, voice. Each loads its model where it runs.

Rules kept here: a request's audio and text live in its state and nowhere else; cancellation is asked for at every step that
takes longer than a few milliseconds; conversations are written down only if the operator names a file for them.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from duologue.detect.weights import models_folder
from duologue.engine.stages.contract import PREWARM, Stage, StageControl
from duologue.models.cascade import persona
from duologue.models.cascade.asked import (
    compose_prompt,
    draft_wanted,
    history_of,
    next_beginning,
    nothing_asked,
    read_ahead,
    sentence_splitter,
    wants_deltas,
)
from duologue.models.cascade.chat import ChatMessage, Completion, FinishReason, GenerationError, Generator
from duologue.models.cascade.edges import PAUSE, QUIET
from duologue.models.cascade.language_model import MODEL_FILE, ContextOverflowError, LanguageModel
from duologue.models.cascade.quiet import RATE_HZ
from duologue.models.cascade.recogniser import LONGEST_S, Memory, Recogniser
from duologue.models.cascade.slots import RollOvers, Slots, Work
from duologue.models.cascade.synthesiser import RATE_HZ as VOICE_RATE_HZ
from duologue.models.cascade.synthesiser import Synthesiser
from duologue.models.cascade.vllm_model import SCHEME as VLLM
from duologue.models.cascade.vllm_model import VllmLanguageModel, settings_for
from duologue.outputs import AudioMark, RequestOutput, SamplingParams, StageRequest
from duologue.outputs import FinishReason as OutputFinish

PROMPT_LOG = "DUOLOGUE_PROMPT_LOG"
"""Environment variable naming a file to which every prompt is appended as a JSON line. For debugging; off by default."""

_IDLE_S = 1.0  # how long nobody must have worked before slots are warmed
_LONGEST_PARTIAL_S = 12.0  # beyond this a guess costs more than it tells


# -- recognition ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Heard:
    """Audio of one turn so far: PCM16 at 16 kHz. ``words``: what all of it says, if that was found out."""

    audio: bytearray = field(default_factory=bytearray)
    words: str | None = None
    memory: Memory = field(default_factory=Memory)


class RecogniseStage(Stage[Heard]):
    """Audio in, words out: a guess after each piece but the last, then the final words."""

    def __init__(self, *, models_dir: str | None = None, partials: bool = True) -> None:
        self._models_dir = models_dir
        self._partials = partials

    def load(self) -> None:
        self._recogniser = Recogniser(models_folder(self._models_dir))

    def open(self, request: StageRequest) -> Heard:
        del request
        return Heard()

    def process(self, state: Heard, request: StageRequest, control: StageControl) -> Iterator[RequestOutput]:
        prompt = request.prompt
        known = state.words if prompt.options.get(QUIET) is True or not prompt.audio else None
        state.words = None
        state.audio += prompt.audio
        longest = int(LONGEST_S * RATE_HZ) * 2
        audio = bytes(state.audio[-longest:])
        spoken = bool(audio)
        if prompt.final:
            words = known if known is not None else self._words(state, audio, control)
            yield RequestOutput(
                request_id=request.request_id,
                text=words,
                finished=True,
                finish_reason="stop",
                metadata={"spoken": spoken},
            )
        elif self._partials and spoken and len(audio) <= int(_LONGEST_PARTIAL_S * RATE_HZ) * 2:
            state.words = words = known if known is not None else self._words(state, audio, control)
            if words:
                yield RequestOutput(
                    request_id=request.request_id,
                    text=words,
                    segment_finished=True,
                    metadata={"spoken": True, PAUSE: prompt.options.get(PAUSE) is True},
                )

    def _words(self, state: Heard, audio: bytes, control: StageControl) -> str:
        return self._recogniser.transcribe(audio, cancelled=lambda: control.cancelled, memory=state.memory)


# -- language model ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Asked:
    """One request of the language model. ``alone``: of no session, so its conversation need not stay resident.

    ``reading`` stops what is being read ahead for it; ``draft`` is the answer to what is likely to be asked.
    """

    key: str
    alone: bool
    reading: threading.Event = field(default_factory=threading.Event)
    draft: _Draft | None = None

    def stop_ahead(self) -> None:
        """Whatever was begun before anybody asked ends, within a token."""
        self.reading.set()
        if self.draft is not None:
            self.draft.generation.stop()
            self.draft = None


class RespondStage(Stage[Asked]):
    """Messages in, sentences out as soon as each is complete (or every delta, if the prompt asks for deltas)."""

    def __init__(
        self,
        *,
        models_dir: str | None = None,
        language_model: str | None = None,
        slots: int = 4,
        context_tokens: int = 2048,
        threads: int = 1,
    ) -> None:
        """``language_model``: a GGUF file, or ``vllm:`` and a model folder; ``None``: the embedded one.
        (An endpoint's URL is :class:`duologue.models.cascade.remote.RemoteRespondStage`'s business.)"""
        self.concurrency = slots
        self._models_dir = models_dir
        self._language_model = language_model
        self._slot_count = slots
        self._context_tokens = context_tokens
        self._threads = threads

    def load(self) -> None:
        self._slots = Slots(self._slot_count)
        self._model: Generator = self._make_model()
        log = os.environ.get(PROMPT_LOG)
        self._prompt_log = Path(log) if log else None
        self._log_lock = threading.Lock()
        self._work = Work()
        self._ahead = RollOvers(self._model, self._work)
        # One slot is warm when the stage says it is ready; the others follow whenever nobody waits for an answer.
        self._model.prefill(0, persona.prefix())
        threading.Thread(target=self._warm_up, name="warm-up", daemon=True).start()

    def _make_model(self) -> Generator:
        named = self._language_model
        if named is not None and named.startswith(VLLM):
            settings = settings_for(named, slots=self._slot_count, context_tokens=self._context_tokens)
            return VllmLanguageModel(settings)
        path = Path(named).expanduser() if named else models_folder(self._models_dir) / MODEL_FILE
        return LanguageModel(path, slots=self._slot_count, context_tokens=self._context_tokens, threads=self._threads)

    def _warm_up(self) -> None:
        """Compute what every conversation begins with into the other slots, giving way to real work at once."""
        for slot in range(1, self._slot_count):
            while not self._work.closed and not self._slots.used(slot):
                if self._work.wait_idle(_IDLE_S):
                    self._model.prefill(slot, persona.prefix(), cancelled=lambda: self._work.busy)
                    if not self._work.busy:
                        break

    def open(self, request: StageRequest) -> Asked:
        key = request.prompt.session_key
        return Asked(key or request.request_id, alone=not key)

    def close(self, state: Asked) -> None:
        state.stop_ahead()
        if state.alone:
            self._slots.free(state.key)

    def process(self, state: Asked, request: StageRequest, control: StageControl) -> Iterator[RequestOutput]:
        prompt = request.prompt
        if nothing_asked(prompt):
            state.stop_ahead()
            yield RequestOutput(request_id=request.request_id, finished=True, finish_reason="stop")
            return
        history = history_of(prompt)
        messages = compose_prompt(prompt, history, request.params, self._context_tokens)
        slot = self._slots.take(state.key)
        self._ahead.abandon(slot)
        asked = _Question(slot, tuple(messages), request.params)
        if read_ahead(prompt):
            self._look_ahead(state, asked, draft=draft_wanted(prompt))
            return
        self._write_prompt(state.key, request, history)
        generation = self._generation(state, asked, control)
        said: list[str] = []
        for piece in _pieces(request.request_id, generation, sentences=not wants_deltas(prompt)):
            said.append(piece.text)
            if piece.finished and not state.alone:
                following = next_beginning(prompt, history, "".join(said), request.params, self._context_tokens)
                if following is not None:
                    self._ahead.plan(slot, following)
            yield piece

    def _look_ahead(self, state: Asked, asked: _Question, *, draft: bool) -> None:
        """Read what is likely to be asked, and begin to answer it if it is likely to be all."""
        if state.draft is not None and state.draft.asked == asked:
            return  # heard once more, and it says the same
        state.stop_ahead()
        if draft:
            state.draft = _Draft(asked, _Generation(self._model, asked, self._work))
            state.draft.generation.start()
            return
        state.reading = threading.Event()
        arguments = (asked.slot, asked.messages, state.reading)
        threading.Thread(target=self._read, args=arguments, name="read", daemon=True).start()

    def _generation(self, state: Asked, asked: _Question, control: StageControl) -> _Generation:
        """The answer: the draft, if this is what it answers, else a new one."""
        draft, state.draft = state.draft, None
        state.reading.set()
        if draft is not None and draft.asked == asked:
            draft.generation.control = control
            return draft.generation
        if draft is not None:
            draft.generation.stop()
        generation = _Generation(self._model, asked, self._work, control)
        generation.start()
        return generation

    def _read(self, slot: int, messages: Sequence[ChatMessage], stop: threading.Event) -> None:
        """Compute what is likely to be asked into the slot, until the real question comes."""
        with self._work, contextlib.suppress(GenerationError):
            self._model.prefill(slot, messages, cancelled=stop.is_set)

    def _write_prompt(self, key: str, request: StageRequest, history: Sequence[ChatMessage]) -> None:
        if self._prompt_log is None:
            return
        line = {
            "session_id": key,
            "request_id": request.request_id,
            "messages": [{"role": message.role.value, "text": message.content} for message in history],
        }
        with self._log_lock, self._prompt_log.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")

    def shutdown(self) -> None:
        self._work.close()
        self._ahead.close()
        self._model.close()


@dataclass(slots=True, frozen=True)
class _Question:
    """All that an answer depends on."""

    slot: int
    messages: tuple[ChatMessage, ...]
    params: SamplingParams


class _Generation:
    """A generation in a thread of its own, read as a stream of deltas. ``control`` ``None``: nobody waits for it yet."""

    def __init__(self, model: Generator, asked: _Question, work: Work, control: StageControl | None = None) -> None:
        self._model = model
        self._asked = asked
        self._work = work
        self.control = control
        self._stopped = threading.Event()
        self._queue: queue.SimpleQueue[str | Completion | Exception] = queue.SimpleQueue()

    def start(self) -> None:
        threading.Thread(target=self._run, name="generation", daemon=True).start()

    def stop(self) -> None:
        """Whoever reads has gone."""
        self._stopped.set()

    def _cancelled(self) -> bool:
        control = self.control
        return self._stopped.is_set() or (control is not None and control.cancelled)

    def _take(self, text: str) -> bool:
        self._queue.put(text)
        return self._cancelled()

    def _run(self) -> None:
        with self._work:
            self._queue.put(self._answer())

    def _answer(self) -> Completion | Exception:
        params = self._asked.params
        try:
            return self._model.generate(
                self._asked.slot,
                self._asked.messages,
                on_text=self._take,
                max_tokens=params.max_tokens,
                temperature=params.temperature,
                seed=params.seed or 0,
                stop=params.stop,
                cancelled=self._cancelled,
            )
        except ContextOverflowError as error:
            return self._shortened(error)
        except Exception as error:
            return error

    def _shortened(self, error: ContextOverflowError) -> Completion | Exception:
        """Once more with the last message alone: an answer without memory beats none."""
        try:
            return self._model.generate(
                self._asked.slot,
                [*persona.prefix(), self._asked.messages[-1]],
                on_text=self._take,
                max_tokens=self._asked.params.max_tokens,
                cancelled=self._cancelled,
            )
        except Exception:
            return error

    def __iter__(self) -> Iterator[str | Completion]:
        while True:
            item = self._queue.get()
            if isinstance(item, Exception):
                raise item
            yield item
            if isinstance(item, Completion):
                return


@dataclass(slots=True)
class _Draft:
    """An answer that was begun before anybody asked for it. It is heard only if exactly this is asked."""

    asked: _Question
    generation: _Generation


def _pieces(request_id: str, generation: _Generation, *, sentences: bool) -> Iterator[RequestOutput]:
    """The generation as outputs; the last one ends the request."""
    splitter = sentence_splitter()
    try:
        for item in generation:
            if isinstance(item, Completion):
                rest = "".join(piece.text for piece in splitter.finish()) if sentences else ""
                yield RequestOutput(
                    request_id=request_id,
                    text=rest,
                    finished=True,
                    segment_finished=True,
                    finish_reason=_finish(item),
                    metadata={
                        "prompt_tokens": item.prompt_tokens,
                        "cached_tokens": item.cached_tokens,
                        "generated_tokens": item.generated_tokens,
                    },
                )
            elif sentences:
                for piece in splitter.push(item):
                    yield RequestOutput(request_id=request_id, text=piece.text, segment_finished=True)
            else:
                yield RequestOutput(request_id=request_id, text=item)
    finally:
        generation.stop()


def _finish(completion: Completion) -> OutputFinish:
    match completion.finish_reason:
        case FinishReason.STOP:
            return "stop"
        case FinishReason.LENGTH:
            return "length"
        case FinishReason.CANCELLED:
            return "abort"


# -- voice ---------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Spoken:
    """How many sentences of a request have been said: each gets a seed of its own."""

    sentences: int = 0


class SpeakStage(Stage[Spoken]):
    """Sentences in, audio out, each with the text it speaks and where in the audio its words end."""

    def load(self) -> None:
        self._voice = Synthesiser()

    def open(self, request: StageRequest) -> Spoken:
        del request
        return Spoken()

    def process(self, state: Spoken, request: StageRequest, control: StageControl) -> Iterator[RequestOutput]:
        prompt = request.prompt
        if prompt.options.get(PREWARM) is True:
            return  # the request is announced; there is nothing to say yet
        state.sentences += 1
        speech = self._voice.synthesize(
            prompt.text,
            seed=(request.params.seed or 0) + state.sentences,
            speed=request.params.speed,
            cancelled=lambda: control.cancelled,
        )
        yield RequestOutput(
            request_id=request.request_id,
            text=prompt.text,
            audio=speech.pcm16,
            audio_rate_hz=VOICE_RATE_HZ,
            marks=tuple(AudioMark(mark.chars, mark.end_ms) for mark in speech.marks),
            segment_finished=True,
            finished=prompt.final,
            finish_reason="stop" if prompt.final else None,
        )
