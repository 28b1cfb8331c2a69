"""What every language model of this package takes and gives, whether it runs here or behind an endpoint."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from duologue.outputs import Image, ToolCall

OnText = Callable[[str], bool]
"""Takes the next piece of text (never empty, never half a character); True stops the generation."""


class Role(enum.StrEnum):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"  # only for models that call functions


class ChatMessage(msgspec.Struct, frozen=True):
    """One message of a conversation. ``calls`` and ``call_id`` as in :class:`duologue.outputs.ChatMessage`."""

    role: Role
    content: str
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    images: tuple[Image, ...] = ()


class FinishReason(enum.StrEnum):
    STOP = "stop"  # the model ended its answer, or a stop string came
    LENGTH = "length"  # `max_tokens` or the end of the context
    CANCELLED = "cancelled"  # `on_text` or `cancelled` said so


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """One finished generation.

    `text` is exactly what `on_text` was given, joined. Token counts are None where the engine does not report them
    (an endpoint without usage; the embedded engine after a cancel). `prompt_tokens` counts the whole prompt,
    `cached_tokens` the part of it that was not computed again.
    """

    text: str
    finish_reason: FinishReason
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    generated_tokens: int | None = None
    first_token_s: float | None = None  # from the call to the first text; None if there was none
    total_s: float = 0.0


class GenerationError(RuntimeError):
    """A language model refused or failed. The message holds no part of the conversation."""


def never() -> bool:
    """The `cancelled` of a caller that never cancels."""
    return False


class Generator(Protocol):
    """A language model with `slots` resident conversations, numbered from 0."""

    @property
    def slots(self) -> int: ...

    def generate(
        self,
        slot: int,
        messages: Sequence[ChatMessage],
        *,
        on_text: OnText,
        max_tokens: int = ...,
        temperature: float = ...,
        seed: int = ...,
        stop: Sequence[str] = ...,
        cancelled: Callable[[], bool] = ...,
    ) -> Completion:
        """Answer `messages`; blocks until done. One call per slot at a time; slots may run in parallel threads."""
        ...

    def prefill(self, slot: int, messages: Sequence[ChatMessage], *, cancelled: Callable[[], bool] = ...) -> int:
        """Make `messages` resident in `slot` ahead of an answer. Returns the tokens computed for it (0 if none)."""
        ...

    def close(self) -> None: ...
