"""The report: its file, its terms, its look."""

from __future__ import annotations

import io
import json
from pathlib import Path

import msgspec
from rich.console import Console

from duologue.demo.ledger import Ledger
from duologue.demo.report import (
    Evidence,
    Failure,
    Measure,
    Plan,
    Report,
    Timeline,
    TurnReport,
    find_failures,
    measures_of,
    turn_reports,
)
from duologue.demo.run import write_report
from duologue.demo.summary import show_report
from duologue.wire.server_events import AnswerDelays

TURN = TurnReport(
    turn=3,
    user_text_expected="Tell me a story.",
    user_text_heard="Tell me a story.",
    wer=0.0,
    assistant_text="Once upon a time there was a man.",
    assistant_text_heard="Once upon a",
    end_of_speech_to_first_audio_ms=512.0,
    interrupted=True,
    stop_latency_onset_ms=310.0,
    stop_latency_decision_ms=0.0,
)
REPORT = Report(
    ok=False,
    failures=(Failure(code="answer_went_on", turn=3, message="it went on"),),
    turns=(TURN,),
    measures=(Measure(name="speech onset to last audio", value=310.0, limit=600.0, unit="ms"),),
    models={"served": "cascade"},
    cpu_seconds=1.5,
    rss_mb=640.0,
    conversation_s=40.0,
)


def test_the_file_holds_every_promised_field(tmp_path: Path) -> None:
    write_report(tmp_path / "report.json", report=REPORT)
    report = json.loads((tmp_path / "report.json").read_text())
    assert {"ok", "failures", "turns", "models", "cpu_seconds", "rss_mb"} <= set(report)
    assert {
        "user_text_expected",
        "user_text_heard",
        "wer",
        "assistant_text",
        "assistant_text_heard",
        "end_of_speech_to_first_audio_ms",
        "interrupted",
        "stop_latency_onset_ms",
        "stop_latency_decision_ms",
    } <= set(report["turns"][0])
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_the_summary_shows_what_was_said_what_was_cut_and_what_failed() -> None:
    shown = io.StringIO()
    show_report(REPORT, Path("out"), Console(file=shown, width=100))
    text = shown.getvalue()
    for part in ("Tell me a story.", "Once upon a | time there was a man.", "310 ms", "<= 600 ms", "ok", "it went on"):
        assert part in text
    assert "the demo failed" in text


def test_the_summary_of_a_good_run_says_so() -> None:
    shown = io.StringIO()
    show_report(msgspec.structs.replace(REPORT, ok=True, failures=()), Path("out"), Console(file=shown, width=100))
    assert "the demo passed" in shown.getvalue()


def evidence(ledger: Ledger) -> Evidence:
    return Evidence(ledger=ledger, played_ms={}, heard={}, prompts=None)


def test_a_turn_that_was_cut_in_pieces_is_one_turn() -> None:
    ledger = Ledger()
    ledger.begin_turn("one two three", 0.0, 1.0)
    ledger.committed("i1")
    ledger.response_created("r1", 1.1)
    ledger.response_done("r1", "cancelled", 1.2, kept_text=None, error="")
    ledger.committed("i2")
    ledger.transcribed("i2", "three")
    ledger.transcribed("i1", "one two ")
    ledger.response_created("r2", 1.5)
    ledger.audio("r2", "a2", 100.0, 1.6)
    ledger.response_done("r2", "completed", 2.0, kept_text="yes", error="")
    (turn,) = turn_reports(evidence(ledger))
    assert turn.user_text_heard == "one two three"
    assert (turn.response_id, turn.wer, turn.end_of_speech_to_first_audio_ms) == ("r2", 0.0, 600.0)
    assert find_failures(evidence(ledger), [turn], Plan(turns=1, interrupted=None, follow_up=None)) == ()


def test_the_time_before_an_answer_is_told_from_the_last_sample_on() -> None:
    ledger = Ledger()
    ledger.begin_turn("one", 0.0, 1.0)
    ledger.response_created("r1", 1.4)
    ledger.audio("r1", "a1", 100.0, 1.6)
    ledger.answers["r1"].delays = AnswerDelays(judged_ms=150, ended_ms=200, understood_ms=None, sent_ms=500)
    (turn,) = turn_reports(evidence(ledger))
    assert turn.timeline == Timeline(
        quiet_ms=100.0, judged_ms=250.0, ended_ms=300.0, understood_ms=None, answered_ms=None, first_audio_ms=600.0
    )
    ledger.answers["r1"].delays = None
    (turn,) = turn_reports(evidence(ledger))
    assert turn.timeline is None


def test_a_transcript_that_comes_late_belongs_to_its_own_turn() -> None:
    ledger = Ledger()
    ledger.begin_turn("one", 0.0, 1.0)
    ledger.committed("i1")
    ledger.begin_turn("two", 2.0, 3.0)
    ledger.transcribed("i1", "one")
    assert [turn.heard_text for turn in ledger.turns] == ["one", ""]


def test_two_terminals_of_one_response_are_one_too_many() -> None:
    ledger = Ledger()
    ledger.begin_turn("one", 0.0, 1.0)
    ledger.transcribed("i1", "one")
    ledger.audio("r1", "a1", 100.0, 1.5)
    for now_s in (2.0, 2.1):
        ledger.response_done("r1", "completed", now_s, kept_text="yes", error="")
    failures = find_failures(evidence(ledger), turn_reports(evidence(ledger)), Plan(turns=1, interrupted=None))
    assert [failure.code for failure in failures] == ["terminal_missing"]
    assert "2 response.done events" in failures[0].message


def test_an_answer_that_was_over_before_the_decision_may_end_as_completed() -> None:
    ledger = Ledger()
    ledger.begin_turn("one", 0.0, 1.0)
    ledger.transcribed("i1", "one")
    ledger.audio("r1", "a1", 8000.0, 1.5)
    ledger.response_done("r1", "completed", 1.6, kept_text="yes", error="")
    ledger.begin_turn("two", 3.0, 4.0)
    ledger.interrupted("r1", 3.3, played_ms=1800.0)
    turns = turn_reports(evidence(ledger))
    plan = Plan(turns=2, interrupted=1, follow_up=None)
    codes = [failure.code for failure in find_failures(evidence(ledger), turns[:1], plan)]
    assert codes == []
    assert turns[0].stop_latency_onset_ms == 0.0


def test_nothing_measured_is_not_an_aim_met() -> None:
    measures = measures_of((), Plan())
    assert [measure.met for measure in measures] == [False]
