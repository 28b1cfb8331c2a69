"""What the language model was really asked: the server's prompt log, and whether it holds what was heard.

The server writes the log only when asked to (`DUOLOGUE_PROMPT_LOG=FILE`), one JSON object a line:
`{"session_id": str, "request_id": str, "messages": [{"role": str, "text": str}, ...]}`. Unknown fields are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

PROMPT_LOG_VARIABLE = "DUOLOGUE_PROMPT_LOG"


class Message(msgspec.Struct, frozen=True):
    role: str
    text: str


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    session_id: str
    request_id: str
    messages: tuple[Message, ...]


def read_prompts(path: Path, session_id: str) -> tuple[Prompt, ...] | None:
    """The prompts of one session in the order they were made; ``None`` if the server wrote no log.

    Raises ValueError, naming the line, if a line is not what it should be.
    """
    if not path.is_file():
        return None
    decoder = msgspec.json.Decoder(Prompt)
    prompts = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            prompt = decoder.decode(line)
        except msgspec.DecodeError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
        if prompt.session_id == session_id:
            prompts.append(prompt)
    return tuple(prompts)


def check_prompt(
    prompts: Sequence[Prompt] | None, *, user_text: str, earlier_user_text: str, earlier_assistant_text: str
) -> str | None:
    """What is wrong with the last prompt that asks `user_text`, as a sentence; ``None`` if nothing is.

    It must hold the earlier user text and, directly after it, exactly the part of the answer that was heard (nothing
    if none was). Successive messages of one speaker count as one: a turn may have been committed in pieces.
    """
    if prompts is None:
        return f"the server wrote no prompt log, so what the model was asked is unknown ({PROMPT_LOG_VARIABLE})"
    asked = _plain(user_text)
    if not _plain(earlier_assistant_text):
        asked = _plain(f"{earlier_user_text} {user_text}")  # nothing stands between the two
    exchanges = [_exchange(prompt) for prompt in prompts]
    asking = [exchange for exchange in exchanges if exchange and exchange[-1] == Message("user", asked)]
    if not asking:
        return f"no prompt asks {asked!r}"
    if not _plain(earlier_assistant_text):
        return None
    exchange = asking[-1]
    earlier = [index for index, entry in enumerate(exchange) if entry == Message("user", _plain(earlier_user_text))]
    if not earlier:
        return f"the prompt for {user_text!r} does not hold what the user said before: {earlier_user_text!r}"
    after = [entry.text for entry in exchange[earlier[-1] + 1 : earlier[-1] + 2] if entry.role == "assistant"]
    kept = after[0] if after else ""
    if kept != _plain(earlier_assistant_text):
        return f"the prompt for {user_text!r} holds the answer {kept!r}, but heard was {earlier_assistant_text!r}"
    return None


def _exchange(prompt: Prompt) -> list[Message]:
    """The conversation in a prompt: no system text, successive messages of one speaker joined."""
    joined: list[Message] = []
    for message in prompt.messages:
        if message.role == "system":
            continue
        text = _plain(message.text)
        if joined and joined[-1].role == message.role:
            text = f"{joined.pop().text} {text}".strip()
        joined.append(Message(message.role, text))
    return joined


def _plain(text: str) -> str:
    """Spaces are joined: a log and a transcript may break lines differently, words may not differ."""
    return " ".join(text.split())
