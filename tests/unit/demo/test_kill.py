"""What is expected after a worker was killed."""

from __future__ import annotations

import msgspec
import pytest

from duologue.demo.kill import Victim, choose_victim, judge_kill, kill_report
from duologue.demo.ledger import Ledger
from duologue.demo.report import KillReport
from duologue.demo.usage import ProcessFigures


def process(pid: int, parent: int, rss_bytes: int, *, ended: bool = False) -> ProcessFigures:
    return ProcessFigures(pid=pid, parent=parent, cpu_s=0.0, rss_bytes=rss_bytes, ended=ended, command=f"p{pid}")


ENDED = KillReport(
    killed_pid=3,
    killed_process="p3",
    error_code="replica_unavailable",
    error_message="Worker 0 is gone.",
    terminal="closed by the server: fault",
    response_status="failed",
    same_session_answered=None,
    responses_without_terminal=(),
    worker_back_s=2.0,
    new_session_answered=True,
    processes_before=4,
    processes_after=4,
)
SURVIVED = msgspec.structs.replace(ENDED, terminal=None, same_session_answered=True)


def test_the_victim_is_the_child_with_the_most_memory() -> None:
    known = [process(1, 0, 99), process(2, 1, 5), process(3, 1, 9), process(4, 3, 50), process(5, 1, 99, ended=True)]
    victim = choose_victim(1, known)
    assert victim is not None
    assert victim.process.pid == 3
    assert sorted(victim.workers) == [2, 3, 4, 5]


def test_a_server_without_workers_has_no_victim() -> None:
    assert choose_victim(1, [process(1, 0, 99), process(2, 7, 9)]) is None


@pytest.mark.parametrize("kill", [ENDED, SURVIVED])
def test_an_orderly_end_and_an_orderly_survival_are_both_right(kill: KillReport) -> None:
    assert judge_kill(kill, left_behind=0) == ()
    assert judge_kill(kill, left_behind=None) == ()


@pytest.mark.parametrize(
    ("change", "left_behind", "message"),
    [
        ({"error_code": None}, 0, "no error code"),
        ({"terminal": None, "same_session_answered": False}, 0, "neither ended nor answered"),
        ({"response_status": "completed"}, 0, "ended as 'completed'"),
        ({"response_status": None}, 0, "ended as None"),
        ({"responses_without_terminal": ("r1",)}, 0, "without exactly one response.done: r1"),
        ({"worker_back_s": None}, 0, "did not come back"),
        ({"worker_back_s": 5.5}, 0, "back after 5.5 s"),
        ({"new_session_answered": False}, 0, "a new session was not answered"),
        ({"processes_after": 5}, 0, "4 processes before and 5 after"),
        ({}, 2, "still holds 2 sessions"),
    ],
)
def test_each_shortcoming_is_a_failure(change: dict[str, object], left_behind: int, message: str) -> None:
    failures = judge_kill(msgspec.structs.replace(ENDED, **change), left_behind=left_behind)
    assert [failure.code for failure in failures] == ["worker_kill"]
    assert message in failures[0].message


def test_the_report_is_made_from_what_the_client_saw() -> None:
    ledger = Ledger()
    for number in (1, 2):
        ledger.begin_turn(f"turn {number}", 0.0, 1.0)
        ledger.response_created(f"r{number}", 2.0)
    ledger.response_done("r1", "completed", 3.0, kept_text="", error="")
    ledger.errors.append("replica_unavailable: Worker 0 is gone.")
    victim = Victim(process=process(3, 1, 9), workers=(2, 3, 4))
    report = kill_report(victim, ledger, back_s=1.234, answered=True, processes_after=4)
    assert (report.error_code, report.terminal, report.response_status) == ("replica_unavailable", None, None)
    assert report.responses_without_terminal == ("r2",)
    assert (report.worker_back_s, report.processes_before) == (1.23, 4)
    assert report.same_session_answered is False
    ledger.response_done("r2", "failed", 3.0, kept_text=None, error="replica_unavailable")
    ledger.begin_turn("turn 3", 4.0, 5.0)
    ledger.audio("r3", "i3", 100.0, 6.0)
    assert kill_report(victim, ledger, back_s=1.0, answered=True, processes_after=4).same_session_answered is True
    ledger.end("closed", "replica_unavailable")
    ended = kill_report(victim, ledger, back_s=1.0, answered=True, processes_after=4)
    assert (ended.terminal, ended.same_session_answered) == ("closed", None)


def test_an_answer_that_is_made_again_does_not_hide_the_one_that_was_lost() -> None:
    ledger = Ledger()
    for number in (1, 2):
        ledger.begin_turn(f"turn {number}", 0.0, 1.0)
    ledger.response_created("lost", 2.0)
    ledger.response_done("lost", "failed", 3.0, kept_text=None, error="replica_unavailable: Worker 0 is gone.")
    ledger.response_created("again", 3.0)
    ledger.audio("again", "i", 100.0, 4.0)
    ledger.response_done("again", "completed", 5.0, kept_text="well", error="")
    report = kill_report(
        Victim(process=process(3, 1, 9), workers=(2, 3, 4)), ledger, back_s=1.0, answered=True, processes_after=4
    )
    assert (report.response_status, report.error_code) == ("failed", "replica_unavailable")
    assert report.error_message == "replica_unavailable: Worker 0 is gone."
