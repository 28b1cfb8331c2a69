"""How much of a spoken text was heard: the one arithmetic for wire items and for the prompt.

Rules kept here: the result is monotone in the time played, never longer than the text, and the whole text at full playback;
how much is kept to tell it is bounded, however long an answer is.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass, field

MAX_MARKS = 2048
"""So many marks are kept of one answer. Beyond, every other one goes: between two marks the text counts as spread evenly."""


def _numbers() -> array[int]:
    return array("Q")  # an answer may outlive its item by hours: a list of integers would take eight times as much


@dataclass(slots=True)
class SpokenText:
    """Text and how its audio covers it: ``chars[i]`` characters are spoken at ``times_ms[i]``, both non-decreasing."""

    parts: list[str] = field(default_factory=list)
    length: int = 0
    audio_samples: int = 0
    rate_hz: int = 0
    chars: array[int] = field(default_factory=_numbers)
    times_ms: array[int] = field(default_factory=_numbers)

    @property
    def text(self) -> str:
        """All of it."""
        if len(self.parts) > 1:
            self.parts[:] = ["".join(self.parts)]
        return self.parts[0] if self.parts else ""

    @property
    def audio_ms(self) -> int:
        """Duration of all audio so far."""
        return self.audio_samples * 1000 // self.rate_hz if self.rate_hz else 0

    def extend(self, text: str, samples: int, rate_hz: int, marks: tuple[tuple[int, int], ...]) -> bool:
        """Append a piece; ``marks`` are (chars, end_ms) relative to it. A piece without marks is spread evenly.

        True if there were too many marks.
        """
        base_chars, base_ms = self.length, self.audio_ms
        if text:
            self.parts.append(text)
            self.length += len(text)
        if samples:
            self.rate_hz = rate_hz
            self.audio_samples += samples
        end_ms = self.audio_ms
        for chars, mark_ms in marks:
            self._mark(min(base_chars + max(0, chars), self.length), min(base_ms + max(0, mark_ms), end_ms))
        if samples:
            self._mark(self.length, end_ms)
        thinned = len(self.chars) > MAX_MARKS
        while len(self.chars) > MAX_MARKS:
            del self.chars[-2::-2], self.times_ms[-2::-2]
        return thinned

    def _mark(self, chars: int, time_ms: int) -> None:
        # Made monotone on entry: a mark that runs backwards counts as the one before it.
        all_chars, times_ms = self.chars, self.times_ms
        if all_chars:
            chars = max(chars, all_chars[-1])
            time_ms = max(time_ms, times_ms[-1])
        if len(all_chars) > 1:
            # A mark on the line between its neighbours tells nothing: text that is spread evenly needs two.
            rise, run = all_chars[-1] - all_chars[-2], times_ms[-1] - times_ms[-2]
            if rise * (time_ms - times_ms[-1]) == (chars - all_chars[-1]) * run:
                all_chars.pop()
                times_ms.pop()
        all_chars.append(chars)
        times_ms.append(time_ms)

    def heard_chars(self, played_ms: int) -> int:
        """Characters heard once ``played_ms`` of the audio were played."""
        total = self.audio_ms
        if total > 0 and played_ms >= total:
            return self.length
        if played_ms <= 0 or not self.times_ms:
            return 0
        index = bisect_left(self.times_ms, played_ms)
        if index == len(self.times_ms):
            return min(self.length, self.chars[-1])
        before_chars, before_ms = (self.chars[index - 1], self.times_ms[index - 1]) if index else (0, 0)
        span = self.times_ms[index] - before_ms
        if span <= 0:
            return self.chars[index]
        return before_chars + (self.chars[index] - before_chars) * (played_ms - before_ms) // span

    def heard(self, played_ms: int) -> str:
        """The text heard once ``played_ms`` were played, without trailing space."""
        count = self.heard_chars(played_ms)
        return self.text[:count].rstrip() if count < self.length else self.text
