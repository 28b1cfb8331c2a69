"""What set-up shows: lines in a log, a bar on a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from duologue.setup import choose_progress
from duologue.setup.progress import BarProgress, LineProgress, Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def fetch_one(progress: Progress, total_bytes: int) -> None:
    with progress:
        progress.note("before")
        progress.started("words==1.0", total_bytes)
        for received_bytes in range(0, 101, 5):
            progress.moved(received_bytes * 1_000_000)
        progress.finished()


def test_a_log_gets_a_line_per_quarter() -> None:
    stream = io.StringIO()
    fetch_one(LineProgress(stream), 100_000_000)
    assert stream.getvalue().splitlines() == [
        "before",
        "fetching words==1.0 (100 MB)",
        "  words==1.0: 25 %",
        "  words==1.0: 50 %",
        "  words==1.0: 75 %",
        "  words==1.0: done",
    ]


def test_a_log_without_a_known_size_shows_no_share() -> None:
    stream = io.StringIO()
    fetch_one(LineProgress(stream), 0)
    assert stream.getvalue().splitlines() == ["before", "fetching words==1.0", "  words==1.0: done"]


def test_a_terminal_gets_a_bar_that_ends_full() -> None:
    for total_bytes in (100_000_000, 0):
        stream = io.StringIO()
        fetch_one(BarProgress(Console(file=stream, force_terminal=True, width=100)), total_bytes)
        assert "words==1.0" in stream.getvalue()
        assert "100.0/100.0 MB" in stream.getvalue()


def test_a_bar_never_shows_more_than_all() -> None:
    stream = io.StringIO()
    with BarProgress(Console(file=stream, force_terminal=True, width=100)) as progress:
        progress.started("words==1.0", 100_000_000)
        progress.moved(180_000_000)
    assert "100.0/100.0 MB" in stream.getvalue()
    assert "180.0" not in stream.getvalue()


def test_the_stream_decides() -> None:
    assert isinstance(choose_progress(io.StringIO()), LineProgress)
    assert isinstance(choose_progress(Terminal()), BarProgress)
