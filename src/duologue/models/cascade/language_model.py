"""A GGUF language model in this process, on llama.cpp through xllamacpp (the only file that knows it).

Rules kept here:

* one conversation per slot: a slot keeps what it has computed, and a prompt that continues it computes only its
  new tokens. Where old turns were left out in the middle, what follows them is moved, not computed again;
* prompts are worked off 32 tokens at a time, so that a long one delays the other slots, and a cancel, by no more than
  that;
* no TCP port: the engine insists on a server, so it gets a Unix socket in a private folder, and the name is removed
  as soon as the model is loaded. From then on nothing can connect to it;
* text is given out in whole characters, and never a replacement character.
"""

from __future__ import annotations

import importlib
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from duologue.detect.weights import ModelUnavailableError
from duologue.models.cascade.chat import (
    ChatMessage,
    Completion,
    FinishReason,
    GenerationError,
    OnText,
    never,
)
from duologue.models.cascade.chat_template import ChatTemplate, detect_template, render, render_for_answer
from duologue.models.cascade.gguf import read_description

MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"

_PREFILL_TOKENS = 32
_REUSE_TOKENS = 32  # shortest run of already computed tokens worth moving
_REPEAT_PENALTY = 1.1  # small models circle without it
_QUIET = 0


class ContextOverflowError(GenerationError):
    """The prompt does not fit into a slot. Leave out older turns and try again."""

    def __init__(self, prompt_tokens: int, context_tokens: int) -> None:
        super().__init__(f"the prompt has {prompt_tokens} tokens, a slot holds {context_tokens}")
        self.prompt_tokens = prompt_tokens
        self.context_tokens = context_tokens


class LanguageModel:
    """The model with its slots. Slots may be used from different threads at once; decoding is then batched."""

    def __init__(
        self,
        gguf_path: Path,
        *,
        slots: int = 4,
        context_tokens: int = 2048,
        threads: int = 1,
        template: ChatTemplate | None = None,
    ) -> None:
        """Load `gguf_path`; each of `slots` gets `context_tokens`.

        Raises ModelUnavailableError if the file or xllamacpp is missing or the file is not usable, ValueError if the
        model's chat template is of no known family and none is given.
        """
        description = read_description(gguf_path)
        own = description.get("tokenizer.chat_template", "")
        self.template = template if template is not None else detect_template(str(own))
        self.name = str(description.get("general.name", gguf_path.stem))
        self.context_tokens = context_tokens
        self._slots = slots
        self._busy = [threading.Lock() for _ in range(slots)]
        self._server: Any = _load(gguf_path, slots, context_tokens, threads)

    @property
    def slots(self) -> int:
        return self._slots

    def generate(
        self,
        slot: int,
        messages: Sequence[ChatMessage],
        *,
        on_text: OnText,
        max_tokens: int = 160,
        temperature: float = 0.3,
        seed: int = 0,
        stop: Sequence[str] = (),
        cancelled: Callable[[], bool] = never,
    ) -> Completion:
        """Answer `messages` in `slot` (0 to slots - 1); blocks the calling thread until done.

        `on_text` and `cancelled` are called on this thread. A cancel takes effect at the next token, or within 32
        tokens of a long prompt. What `on_text` raises cancels the generation and comes out of here. A second call for
        a slot that is at work waits for the first. The same seed gives the same text only while no other slot is at
        work and the slot held the same tokens before: batching rounds differently.
        Raises ContextOverflowError, GenerationError, and ValueError for a slot that does not exist.
        """
        prompt = render_for_answer(self.template, messages)
        request: dict[str, object] = {
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": temperature,
            "seed": seed & 0x7FFFFFFF,
            "repeat_penalty": _REPEAT_PENALTY,
            "stop": [*self.template.stop, *stop],
        }
        return self._run(slot, request, _Stream(on_text, cancelled))

    def prefill(self, slot: int, messages: Sequence[ChatMessage], *, cancelled: Callable[[], bool] = never) -> int:
        """Compute `messages` into `slot` and say how many tokens that took; a later answer continues from there."""
        request: dict[str, object] = {"prompt": render(self.template, messages), "max_tokens": 0}
        completion = self._run(slot, request, _Stream(lambda _: False, cancelled))
        return (completion.prompt_tokens or 0) - (completion.cached_tokens or 0)

    def close(self) -> None:
        """Free the model. Call it when no generation runs; the instance is of no use afterwards."""
        self._server = None

    def _run(self, slot: int, request: Mapping[str, object], stream: _Stream) -> Completion:
        if not 0 <= slot < self._slots:
            raise ValueError(f"slot {slot} does not exist: there are {self._slots}, counted from 0")
        if self._server is None:
            raise GenerationError("the language model is closed")
        fixed = {"stream": True, "id_slot": slot, "cache_prompt": True, "return_progress": True}
        with self._busy[slot]:
            stream.started_s = time.monotonic()
            if not stream.cancelled():
                self._server.handle_completions({**request, **fixed, "timings_per_token": True}, stream.take)
            else:
                stream.finish = FinishReason.CANCELLED
        return stream.completion()


class _Timings(msgspec.Struct):
    cache_n: float
    predicted_n: float
    prompt_n: float


class _Progress(msgspec.Struct):
    total: float


class _Choice(msgspec.Struct):
    text: str | None = None
    finish_reason: str | None = None


class _Refusal(msgspec.Struct):
    type: str | None = None
    code: int | str | None = None
    n_prompt_tokens: float = 0
    n_ctx: float = 0


class _Chunk(msgspec.Struct):
    """The part of the engine's chunks that is read."""

    choices: list[_Choice] = []
    timings: _Timings | None = None
    prompt_progress: _Progress | None = None
    error: _Refusal | None = None


@dataclass(slots=True)
class _Stream:
    """Collects one generation from the engine's chunks."""

    on_text: OnText
    cancelled: Callable[[], bool]
    started_s: float = 0.0
    first_s: float | None = None
    texts: list[str] = field(default_factory=list)
    finish: FinishReason | None = None
    failure: BaseException | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    generated_tokens: int | None = None

    def take(self, chunk: object) -> bool:
        """One chunk; True tells the engine to stop. Never raises: the engine would swallow it."""
        try:
            stop = self._read(_chunk(chunk))
            if not stop and self.finish is None and self.cancelled():
                self.finish, stop = FinishReason.CANCELLED, True
        except BaseException as error:
            self.failure, stop = error, True
        return stop

    def _read(self, chunk: _Chunk) -> bool:
        if chunk.error is not None:
            raise _failure(chunk.error)
        self._count(chunk)
        choice = chunk.choices[0]
        text = (choice.text or "").replace("�", "")
        if choice.finish_reason:
            self.finish = FinishReason.LENGTH if choice.finish_reason == "length" else FinishReason.STOP
        if not text:
            return False
        if self.first_s is None:
            self.first_s = time.monotonic() - self.started_s
        self.texts.append(text)
        if self.on_text(text):
            self.finish = FinishReason.CANCELLED
            return True
        return False

    def _count(self, chunk: _Chunk) -> None:
        timings, progress = chunk.timings, chunk.prompt_progress
        if timings is None:
            return
        self.cached_tokens = int(timings.cache_n)
        self.generated_tokens = int(timings.predicted_n)
        self.prompt_tokens = int(progress.total) if progress else self.cached_tokens + int(timings.prompt_n)

    def completion(self) -> Completion:
        if self.failure is not None:
            raise self.failure
        if self.finish is None:
            raise GenerationError("the language model stopped without saying why")
        return Completion(
            text="".join(self.texts),
            finish_reason=self.finish,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            generated_tokens=self.generated_tokens,
            first_token_s=self.first_s,
            total_s=time.monotonic() - self.started_s,
        )


def _chunk(given: object) -> _Chunk:
    try:
        return msgspec.convert(given, type=_Chunk)
    except msgspec.ValidationError as error:
        raise GenerationError(f"the language model gave something unknown: {error}") from error


def _failure(error: _Refusal) -> GenerationError:
    if error.type == "exceed_context_size_error":
        return ContextOverflowError(int(error.n_prompt_tokens), int(error.n_ctx))
    # The engine's own message may quote the prompt, so only its kind is passed on.
    return GenerationError(f"the language model refused: {error.type} ({error.code})")


def _load(gguf_path: Path, slots: int, context_tokens: int, threads: int) -> Any:
    try:
        # By name, because the library ships no types and must not be loaded by whoever merely imports us.
        engine = importlib.import_module("xllamacpp")
    except ImportError as error:
        raise ModelUnavailableError(
            f"cannot run {gguf_path.name} without xllamacpp ({error}): pip install xllamacpp"
        ) from error
    params = engine.CommonParams()
    params.model.path = str(gguf_path)
    params.n_parallel = slots
    params.n_ctx = slots * context_tokens
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.n_batch = params.n_ubatch = _PREFILL_TOKENS
    params.n_cache_reuse = _REUSE_TOKENS
    params.cache_ram_mib = 0  # slots are pinned, so nothing would ever be taken from a second cache
    params.fit_params = False
    params.ui = params.endpoint_slots = False
    params.n_threads_http = 1
    params.verbosity = _QUIET  # its log shows prompts at higher levels
    folder = tempfile.mkdtemp(prefix="duologue-")  # readable by this user alone
    try:
        params.hostnames = [str(Path(folder) / "llm.sock")]
        return engine.Server(params)
    except Exception as error:
        raise ModelUnavailableError(f"llama.cpp cannot load {gguf_path}: {error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
