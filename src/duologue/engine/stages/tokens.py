"""Text and tokens of a model folder: its tokenizer, its stop tokens, text as it is generated.

Rules kept here: text is given out in whole characters; a stop string is never given out, not even its beginning.
The tokenizers package comes with vLLM; it is imported when a vocabulary is read.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from duologue.errors import ClientFault, ErrorCode, StageFault

TOKENIZER_FILE = "tokenizer.json"


class Vocabulary:
    """The tokenizer of a model folder."""

    def __init__(self, folder: Path) -> None:
        """Raises :class:`StageFault` when the folder has none that can be read."""
        try:
            library = importlib.import_module("tokenizers")
            self._tokenizer: Any = library.Tokenizer.from_file(str(folder / TOKENIZER_FILE))
            self._stream: Any = importlib.import_module("tokenizers.decoders").DecodeStream
        except Exception as error:
            raise StageFault(
                ErrorCode.REPLICA_UNAVAILABLE, f"The tokenizer {folder / TOKENIZER_FILE} can't be used: {error}"
            ) from error
        self.stop_token_ids = _stop_tokens(folder)

    def encode(self, text: str, *, first: bool = False) -> list[int]:
        """Tokens of ``text``; ``first`` adds what the model wants at the beginning of everything."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=first).ids
        return ids

    def token_id(self, token: str) -> int | None:
        """The id of a token by its text, if it is one."""
        found: int | None = self._tokenizer.token_to_id(token)
        return found

    def stream(self, stop: Sequence[str] = ()) -> TextStream:
        """Where the tokens of one answer become text."""
        return TextStream(self._tokenizer, self._stream(skip_special_tokens=True), stop)


class TextStream:
    """One answer. ``hit`` once a stop string came; nothing is given out from then on."""

    def __init__(self, tokenizer: Any, decoder: Any, stop: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._decoder = decoder
        self._stop = [text for text in stop if text]
        self._held = ""
        self.hit = False

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens complete."""
        for token_id in token_ids:
            self._held += self._decoder.step(self._tokenizer, token_id) or ""
        return self._release(all_of_it=False)

    def finish(self) -> str:
        """What was held back because it might have become a stop string."""
        return self._release(all_of_it=True)

    def _release(self, *, all_of_it: bool) -> str:
        if self.hit:
            return ""
        found = [position for position in (self._held.find(text) for text in self._stop) if position >= 0]
        if found:
            self.hit = True
            return self._held[: min(found)]
        keep = 0 if all_of_it else max((_overlap(self._held, text) for text in self._stop), default=0)
        given, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return given


def _overlap(text: str, stop: str) -> int:
    """How long the end of ``text`` is that ``stop`` begins with."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0


def _stop_tokens(folder: Path) -> tuple[int, ...]:
    """The end tokens that the model's own configuration names."""
    ids: list[int] = []
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        named = json.loads(path.read_text()).get("eos_token_id") if path.is_file() else None
        ids += named if isinstance(named, list) else [named] if isinstance(named, int) else []
    return tuple(dict.fromkeys(ids))


def need_text(vocabulary: Vocabulary | None, what: str) -> Vocabulary:
    """``vocabulary``, or a :class:`ClientFault` that says that ``what`` can't be done without one."""
    if vocabulary is None:
        raise ClientFault(
            ErrorCode.REQUEST_INVALID, f"The model's folder has no {TOKENIZER_FILE}, so {what}; send token_ids."
        )
    return vocabulary
