"""What a person sees while the server loads: plain lines in a log, one line that goes away on a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from duologue.server.loading import Loading


def test_a_log_has_a_line_per_step() -> None:
    stream = io.StringIO()
    with Loading(Console(file=stream, force_terminal=False, soft_wrap=True, width=20)) as loading:
        loading("the model m")
        loading("the stages recognise, respond, speak")  # longer than the line: a log is not wrapped
        loading.done()
    assert (
        stream.getvalue() == "duologue: loading the model m\nduologue: loading the stages recognise, respond, speak\n"
    )


@pytest.mark.parametrize("listens", [True, False])
def test_a_terminal_has_one_line_that_goes_away(listens: bool) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=80, force_interactive=False)
    with Loading(console) as loading:
        loading("the model m")
        loading("the stages a, b")
        if listens:
            loading.done()
            assert console._live_stack == []
    assert console._live_stack == [], "nothing goes on drawing over what is printed next"
    assert "\n" not in stream.getvalue().strip()


def test_nothing_loaded_is_nothing_said(capsys: pytest.CaptureFixture[str]) -> None:
    with Loading():
        pass
    assert capsys.readouterr() == ("", "")
