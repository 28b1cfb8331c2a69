"""Which turns of a long conversation still fit in front of a language model.

Rules kept here:

* the oldest turns go first, whole: what is left begins with the user;
* turns are left out in large steps, not one per turn, so that the prompt stays a continuation of the last one for many
  turns (a prompt that changes near its beginning has to be moved or computed again);
* the same conversation always gives the same answer: nothing is remembered between calls;
* the last message is always there, cut at its beginning if it alone is too long.

Pure. Sizes are estimates in tokens, on the high side.
"""

from __future__ import annotations

from collections.abc import Sequence

from duologue.models.cascade.chat import ChatMessage, Role

_MESSAGE_TOKENS = 6  # who speaks, and the end of it
_ASCII_PER_TOKEN = 3  # English has about four and a half
_TOKENS_PER_OTHER = 2
_IMAGE_TOKENS = 1_000  # what endpoints count for a picture, roughly


def estimated_tokens(text: str) -> int:
    """Tokens of `text` as one message: more than there are, for any script and any vocabulary in use."""
    ascii_chars = sum(char.isascii() for char in text)
    return _MESSAGE_TOKENS + -(-ascii_chars // _ASCII_PER_TOKEN) + _TOKENS_PER_OTHER * (len(text) - ascii_chars)


def fit_history(history: Sequence[ChatMessage], budget_tokens: int, *, reserve_tokens: int = 0) -> list[ChatMessage]:
    """The end of `history` that fits into `budget_tokens` by estimate.

    Leaves out nothing as long as all fits; else at least as much as does not fit, rounded up to half the budget. The last
    message counts as `reserve_tokens` if it is shorter: so what is left out is known before the question is.
    Raises ValueError for a budget below 16.
    """
    if budget_tokens < 16:
        raise ValueError(f"a budget of {budget_tokens} tokens holds no conversation: at least 16")
    sizes = [_size(message) for message in history]
    excess = sum(sizes) + max(0, reserve_tokens - sizes[-1] if sizes else 0) - budget_tokens
    if excess <= 0:
        return list(history)
    step = budget_tokens // 2
    target = -(-excess // step) * step
    first = left_out = 0
    while first < len(history) - 1 and (left_out < target or history[first].role is not Role.USER):
        left_out += sizes[first]
        first += 1
    kept = list(history[first:])
    if len(kept) == 1:
        kept = [_cut(kept[0], budget_tokens)]
    return kept


def _size(message: ChatMessage) -> int:
    asked = "".join(call.name + call.arguments for call in message.calls)
    return estimated_tokens(message.content + asked) + _IMAGE_TOKENS * len(message.images)


def _cut(message: ChatMessage, budget_tokens: int) -> ChatMessage:
    """The end of a message that fits, from the start of a word."""
    content = message.content
    while content and estimated_tokens(content) > budget_tokens:
        over = estimated_tokens(content) - budget_tokens
        content = content[max(1, over // _TOKENS_PER_OTHER) :]
        _, space, rest = content.partition(" ")
        if space and rest:
            content = rest
    # The result of a function whose call did not fit is told as words: alone, no endpoint takes it.
    return ChatMessage(Role.USER if message.role is Role.TOOL else message.role, content, images=message.images)
