"""What the demo reports, and what makes it fail.

Rules kept here: pure functions from the ledger and the server's prompts to a report; each condition of failure has a
code, a turn and a sentence for people; figures that miss their aim are told but fail nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from duologue.demo.ledger import Answer, Interruption, Ledger, Turn
from duologue.demo.prompts import Prompt, check_prompt
from duologue.demo.wording import word_error_rate

LEAST_UNPLAYED_MS = 3000.0
WENT_ON_MS = 250.0  # audio this long after the decision is no longer what was already on its way

FailureCode = Literal[
    "not_answered",
    "not_understood",
    "not_interrupted",
    "too_little_unplayed",
    "answer_went_on",
    "audio_after_terminal",
    "terminal_missing",
    "prompt_mismatch",
    "session_fault",
    "worker_kill",
]


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    code: FailureCode
    message: str
    turn: int | None = None


class Measure(msgspec.Struct, frozen=True, kw_only=True):
    """A figure with its aim. ``value`` ``None``: it could not be measured."""

    name: str
    value: float | None
    limit: float
    unit: str

    @property
    def met(self) -> bool:
        return self.value is not None and self.value <= self.limit


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """How the time from the last sample of speech to the first audio passed, in milliseconds after that sample.

    ``quiet_ms``: the last audio in which the detector heard speech arrived; ``judged_ms``: the verdict on the pause was
    there, ``ended_ms``: it counted, and the turn was over; ``understood_ms``: the words were there; ``answered_ms``: the
    voice had made the first of the answer; ``first_audio_ms``: it was here. All but the last is the server's word.
    """

    quiet_ms: float
    judged_ms: float | None
    ended_ms: float
    understood_ms: float | None
    answered_ms: float | None
    first_audio_ms: float


class TurnReport(msgspec.Struct, frozen=True, kw_only=True):
    """One turn. Times in milliseconds; end of speech and onset are the last and first sample of the source audio."""

    turn: int
    user_text_expected: str
    user_text_heard: str
    wer: float
    assistant_text: str
    assistant_text_heard: str
    end_of_speech_to_first_audio_ms: float | None
    interrupted: bool
    timeline: Timeline | None = None
    stop_latency_onset_ms: float | None = None
    stop_latency_decision_ms: float | None = None
    status: str | None = None
    response_id: str | None = None
    answer_received_ms: float = 0.0
    answer_generated_ms: float | None = None
    answer_played_ms: float = 0.0


class KillReport(msgspec.Struct, frozen=True, kw_only=True):
    """What happened when a stage worker was killed during a turn."""

    killed_pid: int
    killed_process: str
    error_code: str | None
    error_message: str | None
    terminal: str | None  # how the session ended; None: it lived on
    response_status: str | None  # how the answer that lost its worker ended
    same_session_answered: bool | None  # asked again after the worker came back; None: there was no session
    responses_without_terminal: tuple[str, ...]
    worker_back_s: float | None
    new_session_answered: bool
    processes_before: int
    processes_after: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    ok: bool
    failures: tuple[Failure, ...]
    turns: tuple[TurnReport, ...]
    measures: tuple[Measure, ...]
    models: dict[str, str]
    cpu_seconds: float
    rss_mb: float
    conversation_s: float
    underruns: int = 0
    kill: KillReport | None = None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Which turns the script gave which part; numbers from 1."""

    turns: int = 4
    interrupted: int | None = 3
    follow_up: int | None = 4
    human: int | None = 1


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """All that the verdict rests on. ``played_ms`` and ``heard`` are by response id."""

    ledger: Ledger
    played_ms: dict[str, float]
    heard: dict[str, str]
    prompts: tuple[Prompt, ...] | None  # None: the server wrote no prompt log


def turn_reports(evidence: Evidence) -> tuple[TurnReport, ...]:
    """One report per turn of the ledger."""
    return tuple(_turn_report(evidence, number) for number in range(1, len(evidence.ledger.turns) + 1))


def _turn_report(evidence: Evidence, number: int) -> TurnReport:
    ledger = evidence.ledger
    turn = ledger.turns[number - 1]
    answer = ledger.answer_to(number)
    said = TurnReport(
        turn=number,
        user_text_expected=turn.text,
        user_text_heard=turn.heard_text,
        wer=round(word_error_rate(turn.text, turn.heard_text), 4),
        assistant_text="",
        assistant_text_heard="",
        end_of_speech_to_first_audio_ms=None,
        interrupted=False,
    )
    if answer is None:
        return said
    cut = ledger.interruption_of(answer.response_id)
    full_text = answer.generated_text or answer.text or answer.kept_text or ""
    return msgspec.structs.replace(
        said,
        assistant_text=full_text.strip(),
        assistant_text_heard=evidence.heard.get(answer.response_id, "").strip(),
        end_of_speech_to_first_audio_ms=_since(turn.end_s, answer.first_audio_s),
        interrupted=cut is not None,
        timeline=_timeline(turn, answer),
        stop_latency_onset_ms=_stop_ms(cut, answer, of_onset=True),
        stop_latency_decision_ms=_stop_ms(cut, answer, of_onset=False),
        status=answer.status,
        response_id=answer.response_id,
        answer_received_ms=round(answer.audio_ms, 1),
        answer_generated_ms=answer.generated_ms,
        answer_played_ms=round(evidence.played_ms.get(answer.response_id, 0.0), 1),
    )


def _timeline(turn: Turn, answer: Answer) -> Timeline | None:
    """The server's parts, on the client's clock: sent there is here, but for the way between."""
    first_ms = _since(turn.end_s, answer.first_audio_s)
    delays = answer.delays
    if delays is None or first_ms is None:
        return None
    quiet_ms = round(first_ms - delays.sent_ms, 1)

    def at(delay_ms: int | None) -> float | None:
        return None if delay_ms is None else round(quiet_ms + delay_ms, 1)

    return Timeline(
        quiet_ms=quiet_ms,
        judged_ms=at(delays.judged_ms),
        ended_ms=round(quiet_ms + delays.ended_ms, 1),
        understood_ms=at(delays.understood_ms),
        answered_ms=at(delays.answered_ms),
        first_audio_ms=first_ms,
    )


def _since(start_s: float, end_s: float | None) -> float | None:
    return None if end_s is None else round(1000 * (end_s - start_s), 1)


def _stop_ms(cut: Interruption | None, answer: Answer, *, of_onset: bool) -> float | None:
    """How long audio went on to arrive; 0 if the last of it was here already."""
    if cut is None or answer.last_audio_s is None:
        return None
    start_s = cut.onset_s if of_onset else cut.decision_s
    return max(0.0, round(1000 * (answer.last_audio_s - start_s), 1))


def find_failures(evidence: Evidence, turns: Sequence[TurnReport], plan: Plan) -> tuple[Failure, ...]:
    """Everything that makes the demo fail, in the order of the turns."""
    failures = [*_session_faults(evidence.ledger), *_missing_turns(evidence.ledger, plan)]
    for turn in turns:
        failures += _unanswered(turn)
    for answer in evidence.ledger.answers.values():
        failures += _broken_order(answer)
    if plan.interrupted is not None and plan.interrupted <= len(turns):
        failures += _interruption(evidence.ledger, turns[plan.interrupted - 1])
    if plan.follow_up is not None and plan.interrupted is not None and plan.follow_up <= len(turns):
        failures += _follow_up(evidence, turns[plan.interrupted - 1], turns[plan.follow_up - 1])
    return tuple(failures)


def _session_faults(ledger: Ledger) -> list[Failure]:
    found = [Failure(code="session_fault", message=f"the server reported an error: {text}") for text in ledger.errors]
    if ledger.ended is not None:
        found.append(Failure(code="session_fault", message=f"the session ended early: {ledger.ended}"))
    return found


def _missing_turns(ledger: Ledger, plan: Plan) -> list[Failure]:
    return [
        Failure(code="not_answered", turn=number, message=f"turn {number} was never reached")
        for number in range(len(ledger.turns) + 1, plan.turns + 1)
    ]


def _unanswered(turn: TurnReport) -> list[Failure]:
    found = []
    if turn.end_of_speech_to_first_audio_ms is None:
        found.append(Failure(code="not_answered", turn=turn.turn, message=f"turn {turn.turn} got no spoken answer"))
    if not turn.user_text_heard:
        found.append(
            Failure(code="not_understood", turn=turn.turn, message=f"no words were recognised in turn {turn.turn}")
        )
    return found


def _broken_order(answer: Answer) -> list[Failure]:
    found = []
    if answer.audio_after_done_ms > 0:
        found.append(
            Failure(
                code="audio_after_terminal",
                turn=answer.turn or None,
                message=f"{answer.audio_after_done_ms:.0f} ms of audio of {answer.response_id} "
                f"arrived after its response.done ({answer.status})",
            )
        )
    if answer.terminals != 1:
        found.append(
            Failure(
                code="terminal_missing",
                turn=answer.turn or None,
                message=f"{answer.response_id} got {answer.terminals} response.done events instead of one",
            )
        )
    return found


def _interruption(ledger: Ledger, turn: TurnReport) -> list[Failure]:
    answer = ledger.answers.get(turn.response_id or "")
    if answer is None:
        return []  # not answered at all, which is told already
    cut = ledger.interruption_of(answer.response_id)
    if cut is None:
        return [
            Failure(
                code="not_interrupted",
                turn=turn.turn,
                message=f"the user spoke during the answer to turn {turn.turn}, but it was not stopped "
                f"(it ended as {answer.status!r})",
            )
        ]
    found = []
    made_ms = max(answer.audio_ms, answer.generated_ms or 0.0)
    unplayed_ms = made_ms - cut.played_ms
    if unplayed_ms < LEAST_UNPLAYED_MS:
        found.append(
            Failure(
                code="too_little_unplayed",
                turn=turn.turn,
                message=f"only {unplayed_ms:.0f} ms of the answer to turn {turn.turn} were unplayed at the "
                f"interruption, at least {LEAST_UNPLAYED_MS:.0f} ms are needed to show that it was cut",
            )
        )
    return found + _went_on(answer, cut)


def _went_on(answer: Answer, cut: Interruption) -> list[Failure]:
    late_ms = _stop_ms(cut, answer, of_onset=False) or 0.0
    reason = None
    if late_ms > WENT_ON_MS:
        reason = f"its audio went on to arrive for {late_ms:.0f} ms after the decision"
    elif answer.status == "failed":
        reason = f"it failed ({answer.error or 'no reason given'}) instead of being cancelled"
    elif answer.status != "cancelled" and (answer.done_s is None or answer.done_s >= cut.decision_s):
        reason = f"it ended as {answer.status!r} after the interruption"
    if reason is None:
        return []
    return [
        Failure(
            code="answer_went_on",
            turn=answer.turn,
            message=f"the interrupted answer to turn {answer.turn} did not stop: {reason}",
        )
    ]


def _follow_up(evidence: Evidence, earlier: TurnReport, later: TurnReport) -> list[Failure]:
    fault = check_prompt(
        evidence.prompts,
        user_text=later.user_text_heard,
        earlier_user_text=earlier.user_text_heard,
        earlier_assistant_text=earlier.assistant_text_heard,
    )
    return [] if fault is None else [Failure(code="prompt_mismatch", turn=later.turn, message=fault)]


def measures_of(turns: Sequence[TurnReport], plan: Plan) -> tuple[Measure, ...]:
    """The figures that have an aim."""
    waits = sorted(
        turn.end_of_speech_to_first_audio_ms for turn in turns if turn.end_of_speech_to_first_audio_ms is not None
    )
    found = [
        Measure(name="end of speech to first audio, median", value=_median(waits), limit=700.0, unit="ms"),
    ]
    cut = [turn for turn in turns if turn.turn == plan.interrupted]
    if cut:
        found += [
            Measure(name="speech onset to last audio", value=cut[0].stop_latency_onset_ms, limit=600.0, unit="ms"),
            Measure(name="decision to last audio", value=cut[0].stop_latency_decision_ms, limit=20.0, unit="ms"),
        ]
    found += [
        Measure(name="word error rate, human recording", value=turn.wer, limit=0.10, unit="")
        for turn in turns
        if turn.turn == plan.human
    ]
    return tuple(found)


def _median(values: Sequence[float]) -> float | None:
    if not values:
        return None
    middle = len(values) // 2
    return values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2
