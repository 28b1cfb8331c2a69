"""Per-request, per-stage statistics. Durations in seconds; the clock is the runtime port's."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class StageRequestStats:
    """What one request cost at one stage, so far.

    ``submitted_at`` is when the first piece was submitted, ``first_output_at`` when the first output came back;
    ``output_gaps_s`` the gaps between outputs. ``audio_s`` is the audio produced.
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
    output_gaps_s: list[float] = field(default_factory=list)

    @property
    def first_output_s(self) -> float | None:
        """Submission to first output, or ``None`` while there is none."""
        if self.submitted_at is None or self.first_output_at is None:
            return None
        return self.first_output_at - self.submitted_at

    def observe(self, now: float, *, tokens: int, audio_s: float, finished: bool) -> None:
        """Account one output that arrived at ``now``."""
        if self.first_output_at is None:
            self.first_output_at = now
        elif self.last_output_at is not None and len(self.output_gaps_s) < 512:
            # Bounded: a long call must not grow its own statistics.
            self.output_gaps_s.append(now - self.last_output_at)
        self.last_output_at = now
        self.outputs += 1
        self.output_tokens += tokens
        self.audio_s += audio_s
        if finished:
            self.finished_at = now
