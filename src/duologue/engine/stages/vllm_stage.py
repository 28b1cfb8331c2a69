"""A language model on vLLM as a stage: a request is a sequence that stays open, each piece of it is appended.

Rules kept here:

* a piece before the last is answered with at most ``unit_tokens`` tokens, so that the next one never waits long; the last
  piece gets what the sampling parameters allow;
* ``options: {generate: false}`` in a prompt only reads it;
* a request that is over, failed or aborted has freed its memory before anything else is admitted.

Run it on the ``vllm`` backend: a process of its own, which ends (and is started again) when vLLM fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import msgspec

from duologue.engine.stages.contract import Stage, StageControl
from duologue.engine.stages.tokens import TOKENIZER_FILE, Vocabulary, need_text
from duologue.engine.stages.vllm_engine import Decoded, OpenSequence, Sampling, VllmEngine, VllmSettings
from duologue.outputs import FinishReason, RequestOutput, StageRequest


@dataclass(slots=True)
class Conversation:
    """One request."""

    sequence: OpenSequence


class VllmStage(Stage[Conversation]):
    """Text or tokens in, text and tokens out."""

    def __init__(
        self,
        *,
        model: str,
        slots: int = 4,
        context_tokens: int = 2048,
        kv_cache_bytes: int = 1 << 30,
        unit_tokens: int = 8,
        dtype: str = "bfloat16",
        weights: str = "files",
        eager: bool = True,
    ) -> None:
        """``model``: a folder as Hugging Face lays it out. The rest as in :class:`VllmSettings`."""
        if weights not in ("files", "dummy"):
            raise ValueError(f"weights must be 'files' or 'dummy', got {weights!r}")
        if unit_tokens < 1:
            raise ValueError(f"unit_tokens must be at least 1, got {unit_tokens}")
        self.concurrency = slots
        self._unit_tokens = unit_tokens
        self._settings = VllmSettings(
            model=model,
            slots=slots,
            context_tokens=context_tokens,
            kv_cache_bytes=kv_cache_bytes,
            dtype=dtype,
            weights="dummy" if weights == "dummy" else "files",
            eager=eager,
        )

    def load(self) -> None:
        self._engine = VllmEngine(self._settings)
        folder = Path(self._settings.model).expanduser()
        self._vocabulary = Vocabulary(folder) if (folder / TOKENIZER_FILE).is_file() else None

    def open(self, request: StageRequest) -> Conversation:
        del request
        return Conversation(self._engine.open())

    def process(self, state: Conversation, request: StageRequest, control: StageControl) -> Iterator[RequestOutput]:
        tokens = self._tokens(state, request)
        if not tokens:
            if request.prompt.final:
                yield RequestOutput(request_id=request.request_id, finished=True, finish_reason="stop")
            return
        if request.prompt.options.get("generate") is False:
            reading = Sampling(max_tokens=1)
            with closing(
                self._engine.decode(
                    state.sequence, tokens, reading, keep_last=False, cancelled=lambda: control.cancelled
                )
            ) as decoded:
                for _ in decoded:
                    pass
            yield _boundary(request, "", "stop")
            return
        sampling = self._sampling(request)
        with closing(
            self._engine.decode(state.sequence, tokens, sampling, cancelled=lambda: control.cancelled)
        ) as decoded:
            yield from self._answer(decoded, request, control)

    def _tokens(self, state: Conversation, request: StageRequest) -> list[int]:
        prompt = request.prompt
        if prompt.token_ids or not prompt.text:
            return list(prompt.token_ids)
        vocabulary = need_text(self._vocabulary, "it can't read text")
        return vocabulary.encode(prompt.text, first=not state.sequence.context)

    def _sampling(self, request: StageRequest) -> Sampling:
        params = request.params
        if params.stop:
            need_text(self._vocabulary, "stop strings can't be found")
        return Sampling(
            max_tokens=params.max_tokens if request.prompt.final else min(params.max_tokens, self._unit_tokens),
            temperature=params.temperature,
            top_p=params.top_p,
            seed=params.seed,
            stop_token_ids=self._vocabulary.stop_token_ids if self._vocabulary else (),
        )

    def _answer(
        self, decoded: Iterator[Decoded], request: StageRequest, control: StageControl
    ) -> Iterator[RequestOutput]:
        text = self._vocabulary.stream(request.params.stop) if self._vocabulary else None
        for step in decoded:
            if control.cancelled:
                return
            tokens = step.token_ids[:-1] if step.reason == "stop" else step.token_ids
            piece = text.push(tokens) if text else ""
            if text and text.hit:
                # Breaking off ends the sequence: vLLM can't stop between tokens and keep it.
                yield msgspec.structs.replace(_boundary(request, piece, "stop", tokens), finished=True)
                return
            if step.reason is not None:
                yield _boundary(request, piece + (text.finish() if text else ""), step.reason, tokens)
            elif piece or tokens:
                yield RequestOutput(request_id=request.request_id, text=piece, token_ids=tokens)

    def close(self, state: Conversation) -> None:
        self._engine.close(state.sequence)

    def shutdown(self) -> None:
        self._engine.shutdown()


def _boundary(request: StageRequest, text: str, reason: FinishReason, token_ids: tuple[int, ...] = ()) -> RequestOutput:
    """The end of the answer to one piece, and of the request if it was the last."""
    return RequestOutput(
        request_id=request.request_id,
        text=text,
        token_ids=token_ids,
        segment_finished=True,
        finished=request.prompt.final,
        finish_reason=reason,
    )
