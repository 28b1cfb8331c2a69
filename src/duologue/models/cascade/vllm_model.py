"""A language model on vLLM in this process, with the surface of the embedded one.

Rules kept here:

* a slot's conversation stays open in vLLM between turns; a prompt that continues it appends only its new tokens, a prompt
  that does not begins anew (vLLM then still finds whole blocks of what it has seen before);
* nothing waits in silence: slots are counted here, and where memory is short the conversations that have been idle for
  longest give way;
* a cancel takes effect at the next token.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl

import msgspec

from duologue.engine.stages.tokens import TextStream, Vocabulary
from duologue.engine.stages.vllm_engine import Decoded, OpenSequence, Sampling, VllmEngine, VllmSettings
from duologue.errors import AdmissionFault
from duologue.models.cascade.chat import ChatMessage, Completion, FinishReason, GenerationError, OnText, never
from duologue.models.cascade.chat_template import ChatTemplate, detect_template, render, render_for_answer
from duologue.models.cascade.language_model import ContextOverflowError

SCHEME = "vllm:"
"""How ``language_model`` names a folder for vLLM: ``vllm:/path/to/model``, then settings as in a URL, for instance
``?dtype=float32&kv_cache_bytes=2000000000``."""


def settings_for(named: str, *, slots: int, context_tokens: int) -> VllmSettings:
    """Settings for what ``language_model`` names. ``ValueError`` for one that there isn't, or a value it can't have."""
    folder, _, query = named.removeprefix(SCHEME).partition("?")
    given = dict(parse_qsl(query, keep_blank_values=True))
    allowed = sorted(set(VllmSettings.__struct_fields__) - {"model", "slots", "context_tokens"})
    for name in given:
        if name not in allowed:
            raise ValueError(f"language_model: {name!r} is no setting of vLLM here; allowed are {', '.join(allowed)}")
    fixed = {"model": folder, "slots": slots, "context_tokens": context_tokens}
    try:
        return msgspec.convert({**given, **fixed}, VllmSettings, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"language_model: {error}") from error


_REPEAT_PENALTY = 1.1  # as for the embedded model


@dataclass(slots=True)
class _Slot:
    """One resident conversation."""

    sequence: OpenSequence | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class VllmLanguageModel:
    """The model with its slots. Slots may be used from different threads at once; decoding is then batched."""

    def __init__(self, settings: VllmSettings) -> None:
        """Load the model. Raises :class:`duologue.errors.StageFault` if vLLM or the model's files are missing or of no
        use, ValueError if its chat template is of no known family."""
        folder = Path(settings.model).expanduser()
        self._engine = VllmEngine(settings)
        self._vocabulary = Vocabulary(folder)
        self.template: ChatTemplate = detect_template(_template_text(folder))
        marks = (self._vocabulary.token_id(mark) for mark in self.template.stop)
        self._stop_ids = (*self._vocabulary.stop_token_ids, *(mark for mark in marks if mark is not None))
        self.context_tokens = settings.context_tokens
        self._slots = [_Slot() for _ in range(settings.slots)]

    @property
    def slots(self) -> int:
        return len(self._slots)

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

        `on_text` and `cancelled` are called on this thread. What `on_text` raises cancels the generation and comes out of
        here. A second call for a slot that is at work waits for the first.
        Raises ContextOverflowError, GenerationError, and ValueError for a slot that does not exist.
        """
        tokens = self._vocabulary.encode(render_for_answer(self.template, messages))
        sampling = Sampling(
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed & 0x7FFFFFFF,
            repetition_penalty=_REPEAT_PENALTY,
            stop_token_ids=self._stop_ids,
        )
        answer = _Answer(self._vocabulary.stream(stop), on_text, cancelled, prompt_tokens=len(tokens))
        with self._slot(slot).lock:
            if not cancelled():
                self._run(slot, tokens, sampling, answer)
        return answer.completion()

    def prefill(self, slot: int, messages: Sequence[ChatMessage], *, cancelled: Callable[[], bool] = never) -> int:
        """Compute `messages` into `slot` and say how many tokens that took; a later answer continues from there."""
        tokens = self._vocabulary.encode(render(self.template, messages))
        with self._slot(slot).lock:
            sequence = self._slots[slot].sequence
            if cancelled() or (sequence is not None and sequence.context[: len(tokens)] == tokens):
                return 0
            sequence, piece = self._continue(slot, tokens)
            self._admitted(slot, sequence, piece, Sampling(max_tokens=1), lambda _: None, cancelled, keep_last=False)
            return len(piece)

    def close(self) -> None:
        """Free the model. Call it when no generation runs; the instance is of no use afterwards."""
        self._engine.shutdown()

    def _slot(self, slot: int) -> _Slot:
        if not 0 <= slot < len(self._slots):
            raise ValueError(f"slot {slot} does not exist: there are {len(self._slots)}, counted from 0")
        return self._slots[slot]

    def _run(self, slot: int, tokens: list[int], sampling: Sampling, answer: _Answer) -> None:
        if len(tokens) + sampling.max_tokens > self.context_tokens:
            raise ContextOverflowError(len(tokens), self.context_tokens - sampling.max_tokens)
        sequence, piece = self._continue(slot, tokens)
        answer.resident_tokens = len(tokens) - len(piece)
        self._admitted(slot, sequence, piece, sampling, answer.take, answer.cancelled)

    def _continue(self, slot: int, tokens: list[int]) -> tuple[OpenSequence, list[int]]:
        """The slot's sequence, and what has to be appended to it so that it holds ``tokens``."""
        sequence = self._slots[slot].sequence
        if sequence is not None:
            resident = len(sequence.context)
            if sequence.open and len(tokens) > resident and tokens[:resident] == sequence.context:
                sequence.carried = ()  # if it is to stay, it is in the prompt
                return sequence, tokens[resident:]
            self._engine.close(sequence)
        sequence = self._slots[slot].sequence = self._engine.open()
        return sequence, tokens

    def _admitted(
        self,
        slot: int,
        sequence: OpenSequence,
        piece: list[int],
        sampling: Sampling,
        take: Callable[[Decoded], bool | None],
        cancelled: Callable[[], bool],
        *,
        keep_last: bool = True,
    ) -> None:
        """Decode one piece; conversations that are idle give way to it."""
        while True:
            try:
                with closing(
                    self._engine.decode(sequence, piece, sampling, keep_last=keep_last, cancelled=cancelled)
                ) as steps:
                    for step in steps:
                        if take(step):
                            return
                return
            except AdmissionFault as error:
                if not self._give_way(slot):
                    raise GenerationError(error.message) from error

    def _give_way(self, slot: int) -> bool:
        """Close the conversation of another slot that has been idle for longest; False if there is none."""
        idle = [
            (other.sequence.used_at, number)
            for number, other in enumerate(self._slots)
            if number != slot and other.sequence is not None and other.sequence.open and not other.lock.locked()
        ]
        for _, number in sorted(idle):
            other = self._slots[number]
            if other.lock.acquire(blocking=False):
                try:
                    if other.sequence is not None:
                        self._engine.close(other.sequence)
                        other.sequence = None
                        return True
                finally:
                    other.lock.release()
        return False


@dataclass(slots=True)
class _Answer:
    """Collects one generation."""

    stream: TextStream
    on_text: OnText
    cancelled: Callable[[], bool]
    prompt_tokens: int
    resident_tokens: int = 0
    started_s: float = field(default_factory=time.monotonic)
    first_s: float | None = None
    texts: list[str] = field(default_factory=list)
    finish: FinishReason = FinishReason.CANCELLED
    generated: int = 0
    cached: int | None = None

    def take(self, step: Decoded) -> bool:
        """One step; True ends the generation (and the sequence, since it is in the middle of an answer)."""
        if self.cached is None:
            self.cached = self.resident_tokens + (step.cached_tokens or 0)
        if self.cancelled():
            return True
        self.generated += len(step.token_ids)
        tokens = step.token_ids[:-1] if step.reason == "stop" else step.token_ids
        text = self.stream.push(tokens)
        ended = step.reason is not None or self.stream.hit
        if ended:
            text += self.stream.finish()
            self.finish = FinishReason.LENGTH if step.reason == "length" else FinishReason.STOP
        if text and self._give(text):
            self.finish = FinishReason.CANCELLED
            return True
        return ended and step.reason is None

    def _give(self, text: str) -> bool:
        if self.first_s is None:
            self.first_s = time.monotonic() - self.started_s
        self.texts.append(text)
        return self.on_text(text)

    def completion(self) -> Completion:
        return Completion(
            text="".join(self.texts),
            finish_reason=self.finish,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached,
            generated_tokens=self.generated,
            first_token_s=self.first_s,
            total_s=time.monotonic() - self.started_s,
        )


def _template_text(folder: Path) -> str:
    """The model's own chat template, for the family that it shows."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    path = folder / "tokenizer_config.json"
    named = json.loads(path.read_text(encoding="utf-8")).get("chat_template") if path.is_file() else None
    return named if isinstance(named, str) else json.dumps(named or "")
