"""A language model on vLLM that seems to do what it is told, as the puppets of the other backends do.

Its weights are random, so its words are replaced: the first token it says stands for the first thing it was to say, and so
on. Whatever is said has been computed by vLLM in the request's own sequence, and an echo is checked: alone in a sequence
of its own the model must say the same again.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import msgspec

from duologue.engine.stages.contract import StageControl
from duologue.engine.stages.vllm_engine import Sampling
from duologue.engine.stages.vllm_stage import Conversation, VllmStage
from duologue.errors import ErrorCode, StageFault
from duologue.outputs import RequestOutput, StageRequest
from tests.integration.backends.stages import Counts, Puppet

FLOOD_TOKENS = 1900
"""As much as the context holds: seconds of work, which a test that floods has stopped long before."""


@dataclass(slots=True)
class Told(Conversation):
    pieces: int = 0


class PuppetVllm(Puppet, VllmStage):
    """Options of both."""

    def __init__(self, *, greeting: str = "", load: str = "", **options: Any) -> None:
        Puppet.__init__(self, greeting, load)
        VllmStage.__init__(self, **options)
        self._counting = threading.Lock()
        self._one_alone = threading.Lock()

    def load(self) -> None:
        self.begin()
        super().load()

    def open(self, request: StageRequest) -> Told:
        with self._counting:
            self.counts.opened += 1
        return Told(super().open(request).sequence)

    def close(self, state: Conversation) -> None:
        super().close(state)
        with self._counting:
            self.counts.closed += 1

    def process(self, state: Conversation, request: StageRequest, control: StageControl) -> Iterator[RequestOutput]:
        assert isinstance(state, Told)
        state.pieces += 1
        verb, _, rest = request.prompt.text.partition(" ")
        match verb:
            case "echo":
                yield from self._echo(state, request, control, rest)
            case "count":
                for number, _ in enumerate(self._say(state, request, control, int(rest))):
                    yield _out(request, f"{state.pieces}.{number}")
            case "flood":
                for _ in self._say(state, request, control, FLOOD_TOKENS):
                    yield _out(request, "drop")
            case "raise" | "cancelled":
                with closing(self._say(state, request, control, FLOOD_TOKENS)) as said:  # it fails in mid-answer
                    next(said)
                    yield from self.play(state, request, control)  # type: ignore[arg-type]
            case "options":
                said_all = list(self._say(state, request, control, request.params.max_tokens))
                yield _out(request, f"{self.greeting} {len(said_all)}", finished=True)
            case "mute":
                prompt = msgspec.structs.replace(request.prompt, text="")
                yield from super().process(state, msgspec.structs.replace(request, prompt=prompt), control)
            case _:
                yield from self.play(state, request, control)  # type: ignore[arg-type]

    def _say(
        self, state: Told, request: StageRequest, control: StageControl, tokens: int
    ) -> Generator[int, None, None]:
        params = msgspec.structs.replace(request.params, max_tokens=tokens, temperature=0.0)
        for output in super().process(state, msgspec.structs.replace(request, params=params), control):
            yield from output.token_ids

    def _echo(self, state: Told, request: StageRequest, control: StageControl, text: str) -> Iterator[RequestOutput]:
        sequence = state.sequence
        context = [*sequence.context, *sequence.carried, *self._tokens(state, request)]
        said = list(self._say(state, request, control, len(text)))
        if control.cancelled:
            return
        again = self._alone(context, len(text))
        if said != again or len(said) != len(text):
            raise StageFault(ErrorCode.INTERNAL_ERROR, f"The model said {said}, and alone it says {again}.")
        yield _out(request, text, finished=request.prompt.final, segment_finished=not request.prompt.final)

    def _alone(self, context: Sequence[int], tokens: int) -> list[int]:
        """What the model says to ``context`` in a sequence of its own; one at a time, so that this takes one slot."""
        with self._one_alone:
            sequence = self._engine.open()
            try:
                decoded = self._engine.decode(sequence, context, Sampling(max_tokens=tokens))
                return [token for step in decoded for token in step.token_ids]
            finally:
                self._engine.close(sequence)

    def call(self, method: str, args: tuple[Any, ...]) -> object:
        if method == "held":
            return [self.counts.opened - self.counts.closed, self._engine.open_sequences, self._engine.kv_usage()]
        if method == "forget":
            self.counts = Counts()
            return None
        return self.answer(method, args)


def _out(request: StageRequest, text: str, **fields: object) -> RequestOutput:
    return RequestOutput(request_id=request.request_id, text=text, **fields)  # type: ignore[arg-type]
