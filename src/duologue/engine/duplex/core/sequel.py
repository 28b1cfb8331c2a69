"""What a resident model says while its last answer is still being sent: a burst of input is answered faster than it is said.

Rules kept here: it comes after that answer, whole and in order; whatever ends the epoch voids it, but a lost placement takes
only what was not made to its end; the end of a request does not, since what was said is said.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from duologue.engine.duplex.core.requests import StageRequestRecord
from duologue.engine.duplex.core.responses import Response
from duologue.engine.duplex.results import (
    ContextUsed,
    FunctionCall,
    Listened,
    ModelFailed,
    ModelResult,
    Speech,
    TurnEnded,
    UserTranscript,
)


@dataclass(slots=True)
class Sequel:
    """Results that wait, each with the request that gave it, and the milliseconds of audio among them.

    ``output_rate_hz``: the rate of audio that names none.
    """

    output_rate_hz: int
    results: deque[tuple[StageRequestRecord, ModelResult]] = field(default_factory=deque)
    audio_ms: float = 0.0

    def keeps(self, response: Response | None, record: StageRequestRecord, result: ModelResult) -> bool:
        """Keep ``result`` if it follows ``response``, or something that does; false if it is to be acted on now."""
        if not (_follows(response, record, result) or (self.results and self._concerns(result))):
            return False
        self.results.append((record, result))
        self.audio_ms += self.duration_ms(result)
        return True

    def ready(self, response: Response | None) -> bool:
        """Whether it is time for the first that waits, while ``response`` is in progress."""
        return bool(self.results) and not _follows(response, *self.results[0])

    def take(self) -> tuple[StageRequestRecord, ModelResult]:
        """The first that waits; raises ``IndexError`` if nothing does."""
        record, result = self.results.popleft()
        self.audio_ms = self.audio_ms - self.duration_ms(result) if self.results else 0.0
        return record, result

    @property
    def unfinished(self) -> bool:
        """Whether the last answer that waits is still being made."""
        last = next((said for _, said in reversed(self.results) if _speaks(said) or _ends(said)), None)
        return last is not None and _speaks(last)

    def end(self) -> None:
        """An answer that is still being made ends as it is."""
        if self.results and self.unfinished:
            self.results.append((self.results[-1][0], TurnEnded()))

    def keep_whole(self) -> bool:
        """Only answers that need nothing more of the model are said; true if there was another."""
        kept: list[tuple[StageRequestRecord, ModelResult]] = []
        answer: list[tuple[StageRequestRecord, ModelResult]] = []
        lost = False
        for record, said in self.results:
            answer.append((record, said))
            if not _ends(said):
                continue
            if any(isinstance(part, FunctionCall) for _, part in answer):
                lost = True  # whoever asked for it hears nothing of its result
            else:
                kept.extend(answer)
            answer = []
        lost |= any(_speaks(said) for _, said in answer)
        self.results = deque(kept)
        self.audio_ms = sum(self.duration_ms(said) for _, said in kept)
        return lost

    def clear(self) -> None:
        """Nothing of it is said."""
        self.results.clear()
        self.audio_ms = 0.0

    def duration_ms(self, result: ModelResult) -> float:
        """How long the audio of a result is."""
        return (
            len(result.audio) * 500.0 / (result.rate_hz or self.output_rate_hz) if isinstance(result, Speech) else 0.0
        )

    def _concerns(self, result: ModelResult) -> bool:
        """How full the context is, and what is being heard, concern the moment and no answer."""
        match result:
            case ContextUsed():
                return False
            case UserTranscript():
                return result.final
            case Listened():
                return self.unfinished
            case _:
                return True


def _follows(response: Response | None, record: StageRequestRecord, result: ModelResult) -> bool:
    """Whether ``result`` begins an answer of a resident model while the one before it is still being sent."""
    if response is None or record.purpose != "resident" or response.generating:
        return False
    return _speaks(result) and record.response_id != response.response_id


def _speaks(result: ModelResult) -> bool:
    return isinstance(result, Speech | FunctionCall)


def _ends(result: ModelResult) -> bool:
    return isinstance(result, TurnEnded | ModelFailed) or (isinstance(result, Listened) and result.end_response)
