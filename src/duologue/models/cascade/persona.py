"""How the embedded assistant talks: its system text and the examples in front of every conversation, as data.

Order: the fixed text and the examples first, then what the user instructs, then the conversation. The fixed part is
the same for every session, so a slot that has served anyone has it resident; instructions given last weigh most.
"""

from __future__ import annotations

from collections.abc import Sequence

from duologue.models.cascade.chat import ChatMessage, Role

SYSTEM_TEXT = (
    "You are a friendly voice assistant in a spoken conversation. "
    "Answer directly, in one or two short sentences of plain words. Never use lists, symbols or markup."
)

EXAMPLES: tuple[tuple[str, str], ...] = (
    ("What is the capital of Italy?", "The capital of Italy is Rome."),
    ("How many days are there in a week?", "There are seven days in a week."),
    ("Why do we have night and day?", "Because the Earth turns. The side that faces the Sun has day."),
    ("Can you help me to cook rice?", "Sure. Boil one cup of rice in two cups of water for fifteen minutes."),
)


def prefix(instructions: str = "") -> list[ChatMessage]:
    """What stands before the conversation: system text, examples, and `instructions` if there are any."""
    messages = [ChatMessage(Role.SYSTEM, SYSTEM_TEXT)]
    for question, answer in EXAMPLES:
        messages += [ChatMessage(Role.USER, question), ChatMessage(Role.ASSISTANT, answer)]
    if instructions.strip():
        messages.append(ChatMessage(Role.SYSTEM, instructions.strip()))
    return messages


def compose(instructions: str, history: Sequence[ChatMessage]) -> list[ChatMessage]:
    """The whole prompt: `prefix(instructions)` and the conversation so far."""
    return [*prefix(instructions), *history]
