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
    if none was).
    """
    if prompts is None:
        return f"the server wrote no prompt log, so what the model was asked is unknown ({PROMPT_LOG_VARIABLE})"
    asking = [prompt for prompt in prompts if _last_user_text(prompt) == _plain(user_text)]
    if not asking:
        return f"no prompt asks {user_text!r}"
    spoken = [(message.role, _plain(message.text)) for message in asking[-1].messages if message.role != "system"]
    earlier = [index for index, entry in enumerate(spoken[:-1]) if entry == ("user", _plain(earlier_user_text))]
    if not earlier:
        return f"the prompt for {user_text!r} does not hold what the user said before: {earlier_user_text!r}"
    after = [text for role, text in spoken[earlier[-1] + 1 : earlier[-1] + 2] if role == "assistant"]
    kept = after[0] if after else ""
    if kept != _plain(earlier_assistant_text):
        return f"the prompt for {user_text!r} holds the answer {kept!r}, but heard was {earlier_assistant_text!r}"
    return None


def _last_user_text(prompt: Prompt) -> str:
    texts = [message.text for message in prompt.messages if message.role == "user"]
    return _plain(texts[-1]) if texts else ""


def _plain(text: str) -> str:
    """Spaces are joined: a log and a transcript may break lines differently, words may not differ."""
    return " ".join(text.split())
