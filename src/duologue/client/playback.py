"""What a person has heard: the arithmetic of a player that plays in real time whatever has arrived.

Rules kept here: no clock is read (the caller injects one), nothing waits and nothing is played; audio starts when it
arrives or when the audio before it ends, whichever is later; a stopped response stays stopped, so audio of it that
arrives late is refused; memory is bounded by the number of responses and of gaps between them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

_KEPT_RESPONSES = 64


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """How much of one response was played, in milliseconds from its beginning."""

    response_id: str
    item_id: str
    played_ms: int
    received_ms: int

    @property
    def complete(self) -> bool:
        """All that has arrived so far was played."""
        return self.played_ms >= self.received_ms


@dataclass(slots=True)
class _Span:
    start_s: float
    samples: int


@dataclass(slots=True)
class _Ledger:
    item_id: str
    spans: list[_Span] = field(default_factory=list)
    samples: int = 0
    finished: bool = False
    stopped: bool = False
    stopped_played: int = 0
    reported_ms: int = 0


class PlaybackTracker:
    """Follows a real-time player over the answers of one session.

    `now` returns seconds on a clock that never goes back; `rate_hz` is the rate of the audio handed to `add`.
    """

    def __init__(self, *, now: Callable[[], float], rate_hz: int = 24_000) -> None:
        self._now = now
        self._rate_hz = rate_hz
        self._ledgers: dict[str, _Ledger] = {}
        self._end_s = float("-inf")
        self.underruns = 0

    def add(self, response_id: str, item_id: str, samples: int) -> float | None:
        """`samples` of a response arrived now; returns when their playback starts, in seconds of the clock.

        ``None``: the response was stopped, so a player must not play them.
        """
        ledger = self._ledgers.get(response_id)
        if ledger is None:
            ledger = self._ledgers[response_id] = _Ledger(item_id=item_id)
            self._forget()
        if ledger.stopped:
            return None
        now_s = self._now()
        start_s = max(now_s, self._end_s)
        if ledger.spans and start_s <= self._span_end_s(ledger.spans[-1]):
            ledger.spans[-1].samples += samples
        else:
            self.underruns += bool(ledger.spans)
            ledger.spans.append(_Span(start_s, samples))
        ledger.samples += samples
        self._end_s = self._span_end_s(ledger.spans[-1])
        return start_s

    @property
    def playing(self) -> str | None:
        """The response that is heard right now."""
        now_s = self._now()
        for response_id, ledger in reversed(self._ledgers.items()):
            if not ledger.stopped and any(span.start_s <= now_s < self._span_end_s(span) for span in ledger.spans):
                return response_id
        return None

    @property
    def remaining_s(self) -> float:
        """Seconds until all that has arrived is played; 0 when the player is silent."""
        return max(0.0, self._end_s - self._now())

    def heard(self, response_id: str) -> Heard | None:
        """What was played of this response so far; ``None`` if no audio of it is known."""
        ledger = self._ledgers.get(response_id)
        if ledger is None:
            return None
        return Heard(
            response_id=response_id,
            item_id=ledger.item_id,
            played_ms=self._ms(self._played(ledger)),
            received_ms=self._ms(ledger.samples),
        )

    def finish(self, response_id: str) -> None:
        """All audio of this response has arrived."""
        if response_id in self._ledgers:
            self._ledgers[response_id].finished = True

    def stop(self) -> Heard | None:
        """Stop the player: what has not been played never will be. Returns the response that was cut short, if any.

        A response that is not finished is cut short even if all that arrived so far was played.
        """
        now_s = self._now()
        cut: Heard | None = None
        for response_id, ledger in self._ledgers.items():
            played_out = not ledger.spans or self._span_end_s(ledger.spans[-1]) <= now_s
            if ledger.stopped or (ledger.finished and played_out):
                continue
            self._stop(ledger)
            cut = self.heard(response_id)
        self._end_s = now_s
        return cut

    def stop_response(self, response_id: str, item_id: str = "") -> Heard | None:
        """Play no more of this response, even if its audio has not begun to arrive; others play on."""
        ledger = self._ledgers.setdefault(response_id, _Ledger(item_id=item_id))
        if not ledger.stopped:
            self._stop(ledger)
            ends_s = [self._span_end_s(each.spans[-1]) for each in self._ledgers.values() if each.spans]
            live = [end_s for end_s in ends_s if end_s > self._now()]
            self._end_s = max(live, default=self._now())
        return self.heard(response_id)

    def acknowledgements(self) -> list[Heard]:
        """Responses of which more was played than the last call reported: what to send as `playback.ack`."""
        news = []
        for response_id, ledger in self._ledgers.items():
            heard = self.heard(response_id)
            if heard is not None and heard.played_ms > ledger.reported_ms:
                ledger.reported_ms = heard.played_ms
                news.append(heard)
        return news

    def _stop(self, ledger: _Ledger) -> None:
        now_s = self._now()
        ledger.stopped_played = self._played(ledger)
        ledger.stopped = True
        kept = [span for span in ledger.spans if span.start_s < now_s]
        if kept:
            kept[-1].samples = min(kept[-1].samples, int((now_s - kept[-1].start_s) * self._rate_hz + 0.5))
        ledger.spans = kept

    def _played(self, ledger: _Ledger) -> int:
        if ledger.stopped:
            return ledger.stopped_played
        now_s = self._now()
        # Half a sample is added before rounding down, so that a clock's last bit costs no sample.
        return sum(
            min(span.samples, int((now_s - span.start_s) * self._rate_hz + 0.5))
            for span in ledger.spans
            if span.start_s < now_s
        )

    def _span_end_s(self, span: _Span) -> float:
        return span.start_s + span.samples / self._rate_hz

    def _ms(self, samples: int) -> int:
        return samples * 1000 // self._rate_hz

    def _forget(self) -> None:
        while len(self._ledgers) > _KEPT_RESPONSES:
            del self._ledgers[next(iter(self._ledgers))]
