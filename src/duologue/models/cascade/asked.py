"""What the cascade asks its language model, and how the answer is cut, wherever the model runs.

Rules kept here: the same conversation gives the same prompt on every backend; an answer is cut into sentences for the voice,
the first as early as sensible.
"""

from __future__ import annotations

from collections.abc import Sequence

from duologue.engine.stages.contract import PREWARM
from duologue.models.cascade import persona
from duologue.models.cascade.chat import ChatMessage, Role
from duologue.models.cascade.context import fit_history
from duologue.models.cascade.edges import DRAFT, PREFILL
from duologue.models.cascade.sentences import SentenceSplitter
from duologue.outputs import SamplingParams, StagePrompt

_FIRST_CLAUSE_CHARS = 12
_OPENING_CHARS = (20, 80)  # about one second of speech, in which the next four are made, in which the rest is
_PERSONA_TOKENS = 320  # what stands before the conversation, at most
_LEAST_TOKENS = 64
_QUESTION_TOKENS = 64  # few questions that are spoken have more


def nothing_asked(prompt: StagePrompt) -> bool:
    """Whether this is the end of an input that came to nothing: what was read ahead is not answered."""
    return not prompt.messages and not prompt.options


def read_ahead(prompt: StagePrompt) -> bool:
    """Whether this piece only says what is likely to be asked."""
    return prompt.options.get(PREFILL) is True or prompt.options.get(PREWARM) is True


def draft_wanted(prompt: StagePrompt) -> bool:
    """Whether what is read ahead may be all that will be asked."""
    return read_ahead(prompt) and prompt.options.get(DRAFT) is True


def wants_deltas(prompt: StagePrompt) -> bool:
    """Whether the answer is only read, so that it need not be cut into sentences."""
    return prompt.options.get("deltas") is True


def history_of(prompt: StagePrompt) -> list[ChatMessage]:
    """The conversation for a model that knows nothing of functions: what they gave is told it in words."""
    said = [message for message in prompt.messages if message.text]
    return [
        ChatMessage(Role.SYSTEM, f"A function gave: {message.text}")
        if message.role == "tool"
        else ChatMessage(Role(message.role), message.text)
        for message in said
    ]


def history_with_calls(prompt: StagePrompt) -> list[ChatMessage]:
    """The conversation for a model that calls functions."""
    return [ChatMessage(Role(said.role), said.text, said.calls, said.call_id, said.images) for said in prompt.messages]


def compose_prompt(
    prompt: StagePrompt, history: Sequence[ChatMessage], params: SamplingParams, context_tokens: int
) -> list[ChatMessage]:
    """The whole prompt: who the assistant is, and as much of the conversation as fits beside the answer."""
    return persona.compose(_instructions(prompt), _fitting(history, params, context_tokens))


def next_beginning(
    prompt: StagePrompt, history: Sequence[ChatMessage], answer: str, params: SamplingParams, context_tokens: int
) -> list[ChatMessage] | None:
    """What the next prompt will begin with, if that is not what this one began with; else ``None``.

    Holds for every next question of ordinary length: old turns are left out before there is no room for it.
    """
    kept = len(_fitting(history, params, context_tokens))
    following = [*history, ChatMessage(Role.ASSISTANT, answer.strip()), ChatMessage(Role.USER, "")]
    beginning = _fitting(following, params, context_tokens)[:-1]
    if len(beginning) == kept + 1:
        return None
    return persona.compose(_instructions(prompt), beginning)


def _instructions(prompt: StagePrompt) -> str:
    return str(prompt.options.get("instructions") or "")


def _fitting(history: Sequence[ChatMessage], params: SamplingParams, context_tokens: int) -> list[ChatMessage]:
    budget = max(_LEAST_TOKENS, context_tokens - params.max_tokens - _PERSONA_TOKENS)
    return fit_history(history, budget, reserve_tokens=min(_QUESTION_TOKENS, budget // 8))


def sentence_splitter() -> SentenceSplitter:
    """What cuts an answer for the voice."""
    return SentenceSplitter(first_clause_chars=_FIRST_CLAUSE_CHARS, opening_chars=_OPENING_CHARS)
