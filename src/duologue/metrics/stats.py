"""Per-request, per-stage statistics. Durations in seconds; the clock is the runtime port's."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

MOST_GAPS: Final = 512
"""How many gaps are kept: a long call must not grow its own statistics."""


@dataclass(slots=True)
class StageRequestStats:
    """What one request cost at one stage, so far.

    ``submitted_at`` is when the first piece was submitted, ``queue_s`` how long the stage let it wait,
    ``first_output_at`` when the first output came back; ``output_gaps_s`` the gaps between outputs. ``audio_s`` is the
    audio produced, ``input_audio_s`` the audio submitted.
    """

    stage_id: int
    request_id: str
    replica_id: int | None = None
    submitted_at: float | None = None
    first_output_at: float | None = None
    last_output_at: float | None = None
    finished_at: float | None = None
    outputs: int = 0
    output_tokens: int = 0
    audio_s: float = 0.0
    input_audio_s: float = 0.0
    queue_s: float = 0.0
    output_gaps_s: list[float] = field(default_factory=list)

    @property
    def first_output_s(self) -> float | None:
        """Submission to first output, or ``None`` while there is none."""
        if self.submitted_at is None or self.first_output_at is None:
            return None
        return self.first_output_at - self.submitted_at

    @property
    def real_time_factor(self) -> float | None:
        """Time from submission to the latest output, queueing apart, per second of audio; below 1 is faster than speech.

        The audio is what the stage produced, else what it was given; ``None`` without either. For a stage that is fed
        while somebody speaks, the time is mostly theirs.
        """
        audio_s = self.audio_s or self.input_audio_s
        if not audio_s or self.submitted_at is None or self.last_output_at is None:
            return None
        return max(0.0, self.last_output_at - self.submitted_at - self.queue_s) / audio_s

    def observe(self, now: float, *, tokens: int, audio_s: float, finished: bool, queue_s: float = 0.0) -> None:
        """Account one output that arrived at ``now``."""
        if self.first_output_at is None:
            self.first_output_at = now
            self.queue_s = queue_s
        elif self.last_output_at is not None and len(self.output_gaps_s) < MOST_GAPS:
            self.output_gaps_s.append(now - self.last_output_at)
        self.last_output_at = now
        self.outputs += 1
        self.output_tokens += tokens
        self.audio_s += audio_s
        if finished:
            self.finished_at = now

    def copy(self) -> StageRequestStats:
        """As it stands."""
        return replace(self, output_gaps_s=list(self.output_gaps_s))

    def since(self, before: StageRequestStats | None) -> StageRequestStats:
        """What was added since ``before``, an earlier copy of this; the time to a first output is of the first alone."""
        if before is None:
            return self.copy()
        return replace(
            self,
            submitted_at=None,
            first_output_at=None,
            queue_s=0.0,
            outputs=self.outputs - before.outputs,
            output_tokens=self.output_tokens - before.output_tokens,
            audio_s=self.audio_s - before.audio_s,
            input_audio_s=self.input_audio_s - before.input_audio_s,
            output_gaps_s=self.output_gaps_s[len(before.output_gaps_s) :],
        )

    def values(self) -> dict[str, float | None]:
        """The figures for a client: counts, and seconds; ``None`` for what there was none of."""
        return {
            "outputs": self.outputs,
            "output_tokens": self.output_tokens,
            "audio_s": self.audio_s,
            "input_audio_s": self.input_audio_s,
            "queue_s": self.queue_s,
            "first_output_s": self.first_output_s,
            "longest_gap_s": max(self.output_gaps_s, default=None),
            "real_time_factor": self.real_time_factor,
        }


_TITLES = ("stage", "replica", "queue ms", "first ms", "gap ms", "longest", "outputs", "tokens", "audio s", "rtf")


def stats_table(rows: Sequence[tuple[str, StageRequestStats]]) -> str:
    """One line per stage (name, statistics) below a line of titles; columns are aligned.

    Times are in milliseconds; ``gap`` is the median between outputs; ``rtf`` is :attr:`real_time_factor`.
    """
    table = [_TITLES, *(_cells(name, stats) for name, stats in rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(_TITLES))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in table
    )


def _cells(name: str, stats: StageRequestStats) -> tuple[str, ...]:
    gaps = stats.output_gaps_s
    return (
        name,
        _number(stats.replica_id, 0),
        _number(stats.queue_s * 1e3, 1),
        _number(None if stats.first_output_s is None else stats.first_output_s * 1e3, 1),
        _number(statistics.median(gaps) * 1e3 if gaps else None, 1),
        _number(max(gaps) * 1e3 if gaps else None, 1),
        str(stats.outputs),
        str(stats.output_tokens),
        _number(stats.audio_s or stats.input_audio_s or None, 2),
        _number(stats.real_time_factor, 2),
    )


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
