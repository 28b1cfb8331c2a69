"""What happened in the conversation, turn by turn, as the client saw it.

Rules kept here: facts only, with the time of each in seconds on the conversation's clock; nothing is judged (that is
`verdict`), nothing waits, no clock is read. A fact belongs to the turn whose utterance was the last to begin.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from duologue.wire.server_events import AnswerDelays


@dataclass(slots=True)
class Answer:
    """One response and its audio as it arrived."""

    response_id: str
    turn: int
    created_s: float
    item_id: str = ""
    first_audio_s: float | None = None
    last_audio_s: float | None = None
    audio_ms: float = 0.0
    text: str = ""  # as the deltas told it
    status: str | None = None  # None: no terminal yet
    error: str = ""
    done_s: float | None = None
    terminals: int = 0
    generated_ms: float | None = None  # all that the server made, said or not, if it tells
    generated_text: str | None = None
    delays: AnswerDelays | None = None
    kept_text: str | None = None  # the item's transcript at the terminal
    cleared_s: float | None = None
    audio_after_done_ms: float = 0.0


@dataclass(slots=True)
class Turn:
    """One utterance of the user and what came of it."""

    number: int
    text: str
    onset_s: float
    end_s: float
    item_ids: list[str] = field(default_factory=list)
    heard: dict[str, str] = field(default_factory=dict)  # item id -> transcript
    response_ids: list[str] = field(default_factory=list)

    @property
    def heard_text(self) -> str:
        """What was recognised, in the order of the items."""
        known = [*self.item_ids, *(item_id for item_id in self.heard if item_id not in self.item_ids)]
        return " ".join(self.heard[item_id].strip() for item_id in known if self.heard.get(item_id, "").strip())


@dataclass(slots=True)
class Interruption:
    """How the answer to `turn` was stopped."""

    turn: int
    response_id: str
    onset_s: float  # first sample of the interrupting speech
    decision_s: float
    played_ms: float
    last_audio_s: float | None


@dataclass(slots=True)
class Ledger:
    """The whole conversation. Calls must come in the order of their times."""

    turns: list[Turn] = field(default_factory=list)
    answers: dict[str, Answer] = field(default_factory=dict)
    interruptions: list[Interruption] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    ended: str | None = None
    ended_code: str | None = None

    @property
    def turn(self) -> Turn:
        """The turn that facts now belong to. Raises IndexError before the first."""
        return self.turns[-1]

    def begin_turn(self, text: str, onset_s: float, end_s: float) -> Turn:
        turn = Turn(number=len(self.turns) + 1, text=text, onset_s=onset_s, end_s=end_s)
        self.turns.append(turn)
        return turn

    def committed(self, item_id: str) -> None:
        if self.turns and not any(item_id in turn.item_ids for turn in self.turns):
            self.turn.item_ids.append(item_id)

    def transcribed(self, item_id: str, text: str) -> None:
        for turn in self.turns:
            if item_id in turn.item_ids:
                turn.heard[item_id] = text
                return
        if self.turns:
            self.turn.heard[item_id] = text

    def response_created(self, response_id: str, now_s: float) -> None:
        number = len(self.turns)
        self.answers[response_id] = Answer(response_id=response_id, turn=number, created_s=now_s)
        if self.turns:
            self.turn.response_ids.append(response_id)

    def audio(self, response_id: str, item_id: str, duration_ms: float, now_s: float) -> None:
        answer = self._answer(response_id, now_s)
        answer.item_id = item_id
        if answer.first_audio_s is None:
            answer.first_audio_s = now_s
        answer.last_audio_s = now_s
        answer.audio_ms += duration_ms
        if answer.done_s is not None:
            answer.audio_after_done_ms += duration_ms

    def text(self, response_id: str, delta: str, now_s: float) -> None:
        self._answer(response_id, now_s).text += delta

    def response_done(self, response_id: str, status: str, now_s: float, *, kept_text: str | None, error: str) -> None:
        answer = self._answer(response_id, now_s)
        answer.terminals += 1
        answer.status, answer.done_s, answer.kept_text, answer.error = status, now_s, kept_text, error

    def interrupted(self, response_id: str, now_s: float, *, played_ms: float) -> None:
        """The client learned that this answer was stopped by the user's speech; only the first time counts."""
        answer = self._answer(response_id, now_s)
        if any(each.response_id == response_id for each in self.interruptions):
            return
        self.interruptions.append(
            Interruption(
                turn=answer.turn,
                response_id=response_id,
                onset_s=self.turn.onset_s,
                decision_s=now_s,
                played_ms=played_ms,
                last_audio_s=answer.last_audio_s,
            )
        )

    def end(self, text: str, code: str | None) -> None:
        """The session is over; the first word on it counts, a code may be added."""
        self.ended = self.ended or text
        self.ended_code = self.ended_code or code

    def answer_to(self, number: int) -> Answer | None:
        """The answer to turn `number`: the last response with audio, else the last response, else none."""
        answers = [self.answers[each] for each in self.turns[number - 1].response_ids]
        spoken = [answer for answer in answers if answer.first_audio_s is not None]
        chosen = spoken or answers
        return chosen[-1] if chosen else None

    def interruption_of(self, response_id: str) -> Interruption | None:
        return next((each for each in self.interruptions if each.response_id == response_id), None)

    def _answer(self, response_id: str, now_s: float) -> Answer:
        if response_id not in self.answers:
            self.response_created(response_id, now_s)
        return self.answers[response_id]
