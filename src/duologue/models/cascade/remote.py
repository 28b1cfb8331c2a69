"""The cascade's language model behind an OpenAI-compatible endpoint, on the engine's own loop.

Rule kept here: prompts and sentences are those of every other way to run it; only where the words come from differs.
"""

from __future__ import annotations

from collections.abc import Sequence

from duologue.engine.stages.http import ChatStage, Conversation, Cutter
from duologue.models.cascade.asked import (
    compose_prompt,
    history_with_calls,
    nothing_asked,
    read_ahead,
    sentence_splitter,
    wants_deltas,
)
from duologue.models.cascade.sentences import SentenceSplitter
from duologue.outputs import ChatMessage, StageRequest


class RemoteRespondStage(ChatStage):
    """Messages in, sentences out as soon as each is complete (or every delta, if the prompt asks for deltas)."""

    one_answer = True

    def __init__(
        self,
        *,
        base_url: str,
        model: str = "default",
        api_key_variable: str = "OPENAI_API_KEY",
        context_tokens: int = 8192,
        connections: int = 64,
        ask_usage: bool = True,
    ) -> None:
        """``context_tokens``: how much of a conversation is sent, by estimate. The rest as in :class:`ChatStage`."""
        super().__init__(
            base_url=base_url,
            model=model,
            api_key_variable=api_key_variable,
            connections=connections,
            ask_usage=ask_usage,
        )
        self._context_tokens = context_tokens

    def conversation(self, state: Conversation, request: StageRequest) -> Sequence[ChatMessage] | None:
        prompt = request.prompt
        if nothing_asked(prompt) or read_ahead(prompt):
            return None
        messages = compose_prompt(prompt, history_with_calls(prompt), request.params, self._context_tokens)
        return [
            ChatMessage(message.role.value, message.content, message.calls, message.call_id, message.images)
            for message in messages
        ]

    def cutter(self, request: StageRequest) -> Cutter | None:
        return None if wants_deltas(request.prompt) else _Sentences(sentence_splitter())


class _Sentences:
    """The splitter, as the stage asks for it."""

    def __init__(self, splitter: SentenceSplitter) -> None:
        self._splitter = splitter

    def push(self, delta: str) -> list[str]:
        return [piece.text for piece in self._splitter.push(delta)]

    def finish(self) -> str:
        return "".join(piece.text for piece in self._splitter.finish())
