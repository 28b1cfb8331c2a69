"""What the assistant said in answers that were spoken, so that a later request may refer to them by their ids.

Rules kept here: text only, a bounded number of answers, for a bounded time; the oldest go first.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from duologue.clock import Runtime

LIFETIME_S: Final = 3600
MAX_ANSWERS: Final = 256


class SpokenAnswers:
    """Transcripts by id. An id cannot be guessed, so whoever knows one was told the transcript too."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._texts: OrderedDict[str, tuple[str, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._texts)

    def new_id(self) -> tuple[str, int]:
        """An id, and until when it will be known (Unix seconds)."""
        return f"audio_{self._runtime.entropy(16).hex()}", int(self._runtime.wall()) + LIFETIME_S

    def keep(self, answer_id: str, expires_at: int, text: str) -> None:
        """Remember an answer."""
        self._texts[answer_id] = (text, expires_at)
        while len(self._texts) > MAX_ANSWERS:
            self._texts.popitem(last=False)

    def find(self, answer_id: str) -> str | None:
        """What was said, or ``None`` if that is not known (any more)."""
        found = self._texts.get(answer_id)
        if found is None or found[1] <= self._runtime.wall():
            self._texts.pop(answer_id, None)
            return None
        return found[0]
